"""``ergon forget``: what all stores tell of one subject is erased, whoever dies in between."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ergon_framework.app.journal import journalling
from ergon_framework.app.settings import load_settings
from ergon_framework.cli import invoke
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import Failed, JobStatus, Succeeded
from ergon_framework.errors import JobStateError
from ergon_framework.jobs.archive_files import JobArchive
from ergon_framework.jobs.archiver import Archiver
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.flow_why import explain_flow
from ergon_framework.ports.flow import step_id
from ergon_framework.ports.jobstore import Search
from ergon_framework.ports.providerstore import RecordBatch
from ergon_framework.ports.transfer import JobRecord
from ergon_framework.providers.store_urls import open_store as open_calls
from ergon_framework.storage.failpoints import armed
from ergon_framework.telemetry.notices import emit
from tests import fork_server
from tests.app.workplace import Workplace
from tests.cli.test_dlq_providers import LETTER
from tests.jobs.manual_worker import Hand

pytestmark = pytest.mark.req("JOBS:operator")
ANN, BOB = "ann@example.org", "bob@example.org"
TAG = "customer:42"
SETTINGS = """
[store]
url = "sqlite:///work.db"

[jobs]
default_executor = "python"

[jobs.archive]
folder = "archive"

[executors.python]
command = ["python"]

[providers]
"""
BOUNCED = Failed(Failure(Kind.REJECTED, "bounced", f"no mailbox {ANN}"))
Answer = tuple[int, Any, str]
Ask = Callable[..., Answer]


@pytest.fixture
def ergon(workplace: Workplace, capsys: pytest.CaptureFixture[str]) -> Ask:
    """The command with --json, in a folder with settings."""
    workplace.settings(SETTINGS)

    def ask(*arguments: str) -> Answer:
        capsys.readouterr()
        code = invoke(["forget", "--tag", TAG, "--json", *arguments])
        found = capsys.readouterr()
        return code, json.loads(found.out) if found.out else None, found.err

    return ask


def client() -> JobClient:
    """A client of the store of the settings."""
    return JobClient("sqlite:///work.db")


def ended(jobs: JobClient, *ids: str, seen: Any = None, to: str = ANN, **options: Any) -> None:
    """Mails that were sent, or not, to the subject unless to another."""
    tags = [TAG] if to == ANN else ["customer:43"]
    for each in ids:
        jobs.enqueue("send", [to], id=each, tags=tags, metadata={"to": to}, **options)
        Hand(jobs.store).run(seen or Succeeded(), {"sent_to": to})


def told(jobs: JobClient) -> str:
    """All that the store has, as text."""
    return str([msgspec.structs.asdict(job) for job in jobs.store.search(Search())])


def test_everything_that_was_found_is_erased(ergon: Ask) -> None:
    """Jobs, archived jobs, dead letters and the journal; others are left as they are."""
    with closing(client()) as jobs:
        ended(jobs, "old", result_ttl=0.0)
        ended(jobs, "others-old", to=BOB, result_ttl=0.0)
        assert Archiver(jobs.store, JobArchive(Path("archive"))).turn() == 2
        ended(jobs, "sent")
        ended(jobs, "bounced", seen=BOUNCED)
        ended(jobs, "other", to=BOB)
        letters = [
            replace(LETTER, dead_letter_id="of-a-job", correlation_id="sent"),
            replace(LETTER, dead_letter_id="below-a-job", idempotency_key="bounced/1"),
            replace(LETTER, dead_letter_id="of-an-archived-job", correlation_id="old"),
            replace(LETTER, dead_letter_id="another", correlation_id="other"),
        ]
        with closing(open_calls("sqlite:///work.db")) as calls:
            calls.record(RecordBatch([], letters))
        with journalling(load_settings(), "worker"):
            for each in ("bounced", "other"):
                emit("job.dead_lettered", job_id=each, failure=Failure(Kind.DEFECT, "x", ANN))
        before = jobs.store.find("other")
        assert ergon("--dry-run")[1]["dead_letters"] == 3
        assert ANN in told(jobs)
        code, found, _ = ergon("--yes")
        assert (code, found["is_complete"]) == (0, True)
        counts = {name: found[name] for name in ("jobs", "archived", "dead_letters")}
        assert counts == {"jobs": 2, "archived": 1, "dead_letters": 3}
        assert found["journal_entries"] >= 1
        assert ANN not in told(jobs)
        assert jobs.store.find("other") == before
        with closing(open_calls("sqlite:///work.db")) as calls:
            assert [each.letter.dead_letter_id for each in calls.letters()] == ["another"]
    archive = JobArchive(Path("archive"))
    assert [line.key for line in archive.lines()] == ["others-old"]
    files = [Path("ergon-journal.db"), *(archive.path / each.name for each in archive.files())]
    assert not [each.name for each in files[1:] if ANN.encode() in each.read_bytes()]
    assert invoke(["why", "bounced"]) == 0


def test_nothing_is_erased_unless_somebody_says_so(ergon: Ask) -> None:
    """Without a terminal only --yes does; a dry run counts and changes nothing."""
    with closing(client()) as jobs:
        ended(jobs, "sent")
        before = told(jobs)
        code, _, err = ergon()
        assert (code, "--yes" in err) == (2, True)
        code, found, _ = ergon("--dry-run")
        assert (code, found["jobs"], found["dry_run"]) == (0, 1, True)
        assert told(jobs) == before


def test_a_standard_input_that_is_closed_is_no_answer(
    ergon: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python has none then; it is refused as without a terminal."""
    with closing(client()) as jobs:
        ended(jobs, "sent")
        monkeypatch.setattr(sys, "stdin", None)
        code, _, err = ergon()
        assert (code, "--yes" in err) == (2, True)


