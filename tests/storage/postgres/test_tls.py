"""PostgreSQL behind TLS, by the URL alone.

The server that the tests have was built without TLS: a door that has it stands before it, and
asks for TLS as the server would.
"""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.storage.postgres import errors
from ergon_framework.storage.postgres.migrations import connected
from tests.servers.by_url import jobs_by_commands, refused
from tests.servers.postgres import PostgresServer, name_of
from tests.servers.tls import Opened, Papers, doors

pytestmark = pytest.mark.req("SCALE:url-errors", "SCALE:jobs-postgres")


@pytest.fixture
def door(postgres_server: PostgresServer, signed: Papers) -> Iterator[Opened]:
    """Opens doors to the server."""
    behind = str(postgres_server.folder / ".s.PGSQL.5432")
    with doors(behind, signed, asks_first=True) as opened:
        yield opened


def url(port: int, database: str = "postgres", **options: object) -> str:
    """Of a database there, whose certificate is checked."""
    given = "".join(f"&{name}={value}" for name, value in options.items())
    return f"postgresql://ergon@127.0.0.1:{port}/{database}?sslmode=verify-full{given}"


def is_encrypted(place: str) -> bool:
    """Whether the connection to a database is."""
    with connected(place) as (connection, _):
        assert connection.execute("SELECT 1").fetchone() == (1,)
        return bool(connection.pgconn.ssl_in_use)


def own(papers: Papers) -> dict[str, Any]:
    """The options that name a client's certificate."""
    return {"sslcert": papers.certificate("client"), "sslkey": papers.key("client")}


def test_jobs_over_tls(
    door: Opened,
    signed: Papers,
    postgres_url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Commands take the URL as it is: jobs are enqueued and listed, the doctor looks at it."""
    place = url(door().port, name_of(postgres_url), sslrootcert=signed.ca)
    jobs_by_commands(place, "postgresql", tmp_path, capsys)


def test_a_certificate_of_ours(door: Opened, signed: Papers, strange: Papers) -> None:
    """A server that wants one gets the one of the URL; without, or with another, it says so."""
    port = door(wants_client=True).port
    assert is_encrypted(url(port, sslrootcert=signed.ca, **own(signed)))
    for wrong in ({"sslcert": "", "sslkey": ""}, own(strange)):
        with refused("wants a certificate of ours", "sslcert"):
            is_encrypted(url(port, sslrootcert=signed.ca, **wrong))


def test_an_authority_that_nobody_knows(door: Opened, strange: Papers, tmp_path: Path) -> None:
    """Whom nobody trusts is not talked to; a missing file of authorities is told by name."""
    port = door().port
    with refused("nobody who is trusted", "sslrootcert"):
        is_encrypted(url(port, sslrootcert=strange.ca))
    missing = tmp_path / "missing"
    with refused(f"the file of sslrootcert cannot be read: {missing}", "correct its name"):
        is_encrypted(url(port, sslrootcert=missing))


def test_a_certificate_of_another_host(door: Opened, signed: Papers) -> None:
    """The name is checked with verify-full, and not with less."""
    place = url(door(name="elsewhere").port, sslrootcert=signed.ca)
    with refused("another name"):
        is_encrypted(place)
    assert is_encrypted(place.replace("verify-full", "verify-ca"))


def test_a_server_without_tls(signed: Papers) -> None:
    """It says so, and is not asked without."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def say_no() -> None:
            with suppress(OSError):
                while True:
                    client, _ = server.accept()
                    client.recv(8)
                    client.sendall(b"N")
                    client.close()

        thread = threading.Thread(target=say_no, daemon=True)
        thread.start()
        with refused("does not speak TLS, and the connection must be encrypted", "sslmode=disable"):
            is_encrypted(url(server.getsockname()[1], sslrootcert=signed.ca))
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_a_key_that_anybody_may_read(door: Opened, signed: Papers, tmp_path: Path) -> None:
    """The file is named, and what to do about it."""
    key = Path(shutil.copy(signed.key("client"), tmp_path / "open.key"))
    key.chmod(0o644)
    options: dict[str, Any] = {"sslcert": signed.certificate("client"), "sslkey": key}
    with refused(r"open\.key.*cannot|cannot.*open\.key", "chmod 600"):
        is_encrypted(url(door(wants_client=True).port, sslrootcert=signed.ca, **options))


def test_a_server_that_wants_tls() -> None:
    """A user who may come in with TLS only is told that, not to look at the password."""
    said = 'no pg_hba.conf entry for host "::1", user "me", database "work", no encryption'
    found = errors.refused(ValueError(f"FATAL:  {said}"), "the server")
    assert found is not None
    assert "with TLS only" in found.message
    assert "sslmode=verify-full" in (found.remedy or "")
