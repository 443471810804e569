"""PostgreSQL under the stores of jobs and facts: pool, pipeline, migrations, notifier, errors.

A store holds one ``PostgresDatabase`` (in ``database.py``). ``run`` gives work a connection of the
pool that has ``autocommit`` on, so that BEGIN and COMMIT can stand in one ``Pipeline`` with what is
between them, and results are read only after COMMIT was sent. It translates errors, closes
connections in an unknown state, and repeats what the server undid because of a conflict with
others. This package needs the extra ``postgres``; only ``address.py`` can be imported without it.

- ``database``: transactions, the clock, a lock; ``pool``, ``pipeline``: what they run on
- ``migrations``: numbered schema files; ``notifier``: LISTEN and NOTIFY
- ``external_transaction``: work in a transaction of the caller
- ``address``, ``errors``, ``diagnostics``: where it is, what goes wrong, what ``doctor`` asks
"""
