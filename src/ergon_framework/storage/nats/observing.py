"""Looking at a NATS server: is it new enough, does it keep what it acknowledges?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from ergon_framework.storage.nats.account import LEVEL, USER_INFO, Account
from ergon_framework.storage.nats.address import address_of
from ergon_framework.storage.nats.durability import REMEDY, Durability, durability_of
from ergon_framework.storage.nats.line import Line
from ergon_framework.storage.observing import Observation, latency, skew

CROWDED = 0.9
"""The share of the room in use from which on there may soon be none left."""


def observe(url: str) -> Iterator[Observation]:
    """One observation after the other; raises what connecting raises."""
    with closing(Line(address_of(url))) as line:
        account = Account(line)
        found = account.info()
        yield version(line.version(), int(found["api"].get("level", 0)))
        streams = account.streams()
        is_accepted = line.address.accepts_unsynced
        for each in streams:
            kept = _durability(line, each["config"])
            yield durability(each["config"]["name"], kept, is_accepted=is_accepted)
        if not streams:
            kept = _durability(line, {"num_replicas": line.address.replicas})
            yield durability("a stream that is made", kept, is_accepted=is_accepted)
        yield room(found)
        yield latency(account.info)
        names = [each["config"]["name"] for each in streams]
        asked_at = time.time()
        theirs = account.time_at(names[0]) if names else account.time()
        yield clock(theirs, asked_at, time.time())


def _durability(line: Line, config: Mapping[str, Any]) -> Durability:
    return durability_of(config, line.address.monitor)


def version(name: str, level: int) -> Observation:
    """How old the server is."""
    is_fine = level >= LEVEL
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
    """By how much the server's clock differs from ours, if it can be known."""
    if theirs is not None:
        return skew(theirs, asked_at, answered_at)
    return Observation(
        "clock",
        "not known: the server does not tell this user, and there is no stream yet",
        f"start the node once and look again, or let the user publish to {USER_INFO}",
    )


def room(found: Mapping[str, Any]) -> Observation:
    """Whether there is room left."""
    most = int(found["limits"].get("max_storage", -1))
    used = int(found["storage"])
    if most < 0:
        return Observation("room", f"{used >> 20} MiB in use, without a limit")
    remedy = "" if used < CROWDED * most else "raise max_file_store of the server or the account"
    return Observation("room", f"{used >> 20} of {most >> 20} MiB in use", remedy)
