"""Where a server listens, and how it is refused before it starts."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from ergon_framework.app.settings import ServerSettings, load_settings
from ergon_framework.errors import ConfigurationError, MissingExtraError, SettingsError
from ergon_framework.web.application import check_place, serve
from ergon_framework.web.backends import Backends, backends_of
from ergon_framework.web.tokens import FixedTokens

pytestmark = pytest.mark.req("PROVIDERS:api", "ONE:serve")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_this_machine_needs_no_token(host: str) -> None:
    """Nobody else can reach these addresses."""
    check_place(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "", "server.example"])  # noqa: S104
def test_elsewhere_a_token_is_needed(host: str) -> None:
    """It is refused without one, and the error says what to do."""
    with pytest.raises(ConfigurationError, match="ERGON_SERVER_TOKEN"):
        check_place(host, None)
    check_place(host, FixedTokens({"token": "t"}))


@pytest.mark.req("ONE:secrets")
def test_the_settings_do_not_show_the_token(tmp_path: Path) -> None:
    """It may be written down, stand in a file or in a variable; a repr shows none of them."""
    (tmp_path / "secret").write_text("hidden\n")
    for text in ('"hidden"', '"file:secret"', '"env:TOKEN"'):
        file = tmp_path / "ergon.toml"
        file.write_text(f"[server]\ntoken = {text}\n")
        found = load_settings(file, {"TOKEN": "hidden"}).server
        assert found.token is not None
        assert found.token.get_secret_value() == "hidden"
        assert "hidden" not in repr(found)


def test_one_port_for_the_settings_and_the_command() -> None:
    """Whoever says nothing gets the same from both."""
    assert (ServerSettings().host, ServerSettings().port) == ("127.0.0.1", 8400)


def test_a_port_that_is_taken() -> None:
    """The error says so before anything is served."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match="another process listens there"):
            serve(ServerSettings(port=port), Backends(), None, print)


def test_without_uvicorn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever lacks it reads what to install."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtraError, match=r"ergon-framework\[api\]"):
        serve(ServerSettings(), Backends(), None, print)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('[store]\nurl = "sqlite:///work.db"\n', ["jobs", "providers"]),
        ('[store]\nurl = "postgresql://nobody@127.0.0.1:9/none"\n', ["jobs", "providers"]),
        ('[store]\nurl = "redis://127.0.0.1:9/0"\n', ["jobs"]),
        ('[jobs]\nstore = "sqlite:///jobs.db"\n', ["jobs"]),
        ('[providers]\nstore = "sqlite:///calls.db"\n', ["providers"]),
        ('[zones.plant-a]\ndata = "a"\n', ["zone:plant-a"]),
        (
            (
                '[store]\nurl = "sqlite:///work.db"\n'
                '[providers.a]\nprovider = "m:A"\n'
                '[providers.b]\nprovider = "m:B"\nstore = "sqlite:///b.db"\n'
                '[providers.c]\nprovider = "m:C"\nstore = "sqlite:///b.db"\n'
                '[providers.d]\nprovider = "m:D"\nstore = "memory://"\n'
            ),
            ["jobs", "providers", "providers:b"],
        ),
    ],
)
def test_what_the_settings_name_is_served(tmp_path: Path, text: str, parts: list[str]) -> None:
    """Each part has the store of its own section, or that of all; nothing is made."""
    file = tmp_path / "ergon.toml"
    file.write_text(text)
    assert [name for name, _ in backends_of(load_settings(file, {})).parts()] == parts
    assert list(tmp_path.iterdir()) == [file]


def test_settings_that_name_nothing(tmp_path: Path) -> None:
    """There would be nothing to tell."""
    file = tmp_path / "ergon.toml"
    file.write_text("[server]\nport = 1\n")
    with pytest.raises(SettingsError, match="no store"):
        backends_of(load_settings(file, {}))
