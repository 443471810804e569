"""A directory of JSON Lines files in, files out, resumable after a crash at any point.

In: ``*.jsonl`` files of ``inbox``, in name order, line by line. Each line is a transaction as
``Transaction.to_dict`` gives it or, with ``raw=True``, any JSON value, which becomes the payload. A
file may grow while it is read. A last line without a newline is delivered once it is whole JSON; a
number waits for its newline. What is settled is written to a journal in ``inbox/.ergon`` and is on
disk when ``ack`` or ``nack`` returns; whatever else happens, a line is delivered again.

Out: one line per transaction, appended to ``part-*.jsonl`` files of ``outbox``; on disk when
``dispatch_transactions`` returns.

What cannot be parsed, and what was nacked, goes to the dead-letter file with its reason.

Where to look first: ``connector`` is what tasks see. ``reader`` reads the inbox, and ``offsets`` is
the journal of what was settled. ``append_file`` writes files that survive a crash, ``codec`` has
lines and dead letters, ``drop_folder`` takes files that other programs put there.
"""

from __future__ import annotations

from ergon_framework.connector.jsonl.append_file import LockedError
from ergon_framework.connector.jsonl.codec import (
    JsonlConnectorError,
    LineTooLongError,
    MalformedLineError,
)
from ergon_framework.connector.jsonl.connector import JsonlConnector

__all__ = [
    "JsonlConnector",
    "JsonlConnectorError",
    "LineTooLongError",
    "LockedError",
    "MalformedLineError",
]
