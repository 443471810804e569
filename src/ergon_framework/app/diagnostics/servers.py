"""What ``doctor`` asks servers: whether they can be reached and keep what they confirm."""

from __future__ import annotations

import asyncio
import errno
import inspect
import re
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ergon_framework.app.diagnostics.findings import (
    TIMEOUT,
    Finding,
    FindingStatus,
    emptied,
    of_error,
    overdue,
)
from ergon_framework.app.factories import Factory, connector_factory, service_factory
from ergon_framework.app.lifespan import offered
from ergon_framework.app.settings import revealed
from ergon_framework.app.settings.secrets import described, masked
from ergon_framework.app.settings.sections import Settings
from ergon_framework.app.settings.stores import call_stores, store_url
from ergon_framework.errors import ConfigurationError, ConnectorError, ErgonError, describe
from ergon_framework.storage.fsync import sync_file
from ergon_framework.storage.server import Observation
from ergon_framework.storage.urls import check_kind, refuse_secrets
from ergon_framework.task.mixins.utils import run_with_timeout

PORTS = {
    "amqp": 5672,
    "amqps": 5671,
    "http": 80,
    "https": 443,
    "kafka": 9092,
    "mqtt": 1883,
    "mqtts": 8883,
    "mysql": 3306,
    "nats": 4222,
    "postgres": 5432,
    "postgresql": 5432,
    "redis": 6379,
    "rediss": 6379,
    "tls": 4222,
}
"""Where a server listens whose URL names no port."""
_TRIED = 64 * 1024
"""Bytes that the folder of a store must have room for."""


def examine_store(url: str, timeout: float) -> Finding:
    """The store: a file whose directory can be written, or a server that answers."""
    if _scheme(url) == "sqlite":
        return _file(url)
    return examine_server("store", url, timeout)


def examine_server(check: str, url: str, timeout: float) -> Finding:
    """Whether a TCP connection to it can be made in time, finding its address included."""
    address = address_of(url)
    if address is None:
        found = "its URL names no host and port that could be tried"
        return Finding(
            check, FindingStatus.NOTE, found, "write scheme://host:port to have it checked"
        )
    where = f"{address[0]}:{address[1]}"
    remedy = "start the server, or correct the address; a firewall may be in between"
    try:
        run_with_timeout(lambda: socket.create_connection(address, timeout).close(), timeout)
    except TimeoutError:
        return Finding(
            check, FindingStatus.BAD, f"{where} did not answer within {timeout:g} s", remedy
        )
    except OSError as error:
        return Finding(check, FindingStatus.BAD, f"{where}: {error.strerror or error}", remedy)
    return Finding(check, FindingStatus.OK, f"{where} answers")


def address_of(url: str) -> tuple[str, int] | None:
    """Host and port of a URL, or None when it does not clearly name them."""
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        host, port = parts.hostname, parts.port or PORTS.get(_scheme(url))
    except ValueError:
        return None
    if "@" in parts.path + parts.query + parts.fragment:
        return None  # a password with a slash in it: what looks like the host is part of it
    return (host, port) if host and port else None


def naming_another(finding: Finding, url: str) -> Finding:
    """The finding about a server that cannot be used, with what speaks there instead, if it does.

    Drivers say of a server of another kind no more than that it did not answer as they wished.
    """
    expected = KINDS.get(_scheme(url))
    address = address_of(url)
    if finding.status is not FindingStatus.BAD or expected is None or address is None:
        return finding
    spoken = server_kind_at(*address)
    if spoken in (None, expected):
        return finding
    where = f"{address[0]}:{address[1]}"
    return replace(
        finding,
        found=f"{where} speaks {spoken}, and the URL is for {expected} ({finding.found})",
        remedy=f"write the host and port of the {expected} server"
        + ("" if spoken != "TLS" else ", or the scheme for TLS"),
    )


def _scheme(url: str) -> str:
    return url.partition(":")[0].partition("+")[0].lower()


