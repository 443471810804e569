"""Jobs in Redis, for workers on any number of machines.

Theory of operation. Every call that changes something is one Lua script, and so is every look at
more than one key: a script is atomic, reads the server's clock, and reaches the server's log as a
whole or not at all. A job is a field of three hashes under its id: its **row** (what the machinery
looks at), its **body** (what running it needs) and its **tale** (history, last failure, result).
Sorted sets say where it stands: due lanes by executor and queue, those that wait for their time or
for a limit key, leases, expiries, and when ended jobs are purged. A script reads first and writes
last, in few commands for many jobs. Whatever belongs to a job leaves with it.

No decision about a job's state is made here: transitions come from the core, fenced. Where the
store itself has to end a job (expired, replaced), the script sets it aside or gives its row back,
and the transition comes with a second script; should that never be sent, the job is where a prune
or the next call finds it. Which jobs a claim takes is decided in ``claim.lua``, by the rules of
``core/claim.py``: a differential test holds the two together. All keys of a store carry one hash
tag: on a Redis Cluster it lives in one slot.

A step of a flow has a **place** beside its row. ``steps.lua`` does what its end brings about, in
the script that settles it; ``flow.lua`` decides what becomes of the flow, by the rules of
``core/flow.py``. There the store moves steps by itself, too: to cancelled, back to pending, to
completed by a signal. Tests compare both with the core.

- ``store``: the calls of the ports; ``transactions``: how scripts run, and on which server
- ``transitions``: jobs added, settled and read; ``rows``: how they are packed
- ``flows``: the calls of their port
- ``admin``, ``records``: searches and counts; copies for moves between stores
- ``scripts``, ``lua``: the names of keys, and the scripts themselves
"""

from ergon_framework.jobs.stores.redis.store import RedisJobStore

__all__ = ["RedisJobStore"]
