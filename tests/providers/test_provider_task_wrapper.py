"""The specification's phase gate for the task wrapper, and the wrapper's own manners.

Celery runs the tasks eagerly here, or its request is played by hand; ``celery/`` has real workers.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("celery")

from celery import Celery, signals
from celery.exceptions import Reject, Retry, SoftTimeLimitExceeded

from ergon_framework.errors import ConfigurationError, WiringError
from ergon_framework.ports.providerstore import LetterStatus, RecordBatch
from ergon_framework.providers import celery_worker
from ergon_framework.providers.celery_task import CeleryProviderTask
from ergon_framework.providers.celery_worker import relay_app
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.delivery.dead_letters import sent_id
from ergon_framework.providers.errors import (
    ProviderBadRequestError,
    ProviderCircuitOpenError,
    ProviderInternalError,
    ProviderQuotaExceededError,
    ProviderTimeoutError,
)
from ergon_framework.providers.execution import ProviderExecutionContext
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.providers.synthetic import SyntheticProvider
from ergon_framework.testing import VirtualClock

pytestmark = pytest.mark.req("PROVIDERS:celery", "PEF:X-2", "PEF:T-1")

THIRTEEN = {
    *("tenant_id", "campaign_id", "task_name", "provider_name", "capability", "operation"),
    *("idempotency_key", "correlation_id", "reason_code", "error_type", "error_message"),
    *("attempts", "occurred_at"),
}


@pytest.fixture(autouse=True)
def clock() -> Iterator[VirtualClock]:
    """Waits cost no time."""
    with VirtualClock(start=1_000.0) as clock:
        yield clock


@pytest.fixture
def app(request: pytest.FixtureRequest) -> Iterator[Celery]:
    """An app whose broker is in memory."""
    made = Celery(request.node.name, broker="memory://", backend="cache+memory://")
    made.conf.broker_transport_options = {"visibility_timeout": 600}
    queues = ("queue.deadletter", "celery")
    for queue in queues:  # all apps of a process share this broker
        messages(made, queue)
    yield made
    for queue in queues:
        messages(made, queue)
    made.close()


def task_of(app: Celery, script: str = "ok", provider: Any = None, **options: Any) -> Any:
    """A registered task on a synthetic provider."""
    built: list[SyntheticProvider] = []

    def build() -> SyntheticProvider:
        built.append(SyntheticProvider(script, **(provider or {})))
        return built[-1]

    body = {"name": "synthetic.fetch", "provider_factory": staticmethod(build), **options}
    kind = type("SyntheticTask", (CeleryProviderTask,), body)
    task = app.register_task(kind())
    task.built = built
    return task


def apply(task: Any, **options: Any) -> Any:
    """Run it eagerly."""
    values = {"tenant_id": "t", "campaign_id": None, "operation": "fetch", "payload": {"q": 1}}
    return task.apply(kwargs={**values, **options})


def messages(app: Celery, name: str) -> list[Any]:
    """What is on a queue."""
    found = []
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue(name)
        while len(queue):
            message = queue.get(block=False)
            message.ack()
            found.append(message)
        queue.close()
    return found


def dead_letters(app: Celery) -> list[dict[str, Any]]:
    """What is on the dead-letter queue."""
    return [message.payload for message in messages(app, "queue.deadletter")]


# -- the phase gate -------------------------------------------------------------------------------


@pytest.mark.req("PEF:T-5", "PEF:T-6")
def test_the_task_retries_transient_errors_and_succeeds(app: Celery) -> None:
    """Two failures, a success, no dead letter."""
    task = task_of(app, "timeout http:503 ok")
    done = apply(task)
    assert (done.state, done.result["attempt"]) == ("SUCCESS", 3)
    assert dead_letters(app) == []


@pytest.mark.req("PEF:T-7", "PEF:D-1", "PEF:D-2", "PEF:A-19", "PEF:A-20")
def test_exhausted_retries_emit_the_dead_letter(app: Celery) -> None:
    """All thirteen fields are on the queue, and the store knows that they are."""
    task = task_of(app, "timeout")
    done = apply(task, campaign_id="c", correlation_id="cid", idempotency_key="k")
    assert done.state == "FAILURE"
    assert isinstance(done.result, ProviderTimeoutError)
    (letter,) = dead_letters(app)
    assert letter.keys() >= THIRTEEN
    assert {name: letter[name] for name in THIRTEEN - {"occurred_at", "error_message"}} == {
        "tenant_id": "t",
        "campaign_id": "c",
        "task_name": "synthetic.fetch",
        "provider_name": task.built[0].provider_name,
        "capability": task.built[0].capability,
        "operation": "fetch",
        "idempotency_key": "k",
        "correlation_id": "cid",
        "reason_code": "timeout",
        "error_type": "ProviderTimeoutError",
        "attempts": 3,
    }
    (stored,) = task.built[0].store.letters()
    assert stored.status is LetterStatus.PUBLISHED
    assert stored.letter.dead_letter_id == letter["dead_letter_id"]


def test_the_breaker_fails_fast_and_recovers(app: Celery, clock: VirtualClock) -> None:
    """While it is open nothing is called; after the cooldown a probe closes it."""
    breaker = CircuitBreaker(failure_threshold=3, open_cooldown_seconds=30)
    task = task_of(app, "timeout timeout timeout ok", {"circuit_breaker": breaker})
    apply(task)
    refused = apply(task, payload={"q": 2})
    assert isinstance(refused.result, ProviderCircuitOpenError)
    assert refused.result.retry_after_seconds == pytest.approx(30, abs=1)
    clock.advance(31)
    assert apply(task, payload={"q": 2}).state == "SUCCESS"
    assert breaker.state == "closed"


@pytest.mark.req("PEF:Q-2")
def test_a_spent_quota_fails_fast(app: Celery) -> None:
    """With its canonical reason, and without a call."""
    quota = QuotaPolicy(limit=1, window_seconds=3600)
    task = task_of(app, "ok", {"quota": quota, "wall": lambda: 1_800_000_010.0})
    apply(task)
    refused = apply(task, payload={"q": 2})
    assert isinstance(refused.result, ProviderQuotaExceededError)
    assert refused.result.reason_code == "quota_exhausted"


# -- the wrapper ----------------------------------------------------------------------------------


def test_the_provider_is_built_once_and_late(app: Celery) -> None:
    """Registering builds nothing; a factory may also be a plain function."""
    task = task_of(app)
    assert task.built == []
    apply(task)
    apply(task, payload={"q": 2})
    assert len(task.built) == 1

    class Plain(CeleryProviderTask):
        name = "plain"

        def provider_factory() -> SyntheticProvider:  # type: ignore[misc]  # as users write it
            return SyntheticProvider()

    app.register_task(Plain())
    assert apply(app.tasks["plain"]).state == "SUCCESS"


@pytest.mark.req("PEF:trap-shared-kwargs")
def test_nothing_of_one_invocation_reaches_the_next(app: Celery) -> None:
    """The task object lives as long as its process; what a message says does not."""
    task = task_of(app, "timeout timeout timeout ok")
    before = dict(vars(task))
    first = apply(task, correlation_id="first", idempotency_key="one")
    assert (first.state, vars(task).keys() - before.keys()) == ("FAILURE", set())
    assert apply(task, idempotency_key="two").state == "SUCCESS"
    rows = task.built[0].store.attempts_of("first")
    assert [row.attempt_number for row in rows] == [1, 2, 3]


def test_a_replay_returns_what_the_first_call_did(app: Celery) -> None:
    """The second message has the same key, and calls nobody."""
    task = task_of(app, "ok bad_request")
    first = apply(task, idempotency_key="k").result
    assert apply(task, idempotency_key="k").result == first
    assert first["call"] == 1


def test_what_json_cannot_say_is_written_as_text(app: Celery) -> None:
    """The call succeeded; its result must not make it fail."""

    class Odd(SyntheticProvider):
        def _execute_impl(self, **given: Any) -> dict[str, Any]:
            return {"path": Path("x"), "set": {1}, "nan": float("nan")}

    class OddTask(CeleryProviderTask):
        name = "odd"
        provider_factory = staticmethod(Odd)

    app.register_task(OddTask())
    done = apply(app.tasks["odd"])
    assert done.result == {"path": "x", "set": [1], "nan": None}


@pytest.mark.req("PEF:T-8")
def test_errors_leave_the_worker_short_and_without_their_cause(app: Celery) -> None:
    """They can be pickled, and the raw exception, which may tell anything, stays behind."""

    class Leaky(SyntheticProvider):
        def _execute_impl(self, **given: Any) -> dict[str, Any]:
            raise ProviderTimeoutError("token=hunter2", http_status=504) from KeyError("hunter2")

    class LeakyTask(CeleryProviderTask):
        name = "leaky"
        provider_factory = staticmethod(Leaky)

    app.register_task(LeakyTask())
    done = apply(app.tasks["leaky"])
    error = pickle.loads(pickle.dumps(done.result))  # noqa: S301 - our own
    assert (type(error), error.http_status) == (ProviderTimeoutError, 504)
    assert "hunter2" not in f"{error!r} {done.traceback}"


def test_a_soft_time_limit_is_a_timeout(app: Celery) -> None:
    """What Celery raises in a call that takes too long has a canonical name, and is not retried."""
    calls = []

    class Slow(SyntheticProvider):
        def _execute_impl(self, **given: Any) -> dict[str, Any]:
            calls.append(1)
            raise SoftTimeLimitExceeded

    class SlowTask(CeleryProviderTask):
        name = "slow"
        provider_factory = staticmethod(Slow)

    app.register_task(SlowTask())
    assert isinstance(apply(app.tasks["slow"]).result, ProviderTimeoutError)
    assert len(calls) == 1
    told = Slow().execute(
        tenant_id="t",
        campaign_id=None,
        operation="fetch",
        payload={},
        context=ProviderExecutionContext(),
    )
    assert (told.stop_reason, told.attempts) == ("budget_spent", 1)  # no retry budget has a part


def test_a_soft_time_limit_outside_the_provider_keeps_the_message(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is decided yet, so nothing may be acknowledged."""
    task = task_of(app)
    worker = Sent(task)

    def slow(*arguments: Any) -> Any:
        raise SoftTimeLimitExceeded

    monkeypatch.setattr(task.runner().provider.store, "claim", slow)
    with pytest.raises(Reject) as rejected:
        worker.run()
    assert rejected.value.requeue
    assert isinstance(apply(task).result, SoftTimeLimitExceeded)
    monkeypatch.undo()
    first = worker.run(idempotency_key="k")
    assert first == apply(task, idempotency_key="k").result  # nobody holds the call any more


