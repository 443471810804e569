"""The pure core: events in, actions out. No clock, no randomness, no I/O, no logging.

Promises: the same events give the same actions, whichever driver asks; each machine is total, so no
event can arrive for which nothing is decided. It does not promise to be called from one thread: a
cursor belongs to one driver at a time, and the drivers see to that.

Where to look first:

- ``retry``: whether anything is tried again (``judge``), and the one formula of delays;
  ``failure``: what all machines branch on
- ``transaction_lifecycle``: one transaction, up to its settlement with the source
- ``loop``: when to fetch
- ``job``: one job; ``flow``: jobs that wait for one another; ``claim``: which jobs a claim takes
- ``unique``, ``schedule``: who holds a unique key; which fires of a cron schedule are due
- ``provider_call``: one provider call; ``circuit_breaker``, ``quota``: its gates; ``rollup``: its
  figures
- ``call_redelivery``: when a queue delivers a failed provider call again
- ``process_restart``: when a process that died is started again
- ``broker_reconnect``: when a lost connection to a broker is made again
- ``zone_link``: the mode of a link between two zones; ``drain``: how an outbox is sent
- ``executor_protocol``: the lines between workers and executors
- ``text``, ``rfc3339``, ``json_names``, ``option_values``: spelling and checking of values
"""
