"""Options that stand at a handler, in short words, and calls that are checked when enqueued."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from typing import Any

import msgspec
import pytest

from ergon_framework import App
from ergon_framework.errors import JobError
from ergon_framework.executor import HandlerNotFoundError, InvalidArgumentsError, Registry
from ergon_framework.jobs.async_client import AsyncJobClient
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.newjob import job_options, new_job
from ergon_framework.jobs.settings import BackoffSettings, RetrySettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.jobstore import Job, NewJob, Search
from tests.executor.link import Link

pytestmark = pytest.mark.req("JOBS:client")


@dataclass
class Address:
    name: str
    since: date


def registry_of_two() -> Registry:
    """A handler with options, and one without."""
    registry = Registry()

    @registry.handler("resize", attempts=5, timeout=30, backoff=1.0, queue="slow")
    def resize(path: str, *, width: int = 100) -> str:
        return f"{path} {width}"

    @registry.handler
    def greet(to: Address) -> str:
        return to.name

    return registry


@pytest.fixture
def client() -> JobClient:
    """A client that knows the handlers."""
    return JobClient(store=MemoryJobStore(), registry=registry_of_two())


def retry_of(job: NewJob) -> Any:
    """The policy of a job, as it is stored."""
    return msgspec.json.decode(job.retry or b"null")


# ---- the words ----------------------------------------------------------------------------------


def test_short_words_stand_for_long_ones() -> None:
    """A number is the base of the backoff; exceptions are told by their names."""
    found = job_options(
        {"attempts": 5, "backoff": 1, "give_up_on": [KeyError, "Odd"], "retry_on": OSError}
    )
    retry = {"backoff": {"base": 1}, "give_up_on": ["KeyError", "Odd"], "retry_on": ["OSError"]}
    assert found == {"max_attempts": 5, "retry": retry}


def test_a_later_word_wins_and_none_says_nothing() -> None:
    """Parts of the policy are changed one by one; a whole policy takes the place of all."""
    own = {"attempts": 5, "backoff": 1.0, "queue": "slow"}
    changed = job_options(own, {"max_attempts": 2, "give_up_on": "Odd", "queue": None})
    retry = {"backoff": {"base": 1.0}, "give_up_on": ["Odd"]}
    assert changed == {"max_attempts": 2, "queue": "slow", "retry": retry}
    policy = RetrySettings(on_timeout="dead-letter")
    assert job_options(own, {"retry": policy})["retry"] is policy
    parts = job_options({"retry": policy}, {"backoff": {"base": 2, "cap": 9}})["retry"]
    assert parts == {"on_timeout": "dead-letter", "backoff": {"base": 2, "cap": 9}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attempts": 2, "max_attempts": 3}, "attempts contradicts max_attempts"),
        ({"backoff": 2, "retry": {}}, "backoff contradicts retry"),
        ({"give_up_on": 3}, "give_up_on names no exceptions"),
        ({"retry_on": [int]}, "retry_on names no exceptions"),
    ],
)
def test_words_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    """With the name of the field."""
    with pytest.raises(JobError, match=message) as caught:
        job_options(options)
    assert caught.value.details["field"] in options
    assert caught.value.remedy


def test_an_option_that_a_handler_cannot_have_is_refused_where_it_stands() -> None:
    """A slip of the pen, and what belongs to one job alone."""
    registry = Registry()
    with pytest.raises(JobError, match=r"has no option 'attemps'.*did you mean 'attempts'"):
        registry.handler("resize", attemps=5)(print)  # type: ignore[call-overload]
    with pytest.raises(JobError, match="id of the handler 'resize' would be that of all its jobs"):
        registry.add(print, "resize", id="1")
    assert registry.names == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"timeout": -1}, "timeout is -1 seconds"),
        ({"attempts": 0}, "attempts is 0 .give a number from 1 to 10000"),
        ({"attempts": "3"}, "attempts must be a whole number, not str"),
        ({"queue": ""}, "queue is empty"),
        ({"limit_key": 5}, "limit_key must be text, not int"),
        ({"result_ttl": float("inf")}, "result_ttl must be a finite number"),
        ({"backoff": 10**400}, "backoff is a number of seconds from 0 on, not a number of more"),
        ({"backoff": {"bas": 1}}, r"retry is wrong.*unknown key 'bas'.* base, multiplier"),
        ({"backoff": {"base": -1}}, "retry is wrong: backoff is refused: base must be a number"),
        ({"retry": {"on_error": "panic"}}, "on_error must be 'retry' or 'dead-letter'"),
        ({"retry": {"give_up_on": "Odd"}}, "give_up_on must be a list of names"),
        ({"retry": {"tries": 3}}, "retry is wrong: unknown key 'tries'"),
        ({"retry": 3}, "retry must be a mapping, not int"),
    ],
)
def test_wrong_values_are_refused_where_the_handler_is_declared(
    options: dict[str, Any], told: str
) -> None:
    """By the registry, by an App, and by options for some of its jobs; the handler is named."""
    app: Any = App("memory://")
    registry = Registry()
    fine = app.job(print)
    ways: list[Callable[[], object]] = [
        lambda: registry.add(print, "print", **options),
        lambda: app.job("other", **options)(print),
        lambda: app.schedule("@daily", **options)(fine),
        lambda: fine.options(**options),
    ]
    for declare in ways:
        with pytest.raises(JobError, match=rf"the handler '(print|other)': .*{told}"):
            declare()
    assert registry.names == []


def test_a_handler_refuses_the_retry_policies_that_a_job_refuses() -> None:
    """Two tables of bounds that agree: without pydantic, and with it."""
    values: list[Any] = [None, -1, 0, 0.5, 1, 2, float("nan"), "retry", "x", ["Odd"], [5], {}]
    fields = RetrySettings.model_fields
    tables: list[dict[str, Any]] = [{name: value} for name in fields for value in values]
    backoffs = [{name: value} for name in BackoffSettings.model_fields for value in values]
    for table in [*tables, *({"backoff": each} for each in backoffs)]:
        at_handler = _is_refused(partial(Registry().add, print, retry=table))
        assert at_handler == _is_refused(partial(new_job, "h", retry=table)), table


def _is_refused(declare: Callable[[], object]) -> bool:
    try:
        declare()
    except JobError:
        return True
    return False


@pytest.mark.parametrize("name", ["plain", "asynchronous", "many"])
def test_an_exception_that_derives_from_one_that_is_given_up_on_is_final_too(name: str) -> None:
    """The executor tells the name that the job's policy has."""
    registry = Registry()

    def plain() -> None:
        raise KeyError("x")

    async def asynchronous() -> None:
        raise KeyError("x")

    def many(units: list[int]) -> list[Exception]:
        return [KeyError("x") for _ in units]

    registry.add(plain, give_up_on=[LookupError, "Odd"])
    registry.add(asynchronous, give_up_on=LookupError)
    registry.add(many, give_up_on=LookupError, batch=2)
    arguments = [1] if name == "many" else []
    with Link(registry) as link:
        assert link.ask(name, *arguments)["error_type"] == "LookupError"
    job = JobClient(store=MemoryJobStore(), registry=registry).job(name, arguments)
    assert "LookupError" in retry_of(job)["give_up_on"]


