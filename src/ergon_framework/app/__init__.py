"""The application around the parts: settings, wiring, running, supervision, diagnostics.

Where to look first: ``settings`` reads ``ergon.toml``; ``wiring`` finds out what a task needs and
``factories`` and ``lifespan`` build, open and close it. ``run`` is ``ergon run``: in this process,
or under a ``supervisor`` that starts ``processes``; ``signals`` stops them and ``liveness`` tells
how they are. ``parts`` lists what a settings file describes; ``jobs``, ``zones`` and ``providers``
are the set-up of each part, ``worker`` and ``node`` run them. ``diagnostics`` is ``check`` and
``doctor``, ``explain`` is ``why``, ``move`` copies stores, ``schema`` is ``db``. ``script`` has
``App``, for programs of one file.
"""