def test_another_word_for_the_timeout_budget_is_refused() -> None:
    """A class attribute that nobody reads would leave the call with the default budget."""
    body = {"name": "old", "provider_factory": staticmethod(SyntheticProvider)}
    for name in ("timeout_seconds", "budget_seconds"):
        with pytest.raises(ConfigurationError, match=f"there is no {name}"):
            type("Old", (CeleryProviderTask,), {**body, name: 5.0})()


INHERITED = """
import os, sys
from celery import Celery
from ergon_framework.providers.celery_task import CeleryProviderTask
from ergon_framework.providers.synthetic import SyntheticProvider

class Fetch(CeleryProviderTask):
    name = "fetch"
    provider_factory = staticmethod(lambda: SyntheticProvider("ok", store=sys.argv[1]))

app = Celery("x", broker="memory://")
task = app.register_task(Fetch())
app.WorkController(pool=sys.argv[2])
print("psycopg" in sys.modules, "sqlite3" in sys.modules, "alembic" in sys.modules)
before = set(sys.modules)
task.runner()
print(*sorted(set(sys.modules) - before))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_children_of_a_prefork_pool_import_no_store(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The parent imports what a store on current tables needs; in a child that cost 0.5 s of CPU.

    A pool of threads builds its provider once, and imports only what that needs.
    """
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path / 'work.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
    open_store(url).close()  # makes the tables

    def told(pool: str) -> list[str]:
        words = [sys.executable, "-c", INHERITED, url, pool]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()  # noqa: S603

    assert told("prefork") == ["True True False", ""]
    if kind == "sqlite":
        assert told("threads")[0] == "False False False"


