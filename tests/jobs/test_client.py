"""The client: enqueuing, waiting for results without polling, and moving jobs."""

from __future__ import annotations

import copy
import json
import pickle
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from ergon_framework import ConsumerPolicy, ConsumerTask, Transaction
from ergon_framework.connector.memory import MemoryConnector
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import HeldBack, JobStatus, Succeeded
from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.errors import (
    DuplicateJobError,
    JobError,
    JobFailedError,
    JobNotFoundError,
    JobStateError,
    ResultTimeoutError,
    UnreadableJobError,
)
from ergon_framework.executor import Registry
from ergon_framework.jobs.client import EnqueuedJob, JobClient
from ergon_framework.jobs.results import SharedSubscription, wait_for
from ergon_framework.jobs.settings import CodecSettings, JobsSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.jobstore import Search, Settlement, Subscription, Topic
from ergon_framework.telemetry import add_listener, remove_listener
from tests.jobs.manual_worker import BROKEN, SETTINGS, Clock, Hand, NotedSubscription
from tests.storage.conftest import until

pytestmark = pytest.mark.req("JOBS:client")


@pytest.fixture
def clock() -> Clock:
    """The store's clock."""
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MemoryJobStore:
    """A store in memory."""
    return MemoryJobStore(clock)


@pytest.fixture
def client(store: MemoryJobStore) -> JobClient:
    """A client of that store."""
    return JobClient(store=store, settings=SETTINGS)


@pytest.fixture
def hand(store: MemoryJobStore) -> Hand:
    """A worker of that store."""
    return Hand(store)


# ---- enqueue ----


def test_enqueue_returns_the_id_as_text(client: JobClient) -> None:
    """It can be compared, stored, sent and used as a key like any text."""
    job = client.enqueue("h", [1], id="a")
    assert isinstance(job, str)
    assert job == job.id == "a"
    assert len({job, "a"}) == 1
    assert json.loads(json.dumps([job])) == ["a"]
    assert type(job.id) is str
    assert job.is_new
    assert job.replaced is None


def _crop(path: str, width: int = 10) -> None:
    """A handler with options of its own."""


def _unheard(_notice: object) -> None:
    """A listener that does nothing with what it hears."""


def _refuse_to_store() -> None:
    raise JobError("not now", remedy="later")


_CALLS: tuple[tuple[Any, ...], ...] = (
    ("h",),
    ("h", [1, "a", None, {"b": [2.5]}], {"c": True}),
    ("h", (1, 2)),
    ("h", [], {}),
    ("images#crop", ["a"]),
    ("images#",),
    ("crop", ["a"]),
    ("crop", [], {"path": "a", "width": 3}),
    ("crop", [], {"height": 3}),
    ("h", ["a" * 5000]),
    ("h", ["a" * 2_000_000]),
    ("h", "abc"),
    ("h", [1], [2]),
    ("h", [float("nan")]),
    ("h", [{1: 2}]),
    ("h", ["\ud800"]),
    ("h", [object()]),
    ("h", [{"$ergon": 1}], {"$ergon": 1}),
    ("",),
    (" h",),
    ("h\n",),
    (None,),
    (7, [1]),
    ("h" * 256,),
)


@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize("has_handlers", [False, True])
@pytest.mark.parametrize("call", _CALLS)
def test_a_job_nobody_hears_of_is_stored_as_any_other(
    store: MemoryJobStore, call: tuple[Any, ...], *, has_handlers: bool, is_refused: bool
) -> None:
    """The same record or the same error comes of the short way of ``enqueue`` and of the long."""
    registry = Registry()
    registry.add(_crop, name="crop", queue="images", priority=3, tags=["t"])
    client = JobClient(store=store, settings=SETTINGS, registry=registry if has_handlers else None)
    client.before_storing = _refuse_to_store if is_refused else None

    def outcome() -> object:
        try:
            added = client.enqueue(*call)
        except JobError as error:
            return str(error), error.remedy, error.details
        job = msgspec.structs.replace(client.find(added), id="", key=0, fence=0)
        return job, type(added), added.is_new, added.replaced

    short = outcome()
    add_listener(_unheard)
    try:
        assert outcome() == short
    finally:
        remove_listener(_unheard)


