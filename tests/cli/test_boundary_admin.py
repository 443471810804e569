"""``ergon boundary verify|backup|certs``: a zone's folder and its files."""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ergon_framework.boundary import backup
from ergon_framework.boundary.client.outbox import Outbox
from ergon_framework.boundary.node.status import status as status_of
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.store_urls import open_fact_store
from ergon_framework.boundary.verification import (
    VerificationFinding,
    VerificationProgress,
    size_of,
    verified,
)
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import ConfigurationError
from ergon_framework.ports.transfer import MoveState, records_of
from tests import fork_server
from tests.boundary.outbox_node import Node as OutboxNode
from tests.boundary.outbox_node import envelope, fact
from tests.cli.boundary_node import BoundaryCommands, message, running

pytestmark = pytest.mark.req("BOUNDARY:operator")


@pytest.fixture
def commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> BoundaryCommands:
    """The command line, without a node."""
    monkeypatch.chdir(tmp_path)
    return BoundaryCommands(tmp_path, capsys, monkeypatch)


@pytest.fixture
def zone(commands: BoundaryCommands) -> Iterator[LocalZone]:
    """A zone with three facts and two objects, open as its node would have it."""
    with LocalZone.open("plant-a", ZoneSettings(data=commands.data)) as zone:
        fill(zone)
        yield zone


def fill(zone: LocalZone) -> None:
    """Facts and objects."""
    zone.put("batch-files", "one", b"one" * 1000)
    zone.put("batch-files", "also-one", b"one" * 1000)
    zone.put("batch-files", "two", b"two" * 1000)
    for n in range(3):
        asked = json.loads(message(f"m-{n}-x", value={"n": n}))
        zone.append(asked["envelope"], asked["fact"])


def blobs(folder: str | Path) -> list[Path]:
    """The files of a folder's objects."""
    return sorted(path for path in Path(folder).glob("objects/sha256/*/*/*") if path.is_file())


# ---- verify -------------------------------------------------------------------------------------


@pytest.mark.req("BOUNDARY:store")
def test_verify_a_sound_zone(commands: BoundaryCommands, zone: LocalZone) -> None:
    """While the zone is open elsewhere; an empty list for programs."""
    answer = commands("verify", "--data", commands.data)
    assert (answer.code, answer.out) == (0, "no flaws in 3 facts and 3 objects\n")
    assert commands("verify", "--data", commands.data, "--json").json == []
    assert not commands("status", "--data", commands.data, "--json").json["is_half_moved"]


@pytest.mark.req("BOUNDARY:badinput", "BOUNDARY:store")
def test_verify_names_every_flaw(commands: BoundaryCommands, zone: LocalZone) -> None:
    """A changed row, a damaged object and one that is gone: each by its place, exit code 1."""
    zone.close()
    first, second = blobs(commands.data)
    first.chmod(0o600)
    first.write_bytes(first.read_bytes()[:-1] + b"?")
    second.unlink()
    with closing(sqlite3.connect(Path(commands.data) / "facts.db")) as file, file:
        file.execute(
            "UPDATE ergon_boundary_facts SET fact = replace(fact, '\"n\":1', '\"n\":7')"
            " WHERE id & 0xFFFFFFFFFF = 2"
        )
    answer = commands("verify", "--data", commands.data, "--json")
    assert answer.code == 1
    facts = [flaw for flaw in answer.json if flaw["kind"] == "fact"]
    objects = [flaw["key"] for flaw in answer.json if flaw["kind"] == "object"]
    assert [(flaw["log"], flaw["offset"]) for flaw in facts] == [("outbound", 2)]
    assert sorted(objects) == ["also-one", "one", "two"]
    table = commands("verify", "--data", commands.data)
    assert (table.code, table.out.splitlines()[-1]) == (1, "4 flaws in 3 facts and 3 objects")


@pytest.mark.req("SCALE:move")
def test_verify_a_zone_that_is_not_all_there(commands: BoundaryCommands, zone: LocalZone) -> None:
    """What a move that was cut off has left is not sound, however whole each fact is."""
    zone.close()
    with closing(open_fact_store(f"sqlite:///{commands.data}/facts.db", zone=zone.name)) as store:
        records_of(store).set_move_state(msgspec.json.encode(MoveState("elsewhere")))
    answer = commands("verify", "--data", commands.data, "--json")
    assert answer.code == 1
    assert [flaw["kind"] for flaw in answer.json] == ["store"]
    told = commands("status", "--data", commands.data)
    assert told.code == 1
    assert "alert: move: a move into it has not ended" in told.out
    shape = commands("status", "--data", commands.data, "--json").json
    assert (shape["is_half_moved"], [each["kind"] for each in shape["alerts"]]) == (True, ["move"])


