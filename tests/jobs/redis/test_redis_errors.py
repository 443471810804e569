"""Wrong URLs, wrong passwords, servers that would lose jobs: a clear error of its own for each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from redis import exceptions

from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    MissingExtraError,
    StoreFullError,
    StoreReadOnlyError,
    StoreSchemaError,
    StoreUnavailableError,
)
from ergon_framework.jobs.store_urls import open_store as open_url
from ergon_framework.jobs.stores.redis import RedisJobStore
from ergon_framework.ports.jobstore import NewJob, Search, Topic, WorkerRecord
from ergon_framework.storage.redis.address import address_of
from ergon_framework.storage.redis.client import RedisClient
from ergon_framework.storage.redis.diagnostics import Persistence, refuse_unsafe
from ergon_framework.storage.redis.errors import translate
from ergon_framework.testing.suites.jobstore.schedules import schedule
from ergon_framework.testing.suites.jobstore.under_test import ask, hold, new
from tests.jobs.redis.conftest import Open, serving
from tests.servers.redis import DURABLE, RedisServer

pytestmark = pytest.mark.req("SCALE:jobs-redis", "SCALE:url-errors")
SECRET = "hush-hush"  # noqa: S105


@contextmanager
def refused(kind: type[ErgonError], match: str) -> Iterator[None]:
    """What is done within fails like this, with a remedy, and tells no secret."""
    with pytest.raises(kind, match=match) as caught:
        yield
    assert type(caught.value) is kind
    assert caught.value.remedy
    assert SECRET not in str(caught.value) + repr(caught.value)


# ---- URLs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "text"),
    [
        (f"redis://:{SECRET}@host:port/0", "cannot be read"),
        (f"redis://user:{SECRET}@[::1/0", "cannot be read"),
        (f"redis://:{SECRET}@host/first", "is a number"),
        (f"redis://:{SECRET}@host/0?timeout=5", "no option 'timeout'"),
        (f"redis://:{SECRET}@host/0?ssl_ca_certs=x", "no option 'ssl_ca_certs'"),
        (f"redis://:{SECRET}@host/0?persistence=maybe", "is disk or none"),
        (f"redis://:{SECRET}@host/0?prefix=a%7Bb", "no braces"),
        (f"redis://:{SECRET}@host/0#there", "cannot be read"),
        (f"redis://user:12?{SECRET}@host/0", "cannot be read"),
        (f"redis://user:12/{SECRET}@host/0", "cannot be read"),
        (f"redis://user:12#{SECRET}@host/0", "cannot be read"),
    ],
)
def test_a_url_that_makes_no_sense(url: str, text: str) -> None:
    """It is refused before anything is opened, and what stands in it is not shown."""
    with refused(ConfigurationError, text):
        open_url(url)


def test_what_a_url_says() -> None:
    """Host, port, database, user and password, all but the host with a default."""
    found = address_of("redis://us%40er:p%3Aw@example/3?prefix=shop")
    assert found.name == "redis://example:6379/3"
    assert (found.options["username"], found.options["password"]) == ("us@er", "p:w")
    assert (found.database, found.prefix, found.is_volatile) == (3, "shop", False)
    assert "p:w" not in repr(found)
    assert address_of("redis://").name == "redis://localhost:6379/0"
    assert address_of("rediss://[::1]:7000?persistence=none").name == "rediss://[::1]:7000/0"
    assert address_of("rediss://h?ssl_ca_certs=/x").options["ssl_ca_certs"] == "/x"


def test_a_missing_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra to install."""
    monkeypatch.setitem(sys.modules, "redis", None)
    with refused(MissingExtraError, "needs redis-py"):
        open_url("redis://localhost/0")


def test_nobody_listens_there() -> None:
    """The error says how to look."""
    with refused(StoreUnavailableError, "cannot be reached"):
        RedisJobStore(f"redis://:{SECRET}@127.0.0.1:1/0")


def test_a_wrong_database(redis_url: str) -> None:
    """A number that the server does not have."""
    with refused(ConfigurationError, "no database of that number"):
        RedisJobStore(redis_url.removesuffix("0") + "4711")


