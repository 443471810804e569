"""What a queue's task needs around a provider call; ``providers/runner.py`` uses it.

Where to look first: ``idempotency`` makes keys of requests, claims them and keeps results under
them, ``owner_locks`` finds out whether the process that holds a key is alive on this
machine, ``dead_letters`` writes dead letters and relays them to a queue.
"""