@pytest.mark.req("SCALE:move")
def test_status_of_a_zone_that_was_moved(
    commands: BoundaryCommands, zone: LocalZone, tmp_path: Path
) -> None:
    """Whoever looks, its node or somebody in the folder, hears where everything went."""
    assert status_of(zone)["moved_to"] is None
    target = f"sqlite:///{tmp_path}/moved.db"
    records_of(zone.store).set_move_state(msgspec.json.encode(MoveState(moved_to=target)))
    told = {each["kind"]: each for each in status_of(zone)["alerts"]}
    assert told["moved"]["place"] == target
    zone.close()
    answer = commands("status", "--data", commands.data)
    assert answer.code == 1
    assert f"alert: moved: what it held was moved to {target}" in answer.out
    assert commands("status", "--data", commands.data, "--json").json["moved_to"] == target


def test_verify_moves_a_bar(zone: LocalZone) -> None:
    """How far it is never goes back, and ends where the whole was said to end."""
    seen = [
        told.facts + told.objects
        for told in verified(zone)
        if isinstance(told, VerificationProgress)
    ]
    assert seen == sorted(seen)
    assert seen[-1] == size_of(zone) == 6


@pytest.mark.req("BOUNDARY:objects")
def test_an_orphan_collected_meanwhile_is_no_flaw(
    zone: LocalZone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verification looks again before it complains."""
    check = zone.objects.verify

    def collected(digest: bytes, size: int) -> str | None:
        for key in ("one", "also-one", "two"):
            if zone.store.object("batch-files", key):
                zone.delete("batch-files", key)
        return check(digest, size)

    monkeypatch.setattr(zone.objects, "verify", collected)
    assert [told for told in verified(zone) if isinstance(told, VerificationFinding)] == []


@pytest.mark.req("BOUNDARY:badinput")
def test_what_cannot_be_verified(commands: BoundaryCommands) -> None:
    """No folder, no settings, and a file that is no database."""
    none = commands("verify")
    assert (none.code, "which folder?" in none.err) == (2, True)
    empty = commands("verify", "--data", ".")
    assert (empty.code, "no zone lives in" in empty.err) == (2, True)
    Path("facts.db").write_bytes(b"no database at all" * 100)
    other = commands("verify", "--data", ".")
    assert (other.code, other.out) == (1, "")


# ---- backup -------------------------------------------------------------------------------------


@pytest.mark.req("BOUNDARY:store", "BOUNDARY:objects")
def test_backup_of_an_open_zone(commands: BoundaryCommands, zone: LocalZone) -> None:
    """The copy is sound, shares its objects, and begins a new epoch when it is opened."""
    answer = commands("backup", "copy", "--data", commands.data, "--json")
    assert (answer.code, answer.err) == (0, "")
    assert (answer.json["facts"], answer.json["objects"]) == (3, 2)
    assert (answer.json["object_bytes"], answer.json["missing"]) == (6000, "")
    assert sorted(path.name for path in Path("copy").iterdir()) == ["facts.db", "objects"]
    assert [path.stat().st_nlink for path in blobs("copy")] == [2, 2]
    assert commands("verify", "--data", "copy").code == 0
    assert commands("status", "--data", "copy", "--json").json["epoch"] == zone.store.info().epoch
    with LocalZone.open("plant-a", ZoneSettings(data="copy")) as copy:
        assert copy.store.info().epoch != zone.store.info().epoch
        assert copy.lookup("plant-a", "m-2-x")["offset"] == 3
        assert copy.objects.verify(copy.found("batch-files", "two").digest, 3000) is None


def test_backup_with_bytes_of_its_own(commands: BoundaryCommands, zone: LocalZone) -> None:
    """--copy shares nothing; an empty folder may be there already."""
    Path("copy").mkdir()
    assert commands("backup", "copy", "--data", commands.data, "--copy").code == 0
    assert [path.stat().st_nlink for path in blobs("copy")] == [1, 1]


def test_backup_where_links_are_impossible(
    commands: BoundaryCommands, zone: LocalZone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another disk the bytes are copied."""

    def crossed(*_paths: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", crossed)
    assert commands("backup", "copy", "--data", commands.data).code == 0
    assert commands("verify", "--data", "copy").code == 0


@pytest.mark.req("BOUNDARY:objects")
def test_backup_has_what_came_and_what_went_meanwhile(
    zone: LocalZone, commands: BoundaryCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that the copied log names is there, whatever happens between the steps."""
    original = type(zone.store).backup

    def busy(self: Any, folder: str) -> None:
        zone.put("batch-files", "late", b"late")
        original(self, folder)
        zone.delete("batch-files", "two")

    monkeypatch.setattr(type(zone.store), "backup", busy)
    assert commands("backup", "copy", "--data", commands.data).code == 0
    assert commands("verify", "--data", "copy").out == "no flaws in 3 facts and 4 objects\n"


@pytest.mark.req("BOUNDARY:badinput")
def test_backup_of_a_damaged_zone(commands: BoundaryCommands, zone: LocalZone) -> None:
    """What is left is copied, what is not is told, and the exit code is 1."""
    blobs(commands.data)[0].unlink()
    answer = commands("backup", "copy", "--data", commands.data)
    assert answer.code == 1
    assert "not whole: " in answer.out
    assert len(blobs("copy")) == 1


@pytest.mark.req("BOUNDARY:badinput")
def test_backup_refuses(
    commands: BoundaryCommands, zone: LocalZone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder with something in it is left alone; a failure leaves nothing behind."""
    Path("copy").mkdir()
    Path("copy/mine").write_text("mine")
    refused = commands("backup", "copy", "--data", commands.data)
    assert (refused.code, "is there already" in refused.err) == (2, True)
    assert [path.name for path in Path("copy").iterdir()] == ["mine"]

    def full(_path: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(backup, "sync_folder", full)
    failed = commands("backup", "other", "--data", commands.data)
    assert (failed.code, "No space left on device" in failed.err) == (1, True)
    assert not list(commands.place.glob("other*"))


@contextmanager
def small_files(most: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No file may grow beyond so many bytes, as on a disk that is full."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it would be cut off, and nobody told
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.req("BOUNDARY:badinput")
def test_backup_without_room_names_the_copy(
    commands: BoundaryCommands, zone: LocalZone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The zone that is copied is well; its operator frees room where the copy was to be."""
    with small_files(20_000, monkeypatch):
        failed = commands("backup", "copy", "--data", commands.data)
    assert failed.code == 1
    assert "no backup could be written to" in failed.err
    assert f"{commands.data}/facts.db" not in failed.err
    assert not list(commands.place.glob("copy*"))
    assert commands("backup", "copy", "--data", commands.data).code == 0


@pytest.mark.req("BOUNDARY:store")
def test_backup_removes_what_a_killed_one_left(commands: BoundaryCommands, zone: LocalZone) -> None:
    """Not what another process still writes, and nothing of another name."""
    left = [Path(f"copy.{n}0123abc.partial") for n in range(2)]
    for each in (*left, Path("copied.00123abc.partial"), Path("copy.mine.partial")):
        each.mkdir()
        (each / "facts.db").write_text("half")
    descriptor = os.open(left[1], os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert commands("backup", "copy", "--data", commands.data).code == 0
    finally:
        os.close(descriptor)
    assert [each.exists() for each in left] == [False, True]
    assert Path("copied.00123abc.partial").exists()
    assert Path("copy.mine.partial").exists()


# ---- certs --------------------------------------------------------------------------------------


@pytest.mark.req("BOUNDARY:security")
def test_certificates(commands: BoundaryCommands) -> None:
    """An authority and a zone's certificate; the keys are for their owner only."""
    made = commands("certs", "ca", "--folder", "pki", "--json")
    assert made.json == {"ca": "pki/ca.pem", "key": "pki/ca.key"}
    issued = commands(
        "certs", "issue", "plant-a", "--folder", "pki", "--host", "10.0.0.7", "--json"
    )
    assert issued.json == {
        "zone": "plant-a",
        "cert": "pki/plant-a.pem",
        "key": "pki/plant-a.key",
        "ca": "pki/ca.pem",
    }
    for key in ("pki/ca.key", "pki/plant-a.key"):
        assert stat.S_IMODE(Path(key).stat().st_mode) == 0o600


@pytest.mark.req("BOUNDARY:badinput")
def test_certificates_that_are_not_made(commands: BoundaryCommands) -> None:
    """Without an authority, over files that are there, and for a name that is none."""
    none = commands("certs", "issue", "plant-a")
    assert (none.code, "holds no usable authority" in none.err) == (2, True)
    commands("certs", "ca")
    before = Path("certs/ca.pem").read_bytes()
    again = commands("certs", "ca")
    assert (again.code, "is there already" in again.err) == (2, True)
    assert Path("certs/ca.pem").read_bytes() == before
    assert commands("certs", "ca", "--force").code == 0
    assert commands("certs", "issue", "plant\ta").code == 2


@pytest.mark.req("BOUNDARY:security")
@pytest.mark.slow
def test_commands_over_tls(commands: BoundaryCommands) -> None:
    """With certificates from options or from the settings; without them a clear word."""
    commands("certs", "ca")
    commands("certs", "issue", "plant-a")
    files = {"cert": "certs/plant-a.pem", "key": "certs/plant-a.key", "ca": "certs/ca.pem"}
    settings = ZoneSettings(data=commands.data, listen="127.0.0.1:0", **files)  # type: ignore[arg-type]
    with running(settings) as address:
        url = f"https://{address}"
        given = [part for name, path in files.items() for part in (f"--{name}", path)]
        assert commands("status", "--url", url, *given).code == 0
        bare = commands("status", "--url", url)
        assert (bare.code, "give --cert, --key and --ca" in bare.err) == (2, True)
        half = commands("status", "--url", url, *given[:2])
        assert (half.code, "cert, key and ca belong together" in half.err) == (2, True)
        plain = commands("status", "--url", url.replace("https", "http"), *given)
        assert (plain.code, "use https://" in plain.err) == (2, True)
        table = "\n".join(f'{name} = "{path}"' for name, path in files.items())
        text = f'[zones.plant-a]\ndata = "data"\nlisten = "{address}"\n{table}\n'
        Path("ergon.toml").write_text(text)
        assert commands("status", "--json").json["zone"] == "plant-a"
        assert commands("verify").code == 0


# ---- restore ----


@pytest.fixture
def backed_up(commands: BoundaryCommands) -> BoundaryCommands:
    """A zone with three facts, its backup, and a fourth fact since; no node runs."""
    with LocalZone.open("plant-a", ZoneSettings(data=commands.data)) as zone:
        fill(zone)
        assert commands("backup", "copy", "--data", commands.data).code == 0
        asked = json.loads(message("m-3-x", value={"n": 3}))
        zone.append(asked["envelope"], asked["fact"])
    return commands


def test_restore_moves_what_was_there_aside(backed_up: BoundaryCommands) -> None:
    """The zone is that of the backup, in a new epoch; the old folder is whole, and named."""
    commands = backed_up
    old = commands("status", "--data", commands.data, "--json").json["epoch"]
    answer = commands("restore", "copy", "--data", commands.data, "--replace", "--json")
    assert (answer.code, answer.err) == (0, "")
    assert (answer.json["zone"], answer.json["facts"], answer.json["objects"]) == ("plant-a", 3, 2)
    assert commands("verify", "--data", commands.data).out == "no flaws in 3 facts and 3 objects\n"
    assert commands("verify", "--data", answer.json["aside"]).out.startswith("no flaws in 4 facts")
    with LocalZone.open("plant-a", ZoneSettings(data=commands.data)) as zone:
        assert zone.store.info().epoch != old
    assert commands("verify", "--data", "copy").code == 0


def test_restore_on_a_full_disk_does_not_claim_to_be_done(backed_up: BoundaryCommands) -> None:
    """The standard output is fine: it is the disk that is full, and the zone is as it was."""
    before = backed_up("verify", "--data", backed_up.data).out
    words = f"boundary restore copy --data {backed_up.data} --replace"
    done = subprocess.run(  # noqa: S603 - our own command
        ["sh", "-c", f"ulimit -f 16; {sys.executable} -B -m ergon_framework.cli {words}"],  # noqa: S607
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "standard output" not in done.stderr
    assert "is done" not in done.stderr
    assert backed_up("verify", "--data", backed_up.data).out == before


def test_restore_into_a_new_folder_says_what_follows(backed_up: BoundaryCommands) -> None:
    """Every command that it prints can be pasted."""
    answer = backed_up("restore", "copy", "--data", "fresh")
    assert answer.code == 0
    assert "  ergon boundary outbox resend OUTBOX\n" in answer.out
    assert "ergon boundary open --peer plant-a --accept-epoch" in answer.out
    assert backed_up("verify", "--data", "fresh").code == 0


def test_restore_has_a_producer_whose_clock_is_behind_tell_again(
    backed_up: BoundaryCommands,
) -> None:
    """The outbox knows when it sent something by its own clock, an hour behind the node's."""
    with Outbox(
        "outbox.db", OutboxNode(), keep_sent=86400.0, clock=lambda: time.time() - 3600
    ) as outbox:
        outbox.add(envelope("e:1"), fact(1))
        outbox.drain(until_empty=True)
    printed = backed_up("restore", "copy", "--data", "fresh").out
    (hint,) = re.findall("  ergon boundary (outbox resend .*)", printed)
    words = hint.replace("OUTBOX", "outbox.db").split()
    assert backed_up(*words, "--json").json == {"resent": 1}


def test_restore_quotes_names_in_the_commands_that_it_prints(commands: BoundaryCommands) -> None:
    """The zone and the folder of the backup have spaces; each command is one that can be pasted."""
    with LocalZone.open("Werk Süd", ZoneSettings(data="my zone")) as zone:
        zone.put("batch-files", "one", b"hello")
    assert commands("backup", "my copy", "--data", "my zone").code == 0
    made = commands("restore", "my copy", "--data", "fresh")
    assert "  ergon boundary open --peer 'Werk Süd' --accept-epoch" in made.out
    for path in Path("my copy").rglob("*"):
        if path.is_file() and path.read_bytes() == b"hello":
            path.chmod(0o600)
            path.write_bytes(b"jello")
    damaged = commands("restore", "my copy", "--data", "other")
    assert f"`ergon boundary verify --data '{commands.place}/my copy'`" in damaged.err


@pytest.mark.req("BOUNDARY:badinput")
def test_restore_refuses_what_would_do_harm(backed_up: BoundaryCommands) -> None:
    """A folder that is not empty, one in use, another zone's, one that holds no backup."""
    commands = backed_up
    refused = commands("restore", "copy", "--data", commands.data)
    assert refused.code == 2
    assert "--replace" in refused.err
    with LocalZone.open("plant-a", ZoneSettings(data=commands.data)):
        refused = commands("restore", "copy", "--data", commands.data, "--replace")
        assert "is in use by another node" in refused.err
    with LocalZone.open("plant-b", ZoneSettings(data="other")):
        pass
    refused = commands("restore", "copy", "--data", "other", "--replace")
    assert "holds zone 'plant-b'" in refused.err
    Path("letters").mkdir()
    (Path("letters") / "a.txt").write_text("keep me")
    refused = commands("restore", "copy", "--data", "letters", "--replace")
    assert "something else" in refused.err
    assert commands("restore", "nowhere", "--data", "fresh").code == 2
    assert commands("restore", "copy", "--data", "copy/inside").code == 2
    assert not Path("fresh").exists()
    assert [path.name for path in commands.place.iterdir() if "restoring" in path.name] == []


def test_restore_of_a_damaged_backup(backed_up: BoundaryCommands) -> None:
    """It is refused before anything is moved; who has nothing better may say so."""
    blobs("copy")[0].unlink()
    refused = backed_up("restore", "copy", "--data", "fresh")
    assert refused.code != 0
    assert "is damaged" in refused.err
    assert not Path("fresh").exists()
    assert backed_up("restore", "copy", "--data", "fresh", "--no-verify").code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "served"),
    [
        ("boundary.backup_log.after", 4),  # the zone as it was
        ("boundary.restore_aside.before", None),
        ("boundary.restore_aside.after", None),  # nothing is in its place now
        ("boundary.restore_name.after", 3),  # the restored one
    ],
)
@pytest.mark.req("BOUNDARY:operator", "BOUNDARY:node")
def test_a_restore_that_is_killed(
    backed_up: BoundaryCommands, point: str, served: int | None
) -> None:
    """No node begins an empty log in the place of the zone, and the same command again ends it:
    what was there is whole beside it, and no copy is left over.
    """
    commands = backed_up
    kill_restore(commands.data, point)
    assert heads(commands.data) == served
    answer = commands("restore", "copy", "--data", commands.data, "--replace", "--json")
    assert (answer.code, answer.err) == (0, "")
    assert heads(commands.data) == 3
    assert commands("verify", "--data", commands.data).code == 0
    folder = Path(commands.data)
    beside = [path.name for path in folder.parent.iterdir() if folder.name in path.name]
    assert not [name for name in beside if "restoring" in name]
    olds = [path for path in folder.parent.iterdir() if ".before-" in path.name]
    assert answer.json["aside"] in map(str, olds)
    assert 4 in map(heads, olds)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["boundary.restore_aside.before", "boundary.restore_aside.after"])
@pytest.mark.req("BOUNDARY:operator")
def test_the_way_back_from_a_restore_that_was_killed(
    backed_up: BoundaryCommands, point: str
) -> None:
    """The hint names what is there; who does what it says has the zone as it was."""
    commands = backed_up
    kill_restore(commands.data, point)
    told = commands("serve", "--zone", "plant-a", "--data", commands.data, "--insecure").err
    if move := re.search(r"; or move (\S+) back to (\S+), and remove (\S+)\)", told):
        Path(move[1]).rename(move[2])
        Path(move[3]).unlink()
    else:
        keep = re.search(r"; or keep (\S+) as it was: remove (\S+), and remove (\S+)\)", told)
        assert keep is not None, told
        shutil.rmtree(keep[2])
        Path(keep[3]).unlink()
    assert heads(commands.data) == 4
    assert commands("verify", "--data", commands.data).code == 0


@pytest.mark.slow
@pytest.mark.req("BOUNDARY:operator", "BOUNDARY:node")
def test_a_restore_into_a_new_folder_that_is_killed(backed_up: BoundaryCommands) -> None:
    """A node that is started there meanwhile, or after that, does not begin an empty log."""
    commands = backed_up
    kill_restore("fresh", "boundary.backup_log.after")
    assert heads("fresh") is None
    assert commands("restore", "copy", "--data", "fresh").code == 0
    assert heads("fresh") == 3
    assert not [path.name for path in commands.place.iterdir() if "restoring" in path.name]


def kill_restore(data: str, point: str) -> None:
    """Let a restore die at a point."""
    words = ["boundary", "restore", "copy", "--data", data, "--replace"]
    done = fork_server.run(
        [sys.executable, "-m", "ergon_framework.cli", *words],
        env=os.environ | {"ERGON_FAILPOINTS": f"{point}=kill"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == -9, done.stderr


def heads(data: str | Path) -> int | None:
    """Up to where a node would serve what is in a folder; None when it refuses to begin."""
    try:
        with LocalZone.open("plant-a", ZoneSettings(data=str(data))) as zone:
            return zone.store.logs()[0].head
    except ConfigurationError as error:
        if "has not ended (run the same `ergon boundary restore` again" in str(error):
            return None
        raise


@pytest.mark.req("BOUNDARY:operator")
def test_restore_leaves_files_of_others_alone(backed_up: BoundaryCommands) -> None:
    """A folder that holds a program beside the facts is not moved aside as a whole."""
    commands = backed_up
    (Path(commands.data) / "handlers.py").write_text("keep me")
    refused = commands("restore", "copy", "--data", commands.data, "--replace")
    assert refused.code == 2
    assert "holds more than a zone (handlers.py)" in refused.err
    assert heads(commands.data) == 4
    refused = commands("restore", "copy", "--data", str(Path(commands.data) / "handlers.py"))
    assert "cannot be used: Not a directory" in refused.err


@pytest.mark.req("BOUNDARY:operator")
def test_restore_goes_where_the_settings_say(
    commands: BoundaryCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects that have a place of their own are brought there; a log under another name is
    refused, since no node would find it.
    """
    where = '[zones.plant-a]\ndata = "data"\nobjects = "artifacts"\n'
    Path("ergon.toml").write_text(where)
    settings = ZoneSettings.model_validate({"data": "data", "objects": "artifacts"})
    with LocalZone.open("plant-a", settings) as zone:
        fill(zone)
    assert commands("backup", "copy").code == 0
    for name in ("data", "artifacts"):
        Path(name).rename(f"lost-{name}")
    answer = commands("restore", "copy", "--json")
    assert (answer.code, answer.json["facts"], answer.json["objects"]) == (0, 3, 2)
    assert commands("verify").out == "no flaws in 3 facts and 3 objects\n"
    assert not (Path("data") / "objects").exists()
    Path("ergon.toml").write_text(where + 'store = "sqlite:///data/plant.db"\n')
    refused = commands("restore", "copy")
    assert refused.code == 2
    assert "plant.db, and those of a backup in facts.db" in refused.err
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path).name == "volume")
    Path("volume").mkdir()
    assert "is a mount point" in commands("restore", "copy", "--data", "volume").err


@pytest.mark.req("BOUNDARY:badinput")
def test_no_backup_in_the_folder_of_the_zone(commands: BoundaryCommands, zone: LocalZone) -> None:
    """It would be lost together with it, and no restore takes it."""
    refused = commands("backup", f"{commands.data}/inside", "--data", commands.data)
    assert refused.code == 2
    assert "the zone's own folder" in refused.err


# ---- gaps, and why a fact was set aside ----


@pytest.fixture
def troubled(commands: BoundaryCommands) -> BoundaryCommands:
    """A zone that gave two facts up, and has one set aside."""
    with LocalZone.open("plant-a", ZoneSettings(data=commands.data)) as zone:
        fill(zone)
        zone.store.create_consumer("erp", "outbound")
        zone.store.truncate("outbound", 2, loss_reason="retention")
        zone.store.serve("erp", 9, 1 << 20)
        zone.store.confirm("erp", 2)
        zone.store.set_aside(
            "erp", 3, reason="handler_failed", message="ValueError: no number", attempts=5
        )
    return commands


def test_gaps_are_listed(troubled: BoundaryCommands) -> None:
    """How many facts, where and why; the alert names the command."""
    (gap,) = troubled("gaps", "--data", troubled.data, "--json").json
    assert (gap["log"], gap["first_offset"], gap["last_offset"]) == ("outbound", 1, 2)
    assert (gap["facts"], gap["reason"]) == (2, "retention")
    assert "retention" in troubled("gaps", "--data", troubled.data).out
    assert troubled("gaps", "--data", troubled.data, "--log", "inbound:x", "--json").json == []
    alerts = troubled("status", "--data", troubled.data, "--json").json["alerts"]
    (loss,) = [each for each in alerts if each["kind"] == "loss"]
    assert "ergon boundary gaps" in loss["text"]


def test_why_a_fact_was_set_aside(troubled: BoundaryCommands) -> None:
    """The whole reason and what helps; an id that is none is told."""
    shown = troubled("quarantine", "show", "1", "--data", troubled.data, "--json").json
    assert (shown["reason"], shown["message"]) == ("handler_failed", "ValueError: no number")
    assert shown["what_helps"] == "correct the handler, then release it"
    assert "fact" not in shown
    whole = troubled("quarantine", "show", "1", "--content", "--data", troubled.data, "--json").json
    assert whole["fact"].startswith("{")
    assert "--data FOLDER" in troubled("quarantine", "show", "1", "--content").err
    refused = troubled("quarantine", "show", "7", "--data", troubled.data)
    assert refused.code != 0
    assert "quarantine list --state all" in refused.err


def test_a_log_without_a_consumer(troubled: BoundaryCommands) -> None:
    """Every fact that is kept, and no cursor moves; content on request."""
    before = troubled("status", "--data", troubled.data, "--json").json["consumers"]
    told = troubled("tail", "--no-follow", "--data", troubled.data, "--json").out.splitlines()
    facts = [json.loads(line) for line in told]
    assert facts
    assert [each["offset"] for each in facts] == [*range(3, 3 + len(facts))]
    assert "fact" not in facts[0]
    found = troubled("tail", "--after", "2", "--limit", "1", "--content", "--data", troubled.data)
    assert "object_json" in found.out
    assert troubled("status", "--data", troubled.data, "--json").json["consumers"] == before


def test_what_operators_did(troubled: BoundaryCommands) -> None:
    """The newest first, as the store of the zone has it."""
    entries = troubled("journal", "--data", troubled.data, "--json").json
    assert "truncate" in {each["action"] for each in entries}
    found = troubled("objects", "--data", troubled.data, "--json").json
    assert "batch-files" in {each["bucket"] for each in found}


@pytest.mark.req("BOUNDARY:badinput")
def test_gaps_of_a_folder_without_a_zone(commands: BoundaryCommands) -> None:
    """It is told, and nothing is made."""
    refused = commands("gaps", "--data", "nowhere")
    assert refused.code == 2
    assert "no zone lives in" in refused.err
    assert not Path("nowhere").exists()
