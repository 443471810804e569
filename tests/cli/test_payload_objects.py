"""``ergon export``, ``ergon move`` and ``ergon forget`` with payloads in an object store."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.app.jobs import job_settings
from ergon_framework.cli import invoke
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import Failed, JobStatus, Succeeded
from ergon_framework.jobs.claims import Claim
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.payload_codec import object_of
from ergon_framework.jobs.payload_codec_store import codec_of
from ergon_framework.jobs.settlement import Settler
from ergon_framework.ports.jobstore import FullJobStore, Search
from tests import fork_server
from tests.app.workplace import Workplace
from tests.jobs.manual_worker import Hand

pytestmark = pytest.mark.req("JOBS:operator")

LARGE = "ann@example.org " * 200
TAG = "customer:42"
SETTINGS = """
[store]
url = "{url}"

[jobs.codec]
objects = "payloads"
objects_above = 1024
"""
BOUNCED = Failed(Failure(Kind.REJECTED, "bounced", "no mailbox"))
Answer = tuple[int, str, str]
Ask = Callable[..., Answer]


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgres_url", marks=pytest.mark.slow),
        pytest.param("redis_url", marks=pytest.mark.slow),
    ]
)
def url(request: pytest.FixtureRequest, workplace: Workplace) -> str:
    """A store on each engine, which the settings of this folder name."""
    is_file = request.param == "sqlite"
    found = "sqlite:///work.db" if is_file else str(request.getfixturevalue(request.param))
    workplace.settings(SETTINGS.format(url=found))
    return found


@pytest.fixture
def ergon(url: str, capsys: pytest.CaptureFixture[str]) -> Ask:
    """The command, in a folder with settings: its exit code and what it wrote."""

    def ask(*arguments: str) -> Answer:
        capsys.readouterr()
        code = invoke([each.format(url=url) for each in arguments])
        found = capsys.readouterr()
        return code, found.out, found.err

    return ask


def client() -> JobClient:
    """A client with the settings of this folder."""
    found = job_settings(Path("ergon.toml"))
    return JobClient(found.url, settings=found.jobs)


def done(jobs: JobClient, name: str, tag: str = TAG) -> None:
    """A job that was completed, with arguments and a result in the object store."""
    jobs.enqueue("send", [LARGE], id=name, tags=[tag])
    settler = Settler(jobs.settings, "w", codec_of(jobs.store, jobs.settings))
    claim = Claim(Hand(jobs.store).claim())
    encoded = json.dumps(LARGE).encode()
    settled = settler.settle_claim(claim, Succeeded(), jobs.store.now(), 0.1, encoded)
    jobs.store.settle_and_claim([settled], None)


def there() -> set[str]:
    """The digests of the objects that are there."""
    return {each.name for each in Path("payloads/sha256").glob("*/*/*")}


def file_of(store: FullJobStore, job_id: str, part: str = "args") -> Path:
    """The file of the object that a row names."""
    name = object_of(getattr(store.find(job_id), part))
    assert name is not None
    (found,) = Path("payloads/sha256").rglob(name.digest.hex())
    return found


def miss(file: Path) -> None:
    """The object is not there any more."""
    file.unlink()


def damage(file: Path) -> None:
    """One byte of it is another one."""
    content = file.read_bytes()
    file.write_bytes(content[:-3] + b"?" + content[-2:])


COPIES = {
    "export": ("export", "{url}", "out.jsonl"),
    "move": ("move", "{url}", "sqlite:///new.db"),
    "move and shut": ("move", "{url}", "sqlite:///new.db", "--shut"),
    "move all": ("move", "ergon.toml", "--to", "sqlite:///new.db"),
}


@pytest.mark.parametrize("spoil", [miss, damage])
@pytest.mark.parametrize("part", ["args", "result"])
@pytest.mark.parametrize("words", COPIES.values(), ids=COPIES)
def test_a_lost_payload_is_refused_and_named(
    ergon: Ask, words: tuple[str, ...], part: str, spoil: Callable[[Path], None]
) -> None:
    """The error has the job and the object, and whoever works with the store goes on."""
    with closing(client()) as jobs:
        done(jobs, "whole")
        done(jobs, "lost")
        file = file_of(jobs.store, "lost", part)
        spoil(file)
        code, out, err = ergon(*words)
        assert code == 1, (out, err)
        assert "the job lost cannot be copied whole" in err
        assert f"sha256:{file.name}" in err
        assert "--allow-lost-payloads" in err
        assert not Path("out.jsonl").exists()
        jobs.enqueue("send", [1])
        jobs.store.settle_and_claim([], None)


@pytest.mark.parametrize("words", COPIES.values(), ids=COPIES)
def test_a_lost_payload_is_left_out_where_that_is_allowed(
    ergon: Ask, words: tuple[str, ...]
) -> None:
    """All others are copied whole; each that is lost is told once, with its job."""
    with closing(client()) as jobs:
        done(jobs, "whole")
        done(jobs, "missed")
        done(jobs, "damaged")
        files = file_of(jobs.store, "missed"), file_of(jobs.store, "damaged", "result")
        miss(files[0])
        damage(files[1])
    code, out, err = ergon(*words, "--allow-lost-payloads", "--json")
    assert code == 0, (out, err)
    notes = [n for line in out.splitlines() for n in json.loads(line).get("notes", [])]
    for name, file in zip(("missed", "damaged"), files, strict=True):
        told = [note for note in notes if f"job {name} was copied without a payload" in note]
        assert len(told) == 1
        assert file.name in told[0]
    if words[0] == "export":
        assert ergon("import", "out.jsonl", "sqlite:///new.db")[0] == 0
    with closing(JobClient("sqlite:///new.db")) as copied:
        found = {job.id: job for job in copied.store.search(Search())}
        assert json.loads(found["whole"].args) == [LARGE]
        assert json.loads(found["whole"].result or b"") == LARGE
        assert json.loads(found["damaged"].args) == [LARGE]
        assert object_of(found["missed"].args) is not None


def test_a_dry_run_of_a_move_tells_of_a_lost_payload(ergon: Ask) -> None:
    """Before anything is written."""
    with closing(client()) as jobs:
        done(jobs, "lost")
        miss(file_of(jobs.store, "lost"))
    code, _, err = ergon("move", "{url}", "sqlite:///new.db", "--dry-run")
    assert (code, "the job lost" in err) == (1, True)
    assert not Path("new.db").exists()


# ---- forget -------------------------------------------------------------------------------------


def forget(ergon: Ask, *more: str) -> tuple[int, dict[str, Any], str]:
    """``ergon forget`` for the subject, with its report."""
    code, out, err = ergon("forget", "--tag", TAG, "--json", *more)
    return code, json.loads(out), err


def test_payloads_of_the_subject_are_removed(ergon: Ask) -> None:
    """Arguments and results; those of others stay. A dry run counts them."""
    with closing(client()) as jobs:
        done(jobs, "mine")
        done(jobs, "mine-2")
        done(jobs, "others", "customer:43")
        jobs.enqueue("send", [LARGE], id="waits", tags=[TAG])
        assert len(there()) == 7
        code, found, _ = forget(ergon, "--dry-run", "--cancel")
        assert (code, found["objects"], len(there())) == (0, 4, 7)
        code, found, _ = forget(ergon, "--yes")
        assert (code, found["objects"], found["left"]["waiting"]) == (1, 4, 1)
        code, found, _ = forget(ergon, "--yes", "--cancel")
        assert (code, found["objects"], found["is_complete"]) == (0, 1, True)
        others = {file_of(jobs.store, "others", part).name for part in ("args", "result")}
        assert there() == others
        assert jobs.show("others")["args"] == [LARGE]
        assert jobs.result("others", timeout=5) == LARGE


@pytest.mark.parametrize("spoil", [miss, damage])
def test_a_lost_payload_is_no_obstacle(ergon: Ask, spoil: Callable[[Path], None]) -> None:
    """What is damaged is removed, and what is missing is gone already."""
    with closing(client()) as jobs:
        done(jobs, "mine")
        spoil(file_of(jobs.store, "mine"))
        code, found, _ = forget(ergon, "--yes")
        assert (code, found["objects"]) == (0, 1 if spoil is miss else 2)
        assert there() == set()


def test_a_job_is_left_while_its_payloads_cannot_be_removed(ergon: Ask, url: str) -> None:
    """An erased job names no object: so it is erased by the run that can remove them."""
    with closing(client()) as jobs:
        done(jobs, "mine")
        jobs.enqueue("send", [1], id="small", tags=[TAG])
        Hand(jobs.store).run(Succeeded(), 1)
        aside = Path("payloads").rename("aside")
        code, found, err = forget(ergon, "--yes")
        assert (code, found["jobs"], found["left"]["objects"]) == (1, 1, 2)
        assert "2 payload(s) in the object store" in str(found["could_not"]) + err
        aside.rename("payloads")
        settings = Path("ergon.toml").read_text()
        Path("ergon.toml").write_text(settings.partition("[jobs.codec]")[0])
        code, found, _ = forget(ergon, "--yes")
        assert (code, found["left"]["objects"]) == (1, 2)
        Path("ergon.toml").write_text(settings)
        code, found, _ = forget(ergon, "--yes")
        assert (code, found["jobs"], found["objects"]) == (0, 1, 2)
        assert there() == set()
        assert jobs.find("mine").tags == ()
    assert url


def test_a_job_that_was_sent_back_meanwhile_gets_its_payloads_back(
    ergon: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator requeues it between the look and the erasure."""
    with closing(client()) as jobs:
        done(jobs, "mine")
        jobs.enqueue("send", [LARGE], id="again", tags=[TAG])
        Hand(jobs.store).run(BOUNCED)
        kind = type(jobs.store.plain)  # type: ignore[attr-defined]
        erase = kind.erase

        def late(self: Any, some: Any) -> int:
            monkeypatch.setattr(kind, "erase", erase)
            with closing(client()) as other:
                other.requeue("again")
            return int(erase(self, some))

        monkeypatch.setattr(kind, "erase", late)
        code, found, _ = forget(ergon, "--yes")
        assert (code, found["jobs"], found["left"]["waiting"]) == (1, 1, 1)
        assert jobs.find("again").status is JobStatus.PENDING
        assert jobs.show("again")["args"] == [LARGE]
        assert (found["objects"], len(there())) == (2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["jobs.desk.before_commit=kill", "jobs.desk.after_commit=kill"])
