"""The edge: every field of a job is checked, and each mistake is told by the field's name."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.errors import JobError
from ergon_framework.jobs.newjob import MAX_PAYLOAD, IdGenerator, new_id, new_job, spread
from ergon_framework.jobs.settings import (
    BackoffSettings,
    JobsSettings,
    QueueSettings,
    RetrySettings,
)
from ergon_framework.ports.job_fields import TEN_YEARS
from ergon_framework.ports.jobstore import NewJob, OnDuplicate

pytestmark = pytest.mark.req("JOBS:badinput")
NOW = 1_900_000_000.0
LONE = "\ud800"


def made(*args: Any, **options: Any) -> NewJob:
    """A job at a known time."""
    return new_job(*(args or ("h",)), **{"now": lambda: NOW, **options})


def refused(*args: Any, **options: Any) -> JobError:
    """Why such a job is refused."""
    with pytest.raises(JobError) as caught:
        made(*args, **options)
    assert caught.value.remedy
    return caught.value


# ---- what is accepted ----


def test_a_plain_job_leaves_everything_else_to_the_settings() -> None:
    """Only id, handler and arguments are set; the rest has the defaults of a NewJob."""
    job = made("resize", ["a.png"], {"width": 3})
    expected = NewJob(id=job.id, handler="resize", args=b'["a.png"]', kwargs=b'{"width":3}')
    assert job == expected


def test_every_option_reaches_its_field() -> None:
    """All that may be said about a job is stored."""
    job = made(
        "js#resize",
        id="my-id",
        queue="images",
        priority=-5,
        delay=3,
        expires_in=60,
        timeout=1.5,
        max_attempts=2,
        max_deliveries=9,
        retry={"on_timeout": "dead-letter"},
        unique="k",
        on_duplicate="replace",
        limit_key="customer",
        limit=2,
        result_ttl=0,
        correlation_id="c",
        trace_context={"traceparent": "00-1-2-3"},
        tags=["customer:42", "b", "customer:42"],
        metadata={"plan": "pro", "a": "b=c"},
    )
    assert job == NewJob(
        id="my-id",
        handler="js#resize",
        executor="js",
        queue="images",
        priority=-5,
        delay=3.0,
        expires_at=NOW + 60,
        timeout=1.5,
        max_attempts=2,
        max_deliveries=9,
        retry=b'{"on_timeout":"dead-letter"}',
        unique_key="k",
        on_duplicate=OnDuplicate.REPLACE,
        limit_key="customer",
        limit=2,
        result_ttl=0.0,
        correlation_id="c",
        trace_context={"traceparent": "00-1-2-3"},
        tags=("customer:42", "b"),
        metadata={"a": "b=c", "plan": "pro"},
    )


def test_options_that_are_none_are_left_out() -> None:
    """A caller may pass on its own unset options."""
    names = ("queue", "priority", "run_at", "unique", "retry", "timeout", "on_duplicate")
    job = made("h", **dict.fromkeys(names))
    assert job == NewJob(id=job.id, handler="h")


def test_a_unique_key_alone_answers_with_the_job_that_is_there() -> None:
    """Enqueuing twice must not be an error by default."""
    assert made("h", unique="k").on_duplicate is OnDuplicate.EXISTING


@pytest.mark.parametrize(
    ("handler", "executor"),
    [("x", ""), ("#x", ""), ("x#", "x"), ("a#b#c", "a"), ("дом#é 👩‍💻", "дом")],
)
def test_the_executor_is_what_stands_before_the_first_hash(handler: str, executor: str) -> None:
    """The handler itself is kept as it was written."""
    job = made(handler)
    assert (job.handler, job.executor) == (handler, executor)


@pytest.mark.parametrize(
    "run_at",
    [
        NOW + 60,
        datetime.fromtimestamp(NOW + 60, UTC),
        datetime.fromtimestamp(NOW + 60, timezone(timedelta(hours=5))),
        datetime.fromtimestamp(NOW + 60, UTC).isoformat(),
    ],
)
def test_a_due_time_may_be_a_number_a_datetime_or_text(run_at: Any) -> None:
    """All of them name the same instant."""
    assert made("h", run_at=run_at).run_at == NOW + 60


@pytest.mark.parametrize("late", [0.0, 1.0, 59.0])
def test_a_due_time_that_has_just_passed_means_now(late: float) -> None:
    """Clocks differ a little."""
    job = made("h", run_at=NOW - late)
    assert (job.run_at, job.delay) == (None, 0.0)


def test_a_retry_policy_may_be_a_document() -> None:
    """What is not set in it stays open."""
    policy = RetrySettings(backoff=BackoffSettings(base=1.0))
    stored = made("h", retry=policy).retry
    assert stored is not None
    assert RetrySettings.model_validate_json(stored) == policy


class Colour(StrEnum):
    RED = "red"


class Name(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("args", "stored"),
    [
        ([], b"[]"),
        ((), b"[]"),
        ([(1, [2, ()])], b"[[1,[2,[]]]]"),
        ([None, True, 1.5, "\u2028😀"], '[null,true,1.5,"\u2028😀"]'.encode()),
        ([10**30], b"[1000000000000000000000000000000]"),
        ([Colour.RED, Name("x")], b'["red","x"]'),
        ([{"a": {"b": None}}], b'[{"a":{"b":null}}]'),
    ],
)
def test_what_json_can_say_is_stored_as_it_is(args: Any, stored: bytes) -> None:
    """Tuples are lists in JSON; subclasses of text are text."""
    assert made("h", args).args == stored


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=20,
)


@given(st.lists(JSON))
def test_any_json_comes_back_as_it_went_in(args: list[Any]) -> None:
    """Nothing is changed on the way."""
    assert msgspec.json.decode(made("h", args).args) == args


# ---- what is refused ----


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (object(), "args[1] is of type object"),
        ({1, 2}, "args[1] is of type set"),
        (b"x", "args[1] is of type bytes"),
        (datetime.now(UTC), "args[1] is of type datetime"),
        (Decimal("1.5"), "args[1] is of type Decimal"),
        (float("nan"), "args[1] is nan"),
        (float("-inf"), "args[1] is -inf"),
        ({"a": [1, float("inf")]}, "args[1]['a'][1] is inf"),
        ({1: 2}, "args[1] has a key of type int"),
        ({"k": {None: 2}}, "args[1]['k'] has a key of type NoneType"),
        (lambda: 1, "args[1] is of type function"),
    ],
)
def test_what_json_cannot_say_is_refused_with_its_place(value: Any, told: str) -> None:
    """The encoder would turn some of these into another value without a word."""
    error = refused("h", [None, value])
    assert told in str(error)
    assert error.details["field"] == "args"


def test_named_arguments_are_checked_as_well() -> None:
    """The place is told from the name on."""
    assert "kwargs['when'] is of type datetime" in str(
        refused("h", (), {"when": datetime.now(UTC)})
    )
    assert "kwargs has a key of type int" in str(refused("h", (), {1: 2}))


@pytest.mark.parametrize("value", [[f"a{LONE}"], [{f"a{LONE}": 1}]])
def test_text_that_utf8_cannot_carry_is_refused(value: Any) -> None:
    """A lone surrogate comes from bytes that were decoded wrongly."""
    assert "lone surrogate" in str(refused("h", value))


def test_arguments_that_hold_themselves_or_nest_too_deeply_are_refused() -> None:
    """No recursion error reaches the caller."""
    loop: list[Any] = []
    loop.append(loop)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (loop, deep):
        assert "nested too deeply" in str(refused("h", value))


@pytest.mark.parametrize("args", ["text", 5, {"a": 1}, {1}, b"x"])
def test_positional_arguments_must_be_a_list(args: Any) -> None:
    """Text would otherwise be taken apart into letters."""
    assert "args must be a list" in str(refused("h", args))


@pytest.mark.parametrize("kwargs", [[], [("a", 1)], "a", 0])
def test_named_arguments_must_be_a_dict(kwargs: Any) -> None:
    """Also when they are empty."""
    assert "kwargs must be a dict" in str(refused("h", (), kwargs))


def test_the_payload_has_a_limit() -> None:
    """Both kinds of arguments count together; the limit itself is allowed."""
    fits = "x" * (MAX_PAYLOAD - len(b'[""]{}'))
    assert len(made("h", [fits]).args) == MAX_PAYLOAD - 2
    error = refused("h", [fits + "x"])
    assert "1,048,577 bytes" in str(error)
    assert error.details == {"field": "args", "size": MAX_PAYLOAD + 1, "limit": MAX_PAYLOAD}
    assert "the limit is 10" in str(refused("h", [1, 2, 3, 4, 5], max_payload=10))


@pytest.mark.parametrize(
    "field", ["handler", "queue", "id", "unique", "limit_key", "correlation_id"]
)
@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("", "is empty"),
        ("a\nb", r"control character '\n' at position 1"),
        ("a\x00", r"control character '\x00'"),
        ("\x85b", r"control character '\x85'"),
        ("a\u2028", r"control character '\u2028'"),
        (f"a{LONE}", r"control character '\ud800'"),
        ("é" * 256, "has 256 characters"),
        (7, "must be text, not int"),
        (["a"], "must be text, not list"),
    ],
)
def test_names_and_keys_are_short_printable_text(field: str, value: Any, told: str) -> None:
    """They end up in tables, logs and keys of other systems."""
    error = refused(value) if field == "handler" else refused("h", **{field: value})
    assert f"{field} " in str(error)
    assert told in str(error)


@pytest.mark.parametrize("field", ["handler", "queue"])
def test_names_have_no_blanks_around_them(field: str) -> None:
    """A queue with a blank behind its name is one that no worker takes."""
    error = refused("h ") if field == "handler" else refused("h", queue=" q")
    assert "blank" in str(error)


def test_ids_are_shorter_than_other_names() -> None:
    """The id of a job travels in many places."""
    assert made("h", id="x" * 200).id == "x" * 200
    assert "limit is 200" in str(refused("h", id="x" * 201))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"run_at": NOW - 61}, "run_at lies 61 seconds in the past"),
        ({"run_at": NOW + TEN_YEARS + 1}, "run_at lies more than ten years ahead"),
        ({"run_at": NOW * 1000}, "run_at lies more than ten years ahead"),
        ({"expires_at": NOW * 1000}, "expires_at lies more than ten years ahead"),
        (
            {"expires_at": datetime.max.replace(tzinfo=UTC)},
            "expires_at lies more than ten years ahead",
        ),
        ({"run_at": datetime(2031, 1, 1)}, "without a time zone"),  # noqa: DTZ001
        ({"run_at": "tomorrow"}, "run_at is no point in time"),
        ({"run_at": "2031-02-30T00:00:00Z"}, "there is no such day"),
        ({"run_at": True}, "run_at must be a number"),
        ({"run_at": float("nan")}, "run_at must be a finite number"),
        ({"run_at": NOW + 1, "delay": 1}, "run_at contradicts delay"),
        ({"delay": -0.1}, "delay is -0.1 seconds"),
        ({"delay": TEN_YEARS + 1}, "delay is"),
        ({"delay": 10**400}, "delay is too large"),
        ({"delay": "5"}, "delay must be a number, not str"),
        ({"expires_in": 0}, "expires_in is 0 seconds"),
        ({"expires_in": 5, "delay": 5}, "expires_at is before the job is due"),
        ({"expires_at": NOW - 1}, "expires_at is in the past"),
        ({"expires_at": NOW + 5, "run_at": NOW + 6}, "expires_at is before the job is due"),
        ({"expires_at": NOW + 5, "expires_in": 6}, "contradicts expires_in"),
        ({"timeout": 0}, "timeout is 0 seconds"),
        ({"timeout": -1}, "timeout is -1 seconds"),
        ({"timeout": 7 * 86_400 + 1}, "timeout is"),
        ({"timeout": float("inf")}, "timeout must be a finite number"),
        ({"priority": 1001}, "priority is 1001"),
        ({"priority": 1.0}, "priority must be a whole number"),
        ({"priority": True}, "priority must be a whole number"),
        ({"priority": 10**5000}, "priority is too large"),
        ({"max_attempts": 0}, "max_attempts is 0"),
        ({"max_deliveries": 0}, "max_deliveries is 0"),
        ({"retry": {"backof": {}}}, "did you mean 'backoff'?"),
        ({"retry": {"on_timeout": "panic"}}, "on_timeout must be 'retry' or 'dead-letter'"),
        ({"retry": 5}, "retry is wrong"),
        ({"on_duplicate": "reject"}, "on_duplicate says nothing without a unique key"),
        ({"unique": "k", "on_duplicate": "ignore"}, "is not one of reject, existing, replace"),
        ({"limit": 2}, "limit says nothing without a limit_key"),
        ({"limit": 0, "limit_key": "k"}, "limit is 0"),
        ({"result_ttl": -1}, "result_ttl is -1 seconds"),
        ({"trace_context": "x"}, "trace_context must be a dict"),
        ({"trace_context": {"a": 1}}, "trace_context must hold text under text"),
        ({"trace_context": {"a": "\n"}}, "trace_context holds a control character"),
        ({"trace_context": {"a": "x" * 20_000}}, "trace_context has more than"),
        ({"prioritty": 1}, "did you mean 'priority'?"),
        ({"zzz": 1}, "known are id, queue"),
    ],
)
def test_each_wrong_option_has_its_own_words(options: dict[str, Any], told: str) -> None:
    """The field is named, and so is the remedy."""
    assert told in str(refused("h", **options))


def test_no_value_of_an_argument_is_told() -> None:
    """Arguments may be secrets; errors are logged."""
    assert "hunter2" not in str(refused("h", [{"password": {"hunter2"}}]))


# ---- many at once ----


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("h", ("h", (), None, {"queue": "q"})),
        (("h",), ("h", (), None, {"queue": "q"})),
        (("h", [1]), ("h", [1], None, {"queue": "q"})),
        (["h", [1], {"a": 2}], ("h", [1], {"a": 2}, {"queue": "q"})),
        ({"handler": "h", "args": [1]}, ("h", [1], None, {"queue": "q"})),
        ({"handler": "h", "queue": "own", "id": "1"}, ("h", (), None, {"queue": "own", "id": "1"})),
    ],
)
def test_a_job_among_many_can_be_written_in_several_ways(spec: Any, expected: Any) -> None:
    """Its own options come before the common ones."""
    assert spread(spec, {"queue": "q"}) == expected


@pytest.mark.parametrize("spec", [5, (), ("h", [], {}, 4), None])
def test_what_describes_no_job_is_refused(spec: Any) -> None:
    """With the forms that would be one."""
    with pytest.raises(JobError, match="handler's name"):
        spread(spec, {})


# ---- ids ----


def test_ids_are_uuids_of_version_seven_in_order() -> None:
    """Text order is time order, so that an index grows at its end."""
    ids = [new_id() for _ in range(10_000)]
    assert ids == sorted(set(ids))
    assert {len(each) for each in ids} == {36}
    import uuid

    assert {(uuid.UUID(each).version, uuid.UUID(each).variant) for each in ids} == {
        (7, uuid.RFC_4122)
    }


@pytest.mark.parametrize(
    "clock", [lambda: 5_000_000_000, iter(range(10**10, 0, -1_000_000)).__next__]
)
def test_ids_grow_when_the_clock_stands_still_or_goes_back(clock: Callable[[], int]) -> None:
    """Also beyond what one millisecond's counter holds."""
    make = IdGenerator(clock)
    ids = [make() for _ in range(9_000)]
    assert ids == sorted(set(ids))


