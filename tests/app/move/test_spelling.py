"""Names of one place that are written in several ways."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from ergon_framework.app.move.run import Asked, reopen
from ergon_framework.app.store_location import StoreLocation, is_same
from ergon_framework.errors import ConfigurationError, StoreError
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.storage.failpoints import armed
from tests.app.move.stock import copied, ergon, job_sums, moved, with_jobs
from tests.app.move.test_providers import with_calls
from tests.servers.postgres import PostgresServer, name_of

pytestmark = pytest.mark.req("SCALE:move")

SAME = [
    ("redis://localhost/0", "redis://127.0.0.1:6379"),
    ("redis://[::1]:6379/0", "rediss://user:secret@localhost/0?ssl_cert_reqs=none"),
    ("redis://DB.example/0?prefix=ergon", "redis://db.example:6379/"),
    ("postgresql://me:secret@db/work?sslmode=require", "postgres://you@db:5432/work"),
    ("postgresql+psycopg://db/work?connect_timeout=5", "postgresql://db/work"),
    ("postgresql:///work", "postgres://:5432/work"),
    ("postgresql://127.0.0.1/work", "postgresql://localhost/work"),
    ("redis:///0", "redis://localhost"),
    ("postgresql://a:1,b/work", "postgresql://b:5432,a:1/work"),
    ("nats://localhost", "tls://127.0.0.1:4222/ergon?replicas=3"),
    ("sqlite:////tmp/../tmp/work.db", "sqlite:////tmp/work.db"),
]
DIFFERENT = [
    ("redis://localhost/0", "redis://localhost/1"),
    ("redis://localhost/0", "redis://localhost:6380/0"),
    ("redis://localhost/0", "redis://localhost/0?prefix=other"),
    ("redis://localhost/0", "redis://db/0"),
    ("postgresql://db/work", "postgresql://db/other"),
    ("postgresql://db/work", "postgresql://db/work?options=-csearch_path%3Dother"),
    ("postgresql:///work?host=/run/a", "postgresql:///work?host=/run/b"),
    ("postgresql:///work", "postgresql://localhost/work"),  # PGHOST may name another
    ("nats://localhost/a", "nats://localhost/b"),
    ("nats://localhost?creds=/run/a", "nats://localhost?creds=/run/b"),
    ("nats://localhost?nkey=/run/a", "nats://localhost?nkey=/run/b"),
    ("tls://db?tls_cert=/run/a&tls_key=/run/k", "tls://db?tls_cert=/run/b&tls_key=/run/k"),
    ("sqlite:////tmp/work.db", "sqlite:////tmp/work2.db"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_same_place(one: str, other: str) -> None:
    """Defaults may be left out, and who comes, and how, is not where."""
    names = [f"jobs of {StoreLocation(each).name}" for each in (one, other)]
    assert is_same(*names)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_another_place(one: str, other: str) -> None:
    """One difference that tells is enough."""
    assert not is_same(f"jobs of {StoreLocation(one).name}", f"jobs of {StoreLocation(other).name}")


def test_zones_are_known_by_their_epochs() -> None:
    """Wherever they are; what is kept belongs to the name."""
    assert is_same("facts of a, epoch 1", "facts of a, epoch 1")
    assert not is_same("facts of a, epoch 1", "facts of a, epoch 2")
    assert not is_same("jobs of /tmp/a", "provider calls of /tmp/a")


def spelt(url: str) -> list[str]:
    """The same store on a server in other words."""
    if url.startswith("redis"):
        host = url.replace("127.0.0.1", "localhost")
        return [host, host.removesuffix("/0"), f"{url}?prefix=ergon"]
    name = name_of(url)
    return [
        f"{url}&sslmode=prefer",
        url.replace("ergon@", "ergon:secret@"),
        url.replace(f"/{name}?", "/?") + f"&dbname={name}",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("server", ["postgres_url", "redis_url"])
def test_a_move_goes_on_from_the_same_store_in_other_words(
    server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It was cut off, and is repeated, and FROM is shut for TO in the end."""
    url, target = request.getfixturevalue(server), f"sqlite:///{tmp_path}/new.db"
    with_jobs(url)
    died = ergon("move", url, target, failpoints="move.part.begun=kill")
    assert died.returncode < 0, died.stderr
    first, *others = spelt(url)
    assert copied(moved(first, target))["jobs"] == 9
    for each in others:
        assert copied(moved(each, target)) == {}
    assert job_sums(target) == job_sums(url)
    moved(url, target, shuts=True)
    (tmp_path / "link").symlink_to(tmp_path)
    assert copied(moved(first, f"sqlite:///{tmp_path}/link/new.db", shuts=True)) == {}


