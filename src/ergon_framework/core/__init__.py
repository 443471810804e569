"""The pure core: events in, actions out. No clock, no randomness, no I/O, no logging.

Promises: the same events give the same actions, whichever driver asks; each machine is total, so no
event can arrive for which nothing is decided. It does not promise to be called from one thread: a
cursor belongs to one driver at a time, and the drivers see to that.

Where to look first: ``retry`` decides about every further attempt (``judge``) and has the one delay
formula. ``lifecycle`` is the machine of one transaction, and which verb its source is told at the
end; ``loop`` says when to fetch. ``job`` is the machine of one job, ``schedule`` which fires of a
cron schedule are due, ``restart`` when a process that died is started again, ``redelivery`` when a
queue delivers a failed provider call again. ``failure`` is what
all of them branch on. ``wire`` frames what executors and nodes say. ``text`` and ``rfc3339`` put
numbers and instants into words.
"""
