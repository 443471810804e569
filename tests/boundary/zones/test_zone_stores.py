"""Zones on any store: how settings name them, what is locked, and a node on each of them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.boundary import Consumer
from ergon_framework.boundary.backup import backed_up, looked_at, open_read_only
from ergon_framework.boundary.client.consume_effects import ConsumeReport
from ergon_framework.boundary.data_folder import LOCK
from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.maintenance import run_maintenance
from ergon_framework.boundary.model import Delivery
from ergon_framework.boundary.node.node import Node
from ergon_framework.boundary.settings import RetentionSettings, ZoneSettings
from ergon_framework.boundary.store_urls import check_fact_url, open_fact_store
from ergon_framework.boundary.verification import VerificationFinding, verified
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import ConfigurationError, MissingExtraError
from ergon_framework.storage.objectstore.filesystem import FilesystemObjectStore
from ergon_framework.storage.objectstore.s3 import S3ObjectStore
from ergon_framework.storage.objectstore.urls import check_object_place, open_object_store
from tests.cli.boundary_node import message

STORES = ["sqlite", "postgresql", "nats"]


def appended(zone: LocalZone, message_id: str) -> int:
    """A fact; its offset."""
    whole = json.loads(message(message_id))
    return zone.append(whole["envelope"], whole["fact"]).offset


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of facts of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'log' / 'facts.db'}"
    url: str = request.getfixturevalue(f"{request.param.removesuffix('ql')}_url")
    return url


# ---- urls ---------------------------------------------------------------------------------------


@pytest.mark.req("SCALE:url-errors")
@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis://me:hunter2@host/0", "Redis does not keep facts"),
        ("rediss://me:hunter2@host/0", "Redis does not keep facts"),
        ("postgre://me:hunter2@host/db", "no store of the kind 'postgre'"),
        ("mysql://me:hunter2@host/db", "no store of the kind 'mysql'"),
        ("facts.db", "must say of which kind"),
        ("sqlite://facts.db", "has no host"),
        ("memory://name", "has no name"),
        ("s3://bucket", "no store of the kind 's3'"),
    ],
)
def test_what_keeps_no_facts_is_refused(url: str, problem: str) -> None:
    """With the forms that work, and without the password."""
    with pytest.raises(ConfigurationError, match=problem) as caught:
        check_fact_url(url)
    assert caught.value.remedy
    assert "hunter2" not in str(caught.value)


@pytest.mark.req("SCALE:url-errors")
@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("", "names no folder"),
        ("sqlite:///x.db", "no store of the kind 'sqlite'"),
        ("s3://key:hunter2@bucket", "holds no credentials"),
        ("memory://x", "has no name"),
    ],
)
def test_what_keeps_no_objects_is_refused(place: str, problem: str) -> None:
    """With the forms that work, and without the password."""
    with pytest.raises(ConfigurationError, match=problem) as caught:
        check_object_place(place)
    assert caught.value.remedy
    assert "hunter2" not in str(caught.value)


@pytest.mark.req("SCALE:url-errors")
@pytest.mark.parametrize(
    ("package", "url", "extra"),
    [
        ("psycopg", "postgresql://host/db", "postgres"),
        ("nats", "nats://host", "nats"),
        ("obstore", "s3://bucket", "s3"),
    ],
)
def test_a_missing_driver_is_named(
    package: str, url: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says which extra to install, before anything is opened."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"ergon-framework\[{extra}\]"):
        (check_object_place if extra == "s3" else check_fact_url)(url)


def test_each_kind_of_store_is_opened(tmp_path: Path) -> None:
    """By its URL, or by the folder of objects."""
    with closing(open_fact_store("memory://", zone="a")) as facts:
        assert isinstance(facts, MemoryFactStore)
    with closing(open_fact_store(f"sqlite:///{tmp_path / 'facts.db'}", zone="a")) as facts:
        assert facts.info().zone == "a"
    with closing(open_object_store(tmp_path / "objects")) as objects:
        assert isinstance(objects, FilesystemObjectStore)
    with closing(open_object_store("memory://")) as objects:
        assert objects.upload().finish().size == 0


def test_a_password_never_shows() -> None:
    """Neither in the repr of the settings nor in their plain values."""
    settings = ZoneSettings.model_validate(
        {"store": "postgresql://me:hunter2@host/db", "objects": "s3://b?secret=hunter2"}
    )
    assert "hunter2" not in f"{settings!r} {settings.model_dump()} {settings.model_dump_json()}"


# ---- folders ------------------------------------------------------------------------------------


def test_a_zone_on_servers_needs_no_folder(tmp_path: Path) -> None:
    """Nothing is made and nothing is locked, so that several nodes may run."""
    data = tmp_path / "data"
    settings = ZoneSettings.model_validate(
        {"data": str(data), "store": "memory://", "objects": "memory://"}
    )
    with LocalZone.open("plant-a", settings) as one, LocalZone.open("plant-a", settings) as two:
        assert (appended(one, "x"), appended(two, "x")) == (1, 1)
    assert not data.exists()


@pytest.mark.parametrize(
    "given",
    [
        {"objects": "memory://"},
        {"store": "memory://"},
        {"store": "memory://", "objects": "{}/elsewhere"},
        {"store": "sqlite:///{}/elsewhere/log.db", "objects": "memory://"},
    ],
)
def test_files_have_one_node_at_a_time(tmp_path: Path, given: dict[str, str]) -> None:
    """A log on SQLite and a folder of objects keep their lock, each where it is."""
    values = {key: value.format(tmp_path) for key, value in given.items()}
    settings = ZoneSettings.model_validate({"data": str(tmp_path / "data"), **values})
    with LocalZone.open("plant-a", settings) as zone:
        appended(zone, "x")
        with pytest.raises(ConfigurationError, match="in use by another node"):
            LocalZone.open("plant-a", settings)
    LocalZone.open("plant-a", settings).close()
    home = "elsewhere" if "elsewhere" in str(given) else "data"
    assert [path.parent.name for path in tmp_path.rglob(LOCK)] == [home]


def test_a_log_elsewhere_is_looked_at(tmp_path: Path) -> None:
    """Its zone is found by the settings, and a zone without facts is told as such."""
    settings = ZoneSettings.model_validate(
        {"data": str(tmp_path / "data"), "store": f"sqlite:///{tmp_path / 'log.db'}"}
    )
    with (
        pytest.raises(ConfigurationError, match="has no facts yet"),
        looked_at("plant-a", settings),
    ):
        pass
    with LocalZone.open("plant-a", settings) as zone:
        appended(zone, "x")
        with looked_at("plant-a", settings) as looked:
            assert looked.store.logs()[0].head == 1


def test_a_log_on_a_server_is_not_backed_up(tmp_path: Path) -> None:
    """Whoever asks for it hears what to do instead, and nothing is written."""
    store = MemoryFactStore("plant-a")
    with (
        closing(open_object_store("memory://")) as objects,
        LocalZone("plant-a", store, objects) as zone,
        pytest.raises(ConfigurationError, match="not in an SQLite file") as caught,
    ):
        backed_up(zone, tmp_path / "copy")
    assert "its own tools" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


# ---- each store ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.req("SCALE:objects-s3")
def test_a_zone_on_each_store_with_objects_in_a_bucket(
    store_url: str, s3_url: str, tmp_path: Path
) -> None:
    """Facts and artifacts are there when it is opened again, and all of it verifies."""
    settings = ZoneSettings.model_validate(
        {"data": str(tmp_path / "data"), "store": store_url, "objects": s3_url}
    )
    with LocalZone.open("plant-a", settings) as zone:
        appended(zone, "x")
        zone.put("reports", "one", b"abc" * 1000)
    with LocalZone.open("plant-a", settings) as zone:
        assert appended(zone, "y") == 2
        stored = zone.found("reports", "one")
        assert zone.objects.stat(stored.digest) is not None
        with looked_at("plant-a", settings) as looked:
            found = list(verified(looked))
        assert not [each for each in found if isinstance(each, VerificationFinding)]
        assert run_maintenance(zone, is_thorough=True).objects == 0
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
@pytest.mark.req("C10")
def test_a_handler_that_exits_is_counted_by_each_store(store_url: str, tmp_path: Path) -> None:
    """Each run under another holder's name ends in SystemExit; then the fact is set aside."""
    settings = ZoneSettings.model_validate(
        {
            "data": str(tmp_path / "data"),
            "store": store_url,
            "objects": "memory://",
            "listen": "127.0.0.1:0",
            "insecure": True,
        }
    )
    seen: list[int] = []

    def handle(delivery: Delivery) -> None:
        seen.append(delivery.offset)
        if delivery.offset == 2:
            raise SystemExit("it cannot be read")

    def read(node: Node) -> ConsumeReport:
        with Consumer(f"http://{node.address}", "erp", log="outbound", max_attempts=3) as erp:
            return erp.run(handle, until_empty=True)

    async def main() -> ConsumeReport:
        node = Node("plant-a", settings)
        await node.start()
        try:
            for name in ("x", "y", "z"):
                appended(node.zone, name)
            for _ in range(3):
                with pytest.raises(RuntimeError, match="it cannot be read"):
                    await asyncio.to_thread(exits_told, lambda: read(node))
                await asyncio.sleep(0.01)
            return await asyncio.to_thread(read, node)
        finally:
            await node.stop()
            node.close()

    report = asyncio.run(main())
    assert (seen, report.quarantined, report.cursor) == ([1, 2, 2, 2, 3], 1, 3)


