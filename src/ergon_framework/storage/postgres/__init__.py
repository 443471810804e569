"""PostgreSQL under the stores of jobs and facts: pool, pipeline, migrations, notifier, errors.

A store holds one ``PostgresDatabase`` (in ``database.py``). ``run`` gives work a connection of the
pool that has ``autocommit`` on, so that BEGIN and COMMIT can stand in one ``Pipeline`` with what is
between them, and results are read only after COMMIT was sent. It translates errors, closes
connections in an unknown state, and repeats what the server undid because of a conflict with
others. This package needs the extra ``postgres``; only ``address.py`` can be imported without it.
"""