# ---- enqueuing ----------------------------------------------------------------------------------


def test_a_job_has_the_options_of_its_handler(client: JobClient) -> None:
    """Those of a call win, in short and in long words."""
    job = client.job("resize", ["a.png"])
    assert (job.max_attempts, job.timeout, job.queue) == (5, 30, "slow")
    assert retry_of(job)["backoff"]["base"] == 1
    other = client.job("python#resize", ["a.png"], attempts=1, queue="fast", give_up_on=[OSError])
    assert (other.max_attempts, other.timeout, other.queue) == (1, 30, "fast")
    assert retry_of(other)["give_up_on"] == ["OSError"]
    assert retry_of(other)["backoff"]["base"] == 1
    plain = client.job("greet", [Address("Ada", date(2030, 1, 1))])
    assert (plain.max_attempts, plain.retry, plain.queue) == (None, None, "default")


def test_short_words_need_no_registry() -> None:
    """Any client takes them."""
    job = JobClient(store=MemoryJobStore()).job("any", attempts=3, backoff=0)
    assert job.max_attempts == 3
    assert retry_of(job)["backoff"]["base"] == 0


def test_arguments_travel_as_the_handler_takes_them(client: JobClient) -> None:
    """Dataclasses and dates become JSON."""
    job = client.job("greet", [Address("Ada", date(2030, 1, 1))])
    assert msgspec.json.decode(job.args) == [{"name": "Ada", "since": "2030-01-01"}]


@pytest.mark.parametrize(
    ("handler", "args", "kwargs", "error", "told"),
    [
        ("resise", ["a"], {}, HandlerNotFoundError, "did you mean 'resize'"),
        ("resize", [], {}, InvalidArgumentsError, "'path' is missing.*resize\\(path"),
        ("resize", ["a"], {"wdth": 3}, InvalidArgumentsError, "no argument 'wdth'"),
        ("resize", ["a"], {"width": "wide"}, InvalidArgumentsError, "'width'.*int"),
        ("python#resize", [1], {}, InvalidArgumentsError, "'path'.*str"),
        ("greet", [object()], {}, InvalidArgumentsError, "cannot be written as JSON"),
        ("greet", [{"name": "Ada"}], {}, InvalidArgumentsError, "'to'.*since"),
    ],
)
def test_a_call_that_its_handler_could_not_take_is_not_stored(
    handler: str, args: list[Any], kwargs: dict[str, Any], error: type[Exception], told: str
) -> None:
    """Neither alone nor among others; the error says what would be right."""
    store = MemoryJobStore()
    client = JobClient(store=store, registry=registry_of_two())
    with pytest.raises(error, match=told):
        client.enqueue(handler, args, kwargs)
    with pytest.raises(error, match=told):
        client.enqueue_many([("resize", ["fine"]), (handler, args, kwargs)])
    assert store.count(Search()) == 0


def test_handlers_of_other_executors_are_left_to_them(client: JobClient) -> None:
    """A name with an executor may stand in another registry, or be written in another language."""
    assert client.job("node#thumbnail", [{"any": 1}]).executor == "node"


def test_the_async_client_checks_as_well() -> None:
    """With the same registry, before anything is stored."""
    store = MemoryJobStore()

    async def enqueue() -> Job:
        async with AsyncJobClient(store=store, registry=registry_of_two()) as client:
            with pytest.raises(InvalidArgumentsError):
                await client.enqueue("resize", [datetime.now(UTC), "too many"])
            assert store.count(Search()) == 0
            return await client.find(await client.enqueue("resize", ["a.png"], attempts=2))

    found = asyncio.run(enqueue())
    assert (found.max_attempts, found.queue) == (2, "slow")


@pytest.mark.parametrize("handler", [None, 7, b"crop", ["crop"], {}])
def test_a_name_that_is_no_text_is_refused_before_it_is_looked_up(handler: Any) -> None:
    """The error names the field, as it does without handlers."""
    registry = Registry()
    registry.add(lambda: None, name="crop")
    client = JobClient(store=MemoryJobStore(), registry=registry)
    with pytest.raises(JobError, match="handler must be text"):
        client.enqueue(handler)
    with pytest.raises(JobError, match="handler must be text"):
        client.enqueue_many([{"handler": handler}])
    assert client.count() == 0
