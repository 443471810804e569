"""What the packages promise each other: transactions, connectors, stores, the clock, notices.

A port is a Protocol, or a plain class that every side must share. It holds no behaviour that could
differ between two adapters.

Where to look first: ``transaction`` is the envelope of a task's work and ``connector`` where it
comes from and goes to; ``context`` is what user code may ask while it runs. ``jobstore``,
``factstore``, ``objectstore`` and ``providerstore`` are the stores. ``notice`` is the catalogue of
everything that is reported about a run, and ``journal`` where notices are kept. ``settings_model``
is the base of every section of a settings file. ``usage`` reports wrong calls of public methods.
"""
