"""The zones part of the settings: which zones there are, and where each keeps its facts.

A script needs no settings: the zones of an ``App`` live in the folder ``ergon.zones`` beside its
``ergon.db``, each in a folder of its own, unless ``ergon.toml`` says where they live.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, unquote

from pydantic import AfterValidator, SecretStr

from ergon_framework.app.discovery import ZONES_FOLDER
from ergon_framework.app.settings import load_settings
from ergon_framework.app.settings.sections import Section, Settings
from ergon_framework.app.settings.source import did_you_mean
from ergon_framework.app.settings.stores import base_of, resolve_url
from ergon_framework.app.store_location import StoreLocation, is_same
from ergon_framework.boundary.data_folder import FILE, LOCK
from ergon_framework.boundary.facts.schema import ZONE
from ergon_framework.boundary.http.endpoint import Endpoint
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.store_urls import (
    destination_of,
    is_server,
    open_fact_store,
    setting_of,
)
from ergon_framework.core.text import toml_table, toml_text
from ergon_framework.errors import ConfigurationError, SettingsError, StoreError
from ergon_framework.ports.settings_model import FrozenDict, SettingsModel
from ergon_framework.ports.transfer import MoveState, incomplete, login_hint, move_state_of
from ergon_framework.storage.objectstore.urls import is_folder
from ergon_framework.storage.urls import SQLITE, file_of, store_operand


def for_one(defaults: ZoneSettings, name: str) -> ZoneSettings:
    """What all zones have in common, for one of them: its objects get a place of their own."""
    if defaults.objects is None:
        return defaults
    place, mark, options = defaults.objects.get_secret_value().partition("?")
    # Quoted: a zone's name may have slashes, and must not lead into the objects of another.
    own = quote(name, safe="")
    own = own if is_folder(place) else quote(own)  # names in a bucket are written as in a URL
    objects = SecretStr(f"{place.rstrip('/')}/{own}{mark}{options}")
    return defaults.model_copy(update={"objects": objects})


def with_stores(settings: ZoneSettings, found: Settings) -> ZoneSettings:
    """The zone's settings with ``[store]`` where that serves facts, and with absolute paths."""
    store, objects, base = settings.store, settings.objects, base_of(found)
    common = found.store.url
    if store is None and common is not None and is_server(common.get_secret_value()):
        store = common
    if store is not None:
        store = SecretStr(resolve_url(store.get_secret_value(), base))
    if objects is not None and is_folder(objects.get_secret_value()):
        objects = SecretStr(str((base / objects.get_secret_value()).absolute()))
    return settings.model_copy(update={"store": store, "objects": objects})


