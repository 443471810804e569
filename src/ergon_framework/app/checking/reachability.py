"""Whether the connectors and services of the settings can be had: made, opened, asked and closed.

Nothing waits longer than it is told to, and no secret is repeated.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from ergon_framework.app.assembly.building import Maker, connector_maker, service_maker
from ergon_framework.app.assembly.parts import offered
from ergon_framework.app.checking.engines import is_observed
from ergon_framework.app.checking.findings import Finding, Status
from ergon_framework.app.checking.patience import TIMEOUT
from ergon_framework.app.reading.addresses import examine_server, examine_store
from ergon_framework.app.settings import Settings
from ergon_framework.app.settings.secrets import described, masked
from ergon_framework.app.settings.stores import check_kind, store_url
from ergon_framework.errors import ConnectorError, ErgonError
from ergon_framework.task.mixins.utils import run_with_timeout

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_REMEDY = "check that what it connects to is there, and that its options are right"
_OPEN = ("aopen", "init_async", "open")
_HEALTH = ("health", "health_async")
_CLOSE = ("aclose", "close")


def examine_parts(settings: Settings, timeout: float = TIMEOUT) -> Iterator[Finding]:
    """Each connector, each service, and the store."""
    for name, connector in settings.connectors.items():
        make = partial(connector_maker, name, connector, settings)
        yield _part(f"connector {name}", make, connector.options, timeout)
    for name, service in settings.services.items():
        make = partial(service_maker, name, service)
        yield _part(f"service {name}", make, service.options, timeout)
    url = store_url(settings)
    if url and not is_observed(url):
        yield _store(url, timeout)


def examine_endpoint(environ: Mapping[str, str], timeout: float = TIMEOUT) -> Iterator[Finding]:
    """Where OpenTelemetry's exporters send everything, if that is said."""
    if environ.get(ENDPOINT):
        yield examine_server("telemetry endpoint", environ[ENDPOINT], timeout)


def _store(url: str, timeout: float) -> Finding:
    try:
        check_kind(url)
    except ErgonError as error:
        return Finding("store", Status.BAD, error.message, error.remedy)
    return examine_store(url, timeout)


def _part(
    check: str, make: Callable[[], Maker], options: Mapping[str, Any], timeout: float
) -> Finding:
    try:
        status, found, remedy = run_with_timeout(lambda: _attempt(make, options), timeout)
    except TimeoutError:
        status, found, remedy = Status.BAD, f"did not answer within {timeout:g} s", _REMEDY
    return Finding(check, status, masked(found, options), masked(remedy, options))


def _attempt(make: Callable[[], Maker], options: Mapping[str, Any]) -> tuple[Status, str, str]:
    """Status, finding and remedy. It never raises: user code may do anything."""
    is_exclusive = False
    try:
        maker = make()
        maker.check()
        is_exclusive = maker.is_exclusive
        return _judged(*_visit(maker.make()))
    except ConnectorError as error:
        if is_exclusive and error.code.endswith("locked"):
            return Status.NOTE, error.message, "nothing, if a run of yours has it"
        return Status.BAD, error.message, error.remedy or _REMEDY
    except ErgonError as error:
        return Status.BAD, error.message, error.remedy or _REMEDY
    except BaseException as error:
        return Status.BAD, described(error, options), _REMEDY


def _judged(is_tried: bool, health: Any) -> tuple[Status, str, str]:
    if not is_tried:
        told = "could be made, but has neither open() nor health() to try"
        return Status.NOTE, told, "give it health(), and it will be asked"
    if health is not None and not health:
        return Status.BAD, "health() says that it cannot be used", _REMEDY
    return Status.OK, "can be used", ""


def _visit(part: Any) -> tuple[bool, Any]:
    """Whether there was anything to try, and what its health is; it is closed again."""
    opening, health, closing = (offered(part, names) for names in (_OPEN, _HEALTH, _CLOSE))
    with asyncio.Runner() as runner:

        def call(method: Callable[[], Any] | None) -> Any:
            # Plain methods run outside of the event loop, since they may have one of their own.
            answer = None if method is None else method()
            return runner.run(_awaited(answer)) if inspect.isawaitable(answer) else answer

        try:
            call(opening)
            answer = call(health)
        except BaseException:
            with suppress(Exception):  # what was wrong first is what counts
                call(closing)
            raise
        call(closing)
    return opening is not None or health is not None, answer


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer
