"""What a worker makes of an answer, and that the quick way says what the long way says."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.executor_protocol import Reply, Status
from ergon_framework.core.failure import Kind
from ergon_framework.core.job import (
    Failed,
    JobRule,
    JobSnapshot,
    JobStatus,
    Succeeded,
    next_transition,
)
from ergon_framework.errors import (
    Business,
    ConfigurationError,
    MissingExtraError,
    SettingsError,
    WiringError,
)
from ergon_framework.jobs.claims import Claim
from ergon_framework.jobs.leases import CHARGE_DELAY, ClaimLeases
from ergon_framework.jobs.settings import JobsSettings, QueueSettings
from ergon_framework.jobs.settlement import MAX_CODE, MAX_MESSAGE, Settler
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.jobstore import ClaimedJob, NewJob


def leased(**fields: object) -> ClaimedJob:
    """A claimed job."""
    values = {
        "key": 1,
        "fence": 7,
        "id": "j",
        "handler": "h",
        "executor": "",
        "queue": "default",
        "args": b"[]",
        "kwargs": b"{}",
        "attempts": 0,
        "deliveries": 1,
        "excused": 0,
        "is_solo": False,
        "created_at": 0.0,
        "claimed_at": 0.0,
    }
    unset = ("timeout", "max_attempts", "max_deliveries", "retry", "result_ttl")
    rest = dict.fromkeys((*unset, "correlation_id", "trace_context"))
    return ClaimedJob(**{**values, **rest, **fields})  # type: ignore[arg-type]


@pytest.mark.req("EXEC:status")
@given(
    attempts=st.integers(0, 50),
    more=st.integers(1, 50),
    excused=st.integers(0, 50),
    is_solo=st.booleans(),
    now=st.floats(0, 4e9),
    seconds=st.none() | st.floats(0, 1e6),
    worker=st.text(max_size=20),
)
def test_the_quick_way_for_successes_agrees_with_the_long_one(
    attempts: int,
    more: int,
    excused: int,
    is_solo: bool,
    now: float,
    seconds: float | None,
    worker: str,
) -> None:
    """Whatever the job has been through: same move, same history."""
    job = leased(attempts=attempts, deliveries=attempts + more, excused=excused, is_solo=is_solo)
    settler = Settler(JobsSettings(), worker)
    reply = Reply("j", Status.SUCCESS)
    quick = settler.settle_claim(Claim(job), settler.event_of(reply, job), now, seconds, b"1")
    tally = JobSnapshot(JobStatus.ACTIVE, attempts, attempts + more, excused, is_solo=is_solo)
    move = next_transition(tally, Succeeded(), JobRule(), 0.5)
    assert quick.transition == move
    # Another instance of the event is not recognised, and takes the long way.
    long = settler.settle_claim(Claim(job), Succeeded(), now, seconds, b"1")
    assert long.transition == move
    assert msgspec.json.decode(quick.entry) == msgspec.json.decode(long.entry)
    assert quick.result == b"1"


def test_a_settlement_says_whose_it_is_and_what_is_kept() -> None:
    """Each value in its own place; what a job that did not complete brought along is dropped."""
    settler = Settler(JobsSettings(result_ttl=60.0, failed_ttl=70.0, max_attempts=1), "w")
    job = leased(key=3, id="j3", fence=9)
    done, failed = [
        settler.settle_claim(Claim(job), settler.event_of(Reply("j3", status), job), 5.0, 1.0, b"1")
        for status in (Status.SUCCESS, Status.ERROR)
    ]
    for each in (done, failed):
        assert (each.key, each.id, each.fence, each.expected) == (3, "j3", 9, JobStatus.ACTIVE)
        assert not each.if_expired
    assert (done.transition.status, done.result, done.keep) == (JobStatus.COMPLETED, b"1", 60.0)
    assert (failed.transition.status, failed.result, failed.keep) == (JobStatus.FAILED, None, 70.0)
    own = leased(result_ttl=8.0)
    seen = settler.event_of(Reply("j", Status.SUCCESS), own)
    assert settler.settle_claim(Claim(own), seen, 5.0, 1.0, b"1").keep == 8.0


def test_a_queue_may_keep_its_jobs_for_times_of_its_own() -> None:
    """By queue and state: the job's own time goes first, then its queue's, then all jobs'."""
    settings = JobsSettings(
        result_ttl=60.0,
        failed_ttl=70.0,
        cancelled_ttl=80.0,
        max_attempts=1,
        queues={"mails": QueueSettings(failed_ttl=7.0, result_ttl=0.0)},
    )
    settler = Settler(settings, "w")

    def kept(status: Status, **fields: object) -> float | None:
        job = leased(**fields)
        seen = settler.event_of(Reply("j", status), job)
        return settler.settle_claim(Claim(job), seen, 5.0, 1.0, b"1").keep

    assert kept(Status.ERROR, queue="mails") == 7.0
    assert kept(Status.SUCCESS, queue="mails") == 0.0
    assert kept(Status.SUCCESS, queue="mails", result_ttl=9.0) == 9.0
    assert (kept(Status.ERROR), kept(Status.SUCCESS)) == (70.0, 60.0)
    assert settings.retention.keep("mails", JobStatus.CANCELLED) == 80.0
    assert settings.retention.keep("mails", JobStatus.RETRYING, 9.0) is None


