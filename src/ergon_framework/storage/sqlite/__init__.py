"""SQLite under the stores: one file, written by many threads and processes with group commit.

``database``: what a part opens; ``group_commit``: one caller commits for all that wait;
``connections``: the writing one and the reading ones; ``checkpoints``, ``errors``, ``notifier``:
the write-ahead log, what went wrong, and waking other processes; ``external_transaction``: the
caller's own transaction.
"""
