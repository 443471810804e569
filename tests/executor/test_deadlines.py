from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from ergon_framework.executor import Registry
from tests.executor.link import PATIENCE, SOON, Link, in_seconds, request
from tests.executor.registries import COLOURS, LIMITS, registry_of

pytestmark = pytest.mark.req("JOBS:executor", "EXEC:Scheduling")

PAST = "2020-01-01T00:00:00Z"


def deadlines() -> Iterator[float]:
    """Seconds to a deadline, each time more: one that passes before the handler begins is no use.

    Such a request is answered with timeout at once, on a busy machine more often than not.
    """
    seconds = SOON
    while seconds < PATIENCE:
        yield seconds
        seconds *= 2
    raise AssertionError("no handler began before its deadline")


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
    begun = threading.Event()

    @registry.handler
    async def hang() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    with Link(registry, cancel_grace=PATIENCE) as link:
        for seconds in deadlines():
            assert link.ask("hang", _deadline=in_seconds(seconds))["status"] == "timeout"
            if begun.is_set():
                break
        assert cleaned.is_set()
        assert link.ask("echo")["status"] == "success"


@pytest.mark.req("X5")
def test_a_plain_handler_is_given_up_at_its_deadline(capfd: pytest.CaptureFixture[str]) -> None:
    """Answered with timeout; what was taken is finished, the hooks run, and the process ends."""
    assert any(_is_plain_given_up(seconds) for seconds in deadlines())
    assert "does not stop at its deadline" in capfd.readouterr().err


def _is_plain_given_up(seconds: float) -> bool:
    """Whether the handler had begun when its deadline passed; if so, all must be as promised."""
    registry, gate, begun, seen = registry_of("sync"), threading.Event(), threading.Event(), []

    @registry.handler
    def hang() -> None:
        begun.set()
        gate.wait(PATIENCE)

    registry.on_shutdown(lambda: seen.append("down"))
    with Link(registry) as link:
        link.send(request("hang", _deadline=in_seconds(seconds)), request("echo", job_id="taken"))
        assert link.outcome()["status"] == "timeout"
        assert link.outcome()["job_id"] == "taken"
        if not begun.is_set():
            return False
        link.wait()  # although its input has not ended
        gate.set()
        assert seen == ["down"]
    return True


@pytest.mark.req("X5")
def test_an_async_handler_that_blocks_the_loop_is_given_up() -> None:
    """The supervisor answers in its place; the loop cannot."""
    assert any(_is_async_given_up(seconds) for seconds in deadlines())


def _is_async_given_up(seconds: float) -> bool:
    """Whether the handler had begun when it was answered for; if so, the process must end."""
    registry, gate, begun = Registry(), threading.Event(), threading.Event()

    @registry.handler
    async def hang() -> None:
        begun.set()
        gate.wait(PATIENCE)

    with Link(registry, cancel_grace=SOON) as link:
        status = link.ask("hang", _deadline=in_seconds(seconds))["status"]
        is_begun = begun.is_set()
        assert status == "timeout" or not is_begun
        gate.set()
        if is_begun:
            link.wait()  # although its input has not ended
    return is_begun


@pytest.mark.req("X5")
def test_a_request_whose_event_loop_another_one_blocks_is_parked() -> None:
    """It was never begun, so it is charged no attempt; nor is it begun when the loop goes on."""
    registry, gate, begun, ran = Registry(), threading.Event(), threading.Event(), []

    @registry.handler
    async def block() -> None:
        begun.set()
        gate.wait(PATIENCE)

    @registry.handler
    async def innocent() -> None:
        ran.append(1)

    @registry.handler
    def plain() -> None:
        """So that a thread reads the requests, and not the loop."""

    with Link(registry, 2, cancel_grace=SOON) as link:
        link.send(request("block", job_id="block", _deadline=in_seconds(PATIENCE)))
        assert begun.wait(PATIENCE)
        told = link.ask("innocent", job_id="innocent", _deadline=in_seconds(SOON))
        assert (told["job_id"], told["status"], told["error_type"]) == ("innocent", "retry", "held")
        assert "another handler blocked the event loop" in told["error_message"]
        gate.set()
        assert link.outcome()["job_id"] == "block"
        link.wait()  # a loop that is blocked is not trusted with more
    assert ran == []


def test_an_async_handler_that_ends_its_cancellation_well_has_succeeded() -> None:
    """What it returns is true, although late."""
    registry, begun = Registry(), threading.Event()

    @registry.handler
    async def stubborn() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done"
        return "never"

    with Link(registry, cancel_grace=PATIENCE) as link:
        for seconds in deadlines():
            told = link.ask("stubborn", _deadline=in_seconds(seconds))
            if begun.is_set():
                assert told["result"] == "done"
                break
