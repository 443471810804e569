"""Where spans and metrics go, as the settings say: to a collector, or to a page for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ergon_framework.app.journal import journalling
from ergon_framework.app.settings.sections import Settings
from ergon_framework.errors import SettingsError
from ergon_framework.telemetry.exporting import export, finish, handed_on


@contextmanager
def observed(settings: Settings, source: str) -> Iterator[None]:
    """What this process tells is exported and kept; every process of ours runs inside of it."""
    told = settings.telemetry
    export(source, collector=told.otlp, port=told.prometheus_port)
    with handed_on(told.otlp), journalling(settings, source):
        yield


@contextmanager
def observed_briefly(settings: Settings, source: str) -> Iterator[None]:
    """The same for a command that is soon over: it has no page, and sends all before it ends."""
    collector = settings.telemetry.otlp
    export(source, collector=collector)
    try:
        with journalling(settings, source):
            yield
    finally:
        if collector is not None:
            finish()


def check_page(settings: Settings, processes: int) -> None:
    """Refuse one port for several processes: only the first of them could serve its page."""
    port = settings.telemetry.prometheus_port
    if port is not None and processes > 1:
        raise SettingsError(
            f"telemetry.prometheus_port: {processes} processes cannot share the port {port}",
            remedy="leave it out: /metrics of ergon serve tells about all of them; or start each by"
            " itself, with ERGON_TELEMETRY__PROMETHEUS_PORT of its own",
        )
