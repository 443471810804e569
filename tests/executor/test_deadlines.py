from __future__ import annotations

import asyncio
import threading

import pytest

from ergon_framework.executor import Registry
from ergon_framework.executor import runtime as module
from tests.executor.link import PATIENCE, SOON, Link, in_seconds, request
from tests.executor.registries import COLOURS, LIMITS, registry_of

pytestmark = pytest.mark.req("JOBS:executor", "EXEC:Scheduling")

PAST = "2020-01-01T00:00:00Z"


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.req("X5")
def test_a_request_past_its_deadline_is_not_begun(colour: str, limit: int) -> None:
    """It is answered with timeout, and the executor goes on."""
    registry, ran = registry_of(colour), []
    if colour == "async":

        async def work() -> None:
            ran.append(1)
    else:

        def work() -> None:  # type: ignore[misc]
            ran.append(1)

    registry.add(work, "work")
    with Link(registry, limit) as link:
        for _ in range(20):
            told = link.ask("work", _deadline=PAST)
            assert (told["status"], told["result"]) == ("timeout", None)
            assert link.ask("echo")["status"] == "success"
    assert not ran


@pytest.mark.req("X5")
def test_an_async_handler_is_cancelled_at_its_deadline() -> None:
    """It may clean up; the executor goes on."""
    registry, cleaned = registry_of("async"), threading.Event()

    @registry.handler
    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    with Link(registry) as link:
        assert link.ask("hang", _deadline=in_seconds(SOON))["status"] == "timeout"
        assert cleaned.is_set()
        assert link.ask("echo")["status"] == "success"


@pytest.mark.req("X5")
def test_a_plain_handler_is_given_up_at_its_deadline(capfd: pytest.CaptureFixture[str]) -> None:
    """Answered with timeout; what was taken is finished, the hooks run, and the process ends."""
    registry, gate, seen = registry_of("sync"), threading.Event(), []
    registry.add(lambda: gate.wait(PATIENCE) and None, "hang")
    registry.on_shutdown(lambda: seen.append("down"))
    with Link(registry) as link:
        link.send(request("hang", _deadline=in_seconds(SOON)), request("echo", job_id="taken"))
        assert link.outcome()["status"] == "timeout"
        assert link.outcome()["job_id"] == "taken"
        link.wait()
        gate.set()
        assert seen == ["down"]
    assert "does not stop at its deadline" in capfd.readouterr().err


@pytest.mark.req("X5")
def test_an_async_handler_that_blocks_the_loop_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The supervisor answers in its place; the loop cannot."""
    monkeypatch.setattr(module, "CANCEL_GRACE", SOON)
    registry, gate = Registry(), threading.Event()

    @registry.handler
    async def hang() -> None:
        gate.wait(PATIENCE)

    with Link(registry) as link:
        assert link.ask("hang", _deadline=in_seconds(SOON))["status"] == "timeout"
        gate.set()
        link.wait()


def test_an_async_handler_that_ends_its_cancellation_well_has_succeeded() -> None:
    """What it returns is true, although late."""
    registry = Registry()

    @registry.handler
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done"
        return "never"

    with Link(registry) as link:
        assert link.ask("stubborn", _deadline=in_seconds(SOON))["result"] == "done"
