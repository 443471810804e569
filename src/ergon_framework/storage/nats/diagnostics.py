"""What an acknowledgement of a NATS server means, and what ``doctor`` asks the server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from ergon_framework.errors import ConfigurationError, StoreUnavailableError
from ergon_framework.storage.nats.address import DEFAULT_TIMEOUTS, NatsTimeouts, address_of
from ergon_framework.storage.nats.client import NatsClient, is_lost
from ergon_framework.storage.nats.errors import (
    NO_JETSTREAM,
    NatsForbiddenError,
    no_jetstream,
    translate,
)
from ergon_framework.storage.nats.stream import instant
from ergon_framework.storage.server import Observation, latency, skew

MIN_API_LEVEL = 2
"""What the server can do at least: atomic batches, from 2.12 on."""

USER_INFO = "$SYS.REQ.USER.INFO"
"""A request that every user may send, whose answer has the server's time, when there is no stream
yet.
"""


class Account:
    """The streams that one user of a server has."""

    def __init__(self, client: NatsClient) -> None:
        self._client = client

    def info(self) -> dict[str, Any]:
        """Room and limits."""
        return self._ask("INFO")

    def refuse_unfit(self, min_level: int = MIN_API_LEVEL) -> None:
        """Refuse a server that keeps nothing, or that cannot write several messages at once."""
        if int(self.info()["api"].get("level", 0)) < min_level:
            raise ConfigurationError(
                f"{self._client.address.name} runs nats-server {self._client.version()}, which has"
                " no atomic batches",
                remedy="upgrade it to 2.12 or newer",
            )

    def streams(self) -> list[dict[str, Any]]:
        """The streams of this address."""
        found = self._ask("STREAM.NAMES", {"subject": f"{self._client.address.space}.>"})
        return [self._ask(f"STREAM.INFO.{name}") for name in found.get("streams") or ()]

    def time_at(self, stream: str) -> float:
        """What time it is where a stream is served."""
        return instant(self._ask(f"STREAM.INFO.{stream}")["ts"])

    def time(self) -> float | None:
        """The time of the server; None when this user may not ask for it."""
        try:
            answer = json.loads(self._client.request(USER_INFO, b"").data or b"{}")
        except NatsForbiddenError:
            return None
        except StoreUnavailableError as error:
            if not is_lost(error):
                raise
            return None  # it did not say so: an earlier server says nothing
        stamp = answer.get("server", {}).get("time")
        return None if stamp is None else instant(stamp)

    def _ask(self, subject: str, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        data = json.dumps(request).encode() if request else b""
        reply = self._client.request(f"$JS.API.{subject}", data)
        if reply.status:
            raise no_jetstream(self._client.address.name)
        answer: dict[str, Any] = json.loads(reply.data)
        error = answer.get("error")
        if error and error.get("err_code") in NO_JETSTREAM:
            raise no_jetstream(self._client.address.name)
        if error:
            raise translate(self._client.address.name, error)
        return answer


_MONITOR_TIMEOUT = 2.0  # seconds
REMEDY = (
    "set sync_interval: always in the jetstream block of the server, or keep the stream on three"
    " servers with ?replicas=3"
)


@dataclass(frozen=True, slots=True)
class Durability:
    """What is known about it."""

    replicas: int
    syncs_always: bool | None
    """None when the server could not be asked."""

    @property
    def sentence(self) -> str:
        """What an acknowledged append survives."""
        copies = "one server" if self.replicas == 1 else f"most of {self.replicas} servers"
        if self.syncs_always:
            return (
                f"An acknowledged fact is synced to disk on {copies} of NATS: it survives the end"
                " of processes and power cuts, not the loss of those disks."
            )
        if self.replicas > 1:
            return (
                f"An acknowledged fact is written on {copies} of NATS, and synced to their disks"
                " later: it survives the end of processes and the power cut of one server, not"
                " of all at once."
            )
        if self.syncs_always is None:
            return (
                "An acknowledged fact is written by one server of NATS and survives the end of"
                " processes; whether it survives a power cut could not be checked, because the"
                " server's monitoring address is not known (?monitor=http://host:8222)."
            )
        return (
            "An acknowledged fact is written by one server of NATS, which syncs its disk later: it"
            " survives the end of processes, and a power cut may lose the facts of some minutes."
        )

    @property
    def is_safe(self) -> bool:
        """Whether the power cut of one server loses nothing, as far as is known."""
        return self.syncs_always is True or self.replicas > 1


def refuse_unsynced(found: Durability, name: str) -> None:
    """Refuse a server that would lose acknowledged messages in a power cut, or whose setting is
    unknown.
    """
    if found.is_safe:
        return
    if found.syncs_always is None:
        raise ConfigurationError(
            f"{name} does not tell whether it syncs what it acknowledges",
            remedy="name its monitoring address in the URL, ?monitor=http://host:8222, and set"
            " sync_interval: always in the jetstream block of the server; or write"
            " ?acknowledge=unsynced if a power cut may take acknowledged facts",
        )
    raise ConfigurationError(
        f"{name} acknowledges facts before they are synced to disk",
        remedy=f"{REMEDY}; or write ?acknowledge=unsynced in the URL if a power cut may take"
        " acknowledged facts",
    )


def durability_of(config: Mapping[str, Any], monitor: str | None) -> Durability:
    """Ask the server, where its URL says how."""
    return Durability(int(config.get("num_replicas", 1)), _syncs_always(monitor))


def _syncs_always(monitor: str | None) -> bool | None:
    """What the server's monitoring page says; None when it cannot be reached."""
    if monitor is None:
        return None
    try:
        settings = _asked(monitor).get("config") or {}
    except (OSError, HTTPException, ValueError):
        return None
    return bool(settings.get("sync_always", False)) if settings else None