@pytest.mark.req("PEF:T-2")
@pytest.mark.parametrize(
    ("options", "budget"),
    [
        ({"soft_time_limit": 30.0, "time_limit": 40.0}, 20.0),
        ({"soft_time_limit": 6.0}, 3.0),
        ({"time_limit": 40.0}, 30.0),
        ({"time_limit": 500.0}, 60.0),
        ({"soft_time_limit": 50.0, "timeout_budget_seconds": None}, 40.0),
    ],
)
def test_the_budget_ends_before_the_limits(
    app: Celery, options: dict[str, Any], budget: float
) -> None:
    """Whoever sets limits of Celery alone does not have attempts begun that cannot end."""
    assert task_of(app, **options).runner().options.timeout_budget_seconds == budget


class OwnInit(ProviderTimeoutError):
    """An error of somebody else's, with arguments of its own."""

    def __init__(self, number: int) -> None:
        super().__init__(f"acme {number}", http_status=504)


class NoSuper(ProviderTimeoutError):
    """One that forgot whose it is."""

    def __init__(self, number: int) -> None:
        self.number = number


@pytest.mark.parametrize(("kind", "status"), [(OwnInit, 504), (NoSuper, None)])
def test_errors_of_any_class_leave_the_worker(app: Celery, kind: Any, status: int | None) -> None:
    """As the canonical one of their reason, with their dead letter in the store."""

    class Odd(SyntheticProvider):
        def _execute_impl(self, **given: Any) -> dict[str, Any]:
            raise kind(7)

    class OddTask(CeleryProviderTask):
        name = "odd"
        relays = False
        provider_factory = staticmethod(Odd)

    task = app.register_task(OddTask())
    error = pickle.loads(pickle.dumps(apply(task).result))  # noqa: S301 - our own
    assert (type(error), error.http_status) == (ProviderTimeoutError, status)
    (stored,) = task.runner().provider.store.letters()
    assert (stored.letter.reason_code, stored.letter.http_status) == ("timeout", status)


