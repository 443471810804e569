"""A zone as a running process: it serves HTTP, pulls from its peers, and maintains its stores.

Start with ``node`` (``Node``, ``run_node``), then ``app``, which turns a request into an operation.

- ``app``: routing, appends, fetches that wait, health. ``operations``: every other operation.
  ``objects_api``: artifacts over HTTP.
- ``policy``: who may do what, and the policy file. ``wire``: how stored things look in JSON.
- ``status``: figures, alerts and Prometheus text. ``contract``: OpenAPI and ``.proto``.
- ``replication``: pulling a peer's facts and artifacts; ``replication_plan`` decides what a zone
  makes of a peer's page, without I/O.
- ``inprocess``: a transport without a socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ergon_framework.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ergon_framework.boundary.node.node import Node, certificates_of, run_node

__all__ = ["Node", "certificates_of", "run_node"]

if not TYPE_CHECKING:  # late: a policy file or a status is read without a server
    __getattr__, __dir__ = lazy_exports(__name__, dict.fromkeys(__all__, "boundary.node.node"))
