"""``ergon move``: copying everything that one store has into another, and freezing the first.

Where to look first: ``run`` has the order of a move and of its way back. ``app/store_location``
says what FROM and TO mean, ``endpoints`` which stores are opened and how, ``preflight`` whether a
target may be written. ``lock`` and ``fencing`` keep other moves away, and ``lock`` keeps everybody
away from files that a move is going to make. ``transfer`` compares, copies and verifies records;
``object_copy`` copies the bytes of objects, and ``payloads`` brings those of jobs back into rows.

``ergon export`` and ``ergon import`` are the same with a file on one side: ``record_file`` is the
format, ``export_file`` writes one, and ``import_file`` moves what is in one into a store.
"""
