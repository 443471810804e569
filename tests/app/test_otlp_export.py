"""Spans and metrics go where the settings say, from a real process to a real collector."""

from __future__ import annotations

import gzip
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.app.diagnostics.check import check
from ergon_framework.app.settings import load_settings
from ergon_framework.cli import invoke
from ergon_framework.errors import ConfigurationError, MissingExtraError, SettingsError
from ergon_framework.jobs.client import JobClient
from ergon_framework.telemetry import exporters
from tests import fork_server
from tests.app.workplace import Workplace

TASK = """
from ergon_framework import ConsumerTask, Transaction
from ergon_framework.connector.memory import MemoryConnector

class Orders(ConsumerTask):
    @staticmethod
    def build_connectors():
        return {"orders": MemoryConnector([Transaction("t1", 1)])}

    def process_transaction(self, transaction):
        return transaction.payload
"""


HANDLERS = """
from ergon_framework.executor import Registry

registry = Registry()

@registry.handler("hello")
def hello():
    return 1
"""


@contextmanager
def collector() -> Iterator[tuple[str, dict[str, bytes]]]:
    """A server that takes everything, and what it was sent to which path."""
    taken: dict[str, bytes] = {}

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            plain = gzip.decompress(body) if self.headers.get("Content-Encoding") else body
            taken[self.path] = taken.get(self.path, b"") + plain
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", taken
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.slow
@pytest.mark.req("ONE:settings")
def test_a_process_sends_what_it_records(tmp_path: Path) -> None:
    """Two lines of settings are enough; all is sent before the process ends."""
    (tmp_path / "shop.py").write_text(TASK, encoding="utf-8")
    with collector() as (url, taken):
        (tmp_path / "ergon.toml").write_text(f'[telemetry]\notlp = "{url}/"\n', encoding="utf-8")
        ergon(tmp_path, "run", "shop:Orders")
    assert {"/v1/traces", "/v1/metrics"} <= set(taken)


def ergon(place: Path, *arguments: str) -> None:
    """Run a command in a process of its own, which must end well."""
    done = fork_server.run(
        [sys.executable, "-m", "ergon_framework.cli", *arguments],
        cwd=place,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def job_settings(url: str) -> str:
    """A collector, a store, and an executor of ours."""
    command = [sys.executable, "-m", "ergon_framework.executor", "--app", "handlers:registry"]
    return (
        f'[telemetry]\notlp = "{url}"\n[store]\nurl = "sqlite:///work.db"\n'
        f"[executors.python]\ncommand = {json.dumps(command)}\n"
    )


@pytest.mark.slow
@pytest.mark.req("ONE:settings")
def test_an_operator_and_an_executor_send_theirs(tmp_path: Path) -> None:
    """Every span of a job is sent, whichever process it was in."""
    (tmp_path / "handlers.py").write_text(HANDLERS, encoding="utf-8")
    with collector() as (url, taken):
        (tmp_path / "ergon.toml").write_text(job_settings(url), encoding="utf-8")
        ergon(tmp_path, "enqueue", "hello")
        assert b"job.enqueue" in taken["/v1/traces"]
        ergon(tmp_path, "worker", "--burst")
    for span in (b"job.run", b"rrq.executor"):
        assert span in taken["/v1/traces"]


@pytest.mark.slow
def test_a_collector_that_is_away_holds_nobody(tmp_path: Path) -> None:
    """Jobs are stored and done all the same."""
    (tmp_path / "handlers.py").write_text(HANDLERS, encoding="utf-8")
    (tmp_path / "ergon.toml").write_text(job_settings("http://127.0.0.1:9"), encoding="utf-8")
    ergon(tmp_path, "enqueue", "hello", "--id", "j1")
    ergon(tmp_path, "worker", "--burst")
    with JobClient(f"sqlite:///{tmp_path}/work.db") as client:
        assert client.show("j1")["status"] == "completed"


SHARED = """
[telemetry]
prometheus_port = 9464

[tasks.orders]
task = "shop:Orders"
workers = 2
"""


@pytest.mark.req("ONE:check")
@pytest.mark.parametrize("arguments", [["check"], ["run", "--all"], ["run", "orders"]])
def test_processes_do_not_share_a_port(
    workplace: Workplace, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    """It is refused before any of them is started, with a page that tells about all of them."""
    workplace.settings(SHARED)
    workplace.module(TASK)
    assert invoke(arguments) == 2
    told = capsys.readouterr().err
    assert "2 processes cannot share the port 9464" in told
    assert "/metrics of ergon serve" in told


def test_one_process_may_have_a_port(workplace: Workplace) -> None:
    """Then nobody is in its way."""
    workplace.settings(SHARED.replace("workers = 2", ""))
    workplace.module(TASK)
    assert [row.name for row in check(environ={})] == ["orders"]


@pytest.mark.req("ONE:wheel")
@pytest.mark.parametrize(
    ("extra", "module", "settings"),
    [
        (
            "otel",
            "opentelemetry.exporter.otlp.proto.http.trace_exporter",
            {"collector": "http://h:1"},
        ),
        ("prometheus", "opentelemetry.exporter.prometheus", {"port": 9464}),
    ],
)
def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, extra: str, module: str, settings: dict[str, Any]
) -> None:
    """Nothing is set up by halves: the error says what to install."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"ergon-framework\[{extra}\]"):
        exporters.export("test", **settings)


def test_a_port_that_is_taken_is_told() -> None:
    """With what to do about it."""
    with collector() as (url, _):
        port = int(url.rpartition(":")[2])
        with pytest.raises(ConfigurationError, match="each process needs a port of its own"):
            exporters.export("test", port=port)


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    """By the settings, with their line."""
    file = tmp_path / "ergon.toml"
    file.write_text('[telemetry]\notlp = "collector:4318"\n', encoding="utf-8")
    with pytest.raises(SettingsError, match=r"ergon.toml:2.*telemetry.otlp.*URL of a collector"):
        load_settings(file, {})
