"""PostgreSQL under the stores of jobs and facts: connections, schemas, bells, and what goes wrong.

A store holds one ``PostgresDatabase`` (in ``database.py``). It runs work on a connection that has
``autocommit`` on, so that BEGIN and COMMIT can stand in one pipeline with what is between them:

* ``transact`` does that: whatever ``work`` executes is one transaction;
* ``run`` hands out the bare connection, for work that arranges its own pipeline, say to read its
  answers only after COMMIT was sent.

Both translate errors, throw away connections of which nobody knows how they stand, and begin again
what the server undid because of a conflict with others. This package needs the extra ``postgres``;
only ``address.py`` can be imported without it.
"""
