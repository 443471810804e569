"""Sending a dead-lettered job back with other arguments: as a new job that names the old one."""

from __future__ import annotations

import base64
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import Failed, JobStatus, Succeeded
from ergon_framework.errors import DuplicateJobError, JobError, JobNotFoundError, JobStateError
from ergon_framework.executor import Registry
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.flow_why import explain_flow
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.ports.jobstore import Job, Search
from tests import fork_server
from tests.jobs.manual_worker import Clock, Hand

pytestmark = pytest.mark.req("JOBS:operator")

BAD = Failed(Failure(Kind.REJECTED, "bad_input", "no such picture"))
FIELDS: dict[str, Any] = {
    "queue": "images",
    "priority": 7,
    "max_attempts": 3,
    "timeout": 9.0,
    "limit_key": "customer",
    "limit": 2,
    "correlation_id": "order-1",
    "tags": ["gold"],
    "metadata": {"plan": "pro"},
    "unique": "picture-1",
}


@pytest.fixture
def store() -> MemoryJobStore:
    """A store by a clock that stands."""
    return MemoryJobStore(Clock())


@pytest.fixture
def client(store: MemoryJobStore) -> JobClient:
    """A client of it."""
    return JobClient(store=store)


@pytest.fixture
def hand(store: MemoryJobStore) -> Hand:
    """A worker of it."""
    return Hand(store)


def bury(client: JobClient, hand: Hand, *call: Any, **options: Any) -> None:
    """A job ``old`` that gave up."""
    client.enqueue("resize", *call, id="old", **options)
    hand.run(BAD)


def test_the_new_job_has_all_that_the_old_one_had(client: JobClient, hand: Hand) -> None:
    """But for its arguments and counters; each of the two names the other, and who did it."""
    bury(client, hand, ["a.png"], {"width": 3}, **FIELDS)
    made = client.edit_and_requeue("old", ["b.png"], by="ada", reason="a wrong name")
    old, new = client.show("old"), client.show(made)
    assert (new["args"], new["kwargs"]) == (["b.png"], {"width": 3})
    same = [*FIELDS.keys() - {"unique", "metadata"}, "unique_key", "handler"]
    assert {name: new[name] for name in same} == {name: old[name] for name in same}
    assert new["metadata"] == {"plan": "pro", "edited_from": "old"}
    assert (new["status"], new["attempts"], new["history"]) == ("pending", 0, [])
    assert (old["status"], old["why"]) == ("cancelled", "edited")
    last = old["history"][-1]
    assert (last["event"], last["by"], last["reason"]) == ("edited", "ada", "a wrong name")
    assert last["became"] == made
    assert [job.id for job in client.jobs(metadata={"edited_from": "old"})] == [made]
    hand.run(Succeeded(), 1)
    assert made.result() == 1


def test_asking_again_makes_no_second_job(client: JobClient, hand: Hand) -> None:
    """The same new id is answered again; without one, the error names what it became."""
    bury(client, hand, ["a.png"])
    first = client.edit_and_requeue("old", ["b.png"], new_id="new")
    again = client.edit_and_requeue("old", ["c.png"], new_id="new")
    assert (first, first.is_new) == ("new", True)
    assert (again, again.is_new) == ("new", False)
    with pytest.raises(JobStateError, match="cannot be edited") as caught:
        client.edit_and_requeue("old", ["b.png"])
    assert caught.value.details["became"] == "new"
    assert "new" in (caught.value.remedy or "")
    assert client.count(Search()) == 2