def test_jobs_that_have_not_ended_are_left_and_counted(ergon: Ask) -> None:
    """They need their arguments; run again when they have ended, it erases them."""
    with closing(client()) as jobs:
        ended(jobs, "sent")
        jobs.enqueue("send", [ANN], id="runs", tags=[TAG])
        held = Hand(jobs.store).claim()
        jobs.enqueue("send", [ANN], id="waits", tags=[TAG])
        code, found, _ = ergon("--yes")
        assert (code, found["jobs"], found["is_complete"]) == (1, 1, False)
        assert found["left"] == {
            "waiting": 1,
            "running": 1,
            "bound": 0,
            "unreadable": 0,
            "schedules": 0,
            "objects": 0,
        }
        assert jobs.find("runs").args == msgspec.json.encode([ANN])
        Hand(jobs.store).settle(held, Succeeded(), ANN)
        code, found, _ = ergon("--yes", "--cancel")
        assert (code, found["jobs"], found["cancelled"]) == (0, 2, 1)
        assert jobs.find("waits").status is JobStatus.CANCELLED
        assert ANN not in told(jobs)
        assert ergon("--yes")[1]["jobs"] == 0


def test_a_step_is_left_until_its_flow_has_ended(ergon: Ask) -> None:
    """Another step may ask for what it returned."""
    with closing(client()) as jobs:
        part = {"handler": "send", "args": [ANN], "tags": [TAG]}
        flow = jobs.chain(part, "count").enqueue()
        Hand(jobs.store).run(Succeeded(), ANN)
        code, found, _ = ergon("--yes")
        assert (code, found["left"]["bound"]) == (1, 1)
        assert jobs.find(step_id(flow, 1)).result is not None
        Hand(jobs.store).run(Succeeded(), 1)
        assert ergon("--yes")[0] == 0
        assert ANN not in told(jobs)


def test_what_was_erased_cannot_be_sent_back(ergon: Ask) -> None:
    """It has no arguments any more; many at once leave it out."""
    with closing(client()) as jobs:
        ended(jobs, "bounced", seen=BOUNCED)
        assert ergon("--yes")[0] == 0
        with pytest.raises(JobStateError, match="was erased"):
            jobs.requeue("bounced")
        assert jobs.requeue_many(handler="send") == 0


def test_the_record_of_it_does_not_name_the_subject(ergon: Ask) -> None:
    """An operator can show that it was done; the tag is told as a digest."""
    with closing(client()) as jobs:
        ended(jobs, "sent")
    assert ergon("--yes")[0] == 0
    journal = Path("ergon-journal.db").read_bytes()
    assert b"subject.forgotten" in journal
    assert TAG.encode() not in journal


def test_what_cannot_be_erased_is_told(workplace: Workplace, ergon: Ask) -> None:
    """Facts never change, and copies elsewhere are nobody's but the operator's."""
    workplace.settings(SETTINGS + '\n[zones.plant-a]\ndata = "data"\nlisten = "127.0.0.1:0"\n')
    with closing(client()) as jobs:
        ended(jobs, "sent")
    _, found, _ = ergon("--dry-run")
    assert [each.split(":")[0] for each in found["could_not"]][:1] == [
        "facts in zones never change"
    ]
    assert "backups" in found["could_not"][-1]


