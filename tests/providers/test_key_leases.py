"""Who holds an idempotency key when clocks are set, processes stand still and stores are away."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.providerstore import ProviderStore
from ergon_framework.providers.errors import ERROR_OF
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.providers.runner import ProviderTaskRunner
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.synthetic import SyntheticProvider
from ergon_framework.providers.tasks import TaskCall, TaskEnd, TaskEnding, TaskGate
from tests.providers.scripted_tasks import (
    call,
    fingerprint_of,
    lock_as_another_process,
    on_another_machine,
)

pytestmark = [pytest.mark.req("PEF:A-16", "PEF:T-3"), pytest.mark.usefixtures("own_place", "clock")]

YEAR = 365 * 86_400.0
NOW = 1_800_000_000.0


class SetClock:
    """A clock that somebody sets."""

    def __init__(self) -> None:
        self.at = NOW

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def wall() -> SetClock:
    """The clock of the store."""
    return SetClock()


@pytest.fixture(params=["memory", "sqlite"])
def keys(request: pytest.FixtureRequest, tmp_path: Path, wall: SetClock) -> Iterator[ProviderStore]:
    """A store of each kind that goes by the clock of its machine."""
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'work.db'}"
    store = open_store(url, clock=wall)
    yield store
    store.close()


class Scripted(SyntheticProvider):
    """Does what it was given, at each attempt."""

    def __init__(self, work: Callable[[int], dict[str, Any]], **options: Any) -> None:
        super().__init__(**options)
        self.work = work
        self.made = 0

    def _execute_impl(self, **given: Any) -> dict[str, Any]:
        self.made += 1
        return self.work(self.made)


class AsyncScripted(Scripted):
    """The same on an event loop."""

    async def _execute_impl(self, **given: Any) -> dict[str, Any]:  # type: ignore[override]
        return super()._execute_impl(**given)


def run_of(provider: SyntheticProvider, **options: Any) -> ProviderTaskRunner:
    """A runner of that provider."""
    return ProviderTaskRunner(provider, task_name="t", **options)


def deliver(run: ProviderTaskRunner, message: TaskCall) -> TaskEnding:
    """In the colour of the provider."""
    if isinstance(run.provider, AsyncScripted):
        return asyncio.run(run.arun(message))
    return run.run(message)


@pytest.mark.parametrize("jump", [3600.0, 10 * YEAR, -3600.0, -10 * YEAR])
def test_a_clock_that_is_set_ends_no_lease_of_a_living_owner(
    jump: float, keys: ProviderStore, wall: SetClock
) -> None:
    """While its call is under way nobody else makes it, and the next one gets its result."""
    others: list[TaskEnding] = []

    def work(number: int) -> dict[str, Any]:
        wall.at += jump
        others.append(run.run(call(idempotency_key="k", call_id="message-2")))
        others.append(run.run(call(idempotency_key="k", is_redelivered=True)))
        return {"by": number}

    provider = Scripted(work, store=keys)
    run = run_of(provider)
    first = run.run(call(idempotency_key="k"))
    assert {(each.end, each.gate) for each in others} == {(TaskEnd.DEFER, TaskGate.DUPLICATE)}
    assert (first.end, provider.made) == (TaskEnd.DONE, 1)
    late = run.run(call(idempotency_key="k", call_id="message-2"))
    assert (late.end, late.result.data) == (TaskEnd.REPLAYED, {"by": 1})


@pytest.mark.parametrize("kind", [Scripted, AsyncScripted])
def test_an_overtaken_delivery_makes_no_further_attempt(
    kind: type[Scripted], keys: ProviderStore, wall: SetClock
) -> None:
    """Its machine slept for longer than the lease. ``time.monotonic`` stood still meanwhile, so
    that the deadline of the call is still ahead.
    """
    boot = SetClock()

    def work(_: int) -> dict[str, Any]:
        boot.at += 1000
        wall.at += 1000
        with on_another_machine():
            keys.claim("t", "k", fingerprint_of(run.provider), "other", 60.0, 6_000.0)
        raise ERROR_OF["timeout"]("no answer")

    provider = kind(work, store=keys, retry_policy=RetryPolicy(max_attempts=3))
    run = run_of(provider, boot_clock=boot)
    ending = deliver(run, call(idempotency_key="k"))
    assert provider.made == 1
    assert (ending.end, ending.gate, ending.letter) == (TaskEnd.DEFER, TaskGate.DUPLICATE, None)


@pytest.mark.parametrize("how", ["its lease ended", "it died"])
@pytest.mark.parametrize("reason", [None, "timeout"])
def test_a_call_whose_holder_vanished_says_that_its_outcome_is_unknown(
    how: str,
    reason: str | None,
    keys: ProviderStore,
    wall: SetClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In the result, in a notice, and in the dead letter if it is given up."""

    def work(_: int) -> dict[str, Any]:
        if reason is not None:
            raise ERROR_OF[reason]("no answer")
        return {}

    provider = Scripted(work, store=keys, retry_policy=RetryPolicy(max_attempts=1))
    run, message = run_of(provider), call(idempotency_key="k")
    fresh = run.run(call(idempotency_key="another", call_id="another"))
    assert not fresh.result.is_outcome_unknown_before
    assert "key.taken_over" not in caplog.text
    keys.claim("t", "k", fingerprint_of(provider), "gone", 90.0, 3600.0)
    if how == "it died":
        os.close(lock_as_another_process("t\nk\nmessage-1", "gone"))
        message = call(idempotency_key="k", is_redelivered=True)
    else:
        wall.at += 91
    ending = run.run(message)
    assert ending.result.is_outcome_unknown_before
    assert "key.taken_over" in caplog.text
    if reason is not None:
        assert ending.letter is not None
        assert "unknown outcome" in ending.letter.error_message


def test_an_outage_longer_than_the_lease_does_not_repeat_a_call_of_this_machine(
    tmp_path: Path, wall: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its success waits on disk, and whoever wants the key writes it first."""
    store = open_store(f"sqlite:///{tmp_path / 'work.db'}", clock=wall)

    def locked(*_: Any, **__: Any) -> bool:
        raise StoreUnavailableError("the database is locked")

    provider = Scripted(lambda number: {"paid": number}, store=store)
    run = run_of(provider)
    with monkeypatch.context() as outage:
        outage.setattr(store, "finish", locked)
        assert run.run(call(idempotency_key="k")).end is TaskEnd.DONE
        wall.at += run.lease_seconds + 1
        early = run.run(call(idempotency_key="k", call_id="message-2"))
        assert (early.end, early.gate) == (TaskEnd.DEFER, TaskGate.STORE)
    late = run.run(call(idempotency_key="k", call_id="message-2", carried=early.carried))
    assert (late.end, late.result.data) == (TaskEnd.REPLAYED, {"paid": 1})
    assert provider.made == 1
    store.close()
