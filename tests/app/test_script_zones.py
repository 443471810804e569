"""Zones of a script: beside ergon.db without settings, where ergon.toml says, or on a server."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from ergon_framework import App
from ergon_framework.app.diagnostics.findings import FindingStatus
from ergon_framework.app.diagnostics.zones import examine_zones
from ergon_framework.app.node import node_address
from ergon_framework.app.settings import Settings, load_settings
from ergon_framework.app.zones import (
    check_zone_name,
    folder_name,
    known_zone,
    script_zone,
    zones_folder,
    zones_found,
)
from ergon_framework.boundary.certs import issue, make_ca
from ergon_framework.cli import invoke
from ergon_framework.connector.boundary import Zone
from ergon_framework.errors import ConfigurationError, ConflictingDuplicateError, SettingsError
from tests.servers.server import free_port


def open_zone(
    found: Settings, name: str, *, home: Path | None = None, url: str | None = None
) -> Zone:
    """The zone of a script in some folder, as an App opens it."""
    setup = script_zone(found, name, home=home, url=url)
    return Zone(setup.name, setup.settings)


def released(zone: Zone, order: str = "WO-1", pieces: int = 40) -> int:
    """Publish a fact; its offset."""
    subject, released = f"work_order:{order}", ("released", order, 1)
    return zone.publish(subject, "released", {"pieces": pieces}, to="hq", id=released).offset


def written(folder: Path, text: str) -> Path:
    """A settings file."""
    file = folder / "ergon.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_zone_needs_no_settings(tmp_path: Path) -> None:
    """It lives beside the script's store, and commands for that folder find it."""
    found = load_settings(environ={})
    with open_zone(found, "plant", home=tmp_path) as plant:
        assert released(plant) == 1
        assert released(plant) == 1
        with pytest.raises(ConflictingDuplicateError):
            released(plant, pieces=41)
    home = tmp_path / "ergon.zones"
    assert zones_found(home) == {"plant": home / "plant"}
    with open_zone(found, "plant", home=tmp_path) as again:
        assert released(again) == 1
    assert not (tmp_path / "ergon.db").exists()  # nothing was said about jobs


def test_zones_live_beside_the_store_that_a_script_names(tmp_path: Path) -> None:
    """The file of the jobs decides, whether an argument or the settings name it."""
    none = load_settings(environ={})
    there = tmp_path / "there"
    assert zones_folder(none, tmp_path, f"sqlite:///{there}/work.db") == there / "ergon.zones"
    file = written(tmp_path, '[store]\nurl = "sqlite:///var/work.db"\n')
    assert zones_folder(load_settings(file)) == tmp_path / "var" / "ergon.zones"


@pytest.mark.parametrize(
    ("name", "folder"), [("..", "%2E%2E"), ("a/b", "a%2Fb"), ("Ü x", "%C3%9C x")]
)
def test_a_zone_of_any_name_stays_in_its_folder(name: str, folder: str) -> None:
    """No name leads out of it."""
    assert folder_name(name) == folder


def test_what_is_no_zone_is_refused(tmp_path: Path) -> None:
    """Before anything is made."""
    with pytest.raises(ConfigurationError, match="cannot be a zone"):
        open_zone(load_settings(environ={}), "a\nb", home=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [5, None, b"plant", "", "a\nb"])
def test_what_is_no_name_of_a_zone_is_refused_by_an_app(name: Any) -> None:
    """Also what is no text at all, whoever is asked for the zone."""
    with App("memory://") as app, pytest.raises(ConfigurationError, match="no name for a zone"):
        app.zone(name)
    with pytest.raises(ConfigurationError, match="cannot be a zone: its name has"):
        check_zone_name(name)


def test_a_store_in_memory_keeps_facts_as_long_as_the_script(tmp_path: Path) -> None:
    """For tests: nothing is written."""
    with open_zone(load_settings(environ={}), "plant", home=tmp_path, url="memory://") as plant:
        assert released(plant) == 1
        assert [each.transaction_id for each in plant.read("all")] == ["released:WO-1:1"]
    assert list(tmp_path.iterdir()) == []


