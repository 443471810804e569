"""The tokens of a server: where they are looked for, what they may be, and how they change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ergon_framework.errors import ConfigurationError
from ergon_framework.web.tokens import (
    LONGEST,
    MOST,
    SETTLED,
    VARIABLE,
    FileTokens,
    FixedTokens,
    found_tokens,
    parsed,
)

pytestmark = pytest.mark.req("ONE:serve", "PROVIDERS:api")


def caller(file: Path | None, environ: dict[str, str], setting: str | None, token: str) -> object:
    """Whose token it is, by what was found; no tokens at all are None, too."""
    found = found_tokens(file, environ, setting)
    return None if found is None else found.caller(token.encode())


def test_a_file_comes_before_the_environment_and_that_before_the_settings(tmp_path: Path) -> None:
    """A line end behind the token is not part of it."""
    file = tmp_path / "token"
    file.write_text("from-file\n")
    environ = {VARIABLE: "from-environment"}
    assert caller(file, environ, "from-settings", "from-file") == "token"
    assert caller(file, environ, "from-settings", "from-environment") is None
    assert caller(None, environ, "from-settings", "from-environment") == "token"
    assert caller(None, environ, "from-settings", "from-settings") is None
    assert caller(None, {}, "from-settings", "from-settings") == "token"
    assert found_tokens(None, {}) is None


def test_several_tokens_have_names() -> None:
    """A line for each; remarks and empty lines are none, and one without a name gets one."""
    found = parsed("# of the team\nalice:first\n\n bob:second \nthird\n", "here")
    assert found == {"alice": "first", "bob": "second", "token-3": "third"}
    tokens = FixedTokens(found)
    names = [tokens.caller(each.encode()) for each in ("first", "second", "third", "bob:second")]
    assert names == ["alice", "bob", "token-3", None]
    assert tokens.caller(b"") is None


@pytest.mark.parametrize("line", ["alice:first", "token:first"])
def test_a_lone_token_may_have_a_colon(line: str) -> None:
    """It may be a name and a token, or all of it a token: nobody is kept out by the doubt."""
    tokens = FixedTokens(parsed(f"{line}\n", "here"))
    assert tokens.caller(b"first") == line.partition(":")[0]
    assert str(tokens.caller(line.encode())).startswith("token")
    assert tokens.caller(b"alice") is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        (" \n# only a remark", "is empty"),
        ("name:", "is empty"),
        ("two words", "has spaces"),
        ("tab\there", "has spaces"),
        ("a:x\na:y", "has the name 'a' twice"),
        ("schlüssel", "characters"),
        ("x" * (LONGEST + 1), "longer than"),
        ("x\n" * (MOST + 1), "more than"),
    ],
)
def test_tokens_that_no_header_can_hold(tmp_path: Path, text: str, problem: str) -> None:
    """They are refused, wherever they stand, and are not shown."""
    file = tmp_path / "token"
    file.write_text(text)
    both: list[tuple[Path | None, dict[str, str]]] = [(file, {}), (None, {VARIABLE: text})]
    for given in both:
        with pytest.raises(ConfigurationError, match=problem) as refused:
            found_tokens(*given)
        assert not text.strip() or text not in str(refused.value)


def test_a_token_file_that_is_not_there(tmp_path: Path) -> None:
    """The file is named: a server without its token must not start."""
    with pytest.raises(ConfigurationError, match="nowhere cannot be read: No such file"):
        found_tokens(tmp_path / "nowhere", {VARIABLE: "other"})


def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """Who is added may ask at once, and who is removed may not."""
    file = tmp_path / "tokens"
    file.write_text("alice:first\n")
    tokens = FileTokens(file)
    assert (tokens.caller(b"first"), tokens.caller(b"second")) == ("alice", None)
    file.write_text("bob:second\nalice:third\n")
    assert (tokens.caller(b"first"), tokens.caller(b"second")) == (None, "bob")


def test_a_change_that_nothing_shows_is_read_when_asked_for(tmp_path: Path) -> None:
    """The same size at the same instant looks like the same file, until SIGHUP."""
    file = tmp_path / "tokens"
    file.write_text("alice:first\n")
    tokens, before = FileTokens(file), file.stat()
    file.write_text("alice:other\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert tokens.caller(b"first") == "alice"
    tokens.expire()
    assert (tokens.caller(b"first"), tokens.caller(b"other")) == (None, "alice")


@pytest.mark.parametrize("text", [None, "", "two words"])
def test_a_file_that_turns_bad_changes_nothing(
    tmp_path: Path, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither is everybody let in nor is everybody shut out; the log says so, without a token."""
    file = tmp_path / "tokens"
    file.write_text("alice:first\n")
    tokens = FileTokens(file)
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    assert (tokens.caller(b"first"), tokens.caller(b"")) == ("alice", None)
    assert "the tokens from before stay" in caplog.text
    assert "first" not in caplog.text
    file.write_text("alice:second\n")
    assert tokens.caller(b"second") == "alice"


@pytest.mark.parametrize("text", ["", "# nobody\n"])
def test_the_last_token_can_be_taken_back(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that stays without a line lets nobody in, until it has one again."""
    file = tmp_path / "tokens"
    file.write_text("alice:first\n")
    tokens = FileTokens(file)
    file.write_text(text)
    assert tokens.caller(b"first") == "alice"  # somebody may be writing it just now
    long_ago = file.stat().st_mtime - SETTLED
    os.utime(file, (long_ago, long_ago))
    assert (tokens.caller(b"first"), tokens.caller(b"")) == (None, None)
    assert "nobody is let in" in caplog.text
    file.write_text("alice:second\n")
    assert tokens.caller(b"second") == "alice"
