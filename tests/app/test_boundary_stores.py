"""Where the settings say that a zone keeps its facts and its objects."""

from __future__ import annotations

import shlex
import tomllib
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.app.diagnostics.check import check
from ergon_framework.app.parts import startable
from ergon_framework.app.settings import loader
from ergon_framework.app.zones import ZoneSetup, known_zone, zone_setup
from ergon_framework.boundary.store_urls import (
    fact_file,
    folders_of,
    object_place,
    open_fact_store,
    open_facts,
)
from ergon_framework.errors import SettingsError
from ergon_framework.ports.factstore import OUTBOUND
from tests.app.move.stock import append, ergon, moved

pytestmark = pytest.mark.req("SCALE:boundary-postgres", "SCALE:objects-s3")

SERVER = "postgresql://me:hunter2@host/db"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test has a working directory and a registry of sections of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loader, "registered_sections", {})
    return tmp_path


def meant(text: str, name: str | None = None) -> ZoneSetup:
    """The zone of a settings file."""
    Path("ergon.toml").write_text(text)
    setup = known_zone(None, name, environ={})
    assert setup is not None
    return setup


def store_of(setup: ZoneSetup) -> str | None:
    """The URL of its facts, opened."""
    store = setup.settings.store
    return None if store is None else store.get_secret_value()


def test_by_default_both_are_in_the_folder(directory: Path) -> None:
    """As ever: a file and a folder in ``data``, whatever SQLite file ``[store]`` names."""
    setup = meant('[store]\nurl = "sqlite:///work.db"\n[zones.a]\ndata = "a"')
    assert fact_file(setup.settings) == directory / "a" / "facts.db"
    assert object_place(setup.settings) == str(directory / "a" / "objects")
    assert folders_of(setup.settings) == [directory / "a"]


@pytest.mark.parametrize(
    ("common", "is_used"),
    [(SERVER, True), ("nats://host:4222", True), ("redis://host/0", False), ("memory://", False)],
)
def test_the_common_store_is_used_if_it_keeps_facts(common: str, is_used: bool) -> None:
    """A server of ``[store]`` that has facts is where they go; no other is."""
    setup = meant(f'[store]\nurl = "{common}"\n[zones.a]\ndata = "a"')
    assert store_of(setup) == (common if is_used else None)


def test_a_zone_may_say_both(directory: Path) -> None:
    """What it says goes before everything else; paths are relative to the file."""
    setup = meant(
        f'[store]\nurl = "{SERVER}"\n[boundary]\nstore = "nats://host"\nobjects = "s3://all"\n'
        '[zones.a]\nstore = "sqlite:///log/a.db"\nobjects = "files"'
    )
    assert fact_file(setup.settings) == directory / "log" / "a.db"
    assert object_place(setup.settings) == str(directory / "files")
    assert folders_of(setup.settings) == [directory / "log", directory / "files"]


def test_what_all_zones_have_in_common_is_apart_for_each() -> None:
    """One server may hold the facts of all; the objects of each have a place of their own."""
    text = (
        f'[boundary]\nstore = "{SERVER}"\nobjects = "s3://all/x/?region=y"\n'
        '[zones."plant a/b"]\n[zones.office]\n'
    )
    assert store_of(meant(text, "office")) == SERVER
    assert object_place(meant(text, "office").settings) == "s3://all/x/office?region=y"
    assert object_place(meant(text, "plant a/b").settings) == (
        "s3://all/x/plant%2520a%252Fb?region=y"
    )


def test_a_file_cannot_be_common() -> None:
    """An SQLite file holds one zone."""
    with pytest.raises(SettingsError, match="an SQLite file belongs to one zone"):
        meant('[boundary]\nstore = "sqlite:///a.db"\n[zones.a]\ndata = "a"')


def test_a_secret_may_stand_elsewhere() -> None:
    """A URL with a password can come from the environment, and shows nowhere."""
    Path("ergon.toml").write_text('[zones.a]\nstore = "env:FACTS"')
    setup = known_zone(None, None, environ={"FACTS": SERVER})
    assert setup is not None
    assert store_of(setup) == SERVER
    assert "hunter2" not in repr(setup)


def test_facts_in_the_folder_are_not_left_behind(directory: Path) -> None:
    """A zone does not begin an empty log on a server because ``[store]`` now names one."""
    text = f'[store]\nurl = "{SERVER}"\n[zones.a]\ndata = "a"'
    Path("ergon.toml").write_text(text)
    Path("a").mkdir()
    Path("a/facts.db").touch()
    with pytest.raises(
        SettingsError, match=r"has facts in .*, and .store. names postgresql://me@host/db"
    ):
        zone_setup(environ={})
    with pytest.raises(SettingsError, match="names postgresql") as caught:
        check(environ={})
    assert "hunter2" not in str(caught.value)
    Path("ergon.toml").write_text(f'{text}\nstore = "sqlite:///a/facts.db"')
    assert fact_file(zone_setup(environ={}).settings) == directory / "a" / "facts.db"
    Path("ergon.toml").write_text(f'{text}\nstore = "{SERVER}"')
    assert store_of(zone_setup(environ={})) == SERVER


