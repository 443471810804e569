"""Looking at every engine that the settings name: its version, durability, latency and clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from ergon_framework.app.checking.findings import Finding, Status
from ergon_framework.app.checking.patience import TIMEOUT, overdue
from ergon_framework.app.settings import revealed
from ergon_framework.app.settings.sections import Settings
from ergon_framework.app.settings.stores import call_stores, store_url
from ergon_framework.errors import ErgonError, describe
from ergon_framework.storage.server import Observation
from ergon_framework.task.mixins.utils import run_with_timeout

Observe = Callable[[str], Iterator[Observation]]

_SERVER = "see what is said about the durability of its server"


def examine_engines(settings: Settings, timeout: float = TIMEOUT) -> Iterator[Finding]:
    """Each server once, however many parts use it; files are looked at by their parts."""
    for url, parts in engines_of(settings).items():
        name = f"{_kind(url)} ({', '.join(parts)})"
        try:
            observe = _observer(url)
        except ErgonError as error:
            yield Finding(name, Status.BAD, error.message, error.remedy)
        else:
            if observe is not None:
                yield from _examined(name, url, observe, timeout)


def unverified(settings: Settings) -> Iterator[str]:
    """Servers of which nobody makes sure who they are, by their URLs alone: nothing is opened."""
    for url, parts in engines_of(settings).items():
        if _kind(url) == "postgresql":
            from ergon_framework.storage.postgres.address import address_of, verification

            found, remedy = verification(address_of(url))
            if remedy:
                yield f"postgresql ({', '.join(parts)}) is {found}; {remedy}"


def weighed(parts: Iterable[Finding], engines: Iterable[Finding]) -> Iterator[Finding]:
    """What was found about the parts; none is in order that rests on a server that is unsafe."""
    unsafe = {
        each.store
        for each in engines
        if each.status is Status.BAD and each.check.endswith(" durability")
    }
    for each in parts:
        if each.status is Status.OK and each.store in unsafe:
            yield replace(each, status=Status.NOTE, remedy=_SERVER)
        else:
            yield each


def is_observed(url: str) -> bool:
    """Whether a store is of a kind that is looked at here."""
    return _kind(url) in {"postgresql", "redis", "nats", "s3"}


def engines_of(settings: Settings) -> dict[str, list[str]]:
    """The URL of every store, and which parts keep their work there."""
    from ergon_framework.app.boundary import zones_of
    from ergon_framework.app.jobs import setup_of

    found: dict[str, list[str]] = {}
    if {"jobs", "executors", "schedules"} & settings.extensions.keys():
        found.setdefault(setup_of(settings).url, []).append("jobs")
    if "providers" in settings.extensions:
        for name, url in call_stores(settings).items():
            found.setdefault(url, []).append(f"provider {name}" if name else "providers")
    for name, zone in zones_of(settings).items():
        for place in (zone.settings.store, zone.settings.objects):
            found.setdefault(revealed(place) or "", []).append(f"zone {name}")
    if settings.store.url is not None:  # also when every part has one of its own: commands use it
        found.setdefault(store_url(settings), ["store"])
    return {url: list(dict.fromkeys(parts)) for url, parts in found.items() if "://" in url}


def _kind(url: str) -> str:
    scheme = url.partition(":")[0].partition("+")[0].lower()
    return {"postgres": "postgresql", "rediss": "redis", "tls": "nats"}.get(scheme, scheme)


def _observer(url: str) -> Observe | None:
    """Who looks at that kind of server; imported late, for its driver may be missing."""
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
            from ergon_framework.boundary.objectstore.s3_client import observe as s3

            return s3
    return None


def _examined(name: str, url: str, observe: Observe, timeout: float) -> Iterator[Finding]:
    """All that was seen in time, and then what went wrong."""
    told: list[Observation] = []
    trouble = _looked(name, lambda: told.extend(observe(url)), timeout)
    for seen in told.copy():  # who did not end in time may go on telling
        yield Finding(f"{name} {seen.what}", _status(seen), seen.found, seen.remedy, url)
    if trouble is not None:
        yield trouble


def _looked(name: str, look: Callable[[], None], timeout: float) -> Finding | None:
    try:
        run_with_timeout(look, timeout)
    except TimeoutError:
        return overdue(name, timeout)
    except ErgonError as error:
        return Finding(name, Status.BAD, error.message, error.remedy)
    except Exception as error:
        return Finding(name, Status.BAD, f"could not be looked at: {describe(error)}")
    return None


def _status(seen: Observation) -> Status:
    if seen.is_grave:
        return Status.BAD
    return Status.NOTE if seen.remedy else Status.OK