def test_a_killed_run_leaves_no_payload_to_nobody(ergon: Ask, point: str) -> None:
    """Wherever it dies: run again, no object of the subject is left."""
    with closing(client()) as jobs:
        for number in range(3):
            done(jobs, f"mine-{number}")
        done(jobs, "others", "customer:43")
        words = [sys.executable, "-m", "ergon_framework.cli", "forget", "--tag", TAG, "--yes"]
        died = fork_server.run(words, env=os.environ | {"ERGON_FAILPOINTS": point})
        assert died.returncode == -signal.SIGKILL
        code, found, _ = forget(ergon, "--yes")
        assert (code, found["is_complete"]) == (0, True)
        assert len(there()) == 2
        assert jobs.result("others", timeout=5) == LARGE


def test_an_erased_row_and_its_file_tell_nothing(workplace: Workplace) -> None:
    """Neither the database nor the folder has the text any more, once pages are vacuumed."""
    workplace.settings(SETTINGS.format(url="sqlite:///work.db"))
    with closing(client()) as jobs:
        done(jobs, "mine")
    assert invoke(["forget", "--tag", TAG, "--yes"]) == 0
    with closing(sqlite3.connect("work.db")) as connection:
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    kept = [Path("work.db"), *(each for each in Path("payloads").rglob("*") if each.is_file())]
    assert [each.name for each in kept if b"ann@example.org" in each.read_bytes()] == []
