"""The drivers: they do what ``core`` decides, with threads or with asyncio.

Promises: each transaction ends in one recorded outcome; never more than ``concurrency`` lifecycles
run at once; no two with the same id; no two fetches overlap; every bound is kept even when user
code hangs. Not promised: that a hung thread stops. It is abandoned, counted, its result dropped.
"""
