"""To another machine nobody goes in clear text by accident, whichever part connects."""

from __future__ import annotations

from pathlib import Path

import pytest

from ergon_framework.app.diagnostics.check import notes
from ergon_framework.providers.migrations.database import database_of
from ergon_framework.storage.postgres.address import address_of, encryption, verification
from ergon_framework.storage.postgres.errors import fault_of

FAR = [
    "postgresql://me@db.example/work",
    "postgresql://me@10.0.0.5:5433/work",
    "postgresql://me@[2001:db8::1]/work",
    "postgresql://me@localhost,db.example/work",
    "postgresql:///work?host=db.example",
    "postgresql:///work?hostaddr=10.0.0.5",
]
NEAR = [
    "postgresql://me@localhost/work",
    "postgresql://me@127.0.0.1:5433/work",
    "postgresql://me@[::1]/work",
    "postgresql:///work",
    "postgresql:///work?host=/run/postgresql",
    "postgresql://me@db.example/work?hostaddr=127.0.0.1",
]


@pytest.fixture(autouse=True)
def _plain_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGSSLMODE", "PGHOST", "PGHOSTADDR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("url", FAR)
def test_to_another_machine_encryption_is_required(url: str) -> None:
    """By itself libpq asks for it, and goes on without when it is told that there is none."""
    assert address_of(url).options["sslmode"] == "require"  # jobs and facts
    assert database_of(url).url.query["sslmode"] == "require"  # provider calls and `ergon db`


@pytest.mark.parametrize("url", NEAR)
def test_on_this_machine_it_is_not(url: str) -> None:
    """Nobody sits between, and many servers have no TLS there."""
    assert "sslmode" not in address_of(url).options
    assert "sslmode" not in database_of(url).url.query


@pytest.mark.parametrize("mode", ["disable", "prefer", "verify-full"])
def test_what_the_url_says_goes_before(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a choice that somebody made; so is a variable that libpq itself reads."""
    url = f"{FAR[0]}?sslmode={mode}"
    assert address_of(url).options["sslmode"] == mode
    assert database_of(url).url.query["sslmode"] == mode
    assert encryption({"host": "db.example"}, {"PGSSLMODE": mode}) == {}
    assert encryption({}, {"PGHOST": "db.example"}) == {"sslmode": "require"}


def test_a_server_without_tls_gets_an_error_that_names_the_choice() -> None:
    """The words are those of libpq; what to write in the URL is said."""
    told = fault_of(
        "postgresql://db.example/work", "server does not support SSL, but SSL was required"
    )
    assert told is not None
    assert "does not speak TLS" in told.message
    assert "?sslmode=disable" in told.remedy


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("", "the certificate is not verified"),
        ("?sslmode=require", "the certificate is not verified"),
        ("?sslmode=verify-ca", "not whether it is of this host"),
        ("?sslmode=prefer", "clear text"),
        ("?sslmode=verify-full", ""),
    ],
)
def test_check_says_when_the_server_is_not_verified(tmp_path: Path, mode: str, told: str) -> None:
    """By the URL alone, without its password; `ergon doctor` says the same."""
    url = f"postgresql://me:hunter2@db.example/work{mode}"
    settings = tmp_path / "ergon.toml"
    settings.write_text(f'[store]\nurl = "{url}"\n[jobs]\n[providers]\n')
    found = notes(settings, {})
    assert bool(found) is bool(told)
    assert all(told in each and "verify-full" in each for each in found)
    assert "hunter2" not in str(found)
    assert bool(verification(address_of(url))[1]) is bool(told)
    assert verification(address_of(NEAR[0]))[1] == ""