@pytest.mark.req("PEF:trap-prefork")
@pytest.mark.parametrize(
    ("pool", "begins"),
    [("celery.concurrency.thread", True), ("celery.concurrency.prefork", False)],
)
def test_a_worker_without_processes_carries_letters_too(
    app: Celery, monkeypatch: pytest.MonkeyPatch, pool: str, begins: bool
) -> None:
    """It hears of no process that begins; the parent of others leaves it to them."""
    started: list[bool] = []
    task_of(app, relays=True)
    monkeypatch.setattr(celery_worker, "relay_thread", lambda: started.append(True))
    kind = type("TaskPool", (), {"__module__": pool})
    signals.worker_ready.send(sender=type("Consumer", (), {"pool": kind()})())
    assert bool(started) is begins


def test_limits_and_acknowledgement_are_set_for_safety(app: Celery) -> None:
    """Time limits lie above the budget, the lease above them, and the message is acked last."""
    task = task_of(app, timeout_budget_seconds=100.0)
    assert (task.soft_time_limit, task.time_limit) == (110, 120)
    assert task.acks_late
    assert task.reject_on_worker_lost
    assert not task.acks_on_timeout
    assert task.max_retries is None
    own = task_of(app, name="own", timeout_budget_seconds=100.0, time_limit=500.0)
    assert own.runner().lease_seconds > 500


@pytest.mark.req("PEF:trap-visibility")
def test_no_message_is_held_longer_than_the_broker_waits(app: Celery) -> None:
    """A countdown beyond the visibility timeout would be delivered twice."""
    task = task_of(app)
    assert 0 < task.longest_wait() < 600 - task.time_limit


