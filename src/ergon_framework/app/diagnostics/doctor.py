"""Looking at the machine: what Ergon needs, what is missing, and what is known to be broken."""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ergon_framework.app.diagnostics.findings import TIMEOUT, Finding, FindingStatus
from ergon_framework.app.diagnostics.jobs import examine_jobs
from ergon_framework.app.diagnostics.providers import examine_providers
from ergon_framework.app.diagnostics.servers import (
    downgrade_on_unsafe_server,
    examine_endpoint,
    examine_engines,
    examine_parts,
)
from ergon_framework.app.diagnostics.zones import examine_zones
from ergon_framework.app.settings import load_settings
from ergon_framework.errors import SettingsError, describe

EXTRAS = {
    "api": ("fastapi",),
    "celery": ("celery", "redis"),
    "django": ("django",),
    "flask": ("flask",),
    "httpx": ("httpx",),
    "kafka": ("confluent_kafka",),
    "mqtt": ("paho.mqtt",),
    "nats": ("nats",),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
    "parquet": ("pyarrow",),
    "postgres": ("psycopg",),
    "prometheus": ("opentelemetry.exporter.prometheus", "opentelemetry.sdk", "prometheus_client"),
    "rabbitmq": ("aio_pika", "pika"),
    "redis": ("redis",),
    "s3": ("obstore",),
    "sentry": ("sentry_sdk",),
    "sqs": ("aiobotocore", "boto3"),
    "structlog": ("structlog",),
}
"""What each extra of the distribution brings."""
MIN_OPEN_FILES = 1024
_WAL_RESET_FIXED = (3, 51, 3)
_LOCK_CHILD = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit(7)
"""
_REFUSED = 7


def examine(
    config: Path | None = None, *, connects: bool = True, timeout: float = TIMEOUT
) -> Iterator[Finding]:
    """Everything, one after the other. A check that breaks is a finding, too.

    Unless ``connects`` is false, this makes and opens what the settings name, and closes it again.
    """

    def settings() -> Iterator[Finding]:
        return _settings(config, timeout if connects else None)

    def endpoint() -> Iterator[Finding]:
        return examine_endpoint(os.environ if connects else {}, timeout)

    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _python,
        _extras,
        _sqlite,
        _time_zones,
        _locking,
        _open_files,
        settings,
        endpoint,
    )
    for check in checks:
        try:
            yield from check()
        except Exception as error:
            name = getattr(check, "__name__", "check").strip("_")
            yield Finding(name, FindingStatus.BAD, f"could not be looked at: {describe(error)}")


def _python() -> Iterator[Finding]:
    found = f"{platform.python_implementation()} {platform.python_version()}"
    is_fine = sys.version_info >= (3, 11)
    status = FindingStatus.OK if is_fine else FindingStatus.BAD
    yield Finding("python", status, found, "" if is_fine else "use Python 3.11 or newer")


def _extras() -> Iterator[Finding]:
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if not _is_there(module)]
        remedy = f"pip install 'ergon-framework[{extra}]'" if missing else ""
        found = f"without {', '.join(missing)}" if missing else "installed"
        yield Finding(
            f"extra {extra}", FindingStatus.NOTE if missing else FindingStatus.OK, found, remedy
        )


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package above it
        return False


def _sqlite() -> Iterator[Finding]:
    version = sqlite3.sqlite_version_info
    text = sqlite3.sqlite_version
    newer = "use a Python built with a newer SQLite"
    strict = version >= (3, 37, 0)
    yield Finding(
        "sqlite", FindingStatus.OK if strict else FindingStatus.BAD, text, "" if strict else newer
    )
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute("select json_extract('{\"a\": 1}', '$.a')").fetchone()
            yield Finding("sqlite json", FindingStatus.OK, "supported")
        except sqlite3.OperationalError:
            yield Finding("sqlite json", FindingStatus.BAD, "not supported", newer)
    yield wal_reset(version)


def wal_reset(version: tuple[int, ...]) -> Finding:
    """Whether this SQLite library has the defect in how it resets its write-ahead log."""
    if version >= _WAL_RESET_FIXED:
        return Finding("sqlite wal-reset", FindingStatus.OK, "corrected in this version")
    return Finding(
        "sqlite wal-reset",
        FindingStatus.NOTE,
        "may corrupt under concurrent checkpoints from several processes; Ergon lets one process "
        "checkpoint",
        "let no other program checkpoint the file; SQLite 3.51.3 and backports have it corrected",
    )


def _time_zones() -> Iterator[Finding]:
    try:
        ZoneInfo("Europe/Berlin")
        yield Finding("time zones", FindingStatus.OK, "data found")
    except ZoneInfoNotFoundError:
        yield Finding("time zones", FindingStatus.BAD, "no data found", "pip install tzdata")


def _locking() -> Iterator[Finding]:
    import fcntl

    where = tempfile.gettempdir()
    with tempfile.NamedTemporaryFile() as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # In another process: POSIX locks never conflict within one.
        command = [sys.executable, "-I", "-c", _LOCK_CHILD, file.name]
        child = subprocess.run(command, check=False, timeout=30)  # noqa: S603 - our own program
    if child.returncode == _REFUSED:
        yield Finding("file locks", FindingStatus.OK, f"work in {where}")
    else:
        remedy = "set TMPDIR to a directory on a local disk, and keep stores there"
        yield Finding("file locks", FindingStatus.BAD, f"do not work in {where}", remedy)


def _open_files() -> Iterator[Finding]:
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_fine = soft == resource.RLIM_INFINITY or soft >= MIN_OPEN_FILES
    found = "without a limit" if soft == resource.RLIM_INFINITY else f"at most {soft}"
    remedy = "" if is_fine else f"ulimit -n {4 * MIN_OPEN_FILES}"
    yield Finding("open files", FindingStatus.OK if is_fine else FindingStatus.NOTE, found, remedy)


def _settings(config: Path | None, timeout: float | None) -> Iterator[Finding]:
    try:
        settings = load_settings(config)
    except SettingsError as error:
        yield Finding("settings", FindingStatus.BAD, error.message.strip(), error.remedy)
        return
    found = "none needed" if settings.file is None else f"{settings.file} is in order"
    yield Finding("settings", FindingStatus.OK, found)
    connects, seconds = timeout is not None, TIMEOUT if timeout is None else timeout
    parts = [
        *examine_jobs(settings, connects=connects, timeout=seconds),
        *examine_providers(settings, connects=connects, timeout=seconds),
        *examine_zones(settings, connects=connects, timeout=seconds),
    ]
    # After the parts, which make what they need there: it is looked at, too.
    engines = list(examine_engines(settings, seconds)) if connects else []
    yield from downgrade_on_unsafe_server(parts, engines)
    yield from engines
    if connects:
        yield from examine_parts(settings, seconds)
