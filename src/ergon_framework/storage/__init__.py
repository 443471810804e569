"""The durable ground: one SQLite file, written by many threads and processes at once.

Promises: when ``Database.write`` returns, what it wrote is on disk and survives a power cut; when
it
raises, nothing of it is there; when the machine dies meanwhile, all of it or nothing. Callers that
arrive together share one commit. After a failed fsync this process writes nothing more to the
file. A store that goes away and comes back works again.

Not promised: anything about a file on a network file system; a table whose name does not begin
with ``ergon_`` (a user's own tables may live in the same file); that a bell is heard, so waiters
look for themselves now and then.
"""