def test_the_message_does_not_tell_its_payload(app: Celery) -> None:
    """Celery writes a text of the arguments into each message for its monitors."""
    task = task_of(app)
    task.delay(tenant_id="t", campaign_id=None, operation="o", payload={"password": "hunter2"})
    (message,) = messages(app, "celery")
    assert "hunter2" not in str(message.headers)


class Sent:
    """A worker's request, played by cursor, and what is sent again."""

    def __init__(self, task: Any, **request: Any) -> None:
        self.task = task
        self.request = {
            "id": "message-1",
            "called_directly": False,
            "is_eager": False,
            "retries": 0,
            "delivery_info": {"exchange": "", "routing_key": "celery"},
            **request,
        }

    def run(self, **options: Any) -> Any:
        """One delivery."""
        values = {"tenant_id": "t", "campaign_id": None, "operation": "fetch", "payload": {"q": 1}}
        self.task.push_request(**self.request)
        try:
            return self.task.run(**{**values, **options})
        finally:
            self.task.pop_request()


def test_a_deferral_goes_back_to_the_queue_with_what_was_counted(app: Celery) -> None:
    """As a retry of the same message, after the countdown that the gate asks for."""
    breaker = CircuitBreaker(failure_threshold=1, open_cooldown_seconds=30)
    task = task_of(app, "crash ok", {"circuit_breaker": breaker}, relays=False)
    worker = Sent(task)
    with pytest.raises(ProviderInternalError):
        worker.run()
    with pytest.raises(Retry) as retry:
        worker.run(payload={"q": 2}, idempotency_key="k")
    assert retry.value.when == pytest.approx(30, abs=4)
    assert isinstance(retry.value.exc, ProviderCircuitOpenError)
    again = retry.value.sig
    assert again.kwargs["_ergon"]["deferrals"] == 1
    assert (again.kwargs["payload"], again.kwargs["idempotency_key"]) == ({"q": 2}, "k")
    assert (again.options["task_id"], again.options["retries"]) == ("message-1", 1)


