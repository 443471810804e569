"""What options of Celery become, and which are refused: calls are stored, and not run."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.app.inline_worker import InlineWorker
from ergon_framework.compat.celery import (
    CanvasError,
    Celery,
    CeleryBridge,
    Task,
    UnsupportedOptionError,
    chain,
    from_celery,
    shared_task,
)
from ergon_framework.compat.celery.__main__ import main
from ergon_framework.core.claim import ClaimRequest
from ergon_framework.errors import ConfigurationError, JobError, WiringError
from ergon_framework.executor import Registry
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from tests.executor.link import Link

SOON = datetime.now(UTC) + timedelta(hours=1)
RATES = JobsSettings.model_validate({"queues": {"api": {"rate": 0.1}}})


@pytest.fixture
def client() -> Iterator[JobClient]:
    """A client of a store in memory."""
    with JobClient(store=MemoryJobStore(), settings=RATES) as client:
        yield client


@pytest.fixture
def plain(client: JobClient) -> Celery:
    """An application without Celery."""
    return Celery("shop", registry=Registry(), client=client)


@pytest.fixture
def bridge(client: JobClient) -> Iterator[CeleryBridge]:
    """An application of Celery whose calls go to the store."""
    from celery import Celery as CeleryOfCelery

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        app = CeleryOfCelery(
            "shop", broker="memory://", backend="cache+memory://", set_as_current=False
        )
        app.conf.task_routes = {"*.picture": {"queue": "pictures", "routing_key": "x"}}
        yield from_celery(app, registry=Registry(), client=client, route="ergon")


def shop(app: Any, **options: Any) -> Any:
    """A task of an application of either kind."""

    def add(a: int, b: int = 0) -> int:
        return a + b

    # Celery would give the task to applications of other tests as well.
    own = {} if isinstance(app, Celery) else {"shared": False}
    return app.task(name="shop.add", **own, **options)(add)


def both(plain: Celery, bridge: CeleryBridge, **options: Any) -> list[Any]:
    """The same task without and with Celery."""
    return [shop(plain, **options), shop(bridge.celery_app, **options)]


def stored(client: JobClient, result: Any) -> dict[str, Any]:
    """The job of a call."""
    return client.show(result.id)


def test_a_call_becomes_a_job_with_celerys_defaults(
    plain: Celery, bridge: CeleryBridge, client: JobClient
) -> None:
    """No retry that was not asked for, no run after a crash, no time limit."""
    for task in both(plain, bridge):
        job = stored(client, task.delay(1, b=2))
        assert (job["handler"], job["args"], job["kwargs"]) == ("shop.add", [1], {"b": 2})
        assert (job["queue"], job["max_attempts"], job["timeout"]) == ("default", 4, 7 * 86400.0)
        assert {key: job["retry"][key] for key in ("on_error", "on_lost", "on_timeout")} == {
            "on_error": "dead-letter",
            "on_lost": "dead-letter",
            "on_timeout": "dead-letter",
        }


def test_options_of_a_call(plain: Celery, bridge: CeleryBridge, client: JobClient) -> None:
    """Due time, expiry, queue, id and time limit are those of the job."""
    for number, task in enumerate(both(plain, bridge)):
        result = task.apply_async(
            (1,),
            eta=SOON,
            expires=SOON + timedelta(hours=1),
            queue="images",
            task_id=f"id-{number}",
            time_limit=30,
            retry=True,
            shadow="other",
        )
        job = stored(client, result)
        assert (result.id, job["queue"], job["timeout"]) == (f"id-{number}", "images", 30.0)
        assert job["run_at"].startswith(SOON.isoformat()[:19])
        assert job["expires_at"] is not None
        counted = stored(client, task.apply_async((1,), countdown=60, expires=90))
        due, expiry = (datetime.fromisoformat(counted[key]) for key in ("run_at", "expires_at"))
        assert (expiry - due).total_seconds() == pytest.approx(30, abs=0.1)


def test_an_eta_that_has_passed_is_now(plain: Celery, client: JobClient) -> None:
    """As with Celery; and an instant without a zone is in UTC."""
    ago = datetime(2020, 1, 1)  # noqa: DTZ001 - on purpose
    assert stored(client, shop(plain).apply_async((1,), eta=ago))["status"] == "pending"


@pytest.mark.parametrize(
    "expires", [datetime.max.replace(tzinfo=UTC), "9999-12-31T23:59:59.9999Z", 1e15]
)
def test_a_call_that_expires_in_ages_does_not_expire(
    plain: Celery, bridge: CeleryBridge, client: JobClient, expires: Any
) -> None:
    """Users of Celery say "never" so; a store could not read such an instant again."""
    for task in both(plain, bridge):
        assert stored(client, task.apply_async((1,), expires=expires))["expires_at"] is None


@pytest.mark.parametrize(
    "value", [math.inf, -math.inf, math.nan, timedelta(1), date(2026, 1, 1), [1], b"60", True]
)
@pytest.mark.parametrize("option", ["expires", "countdown"])
def test_what_is_no_time_is_refused(
    plain: Celery, bridge: CeleryBridge, option: str, value: Any
) -> None:
    """By the name of the option, and nothing is stored."""
    for task in both(plain, bridge):
        with pytest.raises(UnsupportedOptionError, match=f"{option} is "):
            task.apply_async((1,), **{option: value})


@pytest.mark.parametrize(
    "expires", [datetime(2020, 1, 1, tzinfo=UTC), -5, -1e12, 0, "2020-01-01T00:00:00+00:00"]
)
def test_a_call_that_has_expired_is_recorded_and_not_run(
    plain: Celery, bridge: CeleryBridge, client: JobClient, expires: Any
) -> None:
    """Celery takes it, and its worker revokes it; nobody who calls has to catch an error."""
    tasks = both(plain, bridge)
    bridge.load_tasks()
    for task in tasks:
        result = task.apply_async((1,), expires=expires)
        assert result.state == "PENDING"
        with InlineWorker(client.store, bridge.registry) as worker:
            assert worker.drain().completed == 0
        assert (result.state, result.ready(), result.failed()) == ("REVOKED", True, False)
        assert (stored(client, result)["why"], stored(client, result)["attempts"]) == ("expired", 0)
        later = task.apply_async((1,), countdown=60, expires=30)
        assert stored(client, later)["expires_at"] < stored(client, later)["run_at"]


@pytest.mark.parametrize(
    ("declared", "attempts"),
    [
        ({"max_retries": 0}, 1),
        ({"max_retries": None}, 10_000),
        ({"autoretry_for": (OSError,), "retry_kwargs": {"max_retries": 9}}, 10),
        ({"bind": True}, 21),
        ({"bind": True, "max_retries": 50}, 51),
    ],
)
def test_attempts(
    plain: Celery,
    bridge: CeleryBridge,
    client: JobClient,
    declared: dict[str, Any],
    attempts: int,
) -> None:
    """As many as a task may ask for; one with ``self`` may ask for more than it declares."""
    for task in both(plain, bridge, typing=False, **declared):
        assert stored(client, task.delay(1))["max_attempts"] == attempts


def test_acks_late_runs_again_after_a_crash(
    plain: Celery, bridge: CeleryBridge, client: JobClient
) -> None:
    """Without it a task runs at most once."""
    for task in both(plain, bridge, acks_late=True):
        assert stored(client, task.delay(1))["retry"]["on_lost"] == "retry"


def test_priorities_follow_the_broker(bridge: CeleryBridge, client: JobClient) -> None:
    """0 is the highest with Redis, 9 with RabbitMQ; a higher number runs first here."""
    task = shop(bridge.celery_app)
    assert stored(client, task.apply_async((1,), priority=9))["priority"] == 9
    bridge.celery_app.conf.broker_url = "redis://localhost"
    assert stored(client, task.apply_async((1,), priority=9))["priority"] == -9


def test_routes_of_celery_choose_the_queue(bridge: CeleryBridge, client: JobClient) -> None:
    """Its default queue is ours; a queue that a route names keeps its name."""

    @bridge.celery_app.task(name="shop.picture", shared=False)  # type: ignore[untyped-decorator]
    def picture() -> None: ...

    assert stored(client, picture.delay())["queue"] == "pictures"
    assert stored(client, bridge.celery_app.send_task("shop.unknown"))["queue"] == "default"


def test_calls_go_where_the_first_matching_route_says(client: JobClient) -> None:
    """Task by task, and tasks of Celery itself stay there."""
    from celery import Celery as CeleryOfCelery

    app = CeleryOfCelery("shop", broker="memory://", set_as_current=False)
    bridge = from_celery(
        app,
        registry=Registry(),
        client=client,
        route={"shop.mail.*": "ergon", "shop.*": "celery", "*": "ergon"},
    )
    sides = {
        "shop.mail.send": "ergon",
        "shop.pay": "celery",
        "other": "ergon",
        "celery.backend_cleanup": "celery",
    }
    assert {name: bridge.side_of(name) for name in sides} == sides
    assert "shop.mail.send" in str(client.find(app.send_task("shop.mail.send").id).handler)
    app.send_task("shop.pay", retry=False)  # to the broker: no job
    app.send_task("shop.mail.send", retries=1)  # the same: Celery's worker retries its message
    assert len(list(client.store.search(_everything(), None))) == 1
    with pytest.raises(WiringError, match="write 'ergon' or 'celery'"):
        from_celery(app, registry=Registry(), client=client, route={"*": "rabbit"})  # type: ignore[dict-item]


def _everything() -> Any:
    from ergon_framework.ports.jobstore import Search

    return Search()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"link": {"task": "x"}}, "part of a canvas"),
        ({"link_error": {"task": "x"}}, "part of a canvas"),
        ({"group_id": "g"}, "part of a canvas"),
        ({"headers": {"tenant": "a"}}, "pass it as an argument"),
        ({"routing_key": "a.b"}, "name a queue"),
        ({"serializer": "pickle"}, "pass what JSON can hold"),
        ({"soft_time_limit": 3}, "declare it in the decorator"),
        ({"on_tuesdays": True}, "leave it out"),
        ({"eta": "soon"}, "ISO 8601"),
        ({"countdown": float("nan")}, "a number of seconds"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    plain: Celery, bridge: CeleryBridge, client: JobClient, options: dict[str, Any], reason: str
) -> None:
    """Before anything is stored, with what to do instead."""
    for task in both(plain, bridge):
        with pytest.raises(UnsupportedOptionError, match=reason):
            task.apply_async((1,), **options)
    assert list(client.store.search(_everything(), None)) == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"priority": "high"}, "priority must be a whole number, not 'high'"),
        ({"priority": [1]}, r"priority must be a whole number, not \[1\]"),
        ({"priority": 1.5}, "priority must be a whole number"),
        ({"priority": True}, "priority must be a whole number"),
        ({"priority": 10**9}, "priority is 1000000000"),
        ({"queue": 3}, "queue must be text"),
        ({"queue": ["a"]}, "queue must be text"),
        ({"queue": ""}, "queue is empty"),
        ({"task_id": 5}, "task_id must be text"),
        ({"root_id": 5}, "root_id must be text"),
        ({"time_limit": "60"}, "time_limit must be a number"),
        ({"time_limit": -1}, "time_limit is -1 seconds"),
        ({"on_failure": "cancel"}, "on_failure .*declare it in the decorator"),
        ({"tags": "customer:42"}, "tags must be a list"),
        ({"tags": ["a=b"]}, "tags has an equals sign"),
        ({"tags": 7}, "tags must be a list"),
        ({"metadata": ["plan"]}, "metadata must be a dict"),
    ],
)
def test_an_option_with_a_wrong_value_is_named(
    plain: Celery, bridge: CeleryBridge, client: JobClient, options: dict[str, Any], told: str
) -> None:
    """With the task and in the words of Celery; nothing is stored."""
    for task in both(plain, bridge):
        with pytest.raises(UnsupportedOptionError, match=told) as refused:
            task.apply_async((1,), **options)
        assert "'shop.add'" in str(refused.value)
    assert list(client.store.search(_everything(), None)) == []


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({"priority": "high"}, "priority='high', which must be a whole number"),
        ({"max_retries": "3"}, "max_retries='3', which must be a whole number, or None"),
        ({"retry_kwargs": 3}, "retry_kwargs=3, which must be a dict"),
        ({"autoretry_for": ["OSError"]}, r"autoretry_for=.*, which must be a tuple of exceptions"),
        ({"default_retry_delay": "x"}, "default_retry_delay='x', which must be a number"),
        ({"time_limit": "60"}, "time_limit='60', which must be a number of seconds"),
        ({"soft_time_limit": "60"}, "soft_time_limit='60', which must be a number of seconds"),
        ({"on_failure": "cancel"}, "on_failure='cancel', which must be a function"),
        ({"after_return": 1}, "after_return=1, which must be a function"),
    ],
)
def test_a_task_declared_with_a_wrong_value_is_named(
    plain: Celery, bridge: CeleryBridge, declared: dict[str, Any], told: str
) -> None:
    """Where it is declared, or at its first call where Celery declares it, and at its start."""
    with pytest.raises(UnsupportedOptionError, match=told):
        shop(plain, **declared)
    task = shop(bridge.celery_app, **declared)
    for step in (lambda: task.delay(1), bridge.load_tasks):
        with pytest.raises(UnsupportedOptionError, match=told) as refused:
            step()
        assert "'shop.add'" in str(refused.value)


def test_a_task_that_stays_with_celery_may_have_any_option(
    client: JobClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Executors start without it, and say so; the report names what to change first."""
    from celery import Celery as CeleryOfCelery

    app = CeleryOfCelery("shop", broker="memory://", set_as_current=False)
    bridge = from_celery(app, registry=Registry(), client=client)
    shop(app, max_retries="3")
    bridge.load_tasks()
    assert "shop.add" not in bridge.registry
    assert "max_retries='3'" in caplog.text


