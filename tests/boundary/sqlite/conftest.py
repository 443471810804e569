"""Stores that are closed after the test, and facts to put into them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.factstore.sqlite import SqliteFactStore

ZONE = "plant-a"
Open = Callable[..., SqliteFactStore]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the store is."""
    return tmp_path / "facts.db"


@pytest.fixture
def open_store(path: Path) -> Iterator[Open]:
    """Opens stores, and closes them after the test."""
    with contextlib.ExitStack() as opened:

        def open_one(zone: str = ZONE, **settings: Any) -> SqliteFactStore:
            store = SqliteFactStore(path, zone=zone, **settings)
            opened.callback(store.close)
            return store

        yield open_one


@pytest.fixture
def store(open_store: Open) -> SqliteFactStore:
    """A fresh store."""
    return open_store()
