"""The pure core: events in, actions out. No clock, no randomness, no I/O, no logging.

Promises: the same events give the same actions, whichever driver asks; each machine is total, so no
event can arrive for which nothing is decided. It does not promise to be called from one thread: a
cursor belongs to one driver at a time, and the drivers see to that.

Where to look first: ``retry`` decides about every further attempt (``judge``) and has the one delay
formula. ``lifecycle`` is the machine of one transaction, and which verb settles it with its source;
``loop`` says when to fetch. ``job`` is the machine of one job, ``flow`` that of jobs that wait for
one another, ``claim`` plans which jobs a claim takes, ``unique`` says who holds a unique key,
``schedule`` which fires of a cron schedule are due. ``circuit_breaker`` and ``limits`` are the
gates of provider calls, ``guard`` one guarded call. ``restart`` says when a process that died is
started again, ``redelivery`` when a queue delivers a failed provider call again, ``reconnect`` when
a lost connection to a broker is made again, ``drain`` how an outbox is sent, and ``link`` is the
mode of a link to a peer. ``failure`` is what all of them branch on. ``executor_protocol`` reads and
writes the lines between workers and executors. ``text`` and ``rfc3339`` format numbers and
instants, and ``option_values`` validates options.
"""
