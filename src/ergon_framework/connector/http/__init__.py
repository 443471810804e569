"""HTTP APIs of others as a source: pages are read one after another, and each item is work.

Where to look first: ``poll`` is the class. ``paging`` knows which request comes after which, and
``page`` what an answer holds; both only decide. ``client`` makes the requests, within their bounds.
``progress`` keeps what is done on disk, so that a crash repeats and never loses.
"""

from __future__ import annotations

from ergon_framework.connector.http.poll import HttpPollConnector
from ergon_framework.connector.http.progress import CursorTakenError, PollerLockedError

__all__ = ["CursorTakenError", "HttpPollConnector", "PollerLockedError"]
