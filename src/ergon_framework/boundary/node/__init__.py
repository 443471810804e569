"""A zone as a running process: it serves HTTP, pulls from its peers, and maintains its stores.

Start with ``node`` (``Node``, ``run_node``), then ``app``, which turns a request into an operation.

- ``app``: routing, appends, fetches that wait, health. ``operations``: every other operation.
  ``objects_api``: artifacts over HTTP.
- ``policy``: who may do what, and the policy file. ``wire``: how stored things look in JSON.
- ``status``: figures and alerts; ``metrics``: those for Prometheus. ``quarantine``: what operators
  are shown of quarantined facts. ``contract``: OpenAPI and ``.proto``.
- ``replication``: pulling a peer's facts and artifacts; ``replication_plan`` decides what a zone
  makes of a peer's page, without I/O.
- ``inprocess``: a transport without a socket. ``local_node``: a zone that the processes of one
  machine share, because one of them serves it.
"""
