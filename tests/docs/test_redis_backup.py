"""What the page about backups says of Redis, on real servers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ergon_framework.jobs import JobClient
from tests.servers.redis import DURABLE, RedisServer
from tests.servers.server import made, started
from tests.waiting import until

pytestmark = [pytest.mark.req("SCALE:docs"), pytest.mark.slow]

PATIENCE = 30.0
IDS = ["one", "two", "three"]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An RDB file of a server that has some jobs."""
    file = tmp_path_factory.mktemp("backup") / "copy.rdb"
    with started(lambda: RedisServer(DURABLE)) as server, server.connect() as client:
        with JobClient(server.url) as jobs:
            jobs.enqueue_many([{"handler": "mail", "id": each} for each in IDS])
        client.save()
        shutil.copy(server.folder / "dump.rdb", file)
    return file


def test_a_server_with_append_only_files_does_not_read_the_copy(copy: Path) -> None:
    """That is why the page warns of it; should a Redis do better one day, this will tell."""
    with made(lambda: RedisServer(DURABLE)) as server:
        shutil.copy(copy, server.folder / "dump.rdb")
        server.start()
        with server.connect() as client:
            assert client.dbsize() == 0


def test_the_copy_is_restored_as_the_page_says(copy: Path) -> None:
    """Loaded without append-only files, which are then written; the rest is the usual start."""
    with (
        made(lambda: RedisServer(("--appendonly", "no"))) as loading,
        made(lambda: RedisServer(DURABLE)) as serving,
    ):
        shutil.copy(copy, loading.folder / "dump.rdb")
        loading.start()
        with loading.connect() as client:
            client.config_set("appendonly", "yes")
            until(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
        loading.stop()
        for each in loading.folder.glob("appendonly*"):
            shutil.move(each, serving.folder)
        serving.start()
        with JobClient(serving.url) as jobs:
            assert [jobs.status(each) for each in IDS] == ["pending"] * len(IDS)