def test_the_zone_of_the_settings_is_served_as_they_say(tmp_path: Path) -> None:
    """With its address and its certificates; callers in other folders use the same node."""
    make_ca(tmp_path)
    issue(tmp_path, "plant")
    address = f"127.0.0.1:{free_port()}"
    file = written(
        tmp_path,
        f'[zones.plant]\ndata = "data"\nlisten = "{address}"\n'
        'cert = "plant.pem"\nkey = "plant.key"\nca = "ca.pem"\n',
    )
    found = load_settings(file)
    with open_zone(found, "plant") as plant, open_zone(found, "plant") as other:
        assert released(plant) == 1  # nobody serves it: this process does, in passing
        node = plant.node()
        assert node is not None
        node.start()
        assert node.address == address
        assert released(other, "WO-2") == 2  # over TLS, with the zone's own certificate
        assert released(plant) == 1
        node.stop()
    assert (tmp_path / "data" / "facts.db").is_file()
    assert not (tmp_path / "ergon.zones").exists()


def test_commands_find_the_zone_of_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They ask the process that serves it, or serve it themselves; its token is not shown."""
    monkeypatch.chdir(tmp_path)
    assert known_zone(environ={}) is None
    with open_zone(load_settings(environ={}), "plant", home=tmp_path) as plant:
        released(plant)
        setup = known_zone(environ={})
        assert setup is not None
        assert (setup.name, setup.settings.data) == ("plant", str(tmp_path / "ergon.zones/plant"))
        assert invoke(["boundary", "lookup", "plant", "released:WO-1:1"]) == 0
        assert "retained" in capsys.readouterr().out
        assert (node_address(environ={}).token or "?") not in repr(node_address(environ={}))
    with pytest.raises(ConfigurationError, match="no process of this machine serves it"):
        node_address(environ={})
    assert invoke(["boundary", "lookup", "plant", "released:WO-1:1"]) == 0  # the command serves it
    assert invoke(["why", "released:WO-1:1"]) == 0
    assert "Zone plant has it in its outbound log, at offset 1" in capsys.readouterr().out
    assert invoke(["boundary", "lookup", "plant", "never"]) == 1


@pytest.mark.parametrize("beside", [(), ("ergon.db",)])
def test_commands_find_the_zone_of_a_script_from_below(
    tmp_path: Path,
    beside: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the store of its jobs or without one, and nothing is made where they are typed."""
    monkeypatch.setenv("HOME", str(tmp_path))
    below = tmp_path / "orders" / "2026"
    below.mkdir(parents=True)
    for name in beside:
        (tmp_path / name).touch()
    with open_zone(load_settings(environ={}), "plant", home=tmp_path) as plant:
        released(plant)
    monkeypatch.chdir(below)
    assert invoke(["why", "released:WO-1:1", "--kind", "fact"]) == 0
    assert "Zone plant has it in its outbound log, at offset 1" in capsys.readouterr().out
    assert invoke(["boundary", "lookup", "plant", "released:WO-1:1"]) == 0
    assert invoke(["boundary", "lookup", "plant", "never"]) == 1
    capsys.readouterr()
    assert invoke(["check", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["kind"], row["name"]) == ("zone", "plant")
    assert row["where"] == str(tmp_path / "ergon.zones" / "plant")
    [seen] = examine_zones(load_settings(tmp_path), connects=True)
    assert (seen.check, seen.status) == ("zone plant", FindingStatus.OK)
    assert list(below.iterdir()) == []


@pytest.mark.slow
def test_one_line_takes_facts_to_a_server(
    tmp_path: Path, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With ``[store]`` on PostgreSQL facts go there; one that has some in a file is told how.

    ``ergon check`` knows such zones, too, and its hint works when it is pasted.
    """
    home = load_settings(environ={})
    with open_zone(home, "plant", home=tmp_path) as plant:
        released(plant)
    file = written(tmp_path, f'[store]\nurl = "{postgres_url}"\n')
    with pytest.raises(SettingsError, match="zone 'plant' has facts in"):
        open_zone(load_settings(file), "plant")
    assert invoke(["check", "--config", str(file)]) == 2
    pasted = re.search("  ergon (move .*? --shut)", capsys.readouterr().err)
    assert pasted is not None
    assert invoke(shlex.split(pasted[1])) == 0
    with open_zone(load_settings(file), "plant") as plant:
        assert released(plant) == 1
    assert invoke(["check", "--config", str(file)]) == 0
    assert "zone  plant" in capsys.readouterr().out
    with (
        open_zone(load_settings(file), "lab") as one,
        open_zone(load_settings(file), "lab") as two,
        open_zone(home, "lab", home=tmp_path / "elsewhere", url=postgres_url) as three,
    ):
        assert [released(each) for each in (one, two, three)] == [1, 1, 1]
        assert released(three, "WO-2") == 2
        assert len(list(one.read("all"))) == 2
    assert not (tmp_path / "ergon.zones" / "lab" / "facts.db").exists()
    assert script_zone(load_settings(file), "lab").settings.store is not None