def test_copies_of_the_id_are_plain_text(client: JobClient) -> None:
    """A client cannot be pickled, and an id that drags one along could not be either."""
    job = client.enqueue("h")
    for other in (pickle.loads(pickle.dumps(job)), copy.deepcopy(job), str(job)):  # noqa: S301
        assert type(other) is str
        assert other == job


def test_an_id_can_be_an_argument_of_another_job(client: JobClient) -> None:
    """Jobs often name each other."""
    first = client.enqueue("h")
    second = client.enqueue("h", [first], correlation_id=first, unique=first)
    assert client.show(second)["args"] == [first.id]
    assert type(client.find(second).correlation_id) is str


def test_the_id_can_be_asked_about_its_job(client: JobClient, hand: Hand) -> None:
    """Status, result and cancel without naming the client again."""
    job = client.enqueue("h")
    assert job.status() == "pending"
    hand.run(Succeeded(), {"n": 1})
    assert job.status() == "completed"
    assert job.result() == {"n": 1}
    assert client.enqueue("h").cancel()


def test_a_duplicate_id_is_refused_and_changes_nothing(client: JobClient) -> None:
    """An id belongs to one job."""
    client.enqueue("h", [1], id="a")
    with pytest.raises(DuplicateJobError):
        client.enqueue("h", [2], id="a")
    assert client.show("a")["args"] == [1]


@pytest.mark.req("X16")
def test_a_unique_key_answers_with_the_job_that_holds_it(client: JobClient) -> None:
    """Existing by default; reject and replace when asked for."""
    first = client.enqueue("h", unique="k")
    again = client.enqueue("h", unique="k")
    assert (again, again.is_new) == (first, False)
    with pytest.raises(DuplicateJobError):
        client.enqueue("h", unique="k", on_duplicate="reject")
    newer = client.enqueue("h", unique="k", on_duplicate="replace")
    assert newer.replaced == first
    assert first.status() == "cancelled"


def test_the_clients_settings_limit_the_payload(store: MemoryJobStore) -> None:
    """Nothing is stored of a job that is too large."""
    client = JobClient(store=store, settings=JobsSettings(max_payload=10))
    with pytest.raises(JobError, match="the limit is 10"):
        client.enqueue("h", ["too long for that"])
    assert store.count(Search()) == 0


def test_due_times_are_measured_by_the_stores_clock(client: JobClient, clock: Clock) -> None:
    """Whoever enqueues may live in another time."""
    job = client.enqueue("h", run_at=clock.now + 60)
    assert client.find(job).run_at == clock.now + 60
    with pytest.raises(JobError, match="past"):
        client.enqueue("h", run_at=clock.now - 3600)


# ---- many ----


def test_many_jobs_are_one_commit(client: JobClient, store: MemoryJobStore) -> None:
    """Common options hold for all that set none of their own; a mistake leaves nothing."""
    ids = client.enqueue_many(
        ["a", ("b", [1]), {"handler": "c", "queue": "other", "kwargs": {"x": 1}}], queue="q"
    )
    assert [client.find(each).handler for each in ids] == ["a", "b", "c"]
    assert [client.find(each).queue for each in ids] == ["q", "q", "other"]
    with pytest.raises(JobError, match="handler is empty") as caught:
        client.enqueue_many(["d", {"args": []}])
    assert caught.value.details["stored"] == 0
    with pytest.raises(DuplicateJobError):
        client.enqueue_many([{"handler": "e", "id": "1"}, {"handler": "e", "id": "1"}])
    for bad in (None, 5, "handler"):
        with pytest.raises(JobError, match="jobs must be a list of jobs"):
            client.enqueue_many(bad)  # type: ignore[arg-type]
    assert store.count(Search()) == 3


def test_chunks_are_commits_of_their_own(client: JobClient, store: MemoryJobStore) -> None:
    """What was stored before a mistake stays, and the error tells how much that is."""
    heard: list[int] = []
    client.enqueue_many((("h", [n]) for n in range(5)), chunk=2, progress=heard.append)
    assert heard == [2, 4, 5]
    specs = [("h", [n]) for n in range(3)] + [("", [])]
    with pytest.raises(JobError) as caught:
        client.enqueue_many(specs, chunk=2)
    assert caught.value.details["stored"] == 2
    assert store.count(Search()) == 7


