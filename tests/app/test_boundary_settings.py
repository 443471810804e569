"""Zones in ``ergon.toml``: which is meant, what it inherits, and where its node is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ergon_framework.app.node import node_address, zone_meant
from ergon_framework.app.settings import loader
from ergon_framework.app.zones import known_zone, peers_of, zone_setup
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.errors import ConfigurationError, SettingsError

pytestmark = pytest.mark.req("BOUNDARY:operator")

PAIR = """
[boundary]
policy = "policy.toml"
strict_ids = true
limits = { fact_bytes = 1000, page_items = 7 }

[zones.plant-a]
data = "a"
listen = "127.0.0.1:1111"
insecure = true
limits = { page_items = 9 }
peers = { plant-b = "http://127.0.0.1:2222" }

[zones.plant-b]
listen = "127.0.0.1:2222"
strict_ids = false
"""
TLS = """
[zones."Plant A"]
listen = "0.0.0.0:9443"
cert = "a.pem"
key = "a.key"
ca = "/etc/ca.pem"
"""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test has a working directory and a registry of sections of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loader, "registered_sections", {})
    return tmp_path


def write(text: str, folder: str = ".") -> Path:
    """A settings file."""
    path = Path(folder) / "ergon.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_a_zone_inherits_what_it_does_not_say(directory: Path) -> None:
    """[boundary] is for all zones, table by table; paths are relative to the file."""
    config = write(PAIR, "etc")
    first = zone_setup(config, "plant-a", environ={}).settings
    assert (first.strict_ids, first.insecure) == (True, True)
    assert (first.limits.fact_bytes, first.limits.page_items) == (1000, 9)
    assert first.data == str(directory / "etc" / "a")
    assert first.policy == str(directory / "etc" / "policy.toml")
    second = zone_setup(config, "plant-b", environ={}).settings
    assert (second.strict_ids, second.limits.page_items) == (False, 7)


def test_options_and_variables_win() -> None:
    """An option beats a variable, a variable the file; None says nothing; peers add up."""
    write(PAIR)
    given: dict[str, Any] = {
        "listen": "127.0.0.1:3",
        "data": "/x",
        "insecure": None,
        "peers": {"hq": "http://127.0.0.1:4"},
    }
    setup = zone_setup(
        None, "plant-a", given, environ={"ERGON_ZONES__PLANT_A__CAPACITY_BYTES": "12"}
    )
    assert (setup.settings.listen, setup.settings.data) == ("127.0.0.1:3", "/x")
    assert (setup.settings.insecure, setup.settings.capacity_bytes) == (True, 12)
    assert list(setup.settings.peers) == ["plant-b", "hq"]


def test_the_only_zone_need_not_be_named() -> None:
    """A file with one zone is enough, and none at all is fine with a name."""
    assert zone_setup(name="hq", environ={}).settings.listen == ZoneSettings().listen
    assert known_zone(environ={}) is None
    write(TLS)
    assert zone_setup(environ={}).name == "Plant A"
    assert zone_setup(name="new", given={"data": "n"}, environ={}).name == "new"


@pytest.mark.req("BOUNDARY:badinput")
@pytest.mark.parametrize(
    ("text", "name", "given", "told"),
    [
        ("", None, {}, "which zone? The settings have none"),
        (PAIR, None, {}, "has 'plant-a', 'plant-b' (choose one"),
        (PAIR, "plant-c", {}, "has no zone 'plant-c'; did you mean"),
        ("", "a\tb", {}, "'a\\tb' cannot be a zone"),
        ("", "", {}, "'' cannot be a zone"),
        ("", "x" * 129, {}, "cannot be a zone"),
        ("", "a", {"peers": {"a": "http://127.0.0.1:1"}}, "cannot be its own peer"),
        ("", "a", {"peers": {"b": "ftp://b"}}, "peer 'b': 'ftp://b' is no URL of a node"),
        ("", "a", {"peers": {"b": "http://10.0.0.1:1"}}, "peer 'b': http://10.0.0.1:1 would send"),
        ("", "a", {"peers": {"b\n": "http://127.0.0.1:1"}}, "'b\\n' cannot be a zone"),
        (TLS, None, {"peers": {"b": "http://127.0.0.1:1"}}, "is not encrypted, although"),
        ('[boundary]\nlisten = "x:1"\n', "a", {}, "listen belongs to one zone"),
        ("[boundary]\nlisten_on = 1\n", "a", {}, "unknown key 'listen_on'"),
        ("[zones.a]\ncapacity_bytes = 0\n", "a", {}, ":2: zones.a.capacity_bytes"),
        ('[zones."a\\u0001"]\n', "a", {}, "is no zone: its name has 1 to 128 characters"),
    ],
)
def test_zones_that_are_refused(
    text: str, name: str | None, given: dict[str, Any], told: str
) -> None:
    """Each mistake has a sentence of its own and a remedy."""
    write(text)
    with pytest.raises(ConfigurationError) as caught:
        zone_setup(None, name, given, environ={})
    assert told in str(caught.value)
    assert caught.value.remedy


@pytest.mark.req("BOUNDARY:badinput")
@pytest.mark.parametrize("text", ["x", "=http://a", "x=", "", "="])
def test_a_peer_is_a_name_and_a_url(text: str) -> None:
    """Anything else is refused, and so is the same name twice."""
    with pytest.raises(ConfigurationError, match="is not NAME=URL"):
        peers_of([text])
    with pytest.raises(ConfigurationError, match="given twice"):
        peers_of(["a=http://x", "a=http://y"])
    assert peers_of(["a=http://x?b=c"]) == {"a": "http://x?b=c"}
    assert peers_of(None) is None


# ---- where the node is --------------------------------------------------------------------------


def test_without_settings_it_is_the_usual_port() -> None:
    """Plain on this machine; encrypted when certificates are given."""
    assert node_address(environ={}).url == "http://127.0.0.1:9443"
    files = node_address(files={"cert": "c", "key": "k", "ca": "a"}, environ={})
    assert (files.url, files.expected_zone) == ("https://127.0.0.1:9443", None)


def test_the_settings_say_where_a_zone_listens(directory: Path) -> None:
    """With its certificates, and whose certificate the node has to show."""
    write(PAIR)
    assert node_address(zone="plant-a", environ={}).url == "http://127.0.0.1:1111"
    write(TLS)
    found = node_address(environ={})
    assert (found.url, found.expected_zone) == ("https://127.0.0.1:9443", "Plant A")
    assert found.files["cert"] == str(directory / "a.pem")
    assert found.files["ca"] == "/etc/ca.pem"


def test_a_url_needs_no_settings() -> None:
    """A mistake in a file that is not needed does not matter; certificates may come from it."""
    write("[nonsense]\n")
    assert node_address(url="http://127.0.0.1:1", environ={}).url == "http://127.0.0.1:1"
    write(TLS)
    found = node_address(url="https://other:1", environ={})
    assert (found.url, found.expected_zone) == ("https://other:1", None)
    assert found.files["key"]


@pytest.mark.req("BOUNDARY:badinput")
def test_an_address_that_cannot_be_known() -> None:
    """A port that the node chose, a zone that is not there, an https URL without certificates."""
    write('[zones.a]\nlisten = "127.0.0.1:0"\n')
    with pytest.raises(ConfigurationError, match="let the node choose its port"):
        node_address(environ={})
    with pytest.raises(SettingsError, match="has no zone 'b'"):
        node_address(zone="b", environ={})
    with pytest.raises(ConfigurationError, match="asks its callers for a certificate"):
        node_address(url="https://a:1", environ={}).connect(1.0)


def test_the_folder_of_a_zone(directory: Path) -> None:
    """As the settings say, and somebody has to."""
    with pytest.raises(ConfigurationError, match="which folder"):
        zone_meant(environ={})
    write(PAIR)
    assert zone_meant(zone="plant-a", environ={}).settings.data == str(directory / "a")
