"""PostgreSQL behind TLS, by the URL alone.

The server that the tests have was built without TLS: a door that has it stands before it, and
asks for TLS as the server would.
"""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.cli import invoke
from ergon_framework.errors import ConfigurationError
from ergon_framework.storage.postgres.faults import refused
from ergon_framework.storage.postgres.upkeep import connected
from tests.servers.postgres import PostgresServer, name_of
from tests.servers.tls import Door, Papers

pytestmark = pytest.mark.req("SCALE:url-errors", "SCALE:jobs-postgres")

Opened = Callable[..., Door]


@pytest.fixture
def door(postgres_server: PostgresServer, signed: Papers) -> Iterator[Opened]:
    """Opens doors to the server."""
    behind = str(postgres_server.folder / ".s.PGSQL.5432")
    with ExitStack() as stack:

        def opened(**how: Any) -> Door:
            return stack.enter_context(closing(Door(behind, signed, asks_first=True, **how)))

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
    assert invoke(["enqueue", "mail", "--store", place]) == 0
    capsys.readouterr()
    assert invoke(["jobs", "list", "--store", place, "--json"]) == 0
    assert "mail" in capsys.readouterr().out
    settings = tmp_path / "ergon.toml"
    settings.write_text(f'[store]\nurl = "{place}"\n[executors.python]\ncommand = ["true"]\n')
    invoke(["doctor", "--config", str(settings), "--json"])
    checks = {each["check"]: each for each in json.loads(capsys.readouterr().out)}
    assert checks["postgresql (jobs) version"]["status"] == "ok"


def test_a_certificate_of_ours(door: Opened, signed: Papers, strange: Papers) -> None:
    """A server that wants one gets the one of the URL; without, or with another, it says so."""
    port = door(wants_client=True).port
    assert is_encrypted(url(port, sslrootcert=signed.ca, **own(signed)))
    for wrong in ({"sslcert": "", "sslkey": ""}, own(strange)):
        with pytest.raises(ConfigurationError, match="wants a certificate of ours") as caught:
            is_encrypted(url(port, sslrootcert=signed.ca, **wrong))
        assert "sslcert" in (caught.value.remedy or "")


def test_an_authority_that_nobody_knows(door: Opened, strange: Papers, tmp_path: Path) -> None:
    """Whom nobody trusts is not talked to; a missing file of authorities is told by name."""
    port = door().port
    with pytest.raises(ConfigurationError, match="nobody who is trusted") as caught:
        is_encrypted(url(port, sslrootcert=strange.ca))
    assert "sslrootcert" in (caught.value.remedy or "")
    with pytest.raises(ConfigurationError, match="nobody is named here") as caught:
        is_encrypted(url(port, sslrootcert=tmp_path / "missing"))
    assert "sslrootcert" in (caught.value.remedy or "")


def test_a_certificate_of_another_host(door: Opened, signed: Papers) -> None:
    """The name is checked with verify-full, and not with less."""
    place = url(door(name="elsewhere").port, sslrootcert=signed.ca)
    with pytest.raises(ConfigurationError, match="another name"):
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
        with pytest.raises(ConfigurationError, match="does not speak it there") as caught:
            is_encrypted(url(server.getsockname()[1], sslrootcert=signed.ca))
        assert "sslmode=disable" in (caught.value.remedy or "")
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_a_key_that_anybody_may_read(door: Opened, signed: Papers, tmp_path: Path) -> None:
    """The file is named, and what to do about it."""
    key = Path(shutil.copy(signed.key("client"), tmp_path / "open.key"))
    key.chmod(0o644)
    options: dict[str, Any] = {"sslcert": signed.certificate("client"), "sslkey": key}
    with pytest.raises(ConfigurationError, match=r"open\.key.*cannot|cannot.*open\.key") as caught:
        is_encrypted(url(door(wants_client=True).port, sslrootcert=signed.ca, **options))
    assert "chmod 600" in (caught.value.remedy or "")


def test_a_server_that_wants_tls() -> None:
    """A user who may come in with TLS only is told that, not to look at the password."""
    said = 'no pg_hba.conf entry for host "::1", user "me", database "work", no encryption'
    found = refused(ValueError(f"FATAL:  {said}"), "the server")
    assert found is not None
    assert "with TLS only" in found.message
    assert "sslmode=verify-full" in (found.remedy or "")
