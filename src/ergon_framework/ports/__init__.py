"""What the packages promise each other: transactions, connectors, stores, the clock, notices.

A port is a Protocol, or a plain class that every side must share. It holds no behaviour that could
differ between two adapters.

Where to look first: ``transaction`` is the envelope of a task's work and ``connector`` where it
comes from and goes to; ``context`` is what user code may ask while it runs. ``jobstore``,
``factstore``, ``objectstore`` and ``providerstore`` are the stores. ``notice`` is the catalogue of
everything that is reported about a run, and ``journal`` where notices are kept. ``settings_model``
is the base of every section of a settings file. ``usage`` reports wrong calls of public methods.
``clock`` and ``dice`` are time and chance. ``job_options`` and ``job_fields`` say what may be given
to a job, ``unique`` which jobs are duplicates, ``flow`` how jobs wait for others. ``transfer`` has
the records that any store gives out and takes in, and ``record_codec`` writes them as JSON.
``unit_of_work``, ``middleware`` and ``lifespan`` are what user code may put around its work.
"""
