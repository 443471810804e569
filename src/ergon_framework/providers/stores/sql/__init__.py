"""The store in a database, with its statements in the SQL that SQLite and PostgreSQL share.

``store`` passes the calls of the port on to the parts: ``gates``, ``attempts`` and
``keys_and_dead_letters``, each with its tables and the ``.sql`` files beside it.
"""