def test_tags_and_metadata_of_calls(plain: Celery, bridge: CeleryBridge, client: JobClient) -> None:
    """What a job is found by is told with its call; the tags of a task are those of its jobs."""
    for task in both(plain, bridge, tags=["billing"]):
        known = [each.id for each in client.jobs(tags=["billing"])]
        own = task.delay(1)
        assert stored(client, own)["tags"] == ["billing"]
        said = task.apply_async((1,), tags=("customer:42",), metadata={"plan": "pro"})
        assert stored(client, said)["tags"] == ["customer:42"]
        assert stored(client, said)["metadata"] == {"plan": "pro"}
        assert [each.id for each in client.jobs(tags=["billing"])] == [own.id, *known]


def test_tags_of_another_meaning_are_told_and_not_used(
    plain: Celery, bridge: CeleryBridge, client: JobClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A class of a package may mean something else by it; in our decorator it is a mistake."""
    result = shop(bridge.celery_app, tags={"colour": "red"}).delay(1)
    assert not stored(client, result).get("tags")
    assert "its tags are no list of texts" in caplog.text
    with pytest.raises(UnsupportedOptionError, match="tags='billing'"):
        shop(plain, tags="billing")


def test_a_call_that_goes_to_celery_has_no_tags(client: JobClient) -> None:
    """A message has none: the same call works whoever gets it."""
    from celery import Celery as CeleryOfCelery

    app = CeleryOfCelery("shop", broker="memory://", set_as_current=False)
    from_celery(app, registry=Registry(), client=client, route="celery")
    labels = {"tags": ["billing"], "metadata": {"a": "b"}}
    with app.connection_for_write() as connection:
        shop(app).apply_async((1,), queue="labelled", connection=connection, **labels)
        message = connection.SimpleQueue("labelled").get(timeout=5)
    assert not {"tags", "metadata"} & message.properties.keys()
    assert message.headers["task"] == "shop.add"


def test_autoretry_takes_one_exception_or_a_list(plain: Celery, client: JobClient) -> None:
    """Celery takes a list; one alone is what it means."""

    def fail() -> None:
        raise ConnectionError("away")

    for number, errors in enumerate(([ConnectionError], ConnectionError)):
        name = f"shop.fail{number}"
        task: Any = plain.task(name=name, autoretry_for=errors, default_retry_delay=60)(fail)
        result = task.delay()
        with InlineWorker(client.store, plain.registry) as worker:
            worker.drain()
        assert (result.state, stored(client, result)["attempts"]) == ("RETRY", 1)


def test_chains_groups_and_chords_are_refused(
    plain: Celery, bridge: CeleryBridge, client: JobClient
) -> None:
    """At the first call of one, which names the task and the way back to Celery."""
    from celery import chain as chain_of_celery
    from celery import chord, group

    task = shop(bridge.celery_app)
    for canvas in (task.s(1) | task.s(), group(task.s(1), task.s(2))):
        with pytest.raises(CanvasError, match=r"route=.*shop\.add.*celery"):
            canvas.apply_async()
    with pytest.raises(CanvasError):
        chord([task.s(1)], task.si(2)).apply_async()
    alone = chain_of_celery(task.s(1)).apply_async()
    assert stored(client, alone)["args"] == [1], "nothing follows it"
    for make in (shop(plain).s, shop_other(plain).si, chain, group_of_plain):
        with pytest.raises(CanvasError, match="no chains"):
            make(1)


def test_messages_with_many_calls_are_refused(
    plain: Celery, bridge: CeleryBridge, client: JobClient
) -> None:
    """None goes to the broker of Celery because its name is one of Celery's own tasks."""
    sent = Broker(bridge.celery_app)
    task, other = shop(bridge.celery_app), shop_other(plain)
    for message in (task.map([1, 2]), task.starmap([(1, 2)]), task.chunks([(1, 2), (3, 4)], 1)):
        with pytest.raises(CanvasError, match=r"for each in items: .*shop\.add.*celery"):
            message.apply_async()
    by_name = {"task": {"task": "shop.add"}, "it": [1]}
    with pytest.raises(CanvasError, match=r"shop\.add"):
        bridge.celery_app.send_task("celery.map", (), by_name)
    for make in (other.map, other.starmap, other.chunks):
        with pytest.raises(CanvasError, match="for each in items"):
            make([1, 2])
    assert (sent.names, list(client.store.search(_everything(), None))) == ([], [])
    bridge.celery_app.send_task("celery.map", (), {"task": {"task": "celery.accumulate"}})
    assert sent.names == ["celery.map"]  # calls of a task that is with Celery


class Broker:
    """Hears what is sent to the broker of an application."""

    def __init__(self, app: Any) -> None:
        from celery import signals

        self.names: list[str] = []
        app.conf.task_always_eager = False
        signals.before_task_publish.connect(self._hear)

    def _hear(self, sender: str, **_: Any) -> None:
        self.names.append(sender)


def test_options_may_stand_in_the_order_of_celery(
    plain: Celery, bridge: CeleryBridge, client: JobClient
) -> None:
    """An id by position, a countdown of ``send_task``, and a task's own options by its name."""
    for number, task in enumerate(both(plain, bridge, priority=3, queue="api")):
        assert task.apply_async((1,), {"b": 2}, f"third-{number}").id == f"third-{number}"
    sent = stored(client, bridge.celery_app.send_task("shop.add", (1,), {}, 60, None, "named"))
    assert (sent["id"], sent["queue"], sent["priority"]) == ("named", "api", 3)
    assert datetime.fromisoformat(sent["run_at"]) > datetime.now(UTC) + timedelta(seconds=50)


@pytest.mark.parametrize("args", ["abc", 5, {"a": 1}])
def test_arguments_are_a_list_or_a_tuple(plain: Celery, bridge: CeleryBridge, args: Any) -> None:
    """A text would otherwise be taken for its letters."""
    for task in both(plain, bridge, typing=False):
        with pytest.raises(JobError, match=r"write apply_async\(\(1, 2\)"):
            task.apply_async(args)


def test_instants_without_a_zone_are_in_utc(bridge: CeleryBridge, client: JobClient) -> None:
    """As Celery's worker reads them, whatever the zone of the application is."""
    bridge.celery_app.conf.timezone = "America/New_York"
    soon = SOON.replace(tzinfo=None)
    task = shop(bridge.celery_app)
    job = stored(client, task.apply_async((1,), eta=soon, expires=soon + timedelta(minutes=1)))
    due, expiry = (datetime.fromisoformat(job[key]) for key in ("run_at", "expires_at"))
    assert (due, expiry) == (SOON, SOON + timedelta(minutes=1))


def test_a_countdown_counts_more_than_an_eta(
    plain: Celery, bridge: CeleryBridge, client: JobClient
) -> None:
    """As with Celery."""
    for task in both(plain, bridge):
        job = stored(client, task.apply_async((1,), countdown=60, eta=SOON))
        assert datetime.fromisoformat(job["run_at"]) < SOON


def test_results_of_the_application_find_jobs(bridge: CeleryBridge) -> None:
    """Where code has kept an id: state, result and revoke are those of the job."""
    from celery.exceptions import TimeoutError as TimeoutOfCelery

    task = shop(bridge.celery_app)
    made = task.delay(1)
    for found in (task.AsyncResult(made.id), bridge.celery_app.AsyncResult(made.id)):
        with pytest.raises(TimeoutOfCelery):
            found.get(timeout=0.001)
        assert (found.state, found.ready(), found.result) == ("PENDING", False, None)
    found.revoke()
    assert (found.state, made.state) == ("REVOKED", "REVOKED")
    assert bridge.celery_app.AsyncResult("nobody").state == "PENDING"
    bridge.detach()
    assert bridge.celery_app.AsyncResult(made.id).state == "PENDING"  # as Celery has it


def test_the_control_of_the_application_cancels_jobs(bridge: CeleryBridge) -> None:
    """By one id or several, and what a plain AsyncResult revokes; Celery hears of all others."""
    from celery.result import AsyncResult

    told: list[Any] = []
    control, task = bridge.celery_app.control, shop(bridge.celery_app)
    control.broadcast = lambda command, arguments, **_: told.append((command, arguments["task_id"]))
    jobs = [task.delay(number) for number in range(3)]
    control.revoke(jobs[0].id)
    control.revoke([jobs[1].id, "other"])
    AsyncResult(jobs[2].id, app=bridge.celery_app).revoke()
    assert [each.state for each in jobs] == ["REVOKED"] * 3
    control.revoke("another", terminate=True)
    assert told == [("revoke", ["other"]), ("revoke", "another")]
    bridge.detach()
    control.revoke(jobs[0].id)
    assert told[-1] == ("revoke", jobs[0].id)


def test_names_without_a_counterpart_say_what_to_do(plain: Celery) -> None:
    """An attribute of Celery is missed with a remedy, and any other as usual."""
    result = shop(plain).delay(1)
    for owner, name, remedy in (
        (plain, "conf", "ergon.toml"),
        (plain, "add_periodic_task", "@app.schedule"),
        (shop_other(plain), "delay_on_commit", "on_commit"),
        (result, "children", "other calls"),
    ):
        assert not hasattr(owner, name)
        with pytest.raises(UnsupportedOptionError, match=remedy):
            getattr(owner, name)
        with pytest.raises(AttributeError, match="no attribute 'colour'"):
            getattr(owner, "colour")  # noqa: B009 - it has none


def group_of_plain(*args: Any) -> Any:
    """The function of this package, beside the one of Celery."""
    from ergon_framework.compat.celery import group

    return group(*args)


def shop_other(app: Celery, name: str = "b") -> Task:
    """Another task of the application."""
    task: Task = app.task(name=f"other.{name}")(lambda: None)
    return task


def test_a_rate_limit_needs_a_queue_that_keeps_it(
    plain: Celery, bridge: CeleryBridge, client: JobClient
) -> None:
    """Its queue must be limited at least as much; who does not care says so."""
    for task in both(plain, bridge, rate_limit="10/m"):
        with pytest.raises(UnsupportedOptionError, match=r"rate = 0\.166667"):
            task.delay(1)
        assert stored(client, task.apply_async((1,), queue="api"))["queue"] == "api"
    careless = Celery("x", registry=Registry(), client=client, ignore=["rate_limit"])
    assert stored(client, shop(careless, rate_limit="1/h").delay(1))["queue"] == "default"
    with pytest.raises(WiringError, match="only 'rate_limit'"):
        Celery("x", registry=Registry(), client=client, ignore=["time_limit"])


def test_arguments_are_checked_when_they_are_given(plain: Celery, bridge: CeleryBridge) -> None:
    """A call that its task could not take, or that JSON cannot hold, is refused at once."""
    for task in both(plain, bridge):
        with pytest.raises(TypeError, match="argument"):
            task.delay()
        with pytest.raises(JobError, match="cannot be written as JSON"):
            task.delay(object())
        with pytest.raises(JobError, match="two keys that are '1' in JSON"):
            task.delay({1: "a", "1": "b"})


def test_names_are_those_of_celery(plain: Celery, client: JobClient) -> None:
    """Module and function, unless the decorator names the task."""

    @plain.task
    def one() -> None: ...

    @shared_task
    def two() -> None: ...

    assert one.name == f"{__name__}.one"
    assert two.name in plain.registry
    assert two.name in Celery("later", registry=Registry(), client=client).tasks


def test_an_application_needs_somewhere_for_its_jobs(client: JobClient) -> None:
    """And neither a broker nor a result backend."""
    with pytest.raises(WiringError, match=r"give app=App\(\)"):
        Celery("shop")
    with pytest.raises(UnsupportedOptionError, match="no broker"):
        Celery("shop", registry=Registry(), broker="redis://localhost")
    unsent = Celery("shop", registry=Registry())
    with pytest.raises(WiringError, match="no client"):
        shop(unsent).delay(1)
    with pytest.raises(UnsupportedOptionError, match="name a queue"):
        shop(unsent, routing_key="a")
    with pytest.raises(WiringError, match="there is no task 'typo'"):
        unsent.send_task("typo")
    with pytest.raises(ConfigurationError, match="applied eagerly"):
        shop_other(unsent).apply()


def test_a_result_knows_its_state(plain: Celery, client: JobClient) -> None:
    """With the words of Celery, also for one that is unknown or was revoked."""
    task = shop(plain)
    result = task.delay(1)
    assert (result.state, result.ready(), result.result, str(result)) == (
        "PENDING",
        False,
        None,
        result.id,
    )
    result.revoke()
    result.revoke()
    assert (result.status, result.ready(), result.failed()) == ("REVOKED", True, False)
    running = task.delay(1)
    ask = ClaimRequest(worker="w", lease=10, slots={"python": 1}, default="python")
    assert client.store.settle_and_claim([], ask)[1].jobs
    running.revoke()
    assert client.find(running.id).cancel_request is None
    running.revoke(terminate=True)
    assert client.find(running.id).cancel_request is not None
    assert plain.AsyncResult("nobody").state == "PENDING"
    assert plain.AsyncResult("nobody").traceback is None
    assert plain.AsyncResult(result.id) == result


@pytest.mark.parametrize(
    ("attempt", "remedy"),
    [
        (9_999, None),
        (10_000, "no job has more; call apply_async for one that goes on, and return"),
    ],
)
def test_a_task_that_retries_for_ever_is_told_what_to_do_at_the_last_attempt(
    plain: Celery, attempt: int, remedy: str | None
) -> None:
    """``max_retries=None`` has no end with Celery, and a job has one."""

    @plain.task(bind=True, max_retries=None, name="shop.poll")
    def poll(self: Any) -> None:
        raise self.retry(countdown=7)

    with Link(plain.registry) as link:
        told = link.ask("shop.poll", _attempt=attempt)
    if remedy is None:
        assert (told["status"], told["retry_after_seconds"]) == ("retry", 7)
    else:
        assert told["error_type"] == "UnsupportedOptionError"
        assert told["error_message"].endswith(f"for 10000 attempts ({remedy})")


def test_a_bound_task_can_be_called_directly(plain: Celery) -> None:
    """Without a job a retry raises the error that it was asked for."""

    @plain.task(bind=True)
    def fetch(self: Task) -> None:
        raise self.retry(exc=OSError("away"))

    assert fetch.request.called_directly
    with pytest.raises(OSError, match="away"):
        fetch()


# ---- before anything is moved -------------------------------------------------------------------

DECLARED = """
from celery import Celery
app = Celery("shop", broker="memory://", set_as_current=False)
@app.task(time_limit=60, shared=False)
def fine(): ...
@app.task(rate_limit="6/m", serializer="pickle", shared=False)
def odd(): ...
@app.task(acks_late=True, acks_on_failure_or_timeout=False, shared=False)
def late(): ...
"""


def test_a_report_says_what_each_task_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It imports what a worker would, and changes nothing; 1 if a task must be changed."""
    (tmp_path / "declared_shop.py").write_text(DECLARED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["declared_shop:app"]) == 1
    retries, dies = "  at most 3 retries, if it asks for them;", "if its process dies"
    differs = "a failed task is dead-lettered, not delivered again"
    assert capsys.readouterr().out.splitlines() == [
        "declared_shop.fine",
        f"{retries} 60 s per attempt; dead-lettered {dies}",
        "declared_shop.late",
        f"{retries} no time limit; run again {dies}",
        f"  differs: acks_on_failure_or_timeout=False: {differs}",
        "declared_shop.odd",
        f"{retries} no time limit; dead-lettered {dies}",
        "  change: rate_limit='6/m': give it a queue of its own with rate = 0.1",
        "  change: serializer='pickle': pass what JSON can hold, or an id",
        "3 tasks; 1 of them must be changed first",
    ]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "usage"),
        (["--help"], "usage"),
        (["no_such_module:app"], "cannot be imported"),
        (["json:dumps"], "no Celery application"),
    ],
)
def test_a_report_needs_an_application(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was named is told, with how to name one."""
    assert main(words) == 2
    assert reason in capsys.readouterr().err


def test_what_is_not_kept_is_warned_about_once(
    bridge: CeleryBridge, caplog: pytest.LogCaptureFixture
) -> None:
    """At the first call: an option that changes nothing here, and may be missed."""
    task = shop(bridge.celery_app, acks_late=True, acks_on_failure_or_timeout=False)
    task.delay(1)
    task.delay(2)
    assert [each.levelname for each in caplog.records if "runs as a job" in each.message] == [
        "WARNING"
    ]