def test_too_many_jobs_for_one_commit_are_refused(store: MemoryJobStore) -> None:
    """An endless iterable must not fill the memory."""
    client = JobClient(store=store, settings=SETTINGS, max_batch=3)
    with pytest.raises(JobError, match="more than 3 jobs in one commit"):
        client.enqueue_many("h" for _ in range(10**9))
    assert store.count(Search()) == 0
    assert len(client.enqueue_many("h" for _ in range(3))) == 3


def test_a_flow_has_a_limit_of_its_own(store: MemoryJobStore) -> None:
    """A callback is no job too many for a commit, and what is too much is refused whole."""
    client = JobClient(store=store, settings=SETTINGS, max_batch=3, max_steps=4)
    client.group(["h"] * 3, then="last").enqueue()
    with pytest.raises(JobError, match="a flow has more than 4 steps"):
        client.group(["h"] * 4, then="last").enqueue()
    assert store.count(Search()) == 4


def test_nothing_to_enqueue_is_no_mistake(client: JobClient) -> None:
    """An empty list gives an empty list."""
    assert client.enqueue_many([]) == []


def test_a_store_without_transactions_of_others_says_so(client: JobClient) -> None:
    """Only SQLite can store a job in the caller's own transaction."""
    with (
        closing(sqlite3.connect(":memory:")) as other,
        pytest.raises(JobError, match="another's transaction"),
    ):
        client.enqueue("h", connection=other)


# ---- what it is part of ----


def test_the_current_trace_goes_with_the_job(client: JobClient) -> None:
    """As W3C headers; one that is given wins."""
    span = NonRecordingSpan(SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1)))
    with trace.use_span(span):
        job = client.enqueue("h")
        (other,) = client.enqueue_many(["h"])
        own = client.enqueue("h", trace_context={"traceparent": "mine"})
    expected = {"traceparent": f"00-{0xABC:032x}-{0xDEF:016x}-01"}
    assert client.find(job).trace_context == client.find(other).trace_context == expected
    assert client.find(own).trace_context == {"traceparent": "mine"}
    assert client.find(client.enqueue("h")).trace_context is None


def test_a_job_belongs_to_the_transaction_that_enqueued_it(client: JobClient) -> None:
    """Its correlation id is the transaction's, or else the transaction's own id."""
    made: list[EnqueuedJob] = []

    class Orders(ConsumerTask):
        def process_transaction(self, transaction: Transaction) -> None:
            made.append(client.enqueue("h"))

    rows = [Transaction("t1"), Transaction("t2", correlation_id="c2")]
    task = Orders(connectors={"source": MemoryConnector(rows)})
    task.consume_transactions(ConsumerPolicy())
    assert sorted(str(client.find(each).correlation_id) for each in made) == ["c2", "t1"]


# ---- results ----


def test_a_result_that_is_there_is_given_at_once(client: JobClient, hand: Hand) -> None:
    """Without a notification."""
    job = client.enqueue("h")
    hand.run(Succeeded(), ["done"])
    assert client.result(job, timeout=0) == ["done"]


def test_result_wakes_up_when_the_job_ends(client: JobClient, hand: Hand) -> None:
    """Woken by the store: the poll is far longer than the test may take."""
    job = client.enqueue("h")
    claimed = hand.claim()
    got: list[Any] = []
    waiter = threading.Thread(target=lambda: got.append(client.result(job, poll=3600)))
    waiter.start()
    hand.settle(claimed, Succeeded(), 42)
    waiter.join(30)
    assert got == [42]


class Silent(MemoryJobStore):
    """A store that never notifies, and which counts how often it is asked."""

    looks = 0
    ends_at_look = 0

    def find(self, job_id: str) -> Any:
        self.looks += 1
        if self.looks == self.ends_at_look:
            Hand(self).run(Succeeded(), "late")
        return super().find(job_id)

    def subscribe(self, topic: Topic) -> Subscription:
        subscription: Subscription = Deaf()
        return subscription


class Deaf:
    """Never rings, and does not wait either."""

    waits: list[float | None] = []  # noqa: RUF012 - shared with the test

    def wait(self, seconds: float | None) -> bool:
        self.waits.append(seconds)
        return False

    def wake(self) -> None: ...
    def close(self) -> None: ...


