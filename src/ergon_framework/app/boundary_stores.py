"""Where a zone of the settings keeps its facts and its objects."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import SecretStr

from ergon_framework.app.moving.places import Place
from ergon_framework.app.moving.spelling import is_same
from ergon_framework.app.settings.sections import Settings
from ergon_framework.app.settings.stores import base_of, resolve_url
from ergon_framework.boundary.folder import FILE
from ergon_framework.boundary.opening import is_folder, is_server, open_fact_store
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.errors import SettingsError, StoreError
from ergon_framework.ports.moving import mark_of
from ergon_framework.storage.urls import store_option


def for_one(defaults: ZoneSettings, name: str) -> ZoneSettings:
    """What all zones have in common, for one of them: its objects get a place of their own."""
    if defaults.objects is None:
        return defaults
    place, mark, options = defaults.objects.get_secret_value().partition("?")
    own = quote(name, safe="")
    own = own if is_folder(place) else quote(own)  # names in a bucket are written as in a URL
    objects = SecretStr(f"{place.rstrip('/')}/{own}{mark}{options}")
    return defaults.model_copy(update={"objects": objects})


def with_stores(settings: ZoneSettings, found: Settings) -> ZoneSettings:
    """The same with ``[store]`` where it serves facts, and with the paths of stores absolute."""
    store, objects, base = settings.store, settings.objects, base_of(found)
    common = found.store.url
    if store is None and common is not None and is_server(common.get_secret_value()):
        store = common
    if store is not None:
        store = SecretStr(resolve_url(store.get_secret_value(), base))
    if objects is not None and is_folder(objects.get_secret_value()):
        objects = SecretStr(str((base / objects.get_secret_value()).absolute()))
    return settings.model_copy(update={"store": store, "objects": objects})


def closed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a command, those that may hold a password as settings hold them."""
    secret = {key: SecretStr(options[key]) for key in ("store", "objects") if key in options}
    return {**options, **secret}


def unsaid(name: str, settings: ZoneSettings, *, has_folder: bool) -> ZoneSettings:
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
    moved_to, place = _moved_to(name, file), Place(url).name
    if is_same(moved_to, place):
        return settings
    if moved_to:
        raise SettingsError(
            f"zone {name!r} was moved to {moved_to}, and [store] names {place}",
            remedy=f"name {moved_to} under [store], or with store under [zones.{name}]",
        )
    raise SettingsError(
        f"zone {name!r} has facts in {file}, and [store] names {place}",
        remedy=f"move them there:  {_move_command(name, file, url)}; or, to leave them in the"
        f' file, write store = "sqlite:///{file.absolute()}" under [zones.{name}]',
    )


def _move_command(name: str, file: Path, url: str) -> str:
    """What moves the facts of a file; a URL that holds a password is not shown."""
    target = shlex.quote(url) if store_option(url) else '"$URL_OF_THE_STORE"'
    source = shlex.quote(f"sqlite:///{file.absolute()}")
    return f"ergon move {source} {target} --zone {shlex.quote(name)} --shut"


def _moved_to(name: str, file: Path) -> str:
    """Where the facts of a file were moved to; empty when they were not, or nobody can tell."""
    try:
        with closing(open_fact_store(f"sqlite:///{file}", zone=name, read_only=True)) as store:
            return mark_of(store).moved_to
    except StoreError:
        return ""