def test_only_the_claim_that_was_settled_is_dropped() -> None:
    """A late word about an earlier claim leaves the one that is held now alone."""
    settler = Settler(JobsSettings(), "w")
    leases = ClaimLeases(MemoryJobStore(), 3.0, lambda _name, _fields: None)
    jobs = [leased(key=n, id=f"j{n}", fence=7) for n in range(3)]
    leases.add([Claim(job) for job in jobs], 0.0)
    seen = settler.event_of(Reply("j", Status.SUCCESS), jobs[0])
    ends = [settler.settle_claim(Claim(job), seen, 5.0, 1.0, b"1") for job in jobs]
    leases.drop([ends[0], msgspec.structs.replace(ends[1], fence=6), ends[0]])
    assert set(leases.claims) == {"j1", "j2"}
    leases.drop(ends)
    assert not leases.claims


def test_claims_that_go_on_put_nobodys_charge_off() -> None:
    """A long job is charged after a moment although others are claimed all the time."""
    store = MemoryJobStore()
    store.add([NewJob(id=f"j{n}", handler="work") for n in range(40)])
    leases = ClaimLeases(store, 30.0, lambda _name, _fields: None)
    leases.renew_due(0.0)

    def claim(now: float) -> Claim:
        ask = ClaimRequest(worker="w", lease=30.0, slots={"": 1})
        found = Claim(store.settle_and_claim([], ask)[1].jobs[0])
        found.is_written, found.written_at = True, now
        leases.add([found], now)
        return found

    long = claim(0.0)
    for n in range(1, 11):
        now = n * CHARGE_DELAY / 5
        claim(now)
        leases.renew_due(now)
    found = store.find(long.job.id)
    assert found is not None
    assert (found.attempts, found.is_charged) == (1, True)


def test_what_is_given_up_on_is_added() -> None:
    """Codes of one's own stand beside the default ones; taking one off is said in so many words."""
    mine = JobsSettings(give_up_on=("Boom",))
    assert {"Boom", "NonRetryableException", "invalid_arguments"} <= mine.final_codes()
    fewer = JobsSettings(give_up_on=("Boom",), retry_on=("invalid_arguments",))
    assert fewer.final_codes() == mine.final_codes() - {"invalid_arguments"}
    own = leased(retry=b'{"give_up_on": ["Fatal"], "retry_on": ["Boom"]}')
    codes = Settler(fewer, "w").final_codes(own)
    assert codes == fewer.final_codes() - {"Boom"} | {"Fatal"}


def test_what_a_handler_discards_is_told_in_the_history() -> None:
    """With the handler's words; a result that somebody sent along all the same is not kept."""
    settler, job = Settler(JobsSettings(), "w"), leased()
    reply = Reply("j", Status.SUCCESS, b"1", "token=hunter2 gone", "discarded")
    seen = settler.event_of(reply, job)
    settled = settler.settle_claim(Claim(job), seen, 1.0, 0.1, reply.result)
    entry = msgspec.json.decode(settled.entry)
    assert (entry["event"], entry["status"], entry["why"]) == (
        "discarded",
        "completed",
        "discarded",
    )
    assert "gone" in entry["message"]
    assert "hunter2" not in entry["message"]
    assert settled.result is None


def test_a_success_that_names_another_error_type_is_a_plain_success() -> None:
    """What executors of others write there says nothing."""
    reply = Reply("j", Status.SUCCESS, error_type="none", error_message="fine")
    assert Settler(JobsSettings(), "w").event_of(reply, leased()) == Succeeded()


def test_a_business_failure_is_final() -> None:
    """The worker knows it by the name that the executor tells."""
    reply = Reply("j", Status.ERROR, error_type=Business.__name__)
    seen = Settler(JobsSettings(), "w").event_of(reply, leased())
    assert isinstance(seen, Failed)
    assert seen.failure.kind is Kind.REJECTED