def _file(url: str) -> Finding:
    text = url.partition(":")[2].partition("?")[0]
    path = unquote(text.removeprefix("//").removeprefix("/") if text[:2] == "//" else text)
    if path in ("", ":memory:"):
        return Finding("store", FindingStatus.OK, "in memory")
    try:
        refuse_secrets(path)
    except ConfigurationError as error:
        return of_error("store", error)
    if (lost := emptied("store", Path(path))) is not None:
        return lost
    directory = Path(path).parent
    try:
        # By writing: permissions say nothing of a full disk, which takes a file that is empty.
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(_TRIED))
            file.flush()
            sync_file(file.fileno())  # some file systems find out only now
            return Finding("store", FindingStatus.OK, f"{directory} can be written")
    except OSError as error:
        found = f"{directory} cannot be written: {error.strerror}"
        remedy = "create the directory, and let this user write there"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            remedy = "free some disk space, or let this user have more"
        return Finding("store", FindingStatus.BAD, found, remedy)


Observe = Callable[[str], Iterator[Observation]]

_SERVER = "see what is said about the durability of its server"


def examine_engines(settings: Settings, timeout: float = TIMEOUT) -> Iterator[Finding]:
    """Each server once, however many parts use it; files are looked at by their parts."""
    for url, parts in engines_of(settings).items():
        name = f"{_kind(url)} ({', '.join(parts)})"
        try:
            observe = _observer(url)
        except ErgonError as error:
            yield of_error(name, error)
        else:
            if observe is not None:
                yield from _examined(name, url, observe, timeout)


def unverified(settings: Settings) -> Iterator[str]:
    """Servers whose identity is not verified, judged by their URLs; no connection is made."""
    for url, parts in engines_of(settings).items():
        if _kind(url) == "postgresql":
            from ergon_framework.storage.postgres.address import address_of, verification

            found, remedy = verification(address_of(url))
            if remedy:
                yield f"postgresql ({', '.join(parts)}) is {found}; {remedy}"


def downgrade_on_unsafe_server(
    parts: Iterable[Finding], engines: Iterable[Finding]
) -> Iterator[Finding]:
    """What was found about the parts; none is in order that rests on a server that is unsafe."""
    unsafe = {
        each.store
        for each in engines
        if each.status is FindingStatus.BAD and each.check.endswith(" durability")
    }
    for each in parts:
        if each.status is FindingStatus.OK and each.store in unsafe:
            yield replace(each, status=FindingStatus.NOTE, remedy=_SERVER)
        else:
            yield each


def is_observed(url: str) -> bool:
    """Whether a store is of a kind that is looked at here."""
    return _kind(url) in {"postgresql", "redis", "nats", "s3"}


def engines_of(settings: Settings) -> dict[str, list[str]]:
    """The URL of every store, and which parts keep their work there."""
    from ergon_framework.app.jobs import setup_of
    from ergon_framework.app.zones import all_zones

    found: dict[str, list[str]] = {}
    if {"jobs", "executors", "schedules"} & settings.extensions.keys():
        found.setdefault(setup_of(settings).url, []).append("jobs")
    if "providers" in settings.extensions:
        for name, url in call_stores(settings).items():
            found.setdefault(url, []).append(f"provider {name}" if name else "providers")
    for name, zone in all_zones(settings).items():
        for place in (zone.settings.store, zone.settings.objects):
            found.setdefault(revealed(place) or "", []).append(f"zone {name}")
    if settings.store.url is not None:  # also when every part has one of its own: commands use it
        found.setdefault(store_url(settings), ["store"])
    return {url: list(dict.fromkeys(parts)) for url, parts in found.items() if "://" in url}


def _kind(url: str) -> str:
    scheme = url.partition(":")[0].partition("+")[0].lower()
    return {"postgres": "postgresql", "rediss": "redis", "tls": "nats"}.get(scheme, scheme)


