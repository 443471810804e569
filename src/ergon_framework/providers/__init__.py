"""Guarded calls of providers: retries within a deadline, circuit breakers, quotas.

Promises: a call ends in one result with one canonical error at most; circuits and quotas hold
across processes that share a store; a store that is down delays no call. Not promised: exactly one
call per key.

Start with ``base`` (the class to subclass) and ``pipeline`` (one call, step by step). ``errors``
and ``decisions`` say what can go wrong and what follows, ``mapping`` turns exceptions into those
errors. ``retry``, ``circuit_breaker`` and ``quota`` are the gates, and ``circuit`` is what the
processes of a store share of a circuit. ``recorder``, ``write_behind`` and ``spill`` bring attempts
to a store; ``stores`` has the stores, ``migrations`` and ``models`` their tables. ``tasks``,
``runner``, ``delivery`` and ``celery_task`` run calls as tasks of a queue. ``service``, ``api`` and
``health_routes`` serve the health of providers.
"""
