"""What an acknowledgement of a Redis server means, by the server's own settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    StoreReadOnlyError,
    StoreSchemaError,
)
from ergon_framework.storage.redis.link import RedisLink

OLDEST = (6, 2)
"""The oldest version of the server that the store is tried on; its commands are older still."""
OLDEST_NAME = ".".join(map(str, OLDEST))
_ASKED = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite", "save", "maxmemory-policy")


@dataclass(frozen=True, slots=True)
class Persistence:
    """How a server keeps what it holds; None where it does not say."""

    version: tuple[int, ...]
    is_replica: bool
    is_logged: bool | None
    """Whether every write goes to a log on disk."""
    synced: str | None
    """When that log is synced: ``always``, ``everysec`` or ``no``."""
    rests_on_rewrite: bool | None
    """Whether it is not synced while it is being rewritten."""
    has_snapshots: bool | None
    evicts: str | None
    """What the server throws away when its memory is full."""

    @property
    def is_synced(self) -> bool:
        """Whether what was acknowledged is on disk."""
        return bool(self.is_logged and self.synced == "always" and not self.rests_on_rewrite)

    @property
    def keeps_nothing(self) -> bool:
        """Whether everything is gone when the server ends."""
        return self.is_logged is False and self.has_snapshots is False

    def sentence(self) -> str:
        """What an acknowledgement means."""
        if self.keeps_nothing:
            return (
                "An acknowledged job is in the memory of the Redis server only, and ends with it."
            )
        if self.is_logged is None:
            return (
                "An acknowledged job is in the memory of the Redis server, which does not tell"
                " when it goes to disk."
            )
        if not self.is_logged:
            return (
                "An acknowledged job survives a crash of the Redis server only if a snapshot was"
                " taken since."
            )
        if self.synced is None:
            return (
                "An acknowledged job is in the log of the Redis server, which does not tell when"
                " it syncs the log to disk."
            )
        return self._of_the_log()

    def _of_the_log(self) -> str:
        if self.is_synced:
            return "An acknowledged job is synced to the disk of the Redis server."
        if self.synced == "always":
            return (
                "An acknowledged job is synced to the disk of the Redis server, except while it"
                " rewrites its log: then a power cut may take up to half a minute of work."
            )
        span = "a second" if self.synced == "everysec" else "half a minute"
        return (
            f"An acknowledged job is in the log of the Redis server: a power cut there may take up"
            f" to {span} of acknowledged work."
        )


def version_in(info: Mapping[str, str]) -> tuple[int, ...]:
    """What a server says it is; empty when it does not. One that is not Redis itself says here
    which Redis it stands for.
    """
    found = re.match(r"\d+(\.\d+)*", info.get("redis_version", "").strip())
    return tuple(map(int, found[0].split("."))) if found else ()


def persistence_of(link: RedisLink) -> Persistence:
    """Ask the server; managed ones may not tell everything."""
    server = link.info("server")
    replication = link.info("replication")
    found = {name: _setting(link, name) for name in _ASKED}
    is_logged = found["appendonly"]
    if is_logged is None:
        is_logged = {"1": "yes", "0": "no"}.get(link.info("persistence").get("aof_enabled", ""))
    snapshots, rests = found["save"], found["no-appendfsync-on-rewrite"]
    return Persistence(
        version=version_in(server),
        is_replica=replication.get("role") == "slave",
        is_logged=None if is_logged is None else is_logged == "yes",
        synced=found["appendfsync"],
        rests_on_rewrite=None if rests is None else rests == "yes",
        has_snapshots=None if snapshots is None else bool(snapshots.strip()),
        evicts=found["maxmemory-policy"] or link.info("memory").get("maxmemory_policy"),
    )


def refuse_unsafe(found: Persistence, link: RedisLink, *, read_only: bool) -> None:
    """Refuse a server that would lose jobs, or that cannot run our scripts."""
    name = link.name
    if found.version and found.version < OLDEST:
        text = ".".join(map(str, found.version))
        raise StoreSchemaError(
            f"{name} is Redis {text}, and jobs need {OLDEST_NAME} or later",
            remedy=f"upgrade the server to {OLDEST_NAME} or later",
        )
    if found.evicts not in {None, "noeviction"}:
        raise ConfigurationError(
            f"{name} throws keys away when its memory is full (maxmemory-policy {found.evicts}):"
            " jobs could be lost",
            remedy="set maxmemory-policy noeviction on the server",
        )
    if found.keeps_nothing and not link.address.is_volatile:
        raise ConfigurationError(
            f"{name} keeps nothing on disk: all jobs would be lost when it ends",
            remedy="set appendonly yes and appendfsync always on the server, or write"
            " ?persistence=none in the URL if the jobs may be lost",
        )
    is_accepted = link.address.accepts_unsynced or link.address.is_volatile
    if not found.is_synced and not is_accepted and not read_only:
        raise ConfigurationError(
            f"{name} acknowledges jobs before they are synced to disk, or does not tell: "
            f"{found.sentence()}",
            remedy="set appendonly yes, appendfsync always and no-appendfsync-on-rewrite no on the"
            " server, and let this user call CONFIG GET; or write ?acknowledge=unsynced in the URL"
            " if acknowledged jobs may be lost",
        )
    if found.is_replica and not read_only:
        raise StoreReadOnlyError(
            f"{name} is a replica, which may only be read",
            remedy="write the address of the primary in the URL",
        )


def _setting(link: RedisLink, name: str) -> str | None:
    try:
        answer = link.call("CONFIG", "GET", name)
    except ErgonError as error:
        if error.code == "store_unavailable":
            raise
        return None  # forbidden, or renamed away
    return str(answer[1].decode()) if answer else None