def test_a_tag_that_no_job_can_have_is_refused(ergon: Ask) -> None:
    """Instead of finding nothing."""
    assert invoke(["forget", "--tag", "a=b", "--yes"]) == 2
    assert invoke(["forget", "--yes"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        "jobs.desk.before_commit=kill@2",
        "jobs.desk.after_commit=kill@2",
        "archive.rewrite.synced=kill",
        "archive.rewrite.named=kill",
    ],
)
def test_a_killed_run_is_gone_on_with(ergon: Ask, point: str) -> None:
    """Wherever it dies: run again, nothing of the subject is left, and all of the others is."""
    with closing(client()) as jobs:
        ended(jobs, *(f"old-{n}" for n in range(3)), result_ttl=0.0)
        ended(jobs, "others-old", to=BOB, result_ttl=0.0)
        Archiver(jobs.store, JobArchive(Path("archive"))).turn()
        ended(jobs, *(f"sent-{n}" for n in range(150)))
        ended(jobs, "other", to=BOB)
        words = [sys.executable, "-m", "ergon_framework.cli", "forget", "--tag", TAG, "--yes"]
        died = fork_server.run(words, env=os.environ | {"ERGON_FAILPOINTS": point})
        assert died.returncode == -signal.SIGKILL
        assert ergon("--yes")[1]["is_complete"]
        assert ANN not in told(jobs)
        assert jobs.find("other").args == msgspec.json.encode([BOB])
    archive = JobArchive(Path("archive"))
    assert [line.key for line in archive.lines()] == ["others-old"]
    assert not [each for each in Path("archive").iterdir() if ANN.encode() in each.read_bytes()]


def test_a_row_that_cannot_be_read_is_left_and_counted(ergon: Ask) -> None:
    """It may be a newer version's; whoever reads the exit code must not take it for erased."""
    with closing(client()) as jobs:
        ended(jobs, "odd", "sent")
    with closing(sqlite3.connect("work.db")) as connection, connection:
        connection.execute("UPDATE ergon_jobs SET purge_at = 1e13 WHERE id = 'odd'")
    code, found, err = ergon("--yes")
    assert (code, found["jobs"], found["left"]["unreadable"]) == (1, 1, 1)
    assert found["is_complete"] is False
    assert "ergon jobs unreadable" in str(found["could_not"]) + err
    with closing(sqlite3.connect("work.db")) as connection, connection:
        connection.execute("UPDATE ergon_jobs SET purge_at = 1e9 WHERE id = 'odd'")
    code, found, _ = ergon("--yes")
    assert (code, found["jobs"], found["is_complete"]) == (0, 1, True)


def test_what_dead_processes_left_in_the_archive_is_erased(ergon: Ask) -> None:
    """A line that was cut off names no job, and a draft is no file of the archive."""
    archive = Path("archive")
    with closing(client()) as jobs:
        ended(jobs, "old", result_ttl=0.0)
        ended(jobs, "others-old", to=BOB, result_ttl=0.0)
        assert Archiver(jobs.store, JobArchive(archive)).turn() == 2
    (file,) = archive.glob("*.jsonl")
    whole = file.read_bytes()
    line = next(each for each in whole.splitlines(keepends=True) if ANN.encode() in each)
    file.write_bytes(whole + line[:-20])
    (archive / f".{file.name}.rewritten").write_bytes(whole)
    code, found, _ = ergon("--yes")
    assert (code, found["archived"], found["remains"]) == (0, 1, 2)
    assert [each.name for each in archive.iterdir() if ANN.encode() in each.read_bytes()] == []
    assert [each.key for each in JobArchive(archive).records()] == ["others-old"]
    with closing(client()) as jobs:  # and the file is appended to as before
        ended(jobs, "next", to=BOB, result_ttl=0.0)
        assert Archiver(jobs.store, JobArchive(archive)).turn() == 1
    assert [each.key for each in JobArchive(archive).records()] == ["others-old", "next"]


def test_only_remains_are_erased_as_well(ergon: Ask) -> None:
    """The job may have been archived again and forgotten since."""
    archive = Path("archive")
    archive.mkdir()
    (archive / "jobs-20300317-000001.jsonl").write_bytes(b'{"kind":"job","key":"a","rec')
    code, found, _ = ergon("--yes")
    assert (code, found["remains"]) == (0, 1)
    assert (archive / "jobs-20300317-000001.jsonl").read_bytes() == b""


def test_what_a_worker_had_read_before_is_taken_out_of_a_new_file(ergon: Ask) -> None:
    """It holds the lock of the archive, with jobs in its hands, when they are erased."""
    archive = JobArchive(Path("archive"))
    with closing(client()) as jobs, contextlib.ExitStack() as stack:
        ended(jobs, "old", result_ttl=0.0)
        read = jobs.store.prunable(10)
        writer = stack.enter_context(archive.locked())

        def write_late() -> None:
            time.sleep(0.5)  # until the command asks for the lock
            writer.append([JobRecord(job, job.created_at) for job in read])
            stack.close()

        late = threading.Thread(target=write_late)
        late.start()
        code, found, _ = ergon("--yes")
        late.join()
    assert (code, found["jobs"], found["archived"]) == (0, 1, 1)
    assert list(archive.records()) == []


