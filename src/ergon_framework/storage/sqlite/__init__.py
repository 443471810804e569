"""SQLite under the stores: one file, written by many threads and processes with group commit.

Where to look first:

- ``database``: what a part opens; ``migrations``: the versions of its tables
- ``group_commit``: one caller commits for all that wait
- ``connections``: the writing one and the reading ones; ``checkpoints``: the write-ahead log
- ``errors``: what went wrong; ``notifier``: waking other processes
- ``external_transaction``: the caller's own transaction
"""