def test_an_end_that_nobody_rang_for_is_found_by_a_slow_look(clock: Clock) -> None:
    """Commits of foreign processes may be invisible; each look is one poll apart."""
    store = Silent(clock)
    client = JobClient(store=store, settings=SETTINGS)
    job = client.enqueue("h")
    store.ends_at_look = 4
    Deaf.waits.clear()
    assert client.result(job, poll=7.0) == "late"
    assert len(Deaf.waits) == 2
    assert all(0.0 <= (each or 0.0) <= 7.0 for each in Deaf.waits)


def test_a_busy_store_is_not_asked_at_every_ring(clock: Clock) -> None:
    """Rings that come faster than the smallest distance are taken together."""

    class Rung(Deaf):
        def wait(self, seconds: float | None) -> bool:
            return True

    store = Silent(clock)
    store.subscribe = lambda topic: Rung()  # type: ignore[method-assign]
    store.ends_at_look = 5
    job = JobClient(store=store, settings=SETTINGS).enqueue("h")
    slept: list[float] = []
    wait_for(store, SharedSubscription(store), job, None, now=lambda: 100.0, sleep=slept.append)
    assert slept == [pytest.approx(0.005)] * 3


def test_any_number_of_threads_share_one_bell(clock: Clock) -> None:
    """They take turns at waiting on it; one notification wakes all, and the last closes it."""
    made: list[NotedSubscription] = []

    class Counting(MemoryJobStore):
        def subscribe(self, topic: Topic) -> Subscription:
            assert topic is Topic.DONE
            made.append(NotedSubscription(super().subscribe(topic)))
            return made[-1]

    store = Counting(clock)
    client = JobClient(store=store, settings=SETTINGS)
    hand = Hand(store)
    for n in range(2):
        job = client.enqueue("h")
        claimed = hand.claim()
        with ThreadPoolExecutor(30) as threads:
            results = [threads.submit(client.result, job, poll=3600.0) for _ in range(29)]
            # Who comes and goes before them would take the subscription along.
            until(lambda: client.waiting == 29)
            with pytest.raises(ResultTimeoutError):
                client.result(job, timeout=0.01)
            hand.settle(claimed, Succeeded(), n)
            assert [each.result(30) for each in results] == [n] * 29
        assert len(made) == n + 1
        assert all(each.is_closed for each in made)
        assert client.waiting == 0


def test_whoever_listens_hands_over_when_he_leaves(store: MemoryJobStore) -> None:
    """Whatever made the first one leave, another hears the next ring."""
    waiting, going_on = threading.Event(), threading.Event()

    class BrokenOnce(NotedSubscription):
        is_broken = True

        def wait(self, seconds: float | None) -> bool:
            if not self.is_broken:
                return super().wait(seconds)
            self.is_broken = False
            waiting.set()
            going_on.wait(30)
            raise OSError

    subscription = BrokenOnce(store.subscribe(Topic.DONE))
    store.subscribe = lambda topic: subscription  # type: ignore[method-assign]
    shared = SharedSubscription(store)
    first, second = shared.join(), shared.join()
    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(first.wait, 3600.0)
        assert waiting.wait(30)
        two = threads.submit(second.wait, 30.0)
        going_on.set()
        assert isinstance(one.exception(30), OSError)
        subscription.wake()
        assert two.result(30) is True
    assert first.wait(0.0)  # the ring that the other heard
    assert not first.wait(0.0)
    first.close()
    assert not subscription.is_closed
    second.close()
    assert subscription.is_closed


def test_a_job_that_does_not_end_in_time_goes_on(client: JobClient) -> None:
    """The error says where it stands."""
    job = client.enqueue("h")
    with pytest.raises(ResultTimeoutError, match=r"is still pending after 0\.01 seconds") as caught:
        client.result(job, timeout=0.01)
    assert caught.value.details == {"job_id": job, "status": "pending"}
    assert isinstance(caught.value, TimeoutError)
    assert client.status(job) == "pending"


def test_the_result_of_a_failed_job_is_an_error(client: JobClient, hand: Hand) -> None:
    """With kind, code and message of its last failure."""
    job = client.enqueue("h", max_attempts=1)
    hand.run(BROKEN)
    with pytest.raises(JobFailedError, match="no such picture") as caught:
        client.result(job)
    details = caught.value.details
    assert details["job_id"] == job
    assert (details["status"], details["kind"]) == ("failed", "defect")
    assert (details["code"], details["message"]) == ("ValueError", "no such picture")