def as_secrets(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a command, those that may hold a password as settings hold them."""
    secret = {key: SecretStr(options[key]) for key in ("store", "objects") if key in options}
    return {**options, **secret}


def implicit_store(name: str, settings: ZoneSettings, *, has_folder: bool) -> ZoneSettings:
    """Settings of a zone that does not say itself where its facts are.

    A command that names a folder means the facts in it. Otherwise nobody begins an empty log on the
    server of ``[store]`` while the folder has one, unless it was moved to that server and shut.
    """
    if has_folder:
        return settings.model_copy(update={"store": None})
    file = Path(settings.data) / FILE
    if settings.store is None or not file.is_file():
        return settings
    url = settings.store.get_secret_value()
    gone, place = destination_of(name, file), StoreLocation(url).name
    table = toml_table("zones", name)
    if gone is not None:
        if is_same(gone.place, place):
            return settings
        key, value = setting_of(gone.place)
        raise SettingsError(
            f"zone {name!r} was moved to {gone.place}, and [store] names {place}",
            remedy=f"write {key} = {toml_text(value)} under {table}, or name that place under"
            " [store]",
        )
    raise SettingsError(
        f"zone {name!r} has facts in {file}, and [store] names {place}",
        remedy=f"move them there{login_hint(place)}:  {_move_command(name, file, url)}; or, to"
        " leave them in the file, write store ="
        f" {toml_text(f'{SQLITE}{file.absolute()}')} under {table}",
    )


def _move_command(name: str, file: Path, url: str) -> str:
    """What moves the facts of a file; a password is not shown."""
    source = shlex.quote(f"{SQLITE}{file.absolute()}")
    return f"ergon move {source} {store_operand(url)} --zone {shlex.quote(name)} --shut"


D = TypeVar("D", bound=SettingsModel)

_PATHS = ("data", "cert", "key", "ca", "crl", "policy")
_PLACES = ("data", "listen", "health_listen")
_HOMES = ("data", "store", "objects")
_NAME = "has 1 to 128 characters, none of which is a control character"


def _zone_key(name: str) -> str:
    if ZONE.fullmatch(name):
        return name
    raise ValueError(f"is no zone: its name {_NAME}")


def _for_all(settings: ZoneSettings) -> ZoneSettings:
    """Where a zone lives and listens cannot be the same for all of them."""
    for name in _PLACES:
        if name in settings.model_fields_set:
            raise ValueError(f"{name} belongs to one zone; write it under [zones.NAME]")
    if settings.store is not None and file_of(settings.store.get_secret_value()) is not None:
        raise ValueError("store: an SQLite file belongs to one zone; write it under [zones.NAME]")
    return settings


Defaults = Annotated[ZoneSettings, AfterValidator(_for_all)]
ZoneKey = Annotated[str, AfterValidator(_zone_key)]
Zones = Annotated[Mapping[ZoneKey, ZoneSettings], AfterValidator(FrozenDict)]

SECTIONS = {
    "boundary": Section(Defaults, has_secrets=True),
    "zones": Section(Zones, has_secrets=True),
}
"""What the settings file may hold for zones."""


@dataclass(frozen=True, slots=True)
class ZoneSetup:
    """The settings of one zone, with resolved paths and checked peers."""

    name: str
    settings: ZoneSettings
    is_store_said: bool = True
    """Whether the zone itself, or ``[boundary]``, says where its facts are; ``[store]`` may too."""


def zone_setup(
    config: str | Path | None = None,
    name: str | None = None,
    given: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> ZoneSetup:
    """The zone of that name, or the only one of the settings, as ``given`` options change it.

    Options that are None change nothing; ``peers`` come on top of those in the settings.
    """
    options = as_secrets({key: value for key, value in (given or {}).items() if value is not None})
    found = load_settings(config, environ)
    # With an option that says where it lives, the settings need not know the zone.
    setup = _named(found, name, is_new=any(key in options for key in _HOMES))
    if setup is None:
        raise SettingsError(
            "which zone? The settings have none",
            remedy="give --zone NAME, or write a table [zones.NAME] in ergon.toml",
        )
    options["peers"] = {**setup.settings.peers, **options.get("peers", {})}
    settings = setup.settings.model_copy(update=options)
    if not (setup.is_store_said or "store" in options):
        settings = implicit_store(setup.name, settings, has_folder="data" in options)
        _refuse_half_moved(setup.name, settings, _common_store(found))
    for peer in settings.peers:
        check_peer(setup.name, settings, peer)
    return ZoneSetup(setup.name, settings)


def script_zone(
    found: Settings, name: str, *, home: Path | None = None, url: str | None = None
) -> ZoneSetup:
    """The zone of a script: that of the settings, or one in ``ergon.zones`` that needs none.

    ``home`` is the script's folder, for a script without settings. ``url`` is the store that the
    script was given, which counts for facts, too, when it is a server.
    """
    check_zone_name(name)
    zones: Mapping[str, ZoneSettings] = found.extensions.get("zones") or {}
    if name in zones:
        setup = _whole(found, name, zones[name])
    else:
        setup = _whole(found, name, _default_zone(found, name, home, url))
    settings = setup.settings
    if not setup.is_store_said:
        if url is not None and is_server(url):
            settings = settings.model_copy(update={"store": SecretStr(url)})
        settings = implicit_store(name, settings, has_folder=False)
        _refuse_half_moved(name, settings, _common_store(found) if url is None else url)
    for peer in settings.peers:
        check_peer(name, settings, peer)
    return ZoneSetup(name, settings)


def _common_store(found: Settings) -> str:
    """The store of ``[store]``, by its absolute URL; empty without one."""
    common = found.store.url
    return "" if common is None else resolve_url(common.get_secret_value(), base_of(found))


def _refuse_half_moved(name: str, settings: ZoneSettings, url: str) -> None:
    """Use no zone on a server that is to get all parts of a program in one move.

    A move marks the jobs first, and it may die before it has marked the zones. A zone that has a
    mark of its own knows by itself whether it is complete. Zones in files are told by what the move
    leaves beside them.
    """
    from ergon_framework.jobs.store_urls import open_store

    if not is_server(url):
        return
    state = MoveState()
    with (
        suppress(StoreError, ConfigurationError),  # whoever opens it says what is wrong
        closing(open_store(url, read_only=True)) as store,
    ):
        state = move_state_of(store)
    if not state.is_incomplete or state.program is None:
        return
    store_of_facts = settings.store
    place = f"{SQLITE}{Path(settings.data).absolute() / FILE}"
    if store_of_facts is not None:
        place = store_of_facts.get_secret_value()
    with (
        suppress(StoreError, ConfigurationError),
        closing(open_fact_store(place, zone=name, read_only=True)) as facts,
    ):
        if move_state_of(facts).source:
            return
    raise incomplete(state)


def _default_zone(found: Settings, name: str, home: Path | None, url: str | None) -> ZoneSettings:
    """The settings of a zone that no table describes: served to this user, on any free port."""
    common = found.store.url
    store = url or ("" if common is None else common.get_secret_value())
    if store.lower().startswith("memory:"):
        memory = SecretStr("memory://")
        return ZoneSettings(store=memory, objects=memory, listen="127.0.0.1:0", insecure=True)
    defaults: ZoneSettings = found.extensions.get("boundary") or ZoneSettings()
    folder = zones_folder(found, home, url) / folder_name(name)
    private: dict[str, Any] = {"data": str(folder), "listen": "127.0.0.1:0"}
    return ZoneSettings(**private) if defaults.cert else ZoneSettings(**private, insecure=True)


def zones_folder(found: Settings, home: Path | None = None, url: str | None = None) -> Path:
    """Where the zones of a script live: beside the file that keeps its jobs, if there is one.

    Without settings that is ``home``, or the folder in which the script was found.
    """
    base = base_of(found) if home is None or found.file is not None else home
    common = found.store.url
    store = url or (None if common is None else common.get_secret_value())
    file = None if store is None else file_of(resolve_url(store, base))
    return ((base if file is None else file.parent) / ZONES_FOLDER).absolute()


def folder_name(zone: str) -> str:
    """The name of a zone's own folder; names that mean something to a file system are escaped."""
    name = quote(zone, safe=" ")
    return name.replace(".", "%2E") if name in (".", "..") else name


def zones_found(folder: Path) -> dict[str, Path]:
    """The zones that scripts have made in a folder, by name."""
    if not folder.is_dir():
        return {}
    return {
        unquote(each.name): each for each in sorted(folder.iterdir()) if (each / LOCK).is_file()
    }


def known_zone(
    config: str | Path | None = None,
    name: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> ZoneSetup | None:
    """The zone of that name in the settings, or the only one; None when they have none at all."""
    return _named(load_settings(config, environ), name, is_new=False)


def peers_of(texts: list[str] | None) -> dict[str, str] | None:
    """Peers as an option says them: ``NAME=URL``, each name once."""
    if not texts:
        return None
    peers: dict[str, str] = {}
    for text in texts:
        name, equals, url = text.partition("=")
        if not (name and equals and url):
            raise ConfigurationError(
                f"--peer {text!r} is not NAME=URL",
                remedy="write for example --peer plant-b=https://10.0.0.2:9443",
            )
        if name in peers:
            raise ConfigurationError(f"--peer {name!r} is given twice", remedy="give it once")
        peers[name] = url
    return peers


def check_zone_name(name: object) -> str:
    """A zone's name that may be used."""
    if isinstance(name, str) and ZONE.fullmatch(name):
        return name
    raise ConfigurationError(
        f"{name!r} cannot be a zone: its name {_NAME}", remedy="choose another name"
    )


def _named(found: Settings, name: str | None, *, is_new: bool) -> ZoneSetup | None:
    zones: Mapping[str, ZoneSettings] = found.extensions.get("zones") or {}
    if name is None and len(zones) > 1:
        raise SettingsError(
            f"which zone? {found.file} has {', '.join(map(repr, zones))}",
            remedy="choose one with --zone",
        )
    made = {} if is_new else zones_found(zones_folder(found)).keys() - zones.keys()
    if name is None and not zones:
        if not made:
            return None
        if len(made) > 1:
            raise SettingsError(
                f"which zone? {zones_folder(found)} has {', '.join(map(repr, sorted(made)))}",
                remedy="choose one with --zone",
            )
        (name,) = made
    chosen = next(iter(zones)) if name is None else check_zone_name(name)
    if chosen in made:
        return _whole(found, chosen, _default_zone(found, chosen, None, None))
    if chosen not in zones and zones and not is_new:
        raise SettingsError(
            f"{found.file} has no zone {chosen!r}; {did_you_mean(chosen, list(zones))}",
            remedy="correct --zone, or say where the new zone lives with --data",
        )
    return _whole(found, chosen, zones.get(chosen, ZoneSettings()))


def zones_of(found: Settings) -> Mapping[str, ZoneSetup]:
    """Every zone of the settings, its paths resolved; its peers are as they were written."""
    zones: Mapping[str, ZoneSettings] = found.extensions.get("zones") or {}
    return {name: _whole(found, name, settings) for name, settings in zones.items()}


def script_zones(found: Settings) -> Mapping[str, ZoneSetup]:
    """The zones that scripts beside the settings have made, and that the settings do not name."""
    named: Mapping[str, ZoneSettings] = found.extensions.get("zones") or {}
    try:
        made = zones_found(zones_folder(found)).keys() - named.keys()
    except ConfigurationError:  # the URL of the store: whoever opens that says what is wrong
        return {}
    return {
        name: _whole(found, name, _default_zone(found, name, None, None)) for name in sorted(made)
    }


def all_zones(found: Settings) -> Mapping[str, ZoneSetup]:
    """Every zone of the settings, and those that scripts beside them have made."""
    return {**zones_of(found), **script_zones(found)}


def _whole(found: Settings, name: str, own: ZoneSettings) -> ZoneSetup:
    defaults: ZoneSettings = found.extensions.get("boundary") or ZoneSettings()
    settings = _beneath(for_one(defaults, name), own)
    placed = with_stores(_placed(settings, base_of(found)), found)
    return ZoneSetup(name, placed, settings.store is not None)


def _beneath(defaults: D, own: D) -> D:
    """``own``, with ``defaults`` for what it does not say."""
    update: dict[str, Any] = {}
    for name in defaults.model_fields_set:
        value, mine = getattr(defaults, name), getattr(own, name)
        if name not in own.model_fields_set:
            update[name] = value
        elif isinstance(value, SettingsModel):
            update[name] = _beneath(value, mine)
    return own.model_copy(update=update)


def _placed(settings: ZoneSettings, base: Path) -> ZoneSettings:
    """The settings with absolute paths; those of a settings file are relative to its folder."""
    values = {name: getattr(settings, name) for name in _PATHS}
    paths = {name: str((base / path).absolute()) for name, path in values.items() if path}
    return settings.model_copy(update=paths)


def check_peer(name: str, settings: ZoneSettings, peer: str) -> None:
    """Refuse a peer that could never be reached."""
    is_secure = settings.cert is not None
    check_zone_name(peer)
    if peer == name:
        raise ConfigurationError(
            f"zone {name!r} cannot be its own peer", remedy="name the other zone"
        )
    try:
        Endpoint(settings.peers[peer], _never if is_secure else None, peer if is_secure else None)
    except ConfigurationError as error:
        raise ConfigurationError(f"peer {peer!r}: {error.message}", remedy=error.remedy) from None


def _never() -> Any:
    raise NotImplementedError