def test_ids_of_several_threads_are_all_different() -> None:
    """Nobody gets an id twice."""
    found: list[list[str]] = []

    def work() -> None:
        found.append([new_id() for _ in range(5_000)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({each for ids in found for each in ids}) == 20_000


@pytest.mark.slow
def test_a_forked_process_draws_its_own_random_part() -> None:
    """Otherwise parent and child would make the same ids in the same millisecond."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, new_id().encode())
        os._exit(0)
    os.waitpid(pid, 0)
    theirs = os.read(read, 100).decode()
    assert theirs[19:] != new_id()[19:]
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tags": "customer:42"}, "tags must be a list"),
        ({"tags": {"a": "b"}}, "tags must be a list"),
        ({"tags": 5}, "tags must be a list"),
        ({"tags": ["a", 5]}, "tags must be text"),
        ({"tags": [""]}, "tags is empty"),
        ({"tags": ["a=b"]}, "tags has an equals sign in 'a=b'"),
        ({"tags": ["a\nb"]}, "tags holds the control character"),
        ({"tags": ["x" * 101]}, "tags has 101 characters"),
        ({"tags": [str(n) for n in range(17)]}, "tags are 17"),
        ({"metadata": ["a"]}, "metadata must be a dict"),
        ({"metadata": {5: "a"}}, "metadata must be text"),
        ({"metadata": {"a=": "a"}}, "metadata has an equals sign"),
        ({"metadata": {"a": 5}}, r"metadata\['a'\] must be text"),
        ({"metadata": {"a": "x" * 256}}, r"metadata\['a'\] has 256 characters"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata has 17 names"),
    ],
)
def test_tags_are_few_and_short(options: dict[str, Any], told: str) -> None:
    """What could not be told apart in the index, or would make it large, is refused."""
    with pytest.raises(JobError, match=told):
        made(**options)


def test_no_tags_are_as_good_as_none() -> None:
    """A job with empty lists is stored as one that asks for nothing."""
    job = made("h", tags=[], metadata={})
    assert job == NewJob(id=job.id, handler="h")


@pytest.mark.parametrize("name", ["result_ttl", "failed_ttl", "cancelled_ttl"])
@pytest.mark.parametrize("kind", [JobsSettings, QueueSettings])
def test_settings_keep_jobs_for_ten_years_at_most(kind: type[Any], name: str) -> None:
    """An instant beyond the year 9999 could be written, and never be read."""
    assert getattr(kind(**{name: TEN_YEARS}), name) == TEN_YEARS
    with pytest.raises(ValueError, match=f"{name}.* must be at most 315619200"):
        kind(**{name: 1e12})


@pytest.mark.parametrize("name", ["base", "cap"])
def test_settings_put_a_retry_off_for_ten_years_at_most(name: str) -> None:
    """The next attempt would be due at an instant that nobody can read."""
    with pytest.raises(ValueError, match="must be at most 315619200"):
        BackoffSettings.model_validate({name: 1e12})
    for each in ("max_retry_after", "held_delay"):
        with pytest.raises(ValueError, match="must be at most 315619200"):
            JobsSettings.model_validate({each: 1e12})
