"""The tokens of a server: where they are looked for, what they may be, and how they change."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from ergon_framework.app.settings.tokens import MAX_TOKEN, MAX_TOKENS, parsed
from ergon_framework.errors import ConfigurationError
from ergon_framework.web.tokens import SETTLE_TIME, VARIABLE, FileTokens, FixedTokens, tokens_from

X = "0123456789abcdef"

pytestmark = pytest.mark.req("ONE:serve", "PROVIDERS:api")


def caller(file: Path | None, environ: dict[str, str], setting: str | None, token: str) -> object:
    """Whose token it is, by what was found; no tokens at all are None, too."""
    found = tokens_from(file, environ, setting)
    return None if found is None else found.caller(token.encode())


def test_a_file_comes_before_the_environment_and_that_before_the_settings(tmp_path: Path) -> None:
    """A line end behind the token is not part of it."""
    file = tmp_path / "token"
    file.write_text("from-file-xxxxxxxx\n")
    environ = {VARIABLE: "from-environment-xx"}
    assert caller(file, environ, "from-settings-xxx", "from-file-xxxxxxxx") == "token"
    assert caller(file, environ, "from-settings-xxx", "from-environment-xx") is None
    assert caller(None, environ, "from-settings-xxx", "from-environment-xx") == "token"
    assert caller(None, environ, "from-settings-xxx", "from-settings-xxx") is None
    assert caller(None, {}, "from-settings-xxx", "from-settings-xxx") == "token"
    assert tokens_from(None, {}) is None


def test_several_tokens_have_names() -> None:
    """A line for each; remarks and empty lines are none, and one without a name gets one."""
    one, two, three = (f"{each}-0123456789" for each in ("first", "second", "third"))
    found = parsed(f"# of the team\nalice: {one}\n\n bob:  {two} \n{three}\n", "here")
    assert found == {"alice": one, "bob": two, "token-3": three}
    tokens = FixedTokens(found)
    names = [tokens.caller(each.encode()) for each in (one, two, three, f"bob: {two}")]
    assert names == ["alice", "bob", "token-3", None]
    assert tokens.caller(b"") is None


def test_the_hash_of_a_token_stands_for_it(caplog: pytest.LogCaptureFixture) -> None:
    """Who has the token is let in, who has read its hash is not, and nothing is warned of."""
    token = b"first-0123456789"
    hashed = f"sha256:{hashlib.sha256(token).hexdigest()}"
    for text, name in ((f"alice: {hashed}", "alice"), (hashed, "token")):
        tokens = FixedTokens(parsed(text, "here"))
        assert tokens.caller(token) == name
        assert tokens.caller(hashed.encode()) is None
        assert tokens.caller(hashed.removeprefix("sha256:").encode()) is None
    assert caplog.text == ""


@pytest.mark.parametrize("more", ["", "\nbob: second-0123456789"])
def test_a_token_with_a_colon_is_taken_whole(more: str, caplog: pytest.LogCaptureFixture) -> None:
    """It does not shrink to what stands behind the colon; who meant a name is told how."""
    tokens = FixedTokens(parsed(f"alice:0123456789abcdef{more}\n", "here"))
    assert tokens.caller(b"alice:0123456789abcdef") == "token"
    assert tokens.caller(b"0123456789abcdef") is None
    assert "`name: token`" in caplog.text
    assert "0123456789" not in caplog.text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        (" \n# only a remark", "is empty"),
        ("name:", "is shorter than 16"),
        ("abc", "is shorter than 16"),
        ("name: 012345678901234", "is shorter than 16"),
        ("two words, and many more", "has spaces"),
        ("tab\there, and many more", "has spaces"),
        (f"a: {X}\na: {X}y", "has the name 'a' twice"),
        ("schlüssel-0123456789", "characters"),
        ("x" * (MAX_TOKEN + 1), "longer than"),
        (f"{X}\n" * (MAX_TOKENS + 1), "more than"),
    ],
)
def test_tokens_that_no_header_can_hold(tmp_path: Path, text: str, problem: str) -> None:
    """They are refused, wherever they stand, and are not shown."""
    file = tmp_path / "token"
    file.write_text(text)
    both: list[tuple[Path | None, dict[str, str]]] = [(file, {}), (None, {VARIABLE: text})]
    for given in both:
        with pytest.raises(ConfigurationError, match=problem) as refused:
            tokens_from(*given)
        assert not text.strip() or text not in str(refused.value)


def test_a_token_file_that_is_not_there(tmp_path: Path) -> None:
    """The file is named: a server without its token must not start."""
    with pytest.raises(ConfigurationError, match="nowhere cannot be read: No such file"):
        tokens_from(tmp_path / "nowhere", {VARIABLE: "other"})


def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """Who is added may ask at once, and who is removed may not."""
    file = tmp_path / "tokens"
    file.write_text("alice: first-0123456789\n")
    tokens = FileTokens(file)
    assert (tokens.caller(b"first-0123456789"), tokens.caller(b"second-0123456789")) == (
        "alice",
        None,
    )
    file.write_text("bob: second-0123456789\nalice: third-0123456789\n")
    assert (tokens.caller(b"first-0123456789"), tokens.caller(b"second-0123456789")) == (
        None,
        "bob",
    )


def test_a_change_that_nothing_shows_is_read_when_asked_for(tmp_path: Path) -> None:
    """The same size at the same instant looks like the same file, until SIGHUP."""
    file = tmp_path / "tokens"
    file.write_text("alice: first-0123456789\n")
    tokens, before = FileTokens(file), file.stat()
    file.write_text("alice: other-0123456789\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert tokens.caller(b"first-0123456789") == "alice"
    tokens.expire()
    assert (tokens.caller(b"first-0123456789"), tokens.caller(b"other-0123456789")) == (
        None,
        "alice",
    )


@pytest.mark.parametrize("text", ["", "two words, and many more", "short"])
def test_a_file_that_turns_bad_changes_nothing(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither is everybody let in nor is everybody shut out; the log says so, without a token."""
    file = tmp_path / "tokens"
    file.write_text("alice: first-0123456789\n")
    tokens = FileTokens(file)
    file.write_text(text)
    assert (tokens.caller(b"first-0123456789"), tokens.caller(b"")) == ("alice", None)
    assert "the tokens from before stay" in caplog.text
    assert "first" not in caplog.text
    file.write_text("alice: second-0123456789\n")
    assert tokens.caller(b"second-0123456789") == "alice"


