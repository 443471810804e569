"""What the URL of a store says, for whichever part it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ergon_framework.app.diagnostics.servers import examine_store
from ergon_framework.app.jobs import job_settings
from ergon_framework.errors import ConfigurationError, SettingsError
from ergon_framework.jobs import JobClient
from ergon_framework.storage.urls import file_of, path_in, taken_apart

KNOWN = ("sqlite", "postgresql", "memory")
FORMS = "write sqlite:///work.db"


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("SQLite:///work.db", ("sqlite", "/work.db")),
        ("memory://", ("memory", "")),
        ("postgres://u@h/d", ("postgresql", "u@h/d")),
        ("postgresql+psycopg://u@h/d", ("postgresql", "u@h/d")),
    ],
)
def test_a_url_is_taken_apart(url: str, parts: tuple[str, str]) -> None:
    """The kind is told by its one name, however it was written."""
    assert taken_apart(url, KNOWN, FORMS) == parts


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("hunter2", "must say of which kind it is (for a file, write sqlite:///work.db)"),
        ("postgres:u:hunter2@h", "the URL of a postgres store lacks ://"),
        ("mysql://u:hunter2@h/d", "there is no store of the kind 'mysql'"),
        ("sqllite:///hunter2", "did you mean sqlite://? Otherwise write sqlite:///work.db"),
        ("sqlite+aiosqlite:///hunter2", "no other driver than ours (leave out +aiosqlite)"),
        ("postgresql+asyncpg://u:hunter2@h", "no other driver than ours (leave out +asyncpg)"),
        ("postgresql://u:%ffhunter2@h/d", "is no UTF-8 text"),
        ("postgresql://u:\udcffhunter2@h/d", "is no UTF-8 text"),
    ],
)
def test_a_url_that_names_no_store(url: str, told: str) -> None:
    """It is said what to write instead, and no password is shown."""
    with pytest.raises(ConfigurationError) as caught:
        taken_apart(url, KNOWN, FORMS)
    assert told in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        ("", "needs a file"),
        ("/", "needs a file"),
        ("/:memory:", "needs a file"),
        ("work.db", "three slashes"),
        ("/work.db?mode=hunter2", "no options"),
        ("/work.db#hunter2", "no options"),
        ("/hunter2\0", "NUL"),
    ],
)
def test_what_is_no_file(rest: str, told: str) -> None:
    """Each is refused with what is wrong with it."""
    with pytest.raises(ConfigurationError, match=told) as caught:
        path_in(rest)
    assert "hunter2" not in str(caught.value)


def test_the_file_of_a_store() -> None:
    """Only a store on SQLite has one; three slashes are relative and four absolute."""
    assert path_in("//var/work.db") == "/var/work.db"
    assert file_of("sqlite:///work.db") == Path("work.db")
    assert file_of("SQLITE:////var/work.db") == Path("/var/work.db")
    assert file_of("postgresql://u@h/d") is None


def test_a_url_that_is_none_is_named() -> None:
    """It comes from a variable that is not set, as a rule."""
    with pytest.raises(ConfigurationError, match="text, not NoneType") as told:
        JobClient(os.environ.get("ERGON_NO_SUCH_VARIABLE"))  # type: ignore[arg-type]
    assert "see that it is set" in told.value.remedy
    with pytest.raises(SettingsError, match="URL of the store is empty"):
        job_settings(url=" ")


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///me:hunter2@db.example/work",
        "sqlite:////var/lib/me:hunter2@db.example/work",
        "sqlite:///work.db?password=hunter2",
    ],
)
def test_a_mistyped_url_of_a_file_shows_no_password(url: str, tmp_path: Path) -> None:
    """Taken for the path of a file, it would stand in every message about that file."""
    told = [examine_store(url, 1.0).found]
    for look in (lambda: file_of(url), lambda: path_in(url.partition("://")[2])):
        with pytest.raises(ConfigurationError) as refused:
            look()
        told.append(str(refused.value))
    assert "hunter2" not in str(told)