@pytest.mark.parametrize("result", [b"1e999", b"[" + b"9" * 5000 + b"]", b"{"])
def test_a_result_that_cannot_be_read_is_an_error(
    client: JobClient, hand: Hand, result: bytes
) -> None:
    """An executor in another language may write numbers of any size: None would be a lie."""
    job = client.enqueue("h")
    hand.settle_raw(hand.claim(), result)
    with pytest.raises(UnreadableJobError, match="cannot be read") as caught:
        client.result(job)
    assert caught.value.details["job_id"] == job
    assert client.show(job)["result"] is None  # to look at it goes on


def test_the_result_of_a_cancelled_job_is_an_error(client: JobClient) -> None:
    """There will never be one."""
    job = client.enqueue("h")
    job.cancel()
    with pytest.raises(JobFailedError, match="was cancelled") as caught:
        client.result(job)
    assert caught.value.details["kind"] == "cancelled"


def test_every_question_about_an_unknown_job_says_so(client: JobClient) -> None:
    """A LookupError as well, for those who catch that."""
    for question in (
        client.status, client.show, client.result, client.cancel, client.retry, client.requeue,
    ):  # fmt: skip
        with pytest.raises(JobNotFoundError, match="there is no job 'nobody'"):
            question("nobody")


# ---- moving ----


def test_a_waiting_job_can_be_cancelled_once(client: JobClient, clock: Clock) -> None:
    """The second time there is nothing left to do; its history tells of the first."""
    job = client.enqueue("h", unique="k")
    assert client.cancel(job) is True
    assert client.cancel(job) is False
    shape = client.show(job)
    assert shape["status"] == "cancelled"
    assert [each["event"] for each in shape["history"]] == ["cancelled"]
    assert client.find(job).purge_at == clock.now + SETTINGS.cancelled_ttl
    assert client.enqueue("h", unique="k").is_new


def test_a_replaced_job_is_kept_as_the_clients_settings_say(store: MemoryJobStore) -> None:
    """Also through a store with a codec; a client without settings leaves those of others alone."""
    for codec in (CodecSettings(), CodecSettings(compress_above=0)):
        settings = JobsSettings(cancelled_ttl=7.0, codec=codec)
        client = JobClient(store=store, settings=settings)
        for use in (
            client,
            JobClient(store=store, settings=settings),
            JobClient(store=client.store),
        ):
            old = use.enqueue("h", unique="k")
            new = use.enqueue("h", unique="k", on_duplicate="replace")
            found = use.find(old)
            assert found.status is JobStatus.CANCELLED
            assert found.purge_at == pytest.approx(store.now() + 7.0)
            use.cancel(new)


def test_a_running_or_ended_job_cannot_be_cancelled(client: JobClient, hand: Hand) -> None:
    """Once execution has started, its outcome is applied."""
    job = client.enqueue("h")
    claimed = hand.claim()
    with pytest.raises(JobStateError, match="is active and cannot be cancelled"):
        client.cancel(job)
    hand.settle(claimed, Succeeded())
    with pytest.raises(JobStateError, match="is completed and cannot be cancelled"):
        client.cancel(job)


def test_a_running_job_is_cancelled_when_that_is_asked_for(client: JobClient, hand: Hand) -> None:
    """The request stands in the job until it ends; a holder that gives it back ends it."""
    job = client.enqueue("h")
    claimed = hand.claim()
    with pytest.raises(JobStateError) as caught:
        client.cancel(job)
    assert "running=True" in (caught.value.remedy or "")
    assert client.cancel(job, running=True, by="ann", reason="the wrong file")
    assert job.cancel(running=True, by="bob")  # asked for already
    shape = client.show(job)
    assert (shape["status"], shape["why"]) == ("active", None)
    assert shape["cancel_requested"] == {
        "at": format_rfc3339(client.store.now()),
        "by": "ann",
        "reason": "the wrong file",
    }
    hand.settle(claimed, BROKEN)
    shape = client.show(job)
    assert (shape["status"], shape["why"]) == ("cancelled", "cancelled_running")
    assert "cancel_requested" not in shape
    told = shape["history"][-1]
    assert (told["event"], told["by"], told["reason"]) == ("cancelled", "ann", "the wrong file")
    assert client.cancel(job, running=True) is False