def test_a_flow_with_erased_steps_cannot_be_retried(ergon: Ask) -> None:
    """Its handlers would be called without their arguments."""
    with closing(client()) as jobs:
        step = {"handler": "send", "args": [ANN], "tags": [TAG]}
        flow = jobs.chain(step, ("send", [BOB])).enqueue()
        Hand(jobs.store).run(BOUNCED)
        assert flow.status() == "failed"
        assert ergon("--yes")[:1] == (0,)
        for send_back in (flow.retry, flow.skip):
            with pytest.raises(JobStateError, match="was erased and cannot run again"):
                send_back()


def test_a_flow_that_uses_an_erased_result_cannot_be_retried(ergon: Ask) -> None:
    """The step that failed would be called with null in the place of the result."""
    with closing(client()) as jobs:
        step = {"handler": "send", "args": [ANN], "tags": [TAG]}
        flow = jobs.chain(step, "send").enqueue()
        hand = Hand(jobs.store)
        hand.run(Succeeded(), "sent")
        hand.run(BOUNCED)
        assert ergon("--yes")[:1] == (0,)
        with pytest.raises(JobStateError, match=f"the result of the step {flow}.1 was erased"):
            flow.retry()
        sentences = explain_flow(flow.show(), jobs.store, "")
        assert f"It cannot be retried: the step {flow}.1 was erased. Enqueue the flow again." in (
            sentences
        )
        assert not any("flows retry" in each for each in sentences)
        assert flow.skip() == "completed"  # nothing runs again


def test_an_erased_result_is_not_taken_for_none(ergon: Ask) -> None:
    """Whoever asks for it is told, of a job and of a flow."""
    with closing(client()) as jobs:
        job = jobs.enqueue("send", [ANN], tags=[TAG])
        flow = jobs.chain({"handler": "send", "args": [ANN], "tags": [TAG]}).enqueue()
        group = jobs.group(["a", "b"]).enqueue()
        hand = Hand(jobs.store)
        for result in ("sent", "sent", None, 2):
            hand.run(Succeeded(), result)
        assert (job.result(), flow.result(), group.result()) == ("sent", "sent", [None, 2])
        assert ergon("--yes")[:1] == (0,)
        for result_of in (job.result, flow.result):
            with pytest.raises(JobStateError, match="was erased, and its result with it"):
                result_of()
        assert group.result() == [None, 2]


def test_what_was_signalled_to_a_flow_is_erased_with_it(ergon: Ask) -> None:
    """A step that waits for a signal has no tags of its own."""
    with closing(client()) as jobs:
        step = {"handler": "send", "args": [ANN], "tags": [TAG]}
        flow = jobs.chain(jobs.wait_for_signal("ok"), step).enqueue()
        flow.signal("ok", {"approved_by": ANN})
        Hand(jobs.store).run(Succeeded(), None)
        assert ANN in told(jobs)
        code, found, _ = ergon("--yes")
        assert (code, found["is_complete"]) == (0, True)
        assert ANN not in told(jobs)


def test_a_schedule_of_the_subject_is_named(ergon: Ask) -> None:
    """It keeps its arguments, and goes on adding jobs."""
    with closing(client()) as jobs:
        jobs.schedules.put("monthly", "send", cron="0 0 1 * *", args=[ANN], tags=[TAG])
        jobs.schedules.put("other", "send", cron="0 0 1 * *", args=[BOB])
        ended(jobs, "sent")
        code, found, _ = ergon("--yes")
        assert (code, found["left"]["schedules"]) == (1, 1)
        assert "monthly" in str(found["could_not"])
        jobs.schedules.delete("monthly")
        assert ergon("--yes")[:1] == (0,)


def test_a_rewrite_that_fails_leaves_no_draft(ergon: Ask) -> None:
    """On a full disk it would take the room that workers need."""
    archive = JobArchive(Path("archive"))
    with closing(client()) as jobs:
        ended(jobs, "old", result_ttl=0.0)
        assert Archiver(jobs.store, archive).turn() == 1
    with armed("archive.rewrite.synced=error"):
        assert ergon("--yes")[0] == 1
    assert list(Path("archive").glob(".*")) == []
    assert [line.key for line in archive.records()] == ["old"]
    assert ergon("--yes")[0] == 0
