"""What a provider store on SQLite has on disk when a call returns, and what it need not have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.core.quota import QuotaWindow
from ergon_framework.ports.providerstore import RecordBatch
from ergon_framework.providers.store_urls import open_store
from ergon_framework.storage.sqlite.database import Database
from tests.providers.stores.store_factory import LANE, START, attempt, letter


def test_keys_and_letters_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So do attempts; units of a quota do not, and a power cut may give them back."""
    commits: list[bool] = []
    plain: Callable[..., Any] = Database.write

    def write(database: Database, *args: Any, is_synced: bool = True, **more: Any) -> Any:
        commits.append(is_synced)
        return plain(database, *args, is_synced=is_synced, **more)

    store = open_store(f"sqlite:///{tmp_path}/work.db", clock=lambda: START)
    store.health("t")  # the tables are there
    monkeypatch.setattr(Database, "write", write)
    store.claim("t", "k", "f", "me", 60.0, 3600.0)
    store.finish("t", "k", "me", {"paid": 1}, None)
    store.record(RecordBatch([attempt()], [letter(1)]))
    assert commits == [True, True, True]
    store.reserve(LANE, QuotaWindow(START, START + 60.0), 5, 1)
    assert commits[3:] == [False]
    store.close()