def test_a_message_of_an_executor_is_kept_in_part() -> None:
    """A book in an error message does not go into the store."""
    settler = Settler(JobsSettings(), "w")
    reply = Reply("j", Status.ERROR, error_message="x" * (MAX_MESSAGE + 1))
    seen = settler.event_of(reply, leased())
    assert isinstance(seen, Failed)
    assert len(seen.failure.message) == MAX_MESSAGE


@pytest.mark.parametrize("status", [Status.ERROR, Status.RETRY, Status.TIMEOUT])
def test_a_long_error_type_is_cut(status: Status) -> None:
    """It stands in tables and in lines of the log; an executor may answer with megabytes."""
    reply = Reply("j", status, error_type="T" * 1_000_000)
    seen = Settler(JobsSettings(), "w").event_of(reply, leased())
    assert isinstance(seen, Failed)
    assert seen.failure.code == "T" * MAX_CODE


@pytest.mark.parametrize("status", [Status.ERROR, Status.RETRY, Status.TIMEOUT])
def test_what_an_executor_says_can_be_written_anywhere(status: Status) -> None:
    """A NUL in a code or a message, which not every store takes, is shown as a mark."""
    reply = Reply("j", status, error_message="embedded \0 byte", error_type="bad\0code")
    seen = Settler(JobsSettings(), "w").event_of(reply, leased())
    assert isinstance(seen, Failed)
    assert (seen.failure.code, seen.failure.message) == ("bad\ufffdcode", "embedded \ufffd byte")


@pytest.mark.req("X14")
def test_a_job_has_a_policy_of_its_own() -> None:
    """Its attempts, its timeout kind and its final error types win over the settings."""
    settler = Settler(JobsSettings(max_attempts=5), "w")
    own = b'{"on_timeout": "dead-letter", "give_up_on": ["Fatal"]}'
    job = leased(retry=own, max_attempts=2, timeout=7.0)
    rule = settler.rule_of(job)
    assert rule.retry.attempts == 2
    assert rule.max_deliveries == 5
    assert Kind.TIMEOUT not in rule.retry.on
    assert settler.timeout_of(job) == 7.0
    fatal = settler.event_of(Reply("j", Status.ERROR, error_type="Fatal"), job)
    assert isinstance(fatal, Failed)
    assert fatal.failure.kind is Kind.REJECTED


@pytest.mark.parametrize(
    ("option", "kind"),
    [("on_error", Kind.DEFECT), ("on_lost", Kind.LOST), ("on_timeout", Kind.TIMEOUT)],
)
def test_what_follows_a_failure_can_be_set_for_a_job_and_for_all(option: str, kind: Kind) -> None:
    """A job's own word wins over the settings, in both directions."""
    ends, again = "dead-letter", "retry"
    of_all = Settler(JobsSettings.model_validate({option: ends}), "w")
    own = Settler(JobsSettings(), "w").rule_of(leased(retry=f'{{"{option}": "{ends}"}}'.encode()))
    assert kind not in own.retry.on
    assert kind not in of_all.rule_of(leased()).retry.on
    assert kind in of_all.rule_of(leased(retry=f'{{"{option}": "{again}"}}'.encode())).retry.on
    assert Kind.TRANSIENT in own.retry.on, "a handler that asks for another attempt gets it"


@pytest.mark.parametrize(
    "error", [ConfigurationError, MissingExtraError, SettingsError, WiringError]
)
def test_wrong_settings_are_final(error: type[Exception]) -> None:
    """What a handler meets when something is not set up is not fixed by trying again."""
    reply = Reply("j", Status.ERROR, error_type=error.__name__)
    seen = Settler(JobsSettings(), "w").event_of(reply, leased())
    assert isinstance(seen, Failed)
    assert seen.failure.kind is Kind.REJECTED


def test_a_policy_that_cannot_be_read_does_not_stop_a_worker() -> None:
    """It was written by another version: the settings serve instead."""
    settler = Settler(JobsSettings(max_attempts=4), "w")
    assert settler.rule_of(leased(retry=b'{"of": "the future"}')).retry.attempts == 4


def test_secrets_in_an_answer_are_masked() -> None:
    """Whatever language the executor is in: neither its message nor a source line keeps one."""
    url = "amqp://me:hunter2@broker"
    trace = f'  app.py:3 in send\n    connect("{url}", password="hunter2")\nOSError'
    for status in (Status.ERROR, Status.RETRY, Status.TIMEOUT):
        reply = Reply("j", status, error_message=f"no route to {url}", error_traceback=trace)
        seen = Settler(JobsSettings(), "w").event_of(reply, leased())
        assert isinstance(seen, Failed)
        assert seen.failure.message == "no route to amqp://***@broker"
        assert seen.traceback is not None
        assert 'connect("amqp://***@broker", password=***' in seen.traceback
        assert "hunter2" not in seen.traceback