def _observer(url: str) -> Observe | None:
    """The diagnostics of a kind of server; imported late, for its driver may be missing."""
    match _kind(url):
        case "postgresql":
            from ergon_framework.storage.postgres.address import address_of

            address_of(url)  # names the extra that is missing
            from ergon_framework.storage.postgres.diagnostics import observe as postgres

            return postgres
        case "redis":
            from ergon_framework.storage.redis.address import address_of as redis_address

            redis_address(url)
            from ergon_framework.storage.redis.diagnostics import observe as redis

            return redis
        case "nats":
            from ergon_framework.storage.nats.address import address_of as nats_address

            nats_address(url)
            from ergon_framework.storage.nats.diagnostics import observe as nats

            return nats
        case "s3":
            from ergon_framework.storage.objectstore.s3_client import observe as s3

            return s3
    return None


def _examined(name: str, url: str, observe: Observe, timeout: float) -> Iterator[Finding]:
    """All that was seen in time, and then what went wrong."""
    observed: list[Observation] = []
    trouble = _looked(name, lambda: observed.extend(observe(url)), timeout)
    for seen in observed.copy():  # who did not end in time may go on telling
        yield Finding(f"{name} {seen.what}", _status(seen), seen.found, seen.remedy, url)
    if trouble is not None:
        yield naming_another(trouble, url)


def _looked(name: str, look: Callable[[], None], timeout: float) -> Finding | None:
    try:
        run_with_timeout(look, timeout)
    except TimeoutError:
        return overdue(name, timeout)
    except ErgonError as error:
        return of_error(name, error)
    except Exception as error:
        return Finding(name, FindingStatus.BAD, f"could not be looked at: {describe(error)}")
    return None


def _status(seen: Observation) -> FindingStatus:
    if seen.is_grave:
        return FindingStatus.BAD
    return FindingStatus.NOTE if seen.remedy else FindingStatus.OK


ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_REMEDY = "check that what it connects to is there, and that its options are right"
_OPEN = ("aopen", "init_async", "open")
_HEALTH = ("health", "health_async")
_CLOSE = ("aclose", "close")


def examine_parts(settings: Settings, timeout: float = TIMEOUT) -> Iterator[Finding]:
    """Each connector, each service, and the store."""
    for name, connector in settings.connectors.items():
        make = partial(connector_factory, name, connector, settings)
        yield _part(f"connector {name}", make, connector.options, timeout)
    for name, service in settings.services.items():
        make = partial(service_factory, name, service)
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
        return of_error("store", error)
    return examine_store(url, timeout)


def _part(
    check: str, make: Callable[[], Factory], options: Mapping[str, Any], timeout: float
) -> Finding:
    try:
        status, found, remedy = run_with_timeout(lambda: _attempt(make, options), timeout)
    except TimeoutError:
        status, found, remedy = FindingStatus.BAD, f"did not answer within {timeout:g} s", _REMEDY
    finding = Finding(check, status, masked(found, options), masked(remedy, options))
    url = revealed(options.get("url"))
    return naming_another(finding, url) if isinstance(url, str) else finding


def _attempt(
    make: Callable[[], Factory], options: Mapping[str, Any]
) -> tuple[FindingStatus, str, str]:
    """Status, finding and remedy. It never raises: user code may do anything."""
    is_exclusive = False
    try:
        maker = make()
        maker.check()
        is_exclusive = maker.is_exclusive
        part = maker.make()
        if callable(getattr(part, "observe", None)):
            return _observed(part)
        return _judged(*_try_part(part))
    except ConnectorError as error:
        if is_exclusive and error.code.endswith("locked"):
            return FindingStatus.NOTE, error.message, "nothing, if a run of yours has it"
        return FindingStatus.BAD, error.message, error.remedy or _REMEDY
    except ErgonError as error:
        return FindingStatus.BAD, error.message, error.remedy or _REMEDY
    except BaseException as error:
        return FindingStatus.BAD, described(error, options), _REMEDY


