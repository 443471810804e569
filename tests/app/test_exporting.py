"""Spans and metrics go where the settings say, from a real process to a real collector."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.app import exporting
from ergon_framework.app.sections import TelemetrySettings
from ergon_framework.app.settings import load_settings
from ergon_framework.errors import ConfigurationError, MissingExtraError, SettingsError

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


@contextmanager
def collector() -> Iterator[tuple[str, list[str]]]:
    """A server that takes everything, and the paths it was sent things to."""
    paths: list[str] = []

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", paths
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.slow
@pytest.mark.req("ONE:settings")
def test_a_process_sends_what_it_records(tmp_path: Path) -> None:
    """Two lines of settings are enough; all is sent before the process ends."""
    (tmp_path / "shop.py").write_text(TASK, encoding="utf-8")
    with collector() as (url, paths):
        (tmp_path / "ergon.toml").write_text(f'[telemetry]\notlp = "{url}/"\n', encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "ergon_framework.cli", "run", "shop:Orders"],
            cwd=tmp_path,
            env=dict(os.environ),
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert {"/v1/traces", "/v1/metrics"} <= set(paths)


@pytest.mark.req("ONE:wheel")
@pytest.mark.parametrize(
    ("extra", "module", "settings"),
    [
        ("otel", "opentelemetry.exporter.otlp.proto.http.trace_exporter", {"otlp": "http://h:1"}),
        ("prometheus", "opentelemetry.exporter.prometheus", {"prometheus_port": 9464}),
    ],
)
def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, extra: str, module: str, settings: dict[str, Any]
) -> None:
    """Nothing is set up by halves: the error says what to install."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"ergon-framework\[{extra}\]"):
        exporting.export(TelemetrySettings(**settings), "test")


def test_a_port_that_is_taken_is_told() -> None:
    """With what to do about it."""
    with collector() as (url, _):
        port = int(url.rpartition(":")[2])
        with pytest.raises(ConfigurationError, match="each process needs a port of its own"):
            exporting.export(TelemetrySettings(prometheus_port=port), "test")


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    """By the settings, with their line."""
    file = tmp_path / "ergon.toml"
    file.write_text('[telemetry]\notlp = "collector:4318"\n', encoding="utf-8")
    with pytest.raises(SettingsError, match=r"ergon.toml:2.*telemetry.otlp.*URL of a collector"):
        load_settings(file, {})
