"""Unique jobs as users say it: keys of arguments and fields, options of handlers and calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ergon_framework import App, Registry
from ergon_framework.core.unique import UniqueRule
from ergon_framework.errors import DuplicateJobError, JobError
from ergon_framework.jobs import AsyncJobClient, JobClient, Search, Unique
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.unique import unique_option
from ergon_framework.testing.suites.drivers import HandClock

registry = Registry()


@registry.handler("report", unique=Unique(fields=["customer"], period=60))
def report(customer: int, month: str = "may", *, depth: int = 1) -> None:
    """A report."""


@registry.handler("plain")
def plain(customer: Any, order: Any = None) -> None:
    """Anything."""


@registry.handler("batched", batch=10)
def batched(units: list[dict[str, Any]]) -> None:
    """Many at once."""


@pytest.fixture
def clock() -> HandClock:
    """Set by hand."""
    return HandClock()


@pytest.fixture
def client(clock: HandClock) -> Iterator[JobClient]:
    """One that knows the handlers."""
    with JobClient(store=MemoryJobStore(clock), registry=registry) as opened:
        yield opened


@pytest.fixture
def stranger(client: JobClient) -> JobClient:
    """One that does not, on the same store."""
    return JobClient(store=client.store)


def key_of(client: JobClient, job_id: str) -> str:
    """The unique key of a job."""
    job = client.find(job_id)
    assert job.unique_key is not None
    return job.unique_key


# ---- keys ---------------------------------------------------------------------------------------


def test_the_same_arguments_are_the_same_however_they_are_given(client: JobClient) -> None:
    """By position or by name, where the handler is known."""
    first = client.enqueue("plain", [1, {"b": 2, "a": 1}], unique=Unique(by="args"))
    second = client.enqueue("plain", [1], {"order": {"a": 1, "b": 2}}, unique=Unique())
    third = client.enqueue("plain", [], {"order": {"b": 2, "a": 1}, "customer": 1}, unique={})
    assert (second, third, second.is_new, third.is_new) == (first, first, False, False)
    assert client.enqueue("plain", [2], unique=Unique(by="args")).is_new
    assert client.enqueue("plain", ["1"], unique=Unique(by="args")).is_new
    assert client.enqueue("report", [1], unique=Unique(by="args")).is_new, "another handler"


def test_a_client_without_the_handler_takes_calls_as_they_stand(
    client: JobClient, stranger: JobClient
) -> None:
    """Named arguments make the same key everywhere; those without a name are another call."""
    first = client.enqueue("plain", [1], unique=Unique(by="args"))
    assert stranger.enqueue("plain", [], {"customer": 1}, unique=Unique(by="args")) == first
    assert stranger.enqueue("plain", [1], unique=Unique(by="args")).is_new


def test_fields_are_taken_by_position_or_name(client: JobClient) -> None:
    """And what is not named does not matter."""
    unique = Unique(fields=["customer", "order.id"])
    first = client.enqueue("plain", [1, {"id": 5, "note": "a"}], unique=unique)
    second = client.enqueue(
        "plain", [], {"customer": 1, "order": {"id": 5, "note": "b"}}, unique=unique
    )
    assert second == first
    assert client.enqueue("plain", [1, {"id": 6}], unique=unique).is_new
    turned = Unique(fields=["order.id", "customer"])
    assert client.enqueue("plain", [1, {"id": 5}], unique=turned) == first, "in any order"


def test_a_field_that_is_left_to_its_default_is_one_value(client: JobClient) -> None:
    """Two calls without it are the same, and differ from one with it."""
    unique = Unique(fields=["customer", "month"])
    first = client.enqueue("report", [1], unique=unique)
    assert client.enqueue("report", [], {"customer": 1}, unique=unique) == first
    assert client.enqueue("report", [1, "june"], unique=unique).is_new


def test_the_unit_of_a_batch_handler_has_a_name(client: JobClient) -> None:
    """Fields of it are named as those of any argument."""
    unique = Unique(fields=["units.id"])
    first = client.enqueue("batched", [{"id": 1, "n": 1}], unique=unique)
    assert client.enqueue("batched", [{"id": 1, "n": 2}], unique=unique) == first


MISSING: list[tuple[list[Any], dict[str, Any], list[str], str, str]] = [
    ([1], {}, ["customer"], "arguments without names", "'customer' by name"),
    ([], {"client": 1}, ["customer"], "does not have", "by name"),
    ([], {"order": {"id": 1}}, ["order.key"], "does not have", "by name"),
    ([], {"order": 3}, ["order.id"], "does not have", "by name"),
]


@pytest.mark.parametrize(("args", "kwargs", "fields", "problem", "remedy"), MISSING)
def test_a_field_that_is_missing_is_refused(
    stranger: JobClient,
    args: list[Any],
    kwargs: dict[str, Any],
    fields: list[str],
    problem: str,
    remedy: str,
) -> None:
    """Taken for nothing, it would make all calls the same, and jobs would get lost."""
    with pytest.raises(JobError, match=problem) as told:
        stranger.enqueue("plain", args, kwargs, unique=Unique(fields=fields))
    assert remedy in told.value.remedy
    assert told.value.details["field"] == "unique"


def test_a_misspelt_field_of_a_known_handler_is_refused(client: JobClient) -> None:
    """It is no parameter, so that it has no default."""
    with pytest.raises(JobError, match="'custmer', which this call does not have"):
        client.enqueue("plain", [1], unique=Unique(fields=["custmer"]))


def test_a_key_is_short_whatever_the_arguments_are(client: JobClient) -> None:
    """It names the handler, and nothing that is in the arguments."""
    job = client.enqueue("plain", ["secret" * 10_000], unique=Unique(by="args"))
    key = key_of(client, job)
    assert key.startswith("plain:")
    assert len(key) == len("plain:") + 32
    assert "secret" not in key


def test_a_key_is_the_same_in_every_process() -> None:
    """It is stored, and programs of other versions must find it: this text may never change."""
    found = Unique(by="args").key_for("mail", [1, "é"], {"b": None, "a": [1.5, True]})
    assert found == "mail:92ed538e868eb9e912009e077f9f70ab"
    found = Unique(fields=["to.id"]).key_for("mail", [], {"to": {"id": 7}, "body": "x"})
    assert found == "mail:e15a147f2cc2d10b87550e0bb3d61061"


def test_one_job_of_a_handler(client: JobClient) -> None:
    """Whatever its arguments are."""
    first = client.enqueue("plain", [1], unique=Unique(by="handler"))
    assert client.enqueue("plain", [2], unique=Unique(by="handler")) == first
    assert client.enqueue("report", [2], unique=Unique(by="handler")).is_new


def test_a_key_of_ones_own_is_the_plain_one(client: JobClient) -> None:
    """With a period or without, it is the same key."""
    first = client.enqueue("plain", [1], unique="nightly")
    assert client.enqueue("plain", [2], unique=Unique(key="nightly", period=60)) == first


# ---- what may be said ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"by": "arguments"}, "not one of args, handler"),
        ({"by": "args", "key": "k"}, "both by and key"),
        ({"fields": ["a"], "key": "k"}, "both fields and key"),
        ({"fields": "customer"}, "fields is 'customer'"),
        ({"fields": ["a..b"]}, "has the field 'a..b'"),
        ({"fields": [""]}, "is empty"),
        ({"fields": [3]}, "must be text"),
        ({"fields": [f"f{n}" for n in range(51)]}, "has 51 fields"),
        ({"key": ""}, "is empty"),
        ({"period": 0}, "has the period 0"),
        ({"period": -1.5}, "has the period -1.5"),
        ({"period": float("nan")}, "has the period nan"),
        ({"period": float("inf")}, "has the period inf"),
        ({"period": True}, "has the period True"),
        ({"period": "60"}, "has the period '60'"),
        ({"period": 4e8}, "has the period 400000000.0"),
        ({"states": ["running"]}, "has the state 'running'"),
        ({"states": ["active"]}, "but not pending ones"),
        ({"states": ["pending", "completed"], "period": 9}, "but not active ones"),
        ({"states": ["pending", "active", "completed"]}, "without a period"),
        ({"states": "pending", "period": 9}, "counts no job that has ended"),
        ({"states": ["pending", "active"], "period": 9}, "counts no job that has ended"),
        ({"until": 9}, "has no 'until'"),
        (["customer"], "must be text, not .*, or a Unique"),
        (3, "must be text, not .*, or a Unique"),
    ],
)
def test_what_makes_no_sense_is_refused(said: Any, problem: str) -> None:
    """Where it is written, with the name of the option and what to write instead."""
    with pytest.raises(JobError, match=problem) as told:
        unique_option(said)
    assert told.value.remedy
    assert told.value.details["field"] == "unique"


def test_what_is_left_out_is_filled_in() -> None:
    """With a period, completed jobs count; without, only those that have not ended."""
    assert Unique(period=60).rule == UniqueRule(("pending", "active", "completed"), 60.0)
    assert Unique(period=timedelta(minutes=2)).period == 120.0
    assert Unique().rule is None
    assert Unique(states=["active", "pending"]).rule is None
    assert Unique(states="pending").rule == UniqueRule()
    counted = Unique(period=9, states=["failed", "completed", "pending", "active"])
    assert counted.rule == UniqueRule(("pending", "active", "completed", "failed"), 9.0)


def test_a_wrong_rule_of_a_handler_is_told_where_it_is_declared() -> None:
    """Not by the first call."""
    with pytest.raises(JobError, match="the handler 'wrong': unique has the state 'done'"):
        Registry().add(plain, "wrong", unique={"states": ["done"]})


# ---- handlers, calls, flows ---------------------------------------------------------------------


def test_the_rule_of_a_handler_holds_for_each_call(client: JobClient, clock: HandClock) -> None:
    """At most one report of a customer in a minute, though nobody waits for it."""
    first = client.enqueue("report", [7])
    assert client.enqueue("report", [7, "june"]) == first
    assert client.enqueue("report", [8]).is_new
    clock.forward(61.0)
    client.cancel(first)
    assert client.enqueue("report", [7]).is_new


def test_a_call_says_otherwise(client: JobClient) -> None:
    """What a call says takes the place of all that its handler says."""
    client.enqueue("report", [7])
    free = client.enqueue("report", [7], unique=False)
    assert free.is_new
    assert client.find(free).unique_key is None
    other = client.enqueue("report", [7], unique=Unique(by="args"))
    assert client.find(other).unique is None
    with pytest.raises(DuplicateJobError):
        client.enqueue("report", [7], on_duplicate="reject")


def test_many_at_once_have_keys_of_their_own(client: JobClient) -> None:
    """Duplicates within one batch are answered with the first."""
    found = client.enqueue_many([("report", [n % 3]) for n in range(9)])
    assert [each.is_new for each in found] == [True] * 3 + [False] * 6
    assert len(set(found)) == 3


def test_a_step_of_a_flow_is_no_duplicate(client: JobClient) -> None:
    """A flow waits for each of its steps: none of them may be answered with another job."""
    client.enqueue("report", [7])
    flow = client.group([("report", [7]), ("report", [7])]).enqueue()
    assert len(list(client.jobs(Search(flow=flow)))) == 2


def test_a_handler_of_an_app_binds_its_arguments() -> None:
    """With and without names, alone, many at once, and from an event loop."""
    app = App("memory://", name="unique")

    @app.job(unique=Unique(fields=["customer"], states="pending"), on_duplicate="extend", delay=5)
    def reindex(customer: int, reason: str = "") -> None:
        """Debounced."""

    first = reindex.enqueue(1, "a")
    assert reindex.enqueue(customer=1, reason="b") == first
    many = reindex.enqueue_many([(1, "c"), {"customer": 2}, (2, "d")])
    assert [each.is_new for each in many] == [False, True, False]
    assert many[0] == first
    spec = reindex.spec(1, "e")
    assert app.client.enqueue_many([spec]) == [first]
    assert json.loads(app.client.find(first).args) == [1, "e"]
    assert reindex.options(unique=False, on_duplicate=None).enqueue(1).is_new

    async def later() -> str:
        return await reindex.aenqueue(1, "f")

    assert asyncio.run(later()) == first
    app.chain(reindex.step(1).without_result(), reindex.step(1).without_result()).enqueue()
    app.close()


def test_an_async_client_does_the_same(tmp_path: Path) -> None:
    """Its options are those of the other."""

    async def main() -> None:
        async with AsyncJobClient(f"sqlite:///{tmp_path / 'jobs.db'}", registry=registry) as client:
            first = await client.enqueue("report", [7])
            again = await client.enqueue("report", [], {"customer": 7})
            assert (again, again.is_new) == (first, False)

    asyncio.run(main())


def test_jobs_in_no_state_are_refused() -> None:
    """Two jobs would never be the same."""
    with pytest.raises(JobError, match="counts jobs in no state"):
        Unique(states=[])


def test_no_fields_are_refused() -> None:
    """A computed list that is empty would make all jobs of a handler the same, and drop work."""
    with pytest.raises(JobError, match="names no fields"):
        Unique(fields=[])