@pytest.mark.slow
def test_a_way_back_that_was_cut_off_goes_on_in_other_words(redis_url: str, tmp_path: Path) -> None:
    """Both ends are shut then, and each says the other's name of that time; the id stays."""
    first, second = (f"sqlite:///{tmp_path}/{name}.db" for name in ("first", "second"))
    with_jobs(first, lambda s: s.put("a"))
    moved(first, redis_url, shuts=True)
    assert reopen(Asked(StoreLocation(first), StoreLocation(redis_url))) == ["jobs"]
    for file in (first, second):  # of which it is a copy, and which is a copy of it
        if file == second:
            moved(redis_url, second, shuts=True)
        with armed("move.back.shut=error"), pytest.raises(OSError, match="was told to fail"):
            reopen(Asked(StoreLocation(redis_url), StoreLocation(file)))
        other = redis_url.replace("127.0.0.1", "127.1")
        assert reopen(Asked(StoreLocation(other), StoreLocation(file))) == ["jobs"]
        open_store(redis_url).close()
        with pytest.raises(StoreError, match="was moved to"):
            open_store(file)


@pytest.mark.slow
@pytest.mark.parametrize("server", ["postgres_url", "redis_url"])
def test_where_everything_went_is_known_in_other_words(
    server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A move that is repeated, and the way back that was cut off, find TO by what it opens."""
    url, first = request.getfixturevalue(server), f"sqlite:///{tmp_path}/first.db"
    with_jobs(first, lambda s: s.put("a"))
    other = url.replace("127.0.0.1", "127.1")
    if server == "postgres_url":
        with_calls(first)
        folder = Path(parse_qs(urlsplit(url).query)["host"][0])
        (tmp_path / "socket").symlink_to(folder)
        other = url.replace(str(folder), str(tmp_path / "socket"))
    moved(first, url, shuts=True)
    assert copied(moved(first, other, shuts=True)) == {}
    parts = reopen(Asked(StoreLocation(first), StoreLocation(other)))
    assert parts == [*(["provider calls"] if server == "postgres_url" else []), "jobs"]
    moved(first, other, shuts=True)
    with armed("move.back.shut=error"), pytest.raises(OSError, match="was told to fail"):
        reopen(Asked(StoreLocation(first), StoreLocation(other)))
    assert reopen(Asked(StoreLocation(first), StoreLocation(url))) == parts
    open_store(first).close()
    with pytest.raises(StoreError, match="was moved to"):
        open_store(url)


@pytest.mark.slow
@pytest.mark.parametrize("server", ["postgres_url", "redis_url"])
def test_a_store_is_not_moved_into_itself_in_other_words(
    server: str, request: pytest.FixtureRequest
) -> None:
    """An empty one would get a mark that says that it is its own copy."""
    url = request.getfixturevalue(server)
    open_store(url).close()
    for each in spelt(url):
        with pytest.raises(ConfigurationError, match="into itself"):
            moved(url, each)


@pytest.mark.slow
@pytest.mark.usefixtures("guest")
def test_who_may_not_ask_which_server_it_is_may_move(postgres_url: str, tmp_path: Path) -> None:
    """Then a store is known by how its name is written, as it was before."""
    url, there = postgres_url.replace("ergon@", "guest@"), f"sqlite:///{tmp_path}/new.db"
    with_jobs(url)
    with_calls(url)
    assert copied(moved(url, there))["jobs"] == 9
    assert copied(moved(url, there)) == {}


@pytest.fixture
def guest(postgres_url: str) -> Iterator[None]:
    """A user whom a careful operator has left little."""
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        owner.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
        owner.execute("CREATE ROLE guest LOGIN")
        owner.execute("GRANT ALL ON SCHEMA public TO guest")
        yield
        owner.execute("DROP OWNED BY guest")
        owner.execute("DROP ROLE guest")


@pytest.mark.slow
def test_a_copy_of_a_database_is_another_store(
    postgres_url: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """The error says of which store TO knows, without a password, and what to do."""
    with_jobs(postgres_url)
    copy = postgres_server.new_database(like=name_of(postgres_url))
    target = f"sqlite:///{tmp_path}/new.db"
    moved(postgres_url.replace("ergon@", "ergon:secret@"), target)
    with pytest.raises(StoreError, match="from another store") as caught:
        moved(copy, target)
    postgres_server.drop_database(copy)
    assert f"jobs of {StoreLocation(postgres_url).name}, not jobs of" in caught.value.message
    assert "write FROM as it was written then" in caught.value.remedy
    assert "secret" not in str(caught.value)


def test_a_copy_of_a_file_is_another_store(tmp_path: Path) -> None:
    """It may be older than what was moved."""
    source = with_jobs(f"sqlite:///{tmp_path}/old.db")
    (tmp_path / "copy.db").write_bytes((tmp_path / "old.db").read_bytes())
    moved(source, f"sqlite:///{tmp_path}/new.db")
    with pytest.raises(StoreError, match=rf"jobs of {tmp_path}/old\.db, not jobs of .*copy\.db"):
        moved(f"sqlite:///{tmp_path}/copy.db", f"sqlite:///{tmp_path}/new.db")