def test_a_broker_that_is_away_keeps_the_message(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery's own retry would drop it here; ours asks for it to be delivered again."""
    breaker = CircuitBreaker(failure_threshold=1, open_cooldown_seconds=30)
    task = task_of(app, "crash", {"circuit_breaker": breaker}, relays=False)
    worker = Sent(task)
    with pytest.raises(ProviderInternalError):
        worker.run()

    def away(*given: Any, **options: Any) -> None:
        raise ConnectionError("the broker is away")

    monkeypatch.setattr(type(task), "apply_async", away)
    with pytest.raises(Reject) as reject:
        worker.run(payload={"q": 2})
    assert reject.value.requeue


def test_a_letter_that_nobody_can_keep_goes_back_to_the_queue(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is not acknowledged as failed: another one, with the end in it, takes over."""
    task = task_of(app, "timeout", relays=False)
    worker = Sent(task)
    recorder = task.runner().provider.runtime.recorder
    with monkeypatch.context() as away:
        away.setattr(recorder, "write_now", lambda _batch: False)
        with pytest.raises(Retry) as retry:
            worker.run()
    carried = retry.value.sig.kwargs["_ergon"]
    assert carried["given_up"]["attempts"] == 3
    with pytest.raises(ProviderTimeoutError):
        worker.run(_ergon=carried)
    (stored,) = task.built[0].store.letters()
    assert stored.letter.attempts == 3


def test_the_relay_function_carries_and_sends(app: Celery) -> None:
    """For hosts without a worker at cursor: the letters are published, the calls sent again."""
    task = task_of(app, "timeout", relays=True)
    worker = Sent(task)
    task.relays = False
    with pytest.raises(ProviderTimeoutError):
        worker.run(idempotency_key="k")
    task.relays = True
    assert relay_app(app).published == 1
    (letter,) = dead_letters(app)
    store = task.built[0].store
    store.move_letter(letter["dead_letter_id"], LetterStatus.REDRIVE, when=[LetterStatus.PUBLISHED])
    assert relay_app(app).redriven == 1
    (message,) = messages(app, "celery")
    assert message.headers["id"] == sent_id(letter["dead_letter_id"], 1)
    kwargs = message.payload[1]
    assert kwargs["_ergon"] == {"redrive_count": 1}
    assert (kwargs["idempotency_key"], kwargs["payload"]) == ("k", {"q": 1})


def test_a_broker_that_is_away_does_not_hide_the_error(
    app: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The letter is in the store; some relay will carry it."""

    def away() -> None:
        raise ConnectionError("the broker is away")

    task = task_of(app, "timeout")
    monkeypatch.setattr(app, "connection_for_write", away)
    assert isinstance(apply(task).result, ProviderTimeoutError)
    assert "relay.failed" in caplog.text
    assert task.built[0].store.letters()[0].status is LetterStatus.PENDING


def test_a_task_that_nobody_registered_is_not_sent(app: Celery) -> None:
    """The letter of another app waits for a relay that knows its task."""
    task = task_of(app, "timeout", name="mine")
    apply(task)
    store = task.built[0].store
    (stored,) = store.letters()
    other = replace(stored.letter, dead_letter_id="other", task_name="theirs")
    store.record(RecordBatch([], [other]))
    store.move_letter("other", LetterStatus.REDRIVE, when=[LetterStatus.PENDING])
    assert relay_app(app).redriven == 0
    assert store.letters(ids=["other"])[0].status is LetterStatus.REDRIVE


@pytest.mark.req("PEF:T-7")
def test_each_letter_goes_to_the_queue_of_its_task(app: Celery) -> None:
    """Two tasks of one store with a queue each: neither gets what is meant for the other."""
    store = MemoryProviderStore()
    for name, script in (("one", "timeout"), ("two", "refused")):
        queue = f"dead.{name}"
        messages(app, queue)
        task = task_of(
            app, script, {"store": store}, name=name, dead_letter_queue=queue, relays=False
        )
        apply(task)
        task.relays = True
    assert relay_app(app).published == 2
    for name in ("one", "two"):
        assert [each.payload["task_name"] for each in messages(app, f"dead.{name}")] == [name]


@pytest.mark.req("PEF:T-7")
def test_the_letters_of_another_app_are_left_to_it(app: Celery) -> None:
    """It has a broker of its own; those of a task that no app has are carried when asked for."""
    store = MemoryProviderStore()
    other = Celery("other", broker="memory://", set_as_current=False)
    theirs = task_of(other, "timeout", {"store": store}, name="theirs", relays=False)
    apply(theirs)
    theirs.relays = True
    task_of(app, "ok", {"store": store}, name="mine")
    assert not relay_app(app)
    assert [each.status for each in store.letters()] == [LetterStatus.PENDING]
    assert relay_app(other).published == 1
    assert len(dead_letters(other)) == 1
    store.record(RecordBatch([], [replace(store.letters()[0].letter, dead_letter_id="gone")]))
    task_of(other, "ok", {"store": store}, name="stays")
    other.tasks.pop("theirs")
    assert not relay_app(other)
    assert relay_app(app, has_all=True).published == 1
    assert [each["dead_letter_id"] for each in dead_letters(app)] == ["gone"]
    other.close()


def test_the_modules_with_an_apps_tasks_are_imported(
    app: Celery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a worker does; an app that has no provider tasks then is the wrong one."""
    with pytest.raises(ConfigurationError, match="no provider tasks"):
        relay_app(Celery("empty", broker="memory://", set_as_current=False))
    with pytest.raises(ConfigurationError, match="shop:path is no Celery app, but str"):
        relay_app("x", name="shop:path")
    (tmp_path / "ergon_lazy_tasks.py").write_text(
        "from celery import current_app\n"
        "from ergon_framework.providers.celery_task import CeleryProviderTask\n"
        "from ergon_framework.providers.synthetic import SyntheticProvider\n"
        "class Lazy(CeleryProviderTask):\n"
        "    name, provider_factory = 'lazy', SyntheticProvider\n"
        "current_app.register_task(Lazy())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    app.conf.include = ["ergon_lazy_tasks"]
    app.set_current()
    assert not relay_app(app)
    assert "lazy" in app.tasks


def test_a_provider_that_cannot_be_built_keeps_no_letters_back(app: Celery) -> None:
    """The others' are carried first; then its error is told."""
    broken = task_of(app, "no such step", name="broken")
    task = task_of(app, "timeout", relays=False)
    apply(task)
    task.relays = True
    with pytest.raises(ConfigurationError, match="is no step"):
        relay_app(app)
    assert [each["task_name"] for each in dead_letters(app)] == ["synthetic.fetch"]
    assert broken.built == []


def test_closing_a_task_closes_its_provider(app: Celery) -> None:
    """Which gives back what it took ahead; a task that built none has nothing to close."""
    task = task_of(app)
    task.close()
    apply(task)
    task.close()
    task.begin_anew()
    assert apply(task, payload={"q": 2}).state == "SUCCESS"


@pytest.mark.parametrize("wrong", [{"_ergon": {"attempts": -1}}, {"_ergon": 3}, {"more": 1}])
def test_what_a_message_carries_is_checked(app: Celery, wrong: dict[str, Any]) -> None:
    """Anybody can write to a queue."""
    assert isinstance(apply(task_of(app), **wrong).result, ProviderBadRequestError)


def test_mistakes_are_told_when_the_task_is_made(app: Celery) -> None:
    """Not when the first message comes."""

    class NoFactory(CeleryProviderTask):
        name = "none"

    with pytest.raises(WiringError, match="provider_factory"):
        NoFactory()
    with pytest.raises(ConfigurationError, match="max_deferrals"):
        task_of(app, max_deferrals=-1)
    for option in ("secret_names", "volatile_names"):
        with pytest.raises(ConfigurationError, match=f"{option} must be a set of names"):
            task_of(app, **{option: "password"})
    with pytest.raises(WiringError, match="would take the place of the provider call"):
        app.task(base=CeleryProviderTask, name="decorated", lazy=False, shared=False)(task_of)

    class Wrong(CeleryProviderTask):
        name = "wrong"
        provider_factory = staticmethod(lambda: "no provider")  # type: ignore[assignment]

    app.register_task(Wrong())
    assert isinstance(apply(app.tasks["wrong"]).result, WiringError)


@pytest.mark.slow
def test_without_celery_the_extra_is_named() -> None:
    """Nothing else of the providers needs it."""
    code = (
        "import sys; sys.modules['celery'] = None\n"
        "import ergon_framework.providers.runner\n"
        "import ergon_framework.providers.celery_task"
    )
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert 'pip install "ergon-framework[celery]"' in done.stderr


@pytest.mark.req("PEF:R-7")
@pytest.mark.parametrize(
    "options",
    [
        {"autoretry_for": (Exception,)},
        {"retry_backoff": True},
        {"retry_kwargs": {"max_retries": 5}},
    ],
)
def test_retries_of_celerys_own_are_refused(options: dict[str, Any]) -> None:
    """Each would be a whole call, with all its attempts."""
    body = {"name": "rank", "provider_factory": staticmethod(SyntheticProvider), **options}
    kind = type("RankTask", (CeleryProviderTask,), body)
    with pytest.raises(WiringError, match=f"rank has {next(iter(options))}"):
        kind()


@pytest.mark.req("PEF:R-7")
def test_retries_are_refused_when_it_is_registered_too() -> None:
    """Celery takes them as options there; without them it is registered."""
    body = {"name": "rank", "provider_factory": staticmethod(SyntheticProvider), "relays": False}
    task = type("RankTask", (CeleryProviderTask,), body)()
    app = Celery("plain", broker="memory://")
    with pytest.raises(WiringError, match="rank has autoretry_for"):
        app.register_task(task, autoretry_for=(Exception,))
    assert app.register_task(task, autoretry_for=()) is task