def test_wrong_passwords(own_server: RedisServer) -> None:
    """None, a wrong one and a wrong user are refused; the right one opens the store."""
    url = own_server.url
    with own_server.connect() as client:
        client.config_set("requirepass", SECRET)
    for user in ("", ":wrong@", f"nobody:{SECRET}@"):
        with refused(ConfigurationError, "does not let this user in"):
            RedisJobStore(url.replace("://", f"://{user}"))
    RedisJobStore(url.replace("://", f"://:{SECRET}@")).close()


def test_a_user_with_too_few_rights(own_server: RedisServer) -> None:
    """What is forbidden is told; where CONFIG is, the durability is unknown and to be accepted."""
    with own_server.connect() as client:
        client.acl_setuser("most", True, passwords=[f"+{SECRET}"], keys="*", categories=["+@all"])
        client.execute_command("ACL", "SETUSER", "most", "-config", "&*")
        client.execute_command("ACL", "SETUSER", "few", "on", f">{SECRET}", "~*", "+info", "+get")
    url = own_server.url.replace("://", f"://most:{SECRET}@")
    with refused(ConfigurationError, "or does not tell"):
        RedisJobStore(url)
    store = RedisJobStore(f"{url}?acknowledge=unsynced")
    assert "does not tell when it syncs" in store.durability
    store.close()
    with refused(ConfigurationError, "forbids something to this user"):
        RedisJobStore(own_server.url.replace("://", f"://few:{SECRET}@") + "?acknowledge=unsynced")


def test_a_user_with_just_the_rights_it_needs(own_server: RedisServer) -> None:
    """The line in the documentation is enough for all that a store does."""
    page = Path("docs/howto/production/durability.md").read_text()
    [line] = [each for each in page.splitlines() if each.startswith("ACL SETUSER")]
    with own_server.connect() as client:
        client.execute_command(*line.replace("PASSWORD", SECRET).split())
    url = own_server.url.replace("://", f"://ergon:{SECRET}@")
    with closing(RedisJobStore(url)) as store:
        assert "synced" in store.durability
        subscription = store.subscribe(Topic.WORK)
        store.add([new("a")])
        assert subscription.wait(30.0)
        assert [job.id for job in store.settle_and_claim([], ask(5))[1].jobs] == ["a"]
        store.put_schedule(schedule("s", next_at=5.0))
        store.set_queue("default", is_paused=True)
        store.prune(10)
        assert store.now() > 0
        assert [job.id for job in store.search(Search())] == ["a"]


# ---- servers that would lose jobs ---------------------------------------------------------------


def test_a_server_without_persistence(redis_server: RedisServer) -> None:
    """It is refused, unless the URL says that the jobs may be lost."""
    with refused(ConfigurationError, "keeps nothing on disk"):
        RedisJobStore(redis_server.url)
    store = RedisJobStore(f"{redis_server.url}?persistence=none&prefix=volatile")
    assert "in the memory of the Redis server only" in store.durability
    store.close()


def test_a_server_that_evicts(own_server: RedisServer) -> None:
    """One that throws keys away when its memory is full is refused."""
    with own_server.connect() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    with refused(ConfigurationError, "allkeys-lru"):
        RedisJobStore(own_server.url)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "is synced to the disk"),
        ({"appendfsync": "everysec"}, "up to a second of acknowledged work"),
        ({"appendfsync": "no"}, "up to half a minute of acknowledged work"),
        ({"no-appendfsync-on-rewrite": "yes"}, "except while it rewrites its log"),
        ({"appendonly": "no", "save": "60 1"}, "only if a snapshot was taken since"),
    ],
)
def test_what_an_acknowledgement_means(
    durable_redis: RedisServer, settings: dict[str, str], text: str
) -> None:
    """The store says plainly what the server's settings make of it; all but the safe ones are
    refused unless the URL accepts them.
    """
    with durable_redis.connect() as client:
        before = {name: client.config_get(name)[name] for name in settings}
        try:
            for name, value in settings.items():
                client.config_set(name, value)
            url = f"{durable_redis.url}?prefix=durability"
            if settings:
                with refused(ConfigurationError, "acknowledges jobs before they are synced"):
                    RedisJobStore(url)
                url += "&acknowledge=unsynced"
            store = RedisJobStore(url)
            store.close()
            assert text in store.durability
            assert store.is_synced is not bool(settings)
        finally:
            for name, value in before.items():
                client.config_set(name, value)
            client.flushdb()


