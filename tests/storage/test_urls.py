"""What the URL of a store says, for whichever part it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ergon_framework.app.diagnostics.servers import examine_store
from ergon_framework.app.jobs import job_settings
from ergon_framework.boundary import store_urls as fact_urls
from ergon_framework.errors import ConfigurationError, SettingsError
from ergon_framework.jobs import JobClient
from ergon_framework.jobs import store_urls as job_urls
from ergon_framework.providers import store_urls as call_urls
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


_CHECKS = {
    "jobs": job_urls.check_url,
    "facts": fact_urls.check_fact_url,
    "calls": call_urls.check_url,
}
_TABLES = [
    ("postgresql://db.example.org/name?sslmode=verify-full&sslrootcert={}", "sslrootcert"),
    ("postgresql://db.example.org/name?sslcert={}&sslkey={}", "sslcert"),
]


@pytest.mark.parametrize(
    ("part", "url", "option"),
    [
        *((part, *each) for part in _CHECKS for each in _TABLES),
        ("jobs", "rediss://cache.example.org/0?ssl_ca_certs={}", "ssl_ca_certs"),
        ("jobs", "rediss://cache.example.org/0?ssl_certfile={}&ssl_keyfile={}", "ssl_certfile"),
        ("facts", "tls://nats.example.org?tls_ca={}", "tls_ca"),
        ("facts", "nats://nats.example.org?creds={}", "creds"),
        ("facts", "nats://nats.example.org?nkey={}", "nkey"),
    ],
)
def test_a_file_that_a_url_names_must_be_there(
    part: str, url: str, option: str, tmp_path: Path
) -> None:
    """Told before anything is connected: later it would look like a server that is away."""
    check = _CHECKS[part]
    for wrong in (tmp_path / "of-nobody.pem", tmp_path):
        with pytest.raises(ConfigurationError) as caught:
            check(url.format(wrong, wrong))
        assert caught.value.message == f"the file of {option} cannot be read: {wrong}"
        assert caught.value.remedy
    there = tmp_path / "there.pem"
    there.write_text("a file that can be read")
    check(url.format(there, there))


def test_files_that_libpq_does_not_open() -> None:
    """The authorities of the machine, a key in a device, and files of a line without TLS."""
    for options in (
        "sslrootcert=system",
        f"sslcert={__file__}&sslkey=pkcs11:mine",
        "sslmode=disable&sslrootcert=/of/nobody.pem",
    ):
        for check in _CHECKS.values():
            check(f"postgresql://db.example.org/name?{options}")