def test_a_job_that_waits_or_has_ended_is_treated_as_ever(client: JobClient, hand: Hand) -> None:
    """``running`` goes further, and takes nothing away; who asked is the user of this process."""
    job = client.enqueue("h")
    hand.run(BROKEN)  # it is to be tried again
    assert client.cancel(job, running=True)
    told = client.show(job)["history"][-1]
    assert (told["event"], "@" in told["by"], "reason" in told) == ("cancelled", True, False)
    done = client.enqueue("h")
    hand.run(Succeeded())
    with pytest.raises(JobStateError, match="is completed and cannot be cancelled"):
        client.cancel(done, running=True)


@pytest.mark.parametrize("field", ["by", "reason"])
def test_who_cancels_and_why_is_one_line(client: JobClient, field: str) -> None:
    """What cannot be shown in a history is refused before anything is stored."""
    job = client.enqueue("h")
    with pytest.raises(JobError, match=f"{field} holds the control character"):
        client.cancel(job, **{field: "a\nb"})  # type: ignore[arg-type]
    assert job.status() == "pending"


def test_a_retrying_job_can_be_cancelled_or_hurried(
    client: JobClient, hand: Hand, clock: Clock
) -> None:
    """Run now means: without waiting for the backoff, and without fresh counters."""
    job = client.enqueue("h")
    hand.run(BROKEN)
    assert client.find(job).run_at > clock.now
    client.retry(job)
    record = client.find(job)
    assert (record.status, record.run_at, record.attempts) == ("retrying", clock.now, 1)
    assert client.cancel(job)


@pytest.mark.parametrize("way", ["retry", "requeue"])
def test_a_dead_job_begins_anew(client: JobClient, hand: Hand, way: str) -> None:
    """With fresh counters and a history that goes on."""
    job = client.enqueue("h", max_attempts=1)
    hand.run(BROKEN)
    getattr(client, way)(job)
    shape = client.show(job)
    assert (shape["status"], shape["attempts"], shape["deliveries"]) == ("pending", 0, 0)
    assert [each["event"] for each in shape["history"]] == ["failed", "requeued"]


def test_requeue_is_for_dead_jobs_and_retry_not_for_completed_ones(
    client: JobClient, hand: Hand
) -> None:
    """The states decide."""
    waiting = client.enqueue("h")
    with pytest.raises(JobStateError, match="is pending and cannot be requeued"):
        client.requeue(waiting)
    hand.run(Succeeded())
    with pytest.raises(JobStateError, match="is completed and cannot be run again"):
        client.retry(waiting)


class Contested(MemoryJobStore):
    """Somebody else is always a little faster."""

    races = 1

    def settle_and_claim(self, settlements: Any, ask: Any) -> Any:
        mine = any(isinstance(each, Settlement) for each in settlements)
        if mine and self.races:
            self.races -= 1
            return [False] * len(settlements), None
        return super().settle_and_claim(settlements, ask)


def test_a_lost_race_is_run_again(clock: Clock) -> None:
    """The job is read anew and the move decided anew."""
    store = Contested(clock)
    client = JobClient(store=store)
    job = client.enqueue("h")
    assert client.cancel(job)
    assert job.status() == "cancelled"


def test_a_race_that_is_always_lost_ends(clock: Clock) -> None:
    """After many tries the caller is told."""
    store = Contested(clock)
    store.races = 10**9
    client = JobClient(store=store)
    with pytest.raises(JobStateError, match="moved by somebody else"):
        client.cancel(client.enqueue("h"))


def test_a_job_whose_key_another_holds_cannot_come_back(client: JobClient, hand: Hand) -> None:
    """The error names the other one; when that has ended, the job comes back."""
    dead = client.enqueue("h", unique="k", max_attempts=1)
    hand.run(BROKEN)
    other = client.enqueue("h", unique="k")
    for move in (client.retry, client.requeue):
        with pytest.raises(DuplicateJobError, match=f"{other} holds its unique key") as caught:
            move(dead)
        assert caught.value.details == {"job_id": dead, "unique_key": "k", "id": other}
    other.cancel()
    client.retry(dead)
    assert dead.status() == "pending"
    with pytest.raises(DuplicateJobError):
        client.retry(other)