@pytest.mark.parametrize("text", ["", "# nobody\n"])
def test_the_last_token_can_be_taken_back(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that stays without a line lets nobody in, until it has one again."""
    file = tmp_path / "tokens"
    file.write_text("alice: first-0123456789\n")
    tokens = FileTokens(file)
    file.write_text(text)
    assert tokens.caller(b"first-0123456789") == "alice"  # somebody may be writing it just now
    long_ago = file.stat().st_mtime - SETTLE_TIME
    os.utime(file, (long_ago, long_ago))
    assert (tokens.caller(b"first-0123456789"), tokens.caller(b"")) == (None, None)
    assert "nobody is let in" in caplog.text
    file.write_text("alice: second-0123456789\n")
    assert tokens.caller(b"second-0123456789") == "alice"


def test_removing_the_file_takes_every_token_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At the next request; and whoever puts a file there lets its tokens in."""
    file = tmp_path / "tokens"
    file.write_text(f"alice: {X}\n")
    tokens = FileTokens(file)
    assert tokens.caller(X.encode()) == "alice"
    file.unlink()
    assert tokens.caller(X.encode()) is None
    assert "was removed: nobody is let in" in caplog.text
    file.write_text(f"bob: {X}\n")
    assert tokens.caller(X.encode()) == "bob"


def test_a_file_that_everybody_may_write_to_lets_nobody_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is refused at the start, and later the tokens from before stay."""
    file = tmp_path / "tokens"
    file.write_text(f"alice: {X}\n")
    file.chmod(0o666)
    with pytest.raises(ConfigurationError, match="everybody may write to the token file"):
        FileTokens(file)
    file.chmod(0o600)
    tokens = FileTokens(file)
    file.write_text(f"mallory: {X}mallory\n")
    file.chmod(0o602)
    assert (tokens.caller(X.encode()), tokens.caller(f"{X}mallory".encode())) == ("alice", None)
    assert "the tokens from before stay" in caplog.text


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o620])
def test_a_file_that_others_may_read_is_told(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It works, since orchestrators mount secrets so, and the log says how to fix it."""
    file = tmp_path / "tokens"
    file.write_text(f"{X}\n")
    file.chmod(mode)
    assert FileTokens(file).caller(X.encode()) == "token"
    assert f"is open to other users (mode {mode:04o}): chmod 600" in caplog.text
