"""The same tasks on a real Celery worker and on Ergon's executors, those of a package included."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server
from tests.servers.redis import RedisServer

PROGRAM = Path(__file__).parent / "programs" / "celery_shop.py"
WORKER = ["-m", "celery", "-A", "celery_shop", "worker", "--pool=prefork", "--concurrency=1"]
QUIET = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=warning"]
LIBRARIES = ("celery.apps.worker", "celery.backends.redis", "celery.bin.worker")
HEARD = ("watched", "before_start", "on_", "after_return", "task_")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def shop(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a shop whose calls were made on both sides; what was told is in ``told``."""
    folder = tmp_path_factory.mktemp("shop")
    shutil.copy(PROGRAM, folder)
    url = redis_server.broker_url
    environment = {**os.environ, "SHOP_BROKER": url, "SHOP_BACKEND": url, "SHOP_SIDE": "celery"}
    with (folder / "worker.log").open("wb") as log:
        worker = fork_server.start(
            [sys.executable, *WORKER, "-Q", "celery,pictures,chosen", *QUIET],
            imports=LIBRARIES,
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        done = fork_server.run(
            [sys.executable, "-c", "import celery_shop; celery_shop.main()"],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr + (folder / "worker.log").read_text()
        (folder / "told").write_text(done.stdout.splitlines()[-1])
        yield folder
    finally:
        worker.terminate()
        worker.wait(60)
        with redis_server.connect() as client:
            client.flushall()


def told(shop: Path) -> dict[str, Any]:
    """How each call ended on each side."""
    found: dict[str, Any] = json.loads((shop / "told").read_text())
    return found


def journal(shop: Path, side: str) -> list[list[Any]]:
    """What tasks, hooks and signals wrote."""
    return [json.loads(line) for line in (shop / f"journal-{side}").read_text().splitlines()]


def test_every_call_ends_as_with_celery(shop: Path) -> None:
    """States, values, errors, retries and what the request says are the same on both sides."""
    ended = told(shop)
    assert ended["ergon"] == ended["celery"]
    assert ended["ergon"]["persistent"] == ["SUCCESS", 4]
    assert ended["ergon"]["exhausted"] == ["FAILURE", "MaxRetriesExceededError"]
    assert ended["ergon"]["slow"] == ["SUCCESS", "SoftTimeLimitExceeded"]


def test_tasks_run_as_often_as_with_celery(shop: Path) -> None:
    """Each retry that Celery makes is made, and no other."""

    def runs(side: str) -> list[str]:
        lines = journal(shop, side)
        return sorted(json.dumps(each) for each in lines if not each[0].startswith(HEARD))

    assert runs("ergon") == runs("celery")
    assert runs("ergon").count('["automatic", "key"]') == 3


def test_hooks_and_signals_come_in_the_order_of_celery(shop: Path) -> None:
    """A base class with hooks, and receivers of signals, hear what they heard before."""

    def heard(side: str, is_well: bool) -> list[list[Any]]:
        lines = [each for each in journal(shop, side) if each[0].startswith(HEARD)]
        first_end = next(n for n, each in enumerate(lines) if each[0] == "task_postrun") + 1
        return lines[:first_end] if is_well else lines[first_end:]

    assert heard("ergon", is_well=True) == heard("celery", is_well=True)
    assert heard("ergon", is_well=False) == heard("celery", is_well=False)


def test_a_task_of_a_package_sends_its_mail(shop: Path) -> None:
    """post_office calls its shared task on commit, and knows of neither side."""
    if find_spec("post_office") is None:
        pytest.skip("django-post-office is not installed; make test installs it")
    for side in ("celery", "ergon"):
        (mail,) = (shop / f"mails-{side}").iterdir()
        assert f"Subject: by {side}" in mail.read_text()


def test_results_stay_where_clients_of_celery_look(shop: Path) -> None:
    """With ``store_results``, Celery's own AsyncResult has the value of a job."""
    assert told(shop)["kept"] == "well"


def test_a_result_of_the_application_finds_jobs(shop: Path) -> None:
    """Code that keeps the id of a call asks ``app.AsyncResult`` as before."""
    state, value = told(shop)["found"]
    assert (state, value) == tuple(told(shop)["ergon"]["later"])


def test_what_a_running_job_may_not_ask_for(shop: Path) -> None:
    """A retry elsewhere, and being replaced by a canvas; nothing goes to Celery for it."""
    refused = told(shop)["refused"]
    assert "asks for a retry with queue" in refused["celery_shop.moving"]
    assert "is replaced by a chain, group or chord" in refused["celery_shop.replaced"]
    assert "unrouted" not in {each[0] for each in journal(shop, "celery")}
