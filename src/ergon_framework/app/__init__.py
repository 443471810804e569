"""The application around the parts: settings, wiring, running, supervision, diagnostics.

Where to look first:

- ``application`` has ``App``, the program of one file; ``run_app`` runs its parts, ``job_handlers``
  and ``inline_worker`` its jobs (``inline_progress`` tells how far those are), ``app_arguments``
  checks what it is given
- ``settings`` reads ``ergon.toml``, ``discovery`` finds it; ``parts`` lists what it describes, and
  ``jobs``, ``zones`` and ``providers`` are the set-up of each part; ``earlier_store`` tells of jobs
  that a script stored before its settings named another store
- ``wiring`` finds out what a task needs, ``factories`` and ``lifespan`` build, open and close it
- ``run_parts`` is ``ergon run``: in this process, or under a ``supervisor`` that starts
  ``processes``; ``signals`` stops them, ``liveness`` and ``probe`` tell how they are,
  ``liveness_outputs`` where; ``app_reference`` finds the App that is meant (``script_source`` reads
  its script), ``reload`` starts it again, ``run_once`` runs one transaction, and ``outcome`` is how
  a run ended
- ``worker`` and ``node`` are the job worker and the node of a zone
- ``observability`` sets logs and telemetry up; ``journal`` is ``tail`` and ``trace``
- ``diagnostics`` is ``check`` and ``doctor``, ``explain`` is ``why``, ``dead_letters`` is ``dlq``
  for provider calls, ``move`` copies stores (``store_location`` says what its FROM and TO mean),
  ``schema`` is ``db``, ``forget`` is ``forget``, ``new_project`` is ``new``
- ``imports`` finds what ``module:name`` stands for; ``console`` has exit codes and lines for people
"""
