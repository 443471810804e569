"""Where a server listens, which token it wants, and how it is refused before it starts."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from ergon_framework.errors import ConfigurationError, MissingExtraError
from ergon_framework.web.serving import ServerSettings, serve
from ergon_framework.web.tokens import LONGEST, VARIABLE, found_token

pytestmark = pytest.mark.req("PROVIDERS:api")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_this_machine_needs_no_token(host: str) -> None:
    """Nobody else can reach these addresses."""
    assert ServerSettings("memory://", host).token is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "", "server.example"])  # noqa: S104
def test_elsewhere_a_token_is_needed(host: str) -> None:
    """It is refused without one, and the error says what to do."""
    with pytest.raises(ConfigurationError, match="ERGON_SERVER_TOKEN"):
        ServerSettings("memory://", host)
    assert ServerSettings("memory://", host, token="t").host == host  # noqa: S106


def test_settings_do_not_show_the_token() -> None:
    """They may stand in a traceback."""
    assert "hidden" not in repr(ServerSettings("memory://", token="hidden"))  # noqa: S106


def test_a_file_comes_before_the_environment(tmp_path: Path) -> None:
    """A line end behind the token is not part of it."""
    file = tmp_path / "token"
    file.write_text("from-file\n")
    assert found_token(file, {VARIABLE: "from-environment"}) == "from-file"
    assert found_token(None, {VARIABLE: "from-environment"}) == "from-environment"
    assert found_token(None, {}) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("two words", "has spaces"),
        ("line\nline", "has spaces"),
        ("schlüssel", "characters"),
        ("x" * (LONGEST + 1), "longer than"),
    ],
)
def test_a_token_that_no_header_can_hold(tmp_path: Path, text: str, problem: str) -> None:
    """It is refused, from a file and from the environment, and is not shown."""
    file = tmp_path / "token"
    file.write_text(text)
    both: list[tuple[Path | None, dict[str, str]]] = [(file, {}), (None, {VARIABLE: text})]
    for given in both:
        with pytest.raises(ConfigurationError, match=problem) as refused:
            found_token(*given)
        assert not text.strip() or text not in str(refused.value)


def test_a_token_file_that_is_not_there(tmp_path: Path) -> None:
    """The file is named: a server without its token must not start."""
    with pytest.raises(ConfigurationError, match="nowhere cannot be read: No such file"):
        found_token(tmp_path / "nowhere", {VARIABLE: "other"})


def test_a_port_that_is_taken() -> None:
    """The error says so before anything is served."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match="another process listens there"):
            serve(ServerSettings("memory://", port=port), print)


def test_without_uvicorn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever lacks it reads what to install."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtraError, match=r"ergon-framework\[api\]"):
        serve(ServerSettings("memory://"), print)