def _observed(part: Any) -> tuple[FindingStatus, str, str]:
    """What a connector to a broker says of it; the gravest of it is the status."""
    try:
        seen: list[Observation] = list(part.observe())
    finally:
        part.close()
    seen.sort(key=lambda each: (not each.is_grave, not each.remedy))
    worst = seen[0] if seen else Observation("broker", "nothing is known of it")
    return _status(worst), "; ".join(each.found for each in seen), worst.remedy


def _judged(is_tried: bool, health: Any) -> tuple[FindingStatus, str, str]:
    if not is_tried:
        found = "could be made, but has neither open() nor health() to try"
        return FindingStatus.NOTE, found, "give it health(), and it will be asked"
    if health is not None and not health:
        return FindingStatus.BAD, "health() says that it cannot be used", _REMEDY
    return FindingStatus.OK, "can be used", ""


def _try_part(part: Any) -> tuple[bool, Any]:
    """Open a part, ask for its health and close it; returns whether it can be tried, and the
    health.
    """
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


# Which protocol is spoken at an address: for URLs that lead to a server of another kind. Only host
# and port of the URL are used, so no credentials are sent. Some servers speak first; each of the
# others is asked what its kind of server answers without a login.

ANSWER_TIMEOUT = 0.5
"""Seconds for each answer."""
_ENOUGH = 64
_GET = b"GET / HTTP/1.0\r\n\r\n"
_SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
_CONNECT = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x0a\x00\x00\x00"
_API_VERSIONS = b"\x00\x00\x00\x0a\x00\x12\x00\x00ergo\xff\xff"
_MYSQL_GREETING = re.compile(rb"...\x00[\x0a\xff]", re.DOTALL)

KINDS = {
    "amqp": "RabbitMQ",
    "kafka": "Kafka",
    "mqtt": "MQTT",
    "nats": "NATS",
    "postgresql": "PostgreSQL",
    "postgres": "PostgreSQL",
    "redis": "Redis",
    "http": "HTTP",
    "poll": "HTTP",
    "post": "HTTP",
    "sqs": "HTTP",
    "mysql": "MySQL",
    "mariadb": "MySQL",
}
"""Which kind of server a scheme expects. Schemes with TLS are left out: such a server answers
nothing in plain text."""


def _greeting(said: bytes) -> str | None:
    if said.startswith(b"INFO {"):
        return "NATS"
    if said.startswith(b"SSH-"):
        return "SSH"
    if said.startswith(b"220"):
        return "SMTP or FTP"
    return "MySQL" if _MYSQL_GREETING.match(said) else None


def _to_get(said: bytes) -> str | None:
    if said.startswith(b"HTTP/"):
        return "HTTP"
    if said.startswith(b"AMQP"):
        return "RabbitMQ"
    if said.startswith(b"\x15\x03"):
        return "TLS"
    return "Redis" if said.startswith((b"-ERR", b"-NOAUTH", b"-DENIED", b"-NOPERM")) else None


def _to_ssl_request(said: bytes) -> str | None:
    return "PostgreSQL" if said in (b"S", b"N") else None


def _to_connect(said: bytes) -> str | None:
    return "MQTT" if said.startswith(b"\x20") else None


def _to_api_versions(said: bytes) -> str | None:
    return "Kafka" if said[4:8] == b"ergo" else None


_QUESTIONS: tuple[tuple[bytes, Callable[[bytes], str | None]], ...] = (
    (b"", _greeting),
    (_GET, _to_get),
    (_SSL_REQUEST, _to_ssl_request),
    (_CONNECT, _to_connect),
    (_API_VERSIONS, _to_api_versions),
)


def server_kind_at(host: str, port: int, *, timeout: float = ANSWER_TIMEOUT) -> str | None:
    """The kind of server that answers at an address; None if none does, or none that is known."""
    for question, kind_of in _QUESTIONS:
        try:
            line = socket.create_connection((host, port), timeout)
        except OSError:
            return None
        with line, suppress(OSError):  # it hangs up, or says nothing
            line.settimeout(timeout)
            line.sendall(question)
            found = kind_of(line.recv(_ENOUGH))
            if found is not None:
                return found
    return None
