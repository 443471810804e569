"""Checking and examining the zones part: folders, ports, certificates, policies, stores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from ergon_framework.app.diagnostics.findings import (
    TIMEOUT,
    Finding,
    FindingStatus,
    SettingsCheck,
    of_error,
    within,
)
from ergon_framework.app.parts import has_local_node
from ergon_framework.app.settings import check_server_packages
from ergon_framework.app.settings.secrets import revealed
from ergon_framework.app.settings.sections import Settings
from ergon_framework.app.settings.stores import base_of
from ergon_framework.app.settings.tokens import parsed
from ergon_framework.app.zones import (
    ZoneSetup,
    check_peer,
    implicit_store,
    script_zones,
    zones_of,
)
from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.http.addresses import check_plaintext, is_loopback, split_address
from ergon_framework.boundary.node.node import certificates_of
from ergon_framework.boundary.node.policy import read_policy
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.store_urls import (
    check_fact_url,
    check_stores,
    fact_file,
    folders_of,
    object_place,
    open_facts,
)
from ergon_framework.boundary.zone import low_disk_space
from ergon_framework.errors import ConfigurationError, ErgonError
from ergon_framework.ports.transfer import move_state_of, refuse_unusable
from ergon_framework.storage.objectstore.urls import check_object_place, is_folder
from ergon_framework.storage.urls import SQLITE, is_readable_file, store_operand

_TLS = ("cert", "key", "ca")
_EVERYWHERE = {"0.0.0.0", "::", "localhost"}  # noqa: S104 - to be told from, not to bind
TOKEN = "ERGON_SERVER_TOKEN"  # noqa: S105 - the name of a variable


def check_places(checking: SettingsCheck) -> None:
    """Note what would keep a zone or the server from starting, or two of them apart."""
    zones = zones_of(checking.settings)
    for zone in zones.values():
        _check_zone(checking, zone)
    here = [zone for zone in zones.values() if has_local_node(checking.settings, zone.name)]
    _check_folders(checking, here)
    _check_ports(checking, here)
    if "server" in checking.settings.model_fields_set:
        with checking.collect("server"):
            check_server_packages()
            _check_token(checking)
    server = checking.settings.server
    has_token = server.token is not None or TOKEN in checking.environ
    if (
        "server" in checking.settings.model_fields_set
        and not has_token
        and not is_loopback(server.host)
    ):
        problem = f"{server.host} can be reached from other machines, and there is no token"
        remedy = 'write token = "file:PATH", or listen on 127.0.0.1'
        checking.add_problem(("server", "host"), problem, remedy)


def check_script_zones(checking: SettingsCheck) -> None:
    """Note zones of scripts whose facts are not where ``[store]`` says that everything is."""
    for zone in script_zones(checking.settings).values():
        if not zone.is_store_said:
            with checking.collect("store", "url"):
                implicit_store(zone.name, zone.settings, has_folder=False)


def _check_token(checking: SettingsCheck) -> None:
    token = checking.settings.server.token
    if TOKEN in checking.environ:  # it goes before the settings
        with checking.collect("server"):
            parsed(checking.environ[TOKEN], TOKEN)
    elif token is not None and not checking.has_problem("server", "token"):
        with checking.collect("server", "token"):
            parsed(token.get_secret_value(), "[server]")


def _check_zone(checking: SettingsCheck, zone: ZoneSetup) -> None:
    settings = zone.settings
    for key in (*_TLS, "policy"):
        path = getattr(settings, key)
        if path is not None and not is_readable_file(path):
            checking.add_problem(_written(checking, zone, key), *_missing(checking, Path(path)))
    for peer in settings.peers:
        with checking.collect("zones", zone.name, "peers", peer):
            check_peer(zone.name, settings, peer)
    if settings.policy is not None and not checking.has_problem(
        *_written(checking, zone, "policy")
    ):
        with checking.collect(*_written(checking, zone, "policy")):
            read_policy(settings.policy)
    if has_local_node(checking.settings, zone.name):
        _check_stores(checking, zone)
        _check_node(checking, zone)


def _missing(checking: SettingsCheck, file: Path) -> tuple[str, str]:
    """What is wrong with a file that a zone names, and what to do about it."""
    if file.is_file():
        return f"the file {file} cannot be read", "let this user read it"
    shown = os.path.relpath(file, base_of(checking.settings))
    if shown.startswith(os.pardir):  # it was written as a path of its own
        return f"there is no file {str(file)!r}", "correct its name"
    return f"there is no file {shown!r}", "paths start at the settings file"


def _check_stores(checking: SettingsCheck, zone: ZoneSetup) -> None:
    settings = zone.settings
    store, objects = (_written(checking, zone, key) for key in ("store", "objects"))
    if zone.is_store_said and settings.store is not None and not checking.has_problem(*store):
        with checking.collect(*store):
            check_fact_url(settings.store.get_secret_value())
    if not zone.is_store_said:
        with checking.collect("zones", zone.name):
            implicit_store(zone.name, settings, has_folder=False)
    if settings.objects is not None and not checking.has_problem(*objects):
        with checking.collect(*objects):
            check_object_place(settings.objects.get_secret_value())


def _check_node(checking: SettingsCheck, zone: ZoneSetup) -> None:
    settings = zone.settings
    with checking.collect("zones", zone.name, "listen"):
        host, _ = split_address(settings.listen)
        if not any(getattr(settings, key) for key in _TLS):
            check_plaintext(host, settings.insecure)
    if settings.health_listen is not None:
        with checking.collect("zones", zone.name, "health_listen"):
            split_address(settings.health_listen)
    has_all = all(getattr(settings, key) for key in _TLS)
    if has_all and any(checking.has_problem(*_written(checking, zone, key)) for key in _TLS):
        return  # told already
    with checking.collect("zones", zone.name):
        certificates = certificates_of(settings)
        if certificates is not None and certificates.identity != zone.name:
            raise ConfigurationError(
                f"the certificate is that of zone {certificates.identity!r}",
                remedy="use the certificate of this zone, or correct its name",
            )


def _written(checking: SettingsCheck, zone: ZoneSetup, key: str) -> tuple[str, ...]:
    """Where a key of a zone stands: under its own name, or what all zones have in common."""
    own = ("zones", zone.name, key)
    return ("boundary", key) if checking.has("boundary", key) and not checking.has(*own) else own


def _check_folders(checking: SettingsCheck, zones: list[ZoneSetup]) -> None:
    taken: dict[str, str] = {}
    for zone in zones:
        if "\0" in zone.settings.data:
            checking.add_problem(
                ("zones", zone.name, "data"), "must not hold NUL characters", "remove them"
            )
            continue
        for key, what, place in _homes(zone):
            other = taken.setdefault(place, zone.name)
            if other != zone.name:
                remedy = f"give each zone a {what} of its own"
                checking.add_problem(
                    ("zones", zone.name, key), f"the zone {other!r} has that {what}", remedy
                )
                break


def _homes(zone: ZoneSetup) -> Iterator[tuple[str, str, str]]:
    """What a zone shares with no other: the key that says it, what it is, and where."""
    settings = zone.settings
    place = object_place(settings)
    with suppress(ValueError, OSError):  # a path that cannot be one is told already
        for folder in folders_of(settings):
            key = "objects" if str(folder) == place else "store"
            own = "data" if folder == Path(settings.data) else key
            yield own, "folder", str(folder.resolve())
    if not is_folder(place):
        yield "objects", "place in a bucket", place.partition("?")[0].rstrip("/")


def _check_ports(checking: SettingsCheck, zones: list[ZoneSetup]) -> None:
    taken: list[tuple[str, int, str]] = []
    for path, who, host, port in _listeners(checking, zones):
        for other_host, other_port, other in taken:
            is_same = host == other_host or {host, other_host} & _EVERYWHERE
            if port and port == other_port and is_same:
                checking.add_problem(path, f"{other} listens on port {port}", "choose another port")
                break
        taken.append((host, port, who))


def _listeners(
    checking: SettingsCheck, zones: list[ZoneSetup]
) -> Iterator[tuple[tuple[str, ...], str, str, int]]:
    for zone in zones:
        for key in ("listen", "health_listen"):
            with suppress(ConfigurationError):  # told already
                if address := getattr(zone.settings, key):
                    yield (
                        ("zones", zone.name, key),
                        f"the zone {zone.name!r}",
                        *split_address(address),
                    )
    if "server" in checking.settings.model_fields_set:
        server = checking.settings.server
        yield ("server", "port"), "the server", server.host, server.port


def examine_zones(
    settings: Settings, *, connects: bool, timeout: float = TIMEOUT
) -> Iterator[Finding]:
    """One finding for each zone whose node is kept here, and for each that a script has made."""
    here = [each for each in zones_of(settings).values() if has_local_node(settings, each.name)]
    for zone in (*here, *script_zones(settings).values()):
        check = f"zone {zone.name}"
        try:
            yield within(check, partial(_found, check, zone, connects), timeout)
        except ErgonError as error:
            yield of_error(check, error)


def _found(check: str, zone: ZoneSetup, connects: bool) -> Finding:
    settings = zone.settings
    if not zone.is_store_said:
        settings = implicit_store(zone.name, settings, has_folder=False)
    check_stores(settings)
    for folder in folders_of(settings):
        here = _refuse_unusable(folder)
        if connects:  # checked settings may be for another machine
            _refuse_full_disk(here, settings.limits.free_bytes)
    file = fact_file(settings)
    if file is not None and not file.exists():
        return Finding(check, FindingStatus.OK, "will be made when its node first starts")
    if not connects:
        return Finding(check, FindingStatus.OK, "has its stores named")
    return _opened(check, zone.name, settings, file)


def _opened(check: str, name: str, settings: ZoneSettings, file: Path | None) -> Finding:
    """What an acknowledgement means there, and whether all fits that the settings allow.

    A file is only looked at: its node may have it, and whoever asks may be another user.
    """
    with closing(open_facts(name, settings, read_only=file is not None)) as store:
        refuse_unusable(move_state_of(store), _operand(settings, file), name)
        acknowledgement, largest = store.acknowledgement, store.largest
        is_in_memory = isinstance(store, MemoryFactStore)
    if file is not None and not os.access(file, os.W_OK):
        raise _unusable(file, "this user may not write it")
    allowed = settings.limits.fact_bytes
    if largest is not None and largest < allowed:
        found = f"its server takes facts of {largest:,} bytes, and limits.fact_bytes is {allowed:,}"
        remedy = "raise max_payload of the server, or lower fact_bytes"
        return Finding(check, FindingStatus.NOTE, found, remedy)
    if is_in_memory:  # of a server, the row of its durability tells
        remedy = "fine for trials; for facts that may not be lost leave store out, or name a file"
        return Finding(check, FindingStatus.NOTE, acknowledgement, remedy)
    return Finding(check, FindingStatus.OK, acknowledgement, store=revealed(settings.store) or "")


def _operand(settings: ZoneSettings, file: Path | None) -> str:
    return store_operand(revealed(settings.store) or f"{SQLITE}{file}")


def _refuse_unusable(folder: Path) -> Path:
    """A folder in which nothing can be kept, or that cannot be made; it is not made here.

    The folder itself, or the nearest above it that is there.
    """
    try:
        here = next(each for each in (folder, *folder.parents) if each.exists())
    except OSError as error:  # a folder above that may not be searched
        raise _unusable(folder, error.strerror or str(error)) from error
    if not here.is_dir():
        raise _unusable(folder, f"{here} is no folder")
    if not os.access(here, os.W_OK | os.X_OK):
        raise _unusable(folder, f"this user may not write to {here}")
    return here


def _refuse_full_disk(folder: Path, free_bytes: int) -> None:
    """A disk with so little room that a node there would say that it is not ready."""
    left = low_disk_space(folder, free_bytes)
    if left is not None:
        raise ConfigurationError(
            f"{left}, and limits.free_bytes is {free_bytes >> 20} MiB: a node would not be ready",
            remedy="free some disk space, or name a place with more",
        )


def _unusable(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{path} cannot be used: {why}", remedy="name a place that this user may write to"
    )