def test_requeuing_many_tells_of_keys_that_others_hold(
    client: JobClient, hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    """Two dead jobs of one key cannot both come back, nor one whose key is in use."""
    for key in ("a", "a", "b", "c"):
        client.enqueue("h", unique=key, max_attempts=1)
        hand.run(BROKEN)
    client.enqueue("h", unique="b")
    with caplog.at_level("WARNING", "ergon.jobs"):
        assert client.requeue_many(Search()) == 2
    assert "not requeued because others hold their unique keys: 2" in caplog.text
    caplog.clear()
    assert client.requeue_many(Search(queue="other")) == 0
    assert not caplog.records


def test_many_dead_jobs_are_requeued_or_purged(client: JobClient, hand: Hand) -> None:
    """Only dead ones, only those that match, and at most so many."""
    dead = [client.enqueue("h", max_attempts=1, queue=f"q{n % 2}") for n in range(6)]
    for _ in dead:
        hand.run(BROKEN)
    waiting = client.enqueue("h", queue="q0")
    heard: list[int] = []
    assert client.requeue_many(Search(queue="q0"), limit=2, progress=heard.append) == 2
    assert heard == [2]
    assert client.purge_many(Search(queue="q0")) == 1
    assert client.purge_many(Search(code="other")) == 0
    assert client.requeue_many(Search()) == 3
    assert waiting.status() == "pending"


# ---- shape ----


def test_the_shape_of_a_job_is_complete(client: JobClient, hand: Hand) -> None:
    """What the job leaves open is as the settings say; instants are RFC 3339 text."""
    job = client.enqueue("js#h", [1], {"a": 2}, limit_key="k", retry={"max_retry_after": 3})
    shape = client.show(job)
    assert (shape["handler"], shape["executor"], shape["queue"]) == ("js#h", "js", "default")
    assert (shape["args"], shape["kwargs"], shape["result"]) == ([1], {"a": 2}, None)
    assert (shape["attempts"], shape["max_attempts"], shape["max_deliveries"]) == (0, 2, 5)
    assert shape["created_at"] == "2030-03-17T17:46:40Z"
    assert (shape["timeout"], shape["limit"]) == (300.0, 1)
    assert shape["retry"] == {"max_retry_after": 3.0}
    assert shape["last_error"] is None
    assert json.loads(json.dumps(shape)) == shape
    plain = client.enqueue("h", max_attempts=1)
    hand.run(BROKEN)
    shape = client.show(plain)
    assert shape["last_error"] == {
        "kind": "defect", "code": "ValueError", "message": "no such picture",
    }  # fmt: skip
    assert shape["history"][0]["event"] == "failed"
    assert shape["limit"] is None


def test_a_held_job_shows_why_it_waits(client: JobClient, hand: Hand) -> None:
    """Without a charged attempt."""
    job = client.enqueue("h")
    hand.run(HeldBack(Failure(Kind.HELD, "held", "quota", 60.0)))
    shape = client.show(job)
    assert (shape["status"], shape["attempts"], shape["why"]) == ("pending", 0, "held")


def test_unreadable_history_does_not_hide_a_job(client: JobClient) -> None:
    """Whatever somebody wrote into the store."""
    record = msgspec.structs.replace(
        client.find(client.enqueue("h")), history=(b"{", b"[]"), result=b"\xff"
    )
    from ergon_framework.jobs.views import job_view

    shape = job_view(record, SETTINGS)
    assert shape["history"] == [{"event": "unreadable"}] * 2
    assert shape["result"] is None


def test_a_client_can_be_used_as_a_context(store: MemoryJobStore) -> None:
    """It closes its store, also when that was given to it."""
    with JobClient(store=store) as client:
        client.enqueue("h")
    with pytest.raises(Exception, match="closed"):
        client.enqueue("h")
    client.close()


@pytest.mark.parametrize("timeout", [float("nan"), "5", True])
def test_a_timeout_is_a_number_of_seconds(timeout: Any) -> None:
    """With NaN the wait would never end."""
    client = JobClient(store=MemoryJobStore())
    job, flow = client.enqueue("h"), client.chain("h").enqueue()
    for waits in (job.result, flow.result):
        with pytest.raises(JobError, match=r"timeout is .*, and no number of seconds"):
            waits(timeout)