def exits_told(work: Callable[[], object]) -> None:
    """SystemExit would end the event loop."""
    try:
        work()
    except SystemExit as error:
        raise RuntimeError(str(error)) from None


@pytest.mark.slow
def test_the_clock_of_a_zone_is_that_of_its_store(store_url: str, tmp_path: Path) -> None:
    """What time a node thinks it is decides nothing where a server has the facts."""
    settings = ZoneSettings.model_validate(
        {"data": str(tmp_path / "data"), "store": store_url, "objects": "memory://"}
    )
    with LocalZone.open("plant-a", settings) as zone:
        assert zone.clock is getattr(zone.store, "clock")  # noqa: B009 - beside the port


@pytest.mark.slow
@pytest.mark.req("SCALE:objects-s3")
def test_a_backup_fetches_objects_from_their_bucket(s3_url: str, tmp_path: Path) -> None:
    """A log on SQLite and objects in a bucket become one folder, which is a zone like any other."""
    settings = ZoneSettings.model_validate({"data": str(tmp_path / "data"), "objects": s3_url})
    with LocalZone.open("plant-a", settings) as zone:
        zone.put("reports", "one", b"abc" * 1000)
        told = backed_up(zone, tmp_path / "copy")
    assert (told.objects, told.object_bytes, told.missing) == (1, 3000, "")
    with open_read_only(tmp_path / "copy") as copy:
        stored = copy.found("reports", "one")
        assert copy.objects.verify(stored.digest, stored.size) is None


