"""The pure core: events in, actions out. No clock, no randomness, no I/O, no logging.

Promises: the same events give the same actions, whichever driver asks; each machine is total, so no
event can arrive for which nothing is decided. It does not promise to be called from one thread: a
cursor belongs to one driver at a time, and the drivers see to that.
"""
