"""Jobs as a connector: what is enqueued, what is delivered, and how an outcome settles it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ergon_framework.connector.jobs import (
    ConflictingJobError,
    JobsConnector,
    JobsConnectorError,
    LeaseLostError,
    claims,
)
from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.executor_protocol import ProgressReport
from ergon_framework.core.failure import Kind
from ergon_framework.core.job import JobStatus
from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    NonRetryableException,
    PayloadError,
    StoreUnavailableError,
    TransactionException,
)
from ergon_framework.jobs.claims import Claim
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.settlement import Settler
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.why import explain_job
from ergon_framework.ports.jobstore import (
    DEFAULT_QUEUE,
    FullJobStore,
    Search,
    Topic,
    WorkerRecord,
)
from ergon_framework.ports.notice import Notice
from ergon_framework.ports.transaction import Transaction
from ergon_framework.telemetry import add_listener, remove_listener
from ergon_framework.testing.suites import exercise_connector
from tests.connectors.zone_node import eventually
from tests.jobs.manual_worker import NotedSubscription

pytestmark = pytest.mark.req("ONE:connector-jobs")

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CARRIED = ("correlation_id", "trace_id")  # a job has no room for the other fields
ROOMY = JobsSettings(max_payload=4 << 20)


class Clock:
    """A store's clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.at = 1_700_000_000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    """The time."""
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[FullJobStore]:
    """An open store whose clock the test moves."""
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"
    opened = open_store(url, clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def connector(store: FullJobStore) -> Iterator[JobsConnector]:
    """A connector that dispatches to the handler ``work``."""
    with JobsConnector(store, handler="work", name="queue") as made:
        yield made


def dead_letters(connector: JobsConnector) -> list[tuple[str, str]]:
    """The ids and reasons of dead-lettered jobs."""
    store: FullJobStore = connector.store  # type: ignore[attr-defined]
    found = store.search(Search(statuses=(JobStatus.FAILED,)))
    return [(job.id, job.last_error.message) for job in found if job.last_error is not None]


@pytest.mark.parametrize("kind", ["memory", pytest.param("sqlite", marks=pytest.mark.slow)])
def test_the_suite_is_passed(kind: str, tmp_path: Path) -> None:
    """Everything a connector promises, in both colours, on both stores."""
    numbers = iter(range(10_000))

    def make() -> JobsConnector:
        url = "memory://" if kind == "memory" else f"sqlite:///{tmp_path}/{next(numbers)}.db"
        # One attempt: what failed is dead-lettered at once, as the suite expects it of a nack.
        once = {"max_attempts": 1}
        store = open_store(url)
        stores.callback(store.close)
        made = JobsConnector(store, handler="work", settings=ROOMY, options=once)
        made.store = store  # type: ignore[attr-defined]
        return made

    with ExitStack() as stores:
        report = exercise_connector(
            make, colour="both", dead_letters=dead_letters, ids="unique", carries=CARRIED
        )
    report.raise_for_failures(recommended=True)


# ---- producing ----


def test_a_dict_becomes_named_arguments(store: FullJobStore, connector: JobsConnector) -> None:
    """A dict is the job's kwargs, anything else its only argument; the ids are the same."""
    connector.dispatch_transactions([Transaction("a", {"x": 1}), Transaction("b", [1, 2])])
    client = JobClient(store=store)
    assert (client.find("a").args, client.find("a").kwargs) == (b"[]", b'{"x":1}')
    assert (client.find("b").args, client.find("b").kwargs) == (b"[[1,2]]", b"{}")
    assert client.find("a").handler == "work"


def test_handler_and_executor_route_a_job(store: FullJobStore) -> None:
    """Metadata names the handler of one transaction, and the executor precedes it."""
    with JobsConnector(store, handler="work", executor="py", queue="q") as connector:
        connector.dispatch_transactions(
            [
                Transaction("a"),
                Transaction("b", metadata={"handler": "other"}),
                Transaction("c", metadata={"handler": "node#third"}),
            ]
        )
    found = [store.find(each) for each in "abc"]
    assert [job.handler for job in found if job] == ["py#work", "py#other", "node#third"]
    assert {job.queue for job in found if job} == {"q"}


def test_a_queue_that_is_pinned_to_another_version_is_left(store: FullJobStore) -> None:
    """The connector says which version of the program fetches, and tells of it."""
    JobClient(store=store).enqueue("work", id="a", queue="q")
    store.set_queue("q", pinned_version="2")
    with JobsConnector(store, queue="q", settings={"version": "1"}) as old:
        assert list(old.fetch_transactions(1)) == []
    with JobsConnector(store, queue="q", settings={"version": "2"}) as new:
        assert [each.id for each in new.fetch_transactions(1)] == ["a"]
        assert [each.app_version for each in store.workers()] == ["2"]


def test_a_transaction_without_a_handler_is_refused(store: FullJobStore) -> None:
    """Nobody could run its job; the error names it, and nothing of the batch is stored."""
    with JobsConnector(store) as connector:
        good = Transaction("good", metadata={"handler": "work"})
        with pytest.raises(JobsConnectorError, match="'bad' names no handler"):
            connector.dispatch_transactions([good, Transaction("bad")])
    assert store.find("good") is None


def test_correlation_and_trace_flow_along(store: FullJobStore, connector: JobsConnector) -> None:
    """What a transaction belongs to goes with its job, and comes back with it."""
    given = Transaction("a", 1, {"traceparent": TRACE}, correlation_id="flow-1")
    connector.dispatch_transactions([given])
    job = store.find("a")
    assert job is not None
    assert (job.correlation_id, job.trace_context) == ("flow-1", {"traceparent": TRACE})
    (came,) = connector.fetch_transactions(1)
    assert (came.correlation_id, came.trace_id) == ("flow-1", TRACE[3:35])
    assert came.metadata == {
        "handler": "work",
        "queue": "default",
        "attempt": 1,
        "correlation_id": "flow-1",
        "traceparent": TRACE,
    }
    assert came.source == "queue"


def test_dispatching_again_changes_nothing(store: FullJobStore, connector: JobsConnector) -> None:
    """The same transaction is one job, also when its payload was built in another order."""
    connector.dispatch_transactions([Transaction("a", {"x": 1, "y": 2})])
    more = [Transaction("a", {"y": 2, "x": 1}), Transaction("b", 1)]
    connector.dispatch_transactions(more)
    assert store.count(Search()) == 2


@pytest.mark.parametrize("other", [{"x": 2}, {"x": True}, {"x": 1.0}, [1]])
def test_other_content_under_an_id_is_refused(
    store: FullJobStore, connector: JobsConnector, other: Any
) -> None:
    """An id stands for one unit of work for ever; nothing of the batch is stored."""
    connector.dispatch_transactions([Transaction("a", {"x": 1})])
    with pytest.raises(ConflictingJobError, match="'a'"):
        connector.dispatch_transactions([Transaction("new", 1), Transaction("a", other)])
    with pytest.raises(ConflictingJobError, match="'twice'"):
        connector.dispatch_transactions([Transaction("twice", 1), Transaction("twice", 2)])
    assert store.find("new") is None
    assert store.count(Search()) == 1


def test_a_payload_that_json_cannot_carry_is_refused(connector: JobsConnector) -> None:
    """The error names the transaction and the place, and shows no value."""
    with pytest.raises(PayloadError) as caught:
        connector.dispatch_transactions([Transaction("a", {"x": {"y": {1, 2, 3}}})])
    assert "'a'" in str(caught.value)
    assert "kwargs" in str(caught.value)
    assert "1, 2" not in str(caught.value)


def test_options_are_those_of_each_job(store: FullJobStore) -> None:
    """Priority, attempts and the like may be said once for all."""
    options = {"priority": 7, "max_attempts": 2, "retry": {"backoff": {"base": 1.0}}}
    with JobsConnector(store, handler="work", options=options) as connector:
        connector.dispatch_transactions([Transaction("a")])
    job = store.find("a")
    assert job is not None
    assert (job.priority, job.max_attempts) == (7, 2)


# ---- consuming ----


def test_arguments_of_other_clients_are_payloads(
    store: FullJobStore, connector: JobsConnector
) -> None:
    """One argument is the payload itself; several come with their names and places."""
    client = JobClient(store=store)
    client.enqueue("work", [5], id="one")
    client.enqueue("work", [1, 2], {"z": 3}, id="many")
    client.enqueue("work", id="none")
    came = {each.transaction_id: each.payload for each in connector.fetch_transactions(5)}
    assert came == {"one": 5, "many": {"args": [1, 2], "kwargs": {"z": 3}}, "none": {}}


def test_only_jobs_for_this_executor_are_claimed(store: FullJobStore) -> None:
    """Jobs of another queue, and those that name another executor, are left alone."""
    client = JobClient(store=store)
    for handler in ("plain", "ours#mine", "python#theirs"):
        client.enqueue(handler, id=handler, queue="q")
    client.enqueue("plain", id="elsewhere")
    with JobsConnector(store, queue="q", executor="ours") as connector:
        came = {each.transaction_id for each in connector.fetch_transactions(9)}
        assert came == {"plain", "ours#mine"}
        assert connector.get_transactions_count() == 1
        assert connector.fetch_transaction_by_id("elsewhere") is None


def test_ack_completes(store: FullJobStore, connector: JobsConnector) -> None:
    """A success is a completed job, with one attempt and no result."""
    connector.dispatch_transactions([Transaction("a")])
    connector.ack(connector.fetch_transactions(1)[0])
    job = store.find("a")
    assert job is not None
    assert (job.status, job.attempts, job.result) == (JobStatus.COMPLETED, 1, b"null")


def test_nack_follows_the_jobs_own_rule(
    store: FullJobStore, connector: JobsConnector, clock: Clock
) -> None:
    """Backoff between the attempts, then the dead letters with the task's own exception."""
    options: Any = {"max_attempts": 2, "retry": {"backoff": {"base": 10.0, "jitter": 0.0}}}
    JobClient(store=store).enqueue("work", id="a", **options)
    wrapped = TransactionException("ValueError: no", cause=ValueError("no"))
    connector.nack(connector.fetch_transactions(1)[0], wrapped)
    assert connector.fetch_transactions(1) == []
    clock.at += 10
    (again,) = connector.fetch_transactions(1)
    assert again.metadata["attempt"] == 2
    connector.nack(again, wrapped)
    job = store.find("a")
    assert job is not None
    assert job.last_error is not None
    assert (job.status, job.why) == (JobStatus.FAILED, "attempts_spent")
    assert (job.last_error.code, job.last_error.message) == ("ValueError", "ValueError: no")


@pytest.mark.parametrize(
    "error",
    [
        NonRetryableException("never"),
        TransactionException("refused", "business"),
        type("invalid_arguments", (Exception,), {})("bad"),
    ],
)
def test_a_refusal_is_final(
    store: FullJobStore, connector: JobsConnector, error: Exception
) -> None:
    """Business and non-retryable errors, and codes that jobs give up on, go to the dead letters."""
    connector.dispatch_transactions([Transaction("a")])
    connector.nack(connector.fetch_transactions(1)[0], error)
    job = store.find("a")
    assert job is not None
    assert job.last_error is not None
    assert (job.status, job.last_error.kind) == (JobStatus.FAILED, Kind.REJECTED)


def test_release_charges_nothing(store: FullJobStore, connector: JobsConnector) -> None:
    """A job that was given back is due at once, with all its attempts."""
    connector.dispatch_transactions([Transaction("a")])
    for _ in range(20):  # more often than it may be delivered when somebody is to blame
        connector.release(connector.fetch_transactions(1)[0])
    job = store.find("a")
    assert job is not None
    assert (job.status, job.attempts) == (JobStatus.PENDING, 0)


@pytest.mark.req("ONE:parked")
def test_release_after_parks(store: FullJobStore, connector: JobsConnector, clock: Clock) -> None:
    """A closed gate parks the job: others flow, no attempt is charged, and why says so."""
    connector.dispatch_transactions([Transaction("a"), Transaction("b")])
    first, second = connector.fetch_transactions(2)
    connector.release_after(first, 60.0)
    connector.ack(second)
    assert connector.fetch_transactions(1) == []
    job = store.find("a")
    assert job is not None
    assert (job.attempts, job.run_at) == (0, clock.at + 60)
    told = explain_job(job, None, [], clock.at, JobsSettings())[0]
    assert told.startswith("It is held")
    assert told.endswith("No attempt was charged.")
    clock.at += 60
    assert [each.transaction_id for each in connector.fetch_transactions(1)] == ["a"]


def forget_workers(store: FullJobStore) -> None:
    """Delete what workers told of themselves, as a store does when they were not seen for long.

    Of a worker that lives in this process, others would take it that it is about to renew.
    """
    for each in store.workers():
        store.heartbeat(msgspec.structs.replace(each, state="gone"))


def die(connector: JobsConnector, store: FullJobStore, clock: Clock) -> None:
    """Its process is killed: the store hears nothing more of it, and its leases end."""

    def away(*_: Any) -> None:
        raise StoreUnavailableError("away")

    with pytest.MonkeyPatch.context() as patch:
        for call in ("settle_and_claim", "heartbeat"):
            patch.setattr(store, call, away)
        connector.close()
    clock.at += 5000
    forget_workers(store)


def test_an_attempt_is_charged_when_it_is_handed_out(store: FullJobStore, clock: Clock) -> None:
    """A process that dies has had its attempt: the next one knows, and the last one is the last."""
    JobClient(store=store).enqueue("work", id="once", max_attempts=1)
    JobClient(store=store).enqueue("work", id="twice", max_attempts=2)
    began: list[tuple[str, int]] = []
    for _ in range(4):
        connector = JobsConnector(store, handler="work", lease=1.0)
        came = connector.fetch_transactions(2)
        began += [(each.transaction_id, each.metadata["attempt"]) for each in came]
        for each in came:
            looked_at = connector.fetch_transaction_by_id(each.transaction_id)
            assert looked_at is not None
            assert looked_at.metadata["attempt"] == each.metadata["attempt"]
        die(connector, store, clock)
    assert sorted(began) == [("once", 1), ("twice", 1), ("twice", 2)]
    for job_id, attempts in (("once", 1), ("twice", 2)):
        job = store.find(job_id)
        assert job is not None
        assert (job.status, job.attempts, job.why) == (
            JobStatus.FAILED,
            attempts,
            "attempts_spent",
        )


@pytest.mark.parametrize("verb", ["release", "release_after", "nack", "close"])
def test_what_was_given_back_keeps_its_attempts(
    store: FullJobStore, verb: str, clock: Clock
) -> None:
    """Released, parked, refused by a gate or closed with it in hand: the charge is taken back."""
    gate = type("Gate", (ErgonError,), {"failure_kind": "held", "retry_after_seconds": 0.0})
    more: dict[str, tuple[Any, ...]] = {"nack": (gate("shut"),), "release_after": (0.0,)}
    JobClient(store=store).enqueue("work", id="a", max_attempts=1)
    for _ in range(6):
        connector = JobsConnector(store)
        (came,) = connector.fetch_transactions(1)
        assert came.metadata["attempt"] == 1
        if verb != "close":
            getattr(connector, verb)(came, *more.get(verb, ()))
        connector.close()
        job = store.find("a")
        assert job is not None
        assert (job.attempts, job.is_charged) == (0, False)
        clock.at += 60


def test_a_charge_that_cannot_be_written_hands_nothing_out(
    store: FullJobStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store goes away between claim and charge: the job comes again when its lease ended."""
    JobClient(store=store).enqueue("work", id="a", max_attempts=1)
    with JobsConnector(store, lease=1.0) as connector:

        def away(*_: Any) -> list[bool]:
            raise StoreUnavailableError("away")

        with monkeypatch.context() as patch:
            patch.setattr(type(store), "renew", away)
            with pytest.raises(StoreUnavailableError):
                connector.fetch_transactions(1)
    job = store.find("a")
    assert job is not None
    assert job.status is JobStatus.ACTIVE  # nothing was in hand that close could have given back
    clock.at += 60
    with JobsConnector(store) as connector:
        (came,) = connector.fetch_transactions(1)
        assert came.metadata["attempt"] == 1


def test_a_late_outcome_is_an_error(
    store: FullJobStore, connector: JobsConnector, clock: Clock
) -> None:
    """When the lease was lost, another process has the job, and its outcome counts."""
    connector.dispatch_transactions([Transaction("a")])
    (late,) = connector.fetch_transactions(1)
    clock.at += 3600
    forget_workers(store)
    heard: list[Notice] = []
    add_listener(heard.append)
    try:
        with JobsConnector(store) as other:  # it looks round before it claims
            (mine,) = other.fetch_transactions(1)
            with pytest.raises(LeaseLostError, match="job a"):
                connector.ack(late)
            other.ack(mine)
    finally:
        remove_listener(heard.append)
    job = store.find("a")
    assert job is not None
    assert (job.status, job.deliveries) == (JobStatus.COMPLETED, 2)
    assert [each.name for each in heard if each.name.startswith("job.")] == [
        "job.rescued",
        "job.late",
        "job.completed",
    ]


def test_a_clock_that_is_set_forward_takes_no_job_from_a_living_worker(
    store: FullJobStore, clock: Clock
) -> None:
    """Its lease looks expired: a connector that runs notices the jump, and gives it time to renew;
    one that has just begun cannot know, and does so as well.
    """
    settings, ticks = JobsSettings(lease=10.0), [0.0]
    new = partial(claims.HeldClaims, store, settings, Settler(settings, "me"), now=lambda: ticks[0])
    serves = (DEFAULT_QUEUE, "connector")
    running = new("running", serves, lambda *_: None)
    running.run_once()
    JobClient(store=store).enqueue("work", id="a")
    request = ClaimRequest(
        worker="running", lease=settings.claimed_for, slots={"connector": 1}, default="connector"
    )
    (job,) = store.settle_and_claim([], request)[1].jobs
    held = Claim(job)
    running.add([held])
    beside = new("beside", serves, lambda *_: None)
    beside.run_once()
    clock.at += 3600
    begun = new("begun", serves, lambda *_: None)
    for _ in range(3):
        for each in (beside, begun):
            each.run_once()
        ticks[0] += 0.5
        clock.at += 0.5
    running.renew()
    assert not held.lost
    assert store.expired_leases(9) == []


def test_leases_are_renewed_while_a_job_is_in_hand(store: FullJobStore, clock: Clock) -> None:
    """What a connector has in hand is kept, and what it has lost is noted."""
    settings = JobsSettings(lease=10.0)
    settler = Settler(settings, "me")
    serves = (DEFAULT_QUEUE, "connector")
    holding = claims.HeldClaims(store, settings, settler, "me", serves, lambda *_: None)
    JobClient(store=store).enqueue_many(["work", "work"])
    request = ClaimRequest(
        worker="me", lease=settings.claimed_for, slots={"connector": 2}, default="connector"
    )
    held = [Claim(job) for job in store.settle_and_claim([], request)[1].jobs]
    holding.add(held)
    clock.at += 7
    holding.renew()
    clock.at += 7
    assert store.expired_leases(9) == []
    assert holding.all() == held
    clock.at += 9
    with JobsConnector(store) as other:
        assert len(other.fetch_transactions(2)) == 2
        holding.renew()
        assert [each.lost for each in held] == [True, True]
        assert not holding.holds(held[0].job.id, held[0].job.fence)


def test_others_see_how_far_a_transaction_is(store: FullJobStore, connector: JobsConnector) -> None:
    """As a job whose handler reports, until it is settled; a second report comes soon after."""
    client = JobClient(store=store)
    connector.dispatch_transactions([Transaction("a"), Transaction("b")])
    first, second = connector.fetch_transactions(2)

    def shown(job_id: str) -> Any:
        return client.show(job_id).get("progress")

    connector.progress(first, 0.4, "page 4, token=hunter2hunter2hunter2")
    connector.progress(second, message="begins")
    eventually(lambda: bool(shown("a") and shown("b")))
    assert (shown("a")["fraction"], shown("b")["message"]) == (0.4, "begins")
    assert "hunter2" not in str(shown("a"))
    for page in range(5, 10):
        connector.progress(first, page / 10)
    eventually(lambda: bool(shown("a")["fraction"] == 0.9))
    connector.ack(first)
    connector.progress(first, 1.0)  # too late: it says nothing
    assert shown("a") is None
    (record,) = store.workers()
    assert "b" in record.progress


def test_what_is_no_progress_of_a_delivery_is_refused(store: FullJobStore) -> None:
    """A part beyond 1, and a transaction of somebody else."""
    with JobsConnector(store, handler="work") as one, JobsConnector(store) as other:
        one.dispatch_transactions([Transaction("a")])
        (came,) = one.fetch_transactions(1)
        with pytest.raises(ValueError, match=r"a part from 0 to 1, such as 0\.4, not 40"):
            one.progress(came, 40)
        with pytest.raises(JobsConnectorError, match="'a' was not delivered by this connector"):
            other.progress(came, 0.4)
        with pytest.raises(JobsConnectorError, match="'b' was not delivered by this connector"):
            one.progress(Transaction("b"), 0.4)


def test_a_report_is_written_when_the_store_is_back() -> None:
    """The last report is kept while the store does not answer, and written about once a second."""
    at = [100.0]
    store = AwayStore()
    settings = JobsSettings(lease=30.0)
    settler = Settler(settings, "me")
    serves = (DEFAULT_QUEUE, "connector")
    holding = claims.HeldClaims(
        store, settings, settler, "me", serves, lambda *_: None, now=lambda: at[0]
    )
    JobClient(store=store).enqueue("work", id="a")
    request = ClaimRequest(worker="me", lease=24.0, slots={"connector": 1}, default="connector")
    (claim,) = [Claim(job) for job in store.settle_and_claim([], request)[1].jobs]
    holding.add([claim])
    holding.run_once()

    def told(seconds: float, fraction: float | None) -> float | None:
        """What others see after so long, and after a report."""
        at[0] += seconds
        if fraction is not None:
            holding.tell_progress(claim, ProgressReport("a", fraction))
        holding.run_once()
        (record,) = store.workers()
        found: float = record.progress["a"]["fraction"]
        return found

    assert told(0.0, 0.1) == 0.1
    assert told(0.5, 0.2) == 0.1  # not yet
    assert told(0.6, None) == 0.2
    store.is_away = True
    assert told(2.0, 0.3) == 0.2
    store.is_away = False
    assert told(2.0, None) == 0.3


class AwayStore(MemoryJobStore):
    """Does not answer a heartbeat now and then."""

    is_away = False

    def heartbeat(self, record: WorkerRecord) -> None:
        """As usual, unless it is away."""
        if self.is_away:
            raise StoreUnavailableError("away")
        super().heartbeat(record)


def test_close_gives_back_what_is_in_hand(store: FullJobStore) -> None:
    """Nobody has to wait for a lease after a clean end; closing twice is fine."""
    connector = JobsConnector(store, handler="work")
    connector.dispatch_transactions([Transaction("a")])
    (came,) = connector.fetch_transactions(1)
    connector.close()
    connector.close()
    job = store.find("a")
    assert job is not None
    assert (job.status, job.attempts) == (JobStatus.PENDING, 0)
    assert store.workers() == []
    with pytest.raises(JobsConnectorError, match="closed"):
        connector.ack(came)


@pytest.mark.slow
def test_a_job_whose_transaction_nobody_has_any_more_goes_back(
    store: FullJobStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Who had fetched it was cancelled, say: nobody can settle it, and its lease is not renewed."""
    with JobsConnector(store, handler="work", lease=0.5) as connector:
        connector.dispatch_transactions([Transaction("dropped"), Transaction("kept")])
        kept = [each for each in connector.fetch_transactions(2) if each.id == "kept"]
        eventually(lambda: connector.get_transactions_count() == 1)
        (again,) = connector.fetch_transactions(1)
        assert (again.id, again.metadata["attempt"]) == ("dropped", 1)  # it was not charged
        connector.ack(again)
        connector.ack(kept[0])
    assert "job dropped: nobody has its transaction any more; it goes back" in caplog.text
    assert "job kept" not in caplog.text


@pytest.mark.slow
def test_what_a_fetch_brings_after_its_event_loop_has_ended_goes_back(
    store: FullJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cancelled, and then there was nobody left to give back what it had claimed."""
    claiming, go_on = threading.Event(), threading.Event()

    def slowly(point: str) -> None:
        if point == "connector.jobs.charging.before" and not claiming.is_set():
            claiming.set()
            assert go_on.wait(30)

    monkeypatch.setattr(claims, "failpoint", slowly)

    async def scenario(fetcher: JobsConnector) -> None:
        fetching = asyncio.ensure_future(fetcher.fetch_transactions_async(1))
        await asyncio.to_thread(claiming.wait, 30)
        fetching.cancel()

    with JobsConnector(store, handler="work", lease=0.5) as connector:
        connector.dispatch_transactions([Transaction("a")])
        asyncio.run(scenario(connector))
        go_on.set()
        eventually(lambda: connector.get_transactions_count() == 1)


def test_a_job_that_cannot_be_read_is_a_dead_letter_and_in_nobodys_way(
    store: FullJobStore, connector: JobsConnector
) -> None:
    """Its arguments may be nested too deeply for this process; the next ones are delivered."""
    plain = JobClient(store=store).job("work", [1], id="deep")
    deep = msgspec.structs.replace(plain, args=b"[" * 100_000 + b"]" * 100_000)
    store.add([deep])
    connector.dispatch_transactions([Transaction("plain")])
    came = connector.fetch_transactions(9)
    assert [each.id for each in came] == ["plain"]
    assert connector.fetch_transactions(9) == []
    assert [each.id for each in store.unreadable()] == ["deep"] or _code(store, "deep") == (
        "unreadable_payload"
    )


def _code(store: FullJobStore, job_id: str) -> str:
    """Why a job failed."""
    job = store.find(job_id)
    assert job is not None
    assert job.status is JobStatus.FAILED
    assert job.last_error is not None
    return job.last_error.code


@pytest.mark.parametrize("text", ["no such file: caf\udce9", "\ud800", "nul \x00 inside"])
def test_any_text_of_an_exception_can_be_recorded(
    store: FullJobStore, connector: JobsConnector, text: str
) -> None:
    """The name of a file may be no text; the failure of the job is recorded all the same."""
    connector.dispatch_transactions([Transaction("a")])
    (came,) = connector.fetch_transactions(1)
    connector.nack(came, TransactionException(text, "business"))
    job = store.find("a")
    assert job is not None
    assert job.status is JobStatus.FAILED


def test_workers_and_why_know_the_connector(store: FullJobStore, connector: JobsConnector) -> None:
    """It tells that it lives, so that workers leave its executor's jobs alone."""
    connector.fetch_transactions(1)
    (record,) = store.workers()
    assert record.lease == JobsSettings().claimed_for  # by which leases of the dead are cut
    assert (record.queues, list(record.executors)) == (("default",), ["connector"])


def test_a_fetch_may_wait_for_work(store: FullJobStore) -> None:
    """With ``wait`` a fetch returns when a job arrives."""
    came: list[Transaction] = []
    with JobsConnector(store, handler="work", wait=30.0) as connector:
        connector.open()
        fetching = threading.Thread(target=lambda: came.extend(connector.fetch_transactions(1)))
        fetching.start()
        eventually(lambda: bool(store.workers()))  # it has begun
        connector.dispatch_transactions([Transaction("a")])
        fetching.join(30)
        assert [each.transaction_id for each in came] == ["a"]
        assert connector.fetch_transactions(1, wait=0.0) == []


def test_a_cancelled_waiting_fetch_takes_nothing(store: FullJobStore) -> None:
    """What arrives for a fetch that was cancelled is there for the next one."""

    async def scenario() -> list[Transaction]:
        connector = JobsConnector(store, handler="work")
        subscription = NotedSubscription(store.subscribe(Topic.WORK))
        store.subscribe = lambda topic: subscription  # type: ignore[method-assign]
        fetching = asyncio.ensure_future(connector.fetch_transactions_async(1, wait=30.0))
        await asyncio.to_thread(subscription.is_waited_on.wait, 30)
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        await connector.dispatch_transactions_async([Transaction("a")])
        came = await connector.fetch_transactions_async(1)
        await connector.ack_async(came[0])
        await connector.aclose()
        return came

    assert len(asyncio.run(scenario())) == 1


# ---- mistakes ----


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: JobsConnector(""), "needs a store"),
        (lambda: JobsConnector("memory://", queue=""), "queue"),
        (lambda: JobsConnector("memory://", queue=" q"), "queue begins or ends with a blank"),
        (lambda: JobsConnector("memory://", handler=""), "handler"),
        (lambda: JobsConnector("memory://", executor="a#b"), "'#'"),
        (lambda: JobsConnector("memory://", lease=0.0), "lease"),
        (lambda: JobsConnector("memory://", wait=-1.0), "wait must be .* not -1"),
        (lambda: JobsConnector("memory://", wait=float("nan")), "wait must be a number, not nan"),
        (lambda: JobsConnector("memory://", options={"id": "x"}), "the transaction's id"),
        (lambda: JobsConnector("memory://", options={"priorty": 1}), "priorty"),
        (lambda: JobsConnector("memory://", options={"max_attempts": 0}), "max_attempts"),
        (lambda: JobsConnector("memory://", settings={"lease": "soon"}), "lease"),
    ],
)
def test_bad_options_are_refused_at_once(make: Callable[[], Any], told: str) -> None:
    """Before anything is opened, and in words that name the option."""
    with pytest.raises(ConfigurationError, match=told):
        make()


def test_a_bad_url_is_told_when_it_is_opened() -> None:
    """Opening says which kinds of stores there are."""
    with pytest.raises(ConfigurationError, match="sqlit"):
        JobsConnector("sqlit:///x.db").open()


def test_settings_of_a_call_are_refused(connector: JobsConnector) -> None:
    """A setting that nobody knows would be lost without a word."""
    with pytest.raises(ConfigurationError, match="'nap'"):
        connector.fetch_transactions(1, nap=1)
    with pytest.raises(ConfigurationError, match="'nap'"):
        connector.dispatch_transactions([], nap=1)


def test_a_store_that_was_closed_is_an_error(clock: Clock) -> None:
    """Each call says so; nothing hangs, and the connector is not healthy."""
    store = MemoryJobStore(clock)
    with JobsConnector(store, handler="work") as connector:
        connector.dispatch_transactions([Transaction("a")])
        (came,) = connector.fetch_transactions(1)
        store.close()
        assert not connector.health()
        for call in (
            lambda: connector.ack(came),
            lambda: connector.fetch_transactions(1),
            lambda: connector.dispatch_transactions([Transaction("b")]),
        ):
            with pytest.raises(StoreUnavailableError):
                call()
