"""Opening a store says nothing about how its tables were made."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ergon_framework.providers.store_urls import open_store


@pytest.mark.req("PROVIDERS:storage")
def test_alembic_does_not_talk_into_the_hosts_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every worker process opens its store, and a host logs at INFO."""
    with caplog.at_level(logging.INFO):
        open_store(f"sqlite:///{tmp_path / 'work.db'}").close()
    assert [record.name for record in caplog.records if "alembic" in record.name] == []
