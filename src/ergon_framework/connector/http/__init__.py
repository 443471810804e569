"""HTTP APIs of others: pages of items as a source, and posting as a target.

Where to look first: ``poll`` reads pages and ``post`` sends; each is a class. ``paging`` knows
which request comes after which, and ``page`` what an answer holds; both only decide. ``client``
makes the requests for pages, within their bounds. ``progress`` keeps what is done on disk, so that
a crash repeats and never loses. ``request_loop`` runs the requests that post.
"""

from __future__ import annotations

from ergon_framework.connector.http.poll import HttpPollConnector
from ergon_framework.connector.http.post import (
    HttpPostConnector,
    PostFailedError,
    PostRefusedError,
)
from ergon_framework.connector.http.progress import CursorTakenError, PollerLockedError

__all__ = [
    "CursorTakenError",
    "HttpPollConnector",
    "HttpPostConnector",
    "PollerLockedError",
    "PostFailedError",
    "PostRefusedError",
]
