"""A folder that somebody fills, and connectors that read it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ergon_framework.connector.files import FilesConnector
from ergon_framework.ports.transaction import Transaction

NUMBERS = itertools.count()


def reading(folder: Path, **options: Any) -> FilesConnector:
    """A connector that does not wait for files to be left alone."""
    return FilesConnector(str(folder), **{"settle": 0.0, **options})


def payloads(connector: FilesConnector, count: int = 1000) -> list[Any]:
    """What is delivered, acknowledged."""
    found = connector.fetch_transactions(count)
    for each in found:
        connector.ack(each)
    return [each.payload for each in found]


def put_rows(folder: Path, form: str, transactions: Iterable[Transaction]) -> None:
    """Transactions as rows of a new file: the columns tid and data."""
    rows = [(each.transaction_id, each.payload) for each in transactions]
    path = folder / f"{next(NUMBERS):06}.{form}"
    if form.startswith("csv"):
        text = "tid,data\n" + "".join(f"{_quoted(tid)},{_quoted(data)}\n" for tid, data in rows)
    else:
        lines = [json.dumps({"tid": tid, "data": data}) for tid, data in rows]
        text = "".join(f"{line}\n" for line in lines)
    path.with_suffix(".tmp").write_text(text)
    path.with_suffix(".tmp").rename(path)


def _quoted(text: str) -> str:
    doubled = text.replace('"', '""')
    return f'"{doubled}"'