@pytest.mark.parametrize("name", ["appendfsync", "appendonly"])
def test_a_server_that_stops_syncing_is_refused_until_it_does_again(
    durable_redis: RedisServer, name: str
) -> None:
    """Its settings can be changed while it runs: whoever has the store open is told, too."""
    unsafe = {"appendfsync": "everysec", "appendonly": "no"}[name]
    with durable_redis.connect() as client:
        before = client.config_get(name)[name]
        try:
            store = RedisJobStore(f"{durable_redis.url}?prefix=changed", inspect_interval=0.0)
            client.config_set(name, unsafe)
            with refused(StoreUnavailableError, "acknowledges jobs before|keeps nothing on disk"):
                store.add([new("a")])
            told = [store.is_synced]
            assert store.find("a") is None
            client.config_set(name, before)
            assert store.add([new("a")])[0].is_new
            assert [*told, store.is_synced] == [False, True]
            store.close()
        finally:
            client.config_set(name, before)
            client.flushdb()


def test_an_old_server(redis_url: str) -> None:
    """One before 6.2 lacks what the scripts need."""
    old = Persistence((6, 0, 16), False, True, "always", False, False, "noeviction")
    link = RedisClient(address_of(redis_url))
    with refused(StoreSchemaError, r"Redis 6\.0\.16"):
        refuse_unsafe(old, link, read_only=False)
    link.close()


@pytest.mark.slow
def test_a_replica(own_server: RedisServer) -> None:
    """It may be read, and is not written."""
    with RedisJobStoreOn(own_server) as primary:
        primary.add([new("a")])
    with serving(*DURABLE) as replica:
        with replica.connect() as client:
            client.replicaof("127.0.0.1", own_server.port)
            while client.info("replication")["master_link_status"] != "up":
                client.ping()
        with refused(StoreReadOnlyError, "is a replica"):
            RedisJobStore(replica.url)
        store = RedisJobStore(replica.url, read_only=True)
        assert [job.id for job in store.search(Search())] == ["a"]
        store.close()


@contextmanager
def RedisJobStoreOn(server: RedisServer) -> Iterator[RedisJobStore]:  # noqa: N802
    """A store that is closed at the end."""
    store = RedisJobStore(server.url)
    try:
        yield store
    finally:
        store.close()


def test_a_server_that_becomes_a_replica(own_server: RedisServer) -> None:
    """After a failover the former primary refuses writes, and says so."""
    with RedisJobStoreOn(own_server) as store, own_server.connect() as client:
        store.add([new("a")])
        client.replicaof("127.0.0.1", 1)
        with refused(StoreReadOnlyError, "is a replica"):
            store.add([new("b")])
        assert store.find("a") is not None


def test_a_server_without_memory(own_server: RedisServer) -> None:
    """Nothing of a refused batch is stored, what is there goes on, and room makes it work again."""
    with RedisJobStoreOn(own_server) as store, own_server.connect() as client:
        store.add([new("a"), new("b", unique_key="k")])
        client.config_set("maxmemory", 1)
        for jobs in ([new("c")], [new("d"), new("e", unique_key="v")]):
            with refused(StoreFullError, "no memory left"):
                store.add(jobs)
        with refused(StoreFullError, "no memory left"):
            store.settle_and_claim([], ask(1))
        assert {job.id for job in store.search(Search())} == {"a", "b"}
        assert store.queues()[0].counts == {"pending": 2}
        client.config_set("maxmemory", 0)
        store.add([NewJob(id="c", handler="work", args=b'["%s"]' % (b"x" * 100_000))])
        assert len(store.settle_and_claim([], ask(9))[1].jobs) == 3


# ---- schemas ------------------------------------------------------------------------------------


def test_a_newer_schema(open_store: Open, redis_url: str) -> None:
    """Keys of a later version are left alone."""
    store = open_store()
    store.add([new("a")])
    store.transactions.client.call("SET", "{ergon}:schema", "99")
    with refused(StoreSchemaError, "version 99"):
        RedisJobStore(redis_url)
    assert store.find("a") is not None