def test_many_at_once_make_one_job(client: JobClient, hand: Hand) -> None:
    """Whoever comes second is told what the job became."""
    bury(client, hand, ["a.png"])
    made: list[str] = []
    refused: list[JobStateError] = []

    def edit() -> None:
        try:
            made.append(client.edit_and_requeue("old", ["b.png"]))
        except JobStateError as error:
            refused.append(error)

    threads = [threading.Thread(target=edit) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (len(made), client.count(Search())) == (1, 2)
    assert {error.details["became"] for error in refused} == set(made)


@pytest.mark.parametrize("new_id", ["new", None])
@pytest.mark.parametrize("kind", [MemoryJobStore, SqliteJobStore])
def test_two_who_edit_one_unique_job(
    kind: type[MemoryJobStore | SqliteJobStore],
    new_id: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second is told what became of it, not that a third job holds its key."""
    store = MemoryJobStore() if kind is MemoryJobStore else SqliteJobStore(tmp_path / "jobs.db")
    client = JobClient(store=store)
    bury(client, Hand(store), ["a.png"], unique="k")
    replace = kind.replace

    def overtaken(*given: Any) -> bool:
        monkeypatch.setattr(kind, "replace", replace)
        assert client.edit_and_requeue("old", ["b.png"], new_id="new").is_new
        return replace(*given)

    monkeypatch.setattr(kind, "replace", overtaken)
    if new_id is None:
        with pytest.raises(JobStateError, match="cannot be edited") as caught:
            client.edit_and_requeue("old", ["c.png"])
        assert caught.value.details["became"] == "new"
    else:
        again = client.edit_and_requeue("old", ["c.png"], new_id=new_id)
        assert (again, again.is_new) == ("new", False)
    assert client.count(Search()) == 2
    client.close()


def test_only_a_dead_letter_can_be_edited(client: JobClient, hand: Hand) -> None:
    """One that waits is refused, and a step of a flow is told how it goes on."""
    waiting = client.enqueue("resize")
    with pytest.raises(JobStateError, match="is pending and cannot be edited"):
        client.edit_and_requeue(waiting, [1])
    waiting.cancel()
    flow = client.chain("a", "b").enqueue()
    hand.run(BAD)
    step = next(job.id for job in client.jobs(status="failed"))
    with pytest.raises(JobStateError, match="is a step of the flow") as caught:
        client.edit_and_requeue(step, [1])
    assert "ergon jobs requeue" in (caught.value.remedy or "")
    assert caught.value.details["flow_id"] == flow


def test_a_taken_key_keeps_the_old_job_where_it_is(client: JobClient, hand: Hand) -> None:
    """Another job works on the same thing by now."""
    bury(client, hand, unique="k")
    other = client.enqueue("resize", unique="k")
    with pytest.raises(DuplicateJobError):
        client.edit_and_requeue("old", [1])
    assert client.status("old") == "failed"
    other.cancel()
    assert client.edit_and_requeue("old", [1]).is_new


def test_what_a_handler_does_not_take(store: MemoryJobStore, hand: Hand) -> None:
    """With the registry at hand, arguments are held against the handler's parameters."""
    handlers = Registry()

    @handlers.handler("resize")
    def resize(name: str, width: int = 1) -> None:
        """Nobody calls it."""

    client = JobClient(store=store, registry=handlers)
    bury(client, hand, ["a.png"])
    with pytest.raises(JobError, match="height"):
        client.edit_and_requeue("old", ["b.png"], {"height": 3})
    assert client.status("old") == "failed"
    assert client.edit_and_requeue("old", ["b.png"], {"width": 3}).is_new


def test_arguments_have_a_limit(store: MemoryJobStore, hand: Hand) -> None:
    """That of the settings, as for any other job."""
    client = JobClient(store=store, settings=JobsSettings(max_payload=20))
    bury(client, hand)
    with pytest.raises(JobError, match="the limit is 20"):
        client.edit_and_requeue("old", ["too long for that"])
    assert client.status("old") == "failed"


def test_undoing_it(client: JobClient, hand: Hand) -> None:
    """The new job is cancelled, and the old one begins anew with the arguments that it had."""
    bury(client, hand, ["a.png"], unique="k")
    made = client.edit_and_requeue("old", ["b.png"])
    with pytest.raises(DuplicateJobError):
        client.retry("old")
    made.cancel()
    client.retry("old")
    assert (client.status("old"), client.show("old")["args"]) == ("pending", ["a.png"])


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place on that engine."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.mark.slow
@pytest.mark.req("SCALE:jobs-postgres", "SCALE:jobs-redis")
@pytest.mark.parametrize(
    ("url", "when"),
    [("sqlite", "before"), ("sqlite", "after"), ("postgres", "after"), ("redis", "after")],
    indirect=["url"],
)
def test_a_process_that_dies_while_it_edits(url: str, when: str) -> None:
    """Both jobs are changed or neither is; the same command again makes no second job."""
    command = [sys.executable, "-m", "ergon_framework.cli", "jobs", "edit", "old", "--store", url]
    command += ["--args", '["b.png"]', "--new-id", "new", "--json"]
    with JobClient(url) as client:
        bury(client, Hand(client.store), ["a.png"])
        died = fork_server.run(
            command,
            env=os.environ | {"ERGON_FAILPOINTS": f"jobs.desk.{when}_commit=kill"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert died.returncode == -signal.SIGKILL, died.stderr
        is_done = when == "after"
        assert client.status("old") == ("cancelled" if is_done else "failed")
        assert client.count(Search()) == (2 if is_done else 1)
        again = client.edit_and_requeue("old", ["b.png"], new_id="new")
        assert (again, again.is_new) == ("new", not is_done)
        assert client.count(Search()) == 2


def test_arguments_that_are_compressed_and_encrypted(store: MemoryJobStore, hand: Hand) -> None:
    """They are read and stored as the settings say; a process without the key changes nothing."""
    key = base64.b64encode(bytes(32)).decode()
    codec = {"compress_above": 10, "active_key": "k", "keys": {"k": key}}
    client = JobClient(store=store, settings=JobsSettings.model_validate({"codec": codec}))
    bury(client, hand, ["a" * 9000], {"width": 3})
    with pytest.raises(JobStateError, match="cannot be read here") as caught:
        JobClient(store=store).edit_and_requeue("old", [1])
    assert "[jobs.codec]" in (caught.value.remedy or "")
    made = client.edit_and_requeue("old", kwargs={"width": 4})
    [stored] = store.search(Search(ids=(made.id,)))
    assert b"aaa" not in stored.args
    shown = client.show(made)
    assert (shown["args"], shown["kwargs"]) == (["a" * 9000], {"width": 4})


def test_who_waits_for_an_edited_job_waits_for_the_new_one(
    client: JobClient, store: MemoryJobStore, hand: Hand
) -> None:
    """Also when that one was edited as well; a retry of the flow runs the latest arguments."""
    bury(client, hand, ["a.png"])
    second = client.edit_and_requeue("old", ["b.png"])
    hand.run(BAD)
    third = client.edit_and_requeue(second, ["c.png"])
    then = client.enqueue("then", after=["old", second])
    hand.run(BAD)
    step = client.find(then).step
    assert step is not None
    flow = client.flow(step.flow_id)
    assert (flow.status(), [job.id for job in flow.steps()]) == ("failed", [third, then])
    flow.retry()
    job = hand.claim()
    assert (job.id, job.args) == (third, b'["c.png"]')
    hand.settle(job, Succeeded())
    hand.run(Succeeded())
    assert (flow.status(), client.status("old")) == ("completed", "cancelled")


class EditedMeanwhile(MemoryJobStore):
    """Somebody edits a job each time after it was looked at, so many times."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.left = 0

    def find(self, job_id: str) -> Job | None:
        found = super().find(job_id)
        if self.left and found is not None and found.status is JobStatus.FAILED:
            left, self.left = self.left - 1, 0  # an edit looks, too
            JobClient(store=self).edit_and_requeue(job_id, [f"{left}.png"])
            Hand(self).run(BAD)
            self.left = left
        return found


@pytest.mark.parametrize("times", [1, 4, 10_000])
def test_a_job_that_is_edited_while_another_begins_to_wait_for_it(times: int) -> None:
    """The look is repeated, and finds what the job became; not without end."""
    store = EditedMeanwhile(Clock())
    client, hand = JobClient(store=store), Hand(store)
    bury(client, hand, ["a.png"])
    store.left = times
    if times > 100:
        with pytest.raises(JobStateError, match="moved by somebody else"):
            client.enqueue("then", after=["old"], on_failure="hold")
        return
    then = client.enqueue("then", after=["old"], on_failure="hold")
    step = client.find(then).step
    assert step is not None
    flow = client.flow(step.flow_id)
    assert (flow.status(), client.status(then)) == ("held", "pending")
    flow.retry()
    assert hand.claim().args == b'["0.png"]'


def test_waiting_for_an_edited_job_whose_new_one_is_gone(client: JobClient, hand: Hand) -> None:
    """It is told which one, as for any other job that is not there."""
    bury(client, hand, ["a.png"])
    made = client.edit_and_requeue("old", ["b.png"])
    made.cancel()
    client.delete(made)
    with pytest.raises(JobNotFoundError, match=made):
        client.enqueue("then", after=["old"])


def test_a_step_that_does_not_come_back_says_so(client: JobClient, hand: Hand) -> None:
    """So does its flow: retrying is in vain, and skipping is what helps."""
    client.enqueue("resize", ["a.png"], id="old", unique="k", delay=60.0)
    then = client.enqueue("then", after=["old"], on_failure="hold")
    client.enqueue("resize", ["b.png"], unique="k", on_duplicate="replace")
    step = client.find(then).step
    assert step is not None
    assert client.flow(step.flow_id).retry() == "held"
    flow = client.flow(step.flow_id)
    said = " ".join(explain_flow(flow.show(), client.store, ""))
    assert "old" in said
    assert "another job took its place" in said
