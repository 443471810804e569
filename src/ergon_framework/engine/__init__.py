"""The drivers: they do what ``core`` decides, with threads or with asyncio.

Promises: each transaction ends in one recorded outcome; never more than ``concurrency`` lifecycles
run at once; no two with the same id; no two fetches overlap; every bound is kept even when user
code hangs. Not promised: that a hung thread stops. The engine abandons and counts it, and drops its
result.

Where to look first: ``thread_engine`` and ``asyncio_engine`` are the two drivers, method by method
in the same order. ``call`` is what they share: the state of one consume or produce call, from its
first worker to the account at its end. Its parts are ``intake`` (what was fetched, and where it
is), ``decider`` (what follows an event), ``settlement_retry`` (what becomes of an ack that fails),
``deadlines`` (of attempts, and of user code that never returned) and ``instrumentation`` (notices
and log lines). ``plan`` is what a call is given, ``run`` one lifecycle in progress, ``report`` what
the call answers, and ``classify`` turns exceptions into failures. ``clocks`` is the only file that
sleeps. ``time_limit`` and ``trampoline`` call user code, within a limit and in a context of its
own; ``atfork`` gives a child locks of its own.
"""