# ---- several nodes ------------------------------------------------------------------------------


@pytest.fixture
def pair(s3_url: str) -> Iterator[tuple[LocalZone, LocalZone]]:
    """Two nodes of one zone: one log, one bucket, and each with a client of its own."""
    store = MemoryFactStore("plant-a")
    settings = ZoneSettings(retention=RetentionSettings(orphans=3600.0))
    zones = [
        LocalZone("plant-a", store, S3ObjectStore(s3_url, zone="plant-a"), settings)
        for _ in range(2)
    ]
    yield zones[0], zones[1]
    for zone in zones:
        zone.close()


@pytest.mark.slow
@pytest.mark.req("SCALE:objects-s3")
def test_bytes_named_while_another_node_removes_them_come_back(
    pair: tuple[LocalZone, LocalZone], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last look at the names and the removal, another node puts the same bytes."""
    one, two = pair
    one.put("reports", "old", b"abc")
    delete = S3ObjectStore.delete

    def late(self: S3ObjectStore, digest: bytes) -> bool:
        two.put("reports", "new", b"abc")
        return delete(self, digest)

    monkeypatch.setattr(S3ObjectStore, "delete", late)
    one.delete("reports", "old")
    stored = two.found("reports", "new")
    assert two.objects.verify(stored.digest, stored.size) is None


@pytest.mark.slow
@pytest.mark.req("SCALE:objects-s3")
def test_a_node_that_dies_while_it_removes_leaves_it_to_the_other(
    pair: tuple[LocalZone, LocalZone],
) -> None:
    """The next round of any node brings back what has a name, and in time forgets the rest."""
    one, two = pair
    kept, gone = one.put("reports", "kept", b"abc"), one.put("reports", "gone", b"xyz")
    assert (kept.size, gone.size) == (3, 3)
    digests = [one.found("reports", name).digest for name in ("kept", "gone")]
    for digest in digests:
        one.objects.delete(digest)  # as far as a node came that died then
    two.store.unbind("reports", "gone")
    run_maintenance(two)
    assert isinstance(two.objects, S3ObjectStore)
    assert [two.objects.stat(digest) is not None for digest in digests] == [True, False]
    assert [each.digest for each in two.objects.removed()] == digests[1:]
    two.clock = lambda: 4e9
    run_maintenance(two)
    assert digests[1] not in {each.digest for each in two.objects.removed()}


@pytest.mark.slow
@pytest.mark.req("SCALE:objects-s3")
def test_what_another_node_has_just_put_is_not_taken_for_nameless(
    pair: tuple[LocalZone, LocalZone],
) -> None:
    """Bytes without a name go when they are old, not between their put and their name."""
    one, two = pair
    run_maintenance(two, is_thorough=True)
    time.sleep(2.1)  # the server counts whole seconds, and takes no clock of ours
    upload = one.objects.upload()
    upload.write(b"abc")
    digest = upload.finish().digest
    run_maintenance(two, is_thorough=True)
    assert two.objects.stat(digest) is not None
    two.clock = lambda: 4e9
    assert run_maintenance(two, is_thorough=True).objects == 1
    assert two.objects.stat(digest) is None


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.req("BOUNDARY:node")
def test_a_forked_child_does_not_keep_the_folder(tmp_path: Path) -> None:
    """The lock ends with the process that took it, whatever it has forked."""
    settings = ZoneSettings(data=str(tmp_path / "data"))
    zone = LocalZone.open("plant-a", settings)
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(ready[1], b".")
        os.read(go[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        with pytest.raises(ConfigurationError, match="in use by another node"):
            LocalZone.open("plant-a", settings)
        zone.close()
        LocalZone.open("plant-a", settings).close()
    finally:
        os.write(go[1], b".")
        os.waitpid(pid, 0)
        for end in (*ready, *go):
            os.close(end)


# ---- whose objects they are ----


def blobs(folder: Path) -> int:
    """How many there are."""
    return sum(len(path.name) == 64 for path in folder.glob("sha256/*/*/*"))


def given(**fields: str | None) -> ZoneSettings:
    """Settings, as a file says them."""
    return ZoneSettings.model_validate(fields)


def swept(zone: LocalZone) -> int:
    """How many objects a thorough round removed, as at each start of a node."""
    return run_maintenance(zone, is_thorough=True).objects


@pytest.mark.req("BOUNDARY:store")
def test_objects_outlive_a_log_that_is_begun_anew(tmp_path: Path) -> None:
    """A log that was lost, or another one that was meant for something else, has no names for the
    objects beside it: they stay, and are named again when the log is back.
    """
    folder, other = tmp_path / "data", f"sqlite:///{tmp_path}/other.db"
    with LocalZone.open("plant-a", ZoneSettings(data=str(folder))) as zone:
        zone.put("b", "k", b"precious")
    (folder / "facts.db").rename(tmp_path / "facts.db")
    for count, store in enumerate((None, other), start=1):
        with LocalZone.open("plant-a", given(data=str(folder), store=store)) as zone:
            assert (swept(zone), blobs(folder / "objects")) == (0, count)
            zone.put("b", "k", b"meanwhile %d" % count)
    for path in folder.glob("facts.db*"):
        path.unlink()
    (tmp_path / "facts.db").rename(folder / "facts.db")
    with LocalZone.open("plant-a", ZoneSettings(data=str(folder))) as zone:
        assert swept(zone) == 0
        assert not [each for each in verified(zone) if isinstance(each, VerificationFinding)]
        upload = zone.objects.upload()  # of a put that died before it gave them a name
        upload.write(b"nobody's")
        [path] = folder.glob(f"objects/sha256/*/*/{upload.finish(None).digest.hex()}")
        os.utime(path, (4e9, 4e9))
        assert (swept(zone), blobs(folder / "objects")) == (1, 3)


@pytest.mark.slow
@pytest.mark.req("SCALE:objects-s3", "BOUNDARY:store")
@pytest.mark.parametrize("behind", [0.0, 365 * 86_400.0])
def test_objects_in_a_bucket_outlive_a_log_that_is_begun_anew(
    tmp_path: Path, s3_url: str, behind: float
) -> None:
    """However soon the other log begins, and wherever the clock of its machine stands."""
    with LocalZone.open("plant-a", given(data=str(tmp_path / "a"), objects=s3_url)) as zone:
        zone.put("b", "k", b"precious")
        digest = zone.found("b", "k").digest
    with LocalZone.open(
        "plant-a",
        given(data=str(tmp_path / "b"), objects=s3_url),
        clock=lambda: time.time() - behind,
    ) as zone:
        assert swept(zone) == 0
        zone.clock = lambda: time.time() + 30 * 86_400.0
        assert swept(zone) == 0
        assert zone.objects.stat(digest) is not None


@pytest.mark.req("BOUNDARY:store", "BOUNDARY:badinput")
def test_a_folder_of_objects_belongs_to_one_zone(tmp_path: Path) -> None:
    """One after the other as well: each would remove what the other has."""
    objects = str(tmp_path / "objects")
    with LocalZone.open("plant-a", given(data=str(tmp_path / "a"), objects=objects)) as zone:
        zone.put("b", "k", b"precious")
    with pytest.raises(ConfigurationError, match="holds the objects of zone 'plant-a'") as caught:
        LocalZone.open("plant-b", given(data=str(tmp_path / "b"), objects=objects))
    assert caught.value.remedy
    with looked_at("plant-a", given(data=str(tmp_path / "a"), objects=objects)) as zone:
        assert not [each for each in verified(zone) if isinstance(each, VerificationFinding)]
