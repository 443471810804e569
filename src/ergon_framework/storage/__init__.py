"""What every durable part stands on: SQLite, PostgreSQL, Redis and NATS, and files that are safe.

Promises of SQLite: when ``Database.write`` returns, what it wrote is on disk and survives a power
cut; when it raises, nothing of it is there; when the machine dies meanwhile, all of it or nothing.
Callers that arrive together share one commit. After a failed fsync this process writes nothing more
to the file. A store that goes away and comes back works again. The other engines promise what
their servers do; their ``diagnostics`` say what that is.

Not promised: anything about a file on a network file system; a table whose name does not begin
with ``ergon_`` (a user's own tables may live in the same file); that a notification arrives, so
subscribers poll now and then.

Where to look first:

- ``sqlite``: ``database``, ``group_commit``, ``connections``, ``checkpoints``, ``notifier``
- ``postgres``: ``database``, ``pool``, ``pipeline``, ``migrations``, ``notifier``
- ``redis``, ``nats``: ``client``, ``notifier``, ``stream``; in each engine ``address``, ``errors``
  and ``diagnostics``
- ``objectstore``: blobs in a folder or a bucket, for artifacts
- ``external_transactions``: work inside a transaction of SQLAlchemy or Django
- ``deadlines``: how long a caller may wait; ``failpoints``: where tests kill a process
- ``incoming``: what a move leaves beside files that it is about to fill
- ``conflicts``: bounded retries of optimistic writes; ``write_guard``: a check before each write
- ``secure_files``, ``fsync``, ``freeze``, ``sql_files``, ``urls``: what the engines share
- ``server``, ``connection_errors``: what is measured on a server, and why none answers
- ``journal``: where notices are kept; ``substitutes``: test doubles of stores
"""