def test_the_hint_for_facts_in_a_folder_is_toml(directory: Path) -> None:
    """A zone and a folder of any name: what the hint says to write is what the settings read."""
    text = f'[store]\nurl = "{SERVER}"\n[zones."Werk Süd"]\ndata = \'a "b"\''
    Path("ergon.toml").write_text(text)
    Path('a "b"').mkdir()
    Path('a "b"/facts.db').touch()
    with pytest.raises(SettingsError, match="has facts in") as caught:
        zone_setup(environ={})
    value, _, heading = caught.value.remedy.partition("write ")[2].partition(" under ")
    read = tomllib.loads(f"{heading}\n{value}")
    assert read == {"zones": {"Werk Süd": {"store": f'sqlite:///{directory}/a "b"/facts.db'}}}


@pytest.mark.slow
def test_only_the_url_changes_when_a_zone_was_moved(postgres_url: str, directory: Path) -> None:
    """The error names the command that moves the facts; after it, ``[store]`` is enough."""
    Path("ergon.toml").write_text('[zones.a]\ndata = "a"')
    Path("a").mkdir()
    with closing(open_fact_store("sqlite:///a/facts.db", zone="a")) as store:
        append(store, "n1")
    Path("ergon.toml").write_text(
        f'[store]\nurl = "{postgres_url}"\n[zones.a]\ndata = "a"\ninsecure = true'
    )
    with pytest.raises(SettingsError, match="has facts in") as caught:
        zone_setup(environ={})
    command = caught.value.remedy.partition(":  ")[2].partition("; or,")[0]
    done = ergon(*shlex.split(command)[1:])
    assert done.returncode == 0, done.stderr
    setup = zone_setup(environ={})
    assert store_of(setup) == postgres_url
    with closing(open_facts("a", setup.settings)) as store:
        assert [log.head for log in store.logs() if log.name == OUTBOUND] == [1]
    assert [row.name for row in check(environ={})] == ["a"]


@pytest.mark.slow
def test_a_zone_that_was_moved_elsewhere_is_not_begun_anew(
    postgres_url: str, directory: Path
) -> None:
    """``[store]`` names another server than the one its facts were moved to."""
    Path("a").mkdir()
    with closing(open_fact_store("sqlite:///a/facts.db", zone="a")) as store:
        append(store, "n1")
    moved("sqlite:///a/facts.db", postgres_url, zone="a", shuts=True)
    Path("ergon.toml").write_text(f'[store]\nurl = "{SERVER}"\n[zones.a]\ndata = "a"')
    with pytest.raises(
        SettingsError, match=r"was moved to .*, and .store. names postgresql://me@host"
    ):
        zone_setup(environ={})


def test_options_go_before_the_settings(directory: Path) -> None:
    """A folder that a command names means the facts in it, unless the zone says another store."""
    Path("ergon.toml").write_text(f'[store]\nurl = "{SERVER}"\n[zones.a]\nlisten = "127.0.0.1:1"')
    given = zone_setup(given={"data": str(directory / "x")}, environ={}).settings
    assert fact_file(given) == directory / "x" / "facts.db"
    given = zone_setup(given={"store": "nats://host", "objects": "s3://b"}, environ={}).settings
    assert (fact_file(given), object_place(given)) == (None, "s3://b")
    assert "s3://b" not in repr(given)


def test_a_zone_that_says_where_it_lives_is_started() -> None:
    """``store`` or ``objects`` will do as ``data`` does; what all have in common does not."""
    Path("ergon.toml").write_text(
        f'[boundary]\nstore = "{SERVER}"\n[zones.a]\nobjects = "s3://b"\n'
        f'[zones.b]\nstore = "{SERVER}"\n[zones.c]\nlisten = "127.0.0.1:1"'
    )
    assert [part.name for part in startable(loader.load_settings(environ={}))] == ["a", "b"]


@pytest.mark.parametrize(
    ("zone", "problem"),
    [
        ('store = "redis://me:hunter2@host"', "zones.b.store: Redis does not keep facts"),
        ('store = "oracle://me:hunter2@host"', "no store of the kind 'oracle'"),
        ('objects = "s3://key:hunter2@bucket"', "zones.b.objects: the URL of a bucket holds no"),
        ('objects = "s3://shared/x?region=y"', "the zone 'a' has that place in a bucket"),
        ('data = "a"', "the zone 'a' has that folder"),
        ('store = "sqlite:///a/other.db"\nobjects = "o"', "zones.b.store: the zone 'a' has that"),
    ],
)
def test_check_tells_what_is_wrong_with_a_store(zone: str, problem: str) -> None:
    """Without opening any, at the key that says it, and without a password."""
    Path("ergon.toml").write_text(
        '[zones.a]\nlisten = "127.0.0.1:1"\ninsecure = true\n'
        'store = "sqlite:///a/facts.db"\nobjects = "s3://shared/x"\n'
        f'[zones.b]\nlisten = "127.0.0.1:2"\ninsecure = true\n{zone}'
    )
    with pytest.raises(SettingsError) as caught:
        check(environ={})
    assert problem in str(caught.value).replace("\n", " ")
    assert "hunter2" not in str(caught.value)