def test_foreign_keys_of_our_names(open_store: Open, redis_url: str) -> None:
    """A key that only has our name is not touched; another prefix makes room."""
    other = open_store(f"{redis_url}?prefix=other")
    other.transactions.client.call("SET", "{ergon}:schema", "my own")
    with refused(StoreSchemaError, "not of this jobs store"):
        RedisJobStore(redis_url)
    other.transactions.client.call("HSET", "{foreign}:schema", "a", "b")
    with refused(StoreSchemaError, "not of this jobs store"):
        RedisJobStore(redis_url, prefix="foreign")
    other.transactions.client.call("SET", "{half}:job", "a")
    store = open_store(prefix="half")
    with refused(StoreSchemaError, "not of this jobs store"):
        store.add([new("a")])
    assert other.transactions.client.call("GET", "{half}:job") == b"a"


# ---- stores that are closed or only read --------------------------------------------------------


def test_a_closed_store(open_store: Open) -> None:
    """Every call of a closed store is refused."""
    store = open_store()
    store.close()
    store.close()
    for call in (lambda: store.add([new("a")]), lambda: store.find("a"), store.queues):
        with refused(StoreUnavailableError, "closed"):
            call()


def test_a_store_that_is_only_read(open_store: Open) -> None:
    """It shows everything and changes nothing, not even in an empty database."""
    empty = open_store(prefix="empty", read_only=True)
    assert (list(empty.search(Search())), empty.queues(), empty.schedules()) == ([], [], [])
    assert not empty.transactions.client.call("KEYS", "{empty}*")
    store = open_store()
    store.add([new("a")])
    [job] = store.settle_and_claim([], ask(1))[1].jobs
    reader = open_store(read_only=True)
    before = store.find("a")
    me = WorkerRecord(id="me", host="here", pid=1, version="1", started_at=1.0)
    for call in (
        lambda: reader.add([new("b")]),
        lambda: reader.settle_and_claim([], ask(1)),
        lambda: reader.renew([hold(job)], 30.0),
        lambda: reader.prune(1),
        lambda: reader.set_queue("q", is_paused=True),
        lambda: reader.heartbeat(me),
        lambda: reader.put_schedule(schedule("a")),
        lambda: reader.records.set_move_state(b"x"),
    ):
        with refused(StoreReadOnlyError, "opened to be read"):
            call()
    assert reader.find("a") == before


def test_records_that_cannot_be_read_do_not_hide_the_others(
    open_store: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """Workers and schedules that somebody else wrote wrongly are left out, and told of once."""
    store = open_store()
    store.heartbeat(WorkerRecord(id="me", host="here", pid=1, version="1", started_at=1.0))
    store.put_schedule(schedule("good"))
    store.transactions.client.call("HSET", "{ergon}:workers", "bad", b"\xff\xff")
    store.transactions.client.call("HSET", "{ergon}:schedules", "bad", "{}")
    for _ in range(2):
        assert [each.id for each in store.workers()] == ["me"]
        assert [each.name for each in store.schedules()] == ["good"]
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (
            exceptions.ResponseError("MISCONF Errors writing: No space left on device"),
            StoreFullError,
        ),
        (exceptions.ResponseError("MISCONF Redis is configured to save"), StoreUnavailableError),
        (exceptions.ResponseError("BUSY Redis is busy running a script"), StoreUnavailableError),
        (exceptions.ResponseError("NOREPLICAS Not enough good replicas"), StoreUnavailableError),
        (exceptions.ClusterDownError("Hash slot not served"), StoreUnavailableError),
        (exceptions.OutOfMemoryError("command not allowed"), StoreFullError),
        (exceptions.ReadOnlyError("You can't write"), StoreReadOnlyError),
    ],
)
def test_what_the_server_may_say(said: exceptions.ResponseError, kind: type[ErgonError]) -> None:
    """Each trouble that passes by itself, or that somebody has to end, is told as what it is."""
    with refused(kind, "redis://"):
        raise translate(said, "redis://host:6379/0")
