"""A real worker on a real broker, for the tests of this folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server
from tests.providers.celery.programs.worker import make_app
from tests.servers.redis import RedisServer

PROGRAM = Path(__file__).parent / "programs" / "worker.py"
LIBRARIES = (
    *("celery.apps.worker", "celery.backends.redis", "celery.bin.worker", "celery.fixups.django"),
    *("celery.concurrency.prefork", "celery.events.state", "kombu.transport.redis"),
    "ergon_framework.providers.celery_task",
)
"""What every worker imports."""
WAIT_TIMEOUT = 50
"""Seconds for what takes a moment."""


@dataclass
class Stage:
    """A broker, a store, and the workers that a test starts on them."""

    server: RedisServer
    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = f"sqlite:///{self.folder / 'work.db'}"
        self.redis = self.server.connect()
        self.app = make_app(self.server.broker_url, self.store)
        self.task = self.app.tasks["puppet.act"]

    def start(self, concurrency: int = 2, **environment: str) -> subprocess.Popen[bytes]:
        """Start a worker with some children; what it says is in the folder."""
        words = [sys.executable, str(PROGRAM), self.server.broker_url, self.store]
        words += ["--pool=prefork", f"--concurrency={concurrency}", "--loglevel=info"]
        words += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        with (self.folder / "worker.log").open("ab") as log:
            process = fork_server.start(
                words,
                imports=LIBRARIES,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                start_new_session=True,  # so that a test can kill it with its children
            )
        self.processes.append(process)
        return process

    def wait_until_ready(self) -> None:
        """Wait until the worker that was started takes tasks."""
        deadline = time.monotonic() + WAIT_TIMEOUT
        while b" ready." not in (self.folder / "worker.log").read_bytes():
            assert time.monotonic() < deadline, "the worker did not start"
            time.sleep(0.05)

    def send(
        self,
        name: str,
        *script: str,
        tenant: str | None = None,
        task: str = "puppet.act",
        **options: Any,
    ) -> Any:
        """Send a call; its result."""
        payload = {"name": name, "script": list(script) or ["ok"]}
        return self.app.tasks[task].delay(
            tenant_id=tenant or name,
            campaign_id=None,
            operation="act",
            payload=payload,
            **options,
        )

    def event(self, name: str) -> dict[str, Any]:
        """The next thing the provider did for a call."""
        found = self.redis.blpop([f"events:{name}"], timeout=WAIT_TIMEOUT)
        assert found is not None, f"no event for {name}; {self.log()}"
        event: dict[str, Any] = json.loads(found[1])
        return event

    def calls(self, name: str) -> int:
        """How often the provider was called."""
        return int(self.redis.get(f"calls:{name}") or 0)

    def dead_letter(self) -> dict[str, Any]:
        """The next message of the dead-letter queue, as a consumer sees it."""
        with self.app.connection_for_read() as connection:
            queue = connection.SimpleQueue("queue.deadletter")
            message = queue.get(timeout=WAIT_TIMEOUT)
            message.ack()
            queue.close()
            body: dict[str, Any] = message.payload
            return body

    def is_due_again(self) -> bool:
        """Whether what was delivered a second ago or earlier is all that is not acknowledged."""
        delivered = self.redis.zrange("unacked_index", 0, -1, withscores=True)
        return all(at + 1 < time.time() for _, at in delivered)

    def log(self) -> str:
        """What the workers said."""
        return (self.folder / "worker.log").read_text(errors="replace")

    def stop(self) -> None:
        """End the workers, gently and then not; they write what is on its way."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(WAIT_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()

    def close(self) -> None:
        """End everything, and empty the broker."""
        self.stop()
        self.app.close()
        self.redis.flushall()
        self.redis.close()


@pytest.fixture
def stage(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stage]:
    """A stage of the test's own; no worker is started yet."""
    stage = Stage(redis_server, tmp_path)
    try:
        yield stage
    finally:
        stage.close()


@pytest.fixture
def worker(stage: Stage) -> Stage:
    """The same with a worker that has begun."""
    stage.start()
    return stage