def _asked(monitor: str) -> dict[str, Any]:
    parts = urlsplit(monitor)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_MONITOR_TIMEOUT)
    try:
        connection.request("GET", "/jsz")
        found = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return found if isinstance(found, dict) else {}


MAX_USAGE = 0.9
"""The share of the room in use from which on there may soon be none left."""


def observe(url: str, timeouts: NatsTimeouts = DEFAULT_TIMEOUTS) -> Iterator[Observation]:
    """Yield observations of the server. Raises what connecting raises."""
    with closing(NatsClient(address_of(url), timeouts)) as client:
        account = Account(client)
        found = account.info()
        yield version(client.version(), int(found["api"].get("level", 0)))
        streams = account.streams()
        is_accepted = client.address.accepts_unsynced
        for each in streams:
            kept = _durability(client, each["config"])
            yield durability(each["config"]["name"], kept, is_accepted=is_accepted)
        if not streams:
            kept = _durability(client, {"num_replicas": client.address.replicas})
            yield durability("a stream that is made", kept, is_accepted=is_accepted)
        yield room(found)
        yield latency(account.info)
        names = [each["config"]["name"] for each in streams]
        asked_at = time.time()
        theirs = account.time_at(names[0]) if names else account.time()
        yield clock(theirs, asked_at, time.time())


def _durability(client: NatsClient, config: Mapping[str, Any]) -> Durability:
    return durability_of(config, client.address.monitor)


def version(name: str, level: int) -> Observation:
    """How old the server is."""
    is_fine = level >= MIN_API_LEVEL
    remedy = "" if is_fine else "upgrade it to nats-server 2.12 or newer"
    return Observation("version", name, remedy, is_grave=not is_fine)


def durability(stream: str, found: Durability, *, is_accepted: bool = False) -> Observation:
    """Whether what is acknowledged is on disk."""
    if found.syncs_always:
        return Observation("durability", f"{stream}: synced to disk before it is acknowledged")
    if found.replicas > 1:
        return Observation("durability", f"{stream}: kept on {found.replicas} servers")
    if found.syncs_always is None:
        return Observation(
            "durability",
            f"{stream}: whether the server syncs before it acknowledges could not be checked",
            "set http_port in the server and add ?monitor=http://host:8222 to the URL",
        )
    text = f"{stream}: a power cut may lose what was acknowledged in the last minutes"
    return Observation("durability", text, REMEDY, is_grave=not is_accepted)


def clock(theirs: float | None, asked_at: float, answered_at: float) -> Observation:
    """The difference between the server's clock and ours, if the server tells its time."""
    if theirs is not None:
        return skew(theirs, asked_at, answered_at)
    return Observation(
        "clock",
        "not known: the server does not tell this user, and there is no stream yet",
        f"start the node once and look again, or let the user publish to {USER_INFO}",
    )


def room(found: Mapping[str, Any]) -> Observation:
    """How much of the storage limit is used."""
    most = int(found["limits"].get("max_storage", -1))
    used = int(found["storage"])
    if most < 0:
        return Observation("room", f"{used >> 20} MiB in use, without a limit")
    remedy = "" if used < MAX_USAGE * most else "raise max_file_store of the server or the account"
    return Observation("room", f"{used >> 20} of {most >> 20} MiB in use", remedy)
