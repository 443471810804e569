"""Flows as programs write them: chains, groups, signals, and what commands say about them."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ergon_framework import App
from ergon_framework.cli import invoke
from ergon_framework.core.flow import CancelFlow
from ergon_framework.errors import (
    JobError,
    JobFailedError,
    JobNotFoundError,
    JobStateError,
    ResultTimeoutError,
    StoreReadOnlyError,
)
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.flow_client import flows_of
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.jobstore import Search
from ergon_framework.ports.notice import Notice
from ergon_framework.telemetry import add_listener, remove_listener

pytestmark = pytest.mark.req("JOBS:store")


class FlowApp:
    """An App on a store, with a few handlers."""

    def __init__(self, path: Path, url: str = "") -> None:
        self.path = path / "work.db"
        self.url = url or f"sqlite:///{self.path}"
        self.app = App(self.url)
        self.is_up = False
        self.add = self.app.job("add")(_add)
        self.total = self.app.job("total")(_total)
        self.shaky = self.app.job("shaky", attempts=1)(self._shaky)

    def _shaky(self, number: int = 0) -> int:
        if not self.is_up:
            raise ConnectionError("it is away")
        return number + 100


def _add(first: int, second: int = 1) -> int:
    return first + second


def _total(numbers: list[int | None]) -> int:
    return sum(each or 0 for each in numbers)


@pytest.fixture
def flow_app(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FlowApp]:
    """One on a fresh file, or on the server that the test names."""
    server = getattr(request, "param", "")
    made = FlowApp(tmp_path, request.getfixturevalue(f"{server}_url") if server else "")
    yield made
    made.app.close()


on_every_store = pytest.mark.parametrize("flow_app", ["", "redis"], indirect=True)


@on_every_store
def test_results_are_handed_on(flow_app: FlowApp) -> None:
    """Through chains and groups in each other, and by name."""
    app, add, total = flow_app.app, flow_app.add, flow_app.total
    one = add.step(1)
    flow = app.chain(
        one,
        add.step(10),
        app.group([app.chain(add.step(), add.step()), add.step(5)], then=total.step()),
        app.group([add.step(one.result), flow_app.shaky.step().without_result()]),
    )
    with pytest.raises(JobError, match="stands in a flow twice"):
        app.chain(one, one).enqueue()
    enqueued = flow.enqueue()
    app.drain()
    statuses = [job.status.value for job in enqueued.steps()]
    assert statuses == ["completed"] * 7 + ["failed"]
    assert [job.result for job in enqueued.steps()][:7] == [
        *(b"2", b"12", b"13", b"14", b"17", b"31", b"33")
    ]
    with pytest.raises(JobFailedError, match=r"failed in .*shaky: it is away") as caught:
        enqueued.result(1)
    assert f"ergon why {enqueued} --store " in caught.value.remedy


@on_every_store
def test_a_flow_returns_what_its_last_part_returned(flow_app: FlowApp) -> None:
    """One value, or the values of a group, also none; by keyword as well."""
    app, add = flow_app.app, flow_app.add
    many = app.group([add.step(n) for n in range(20)]).enqueue()
    empty = app.group([], then=flow_app.total.step()).enqueue()
    first = add.step(3)
    named = app.group([first, add.step(1, second=first.result)]).enqueue()
    loop = app.chain(add.step(1), add.step())
    app.drain()
    assert many.result(1) == list(range(1, 21))
    assert (empty.result(1), named.result(1)) == (0, [4, 5])

    async def enqueued() -> Any:
        flow = await loop.aenqueue()
        await asyncio.to_thread(app.drain)
        return await flow.status(), await flow.result(1)

    assert asyncio.run(enqueued()) == ("completed", 3)


def test_a_flow_in_the_callers_transaction(flow_app: FlowApp) -> None:
    """It is there when that is committed, and never when it is rolled back."""
    flow_app.app.client.store.now()
    for is_kept in (False, True):
        connection = sqlite3.connect(flow_app.path, isolation_level=None)
        connection.execute("BEGIN")
        flow = flow_app.app.chain(flow_app.add.step(1), flow_app.add.step()).enqueue(
            connection=connection
        )
        connection.execute("COMMIT" if is_kept else "ROLLBACK")
        connection.close()
        flow_app.app.drain()
        if is_kept:
            assert flow.result(1) == 3
        else:
            with pytest.raises(JobNotFoundError, match="there is no flow"):
                flow.status()


def test_mistakes_are_told_before_anything_is_stored(flow_app: FlowApp) -> None:
    """Each with what to do about it."""
    app, add = flow_app.app, flow_app.add
    other = add.step(1)
    mistakes: dict[str, Callable[[], Any]] = {
        "does not come before": lambda: app.chain(add.step(other.result), other),
        "has no steps": app.chain,
        "of its own": lambda: app.chain(app.chain(add.step(1), name="inner")),
        "id cannot be given": lambda: app.client.chain({"handler": "add", "id": "x"}),
        "is not one of cancel, continue, hold": lambda: app.chain(add.step(1), on_failure="stop"),
        "must be .*int|'first'": lambda: app.chain(add.step("x")),  # type: ignore[call-overload]
    }
    for words, make in mistakes.items():
        with pytest.raises(JobError, match=words):
            make().enqueue()
    with pytest.raises(JobError, match="says nothing without after"):
        app.client.enqueue("add", [1], on_failure="hold")
    assert app.client.store.count(_everything()) == 0


def _everything() -> Any:
    from ergon_framework.ports.jobstore import Search

    return Search()


def test_a_store_without_flows_says_so() -> None:
    """With what to use instead."""

    class Plain(MemoryJobStore):
        flows = None  # type: ignore[assignment]

    with JobClient(store=Plain()) as client, pytest.raises(JobError, match="keeps no flows"):
        client.chain("a", "b").enqueue()


def ergon(flow_app: FlowApp, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command prints."""
    store = () if words[0] == "db" else ("--store", flow_app.url)
    code = invoke([*words, *store])
    told = capsys.readouterr()
    return told.out if code == 0 else f"{code} {told.err}"


@on_every_store
def test_commands_show_decide_and_explain(
    flow_app: FlowApp, capsys: pytest.CaptureFixture[str]
) -> None:
    """A held flow: what it waits for, in words, and each command that is told works."""
    app = flow_app.app
    flow = app.chain(
        app.group([flow_app.shaky.step(), flow_app.add.step(1)]),
        flow_app.total.step(),
        app.wait_for_signal("approved"),
        flow_app.add.step(),
        name="order",
        on_failure="hold",
    ).enqueue()
    app.drain()
    listed = json.loads(ergon(flow_app, capsys, "flows", "--json"))
    assert [(each["name"], each["status"], each["failed"]) for each in listed] == [
        ("order", "held", 1)
    ]
    why = ergon(flow_app, capsys, "why", flow)
    assert "1 of 5 steps completed, 1 failed" in why
    assert "ConnectionError: it is away" in why
    assert f"ergon flows skip {flow}" in why
    step = ergon(flow_app, capsys, "why", f"{flow}.3")
    assert "It waits for 1 step before it." in step
    assert f"Step {flow}.1" in step
    tree = ergon(flow_app, capsys, "flows", "show", flow)
    assert re.search(r"chain\n  group\n    \S*shaky  failed", tree)
    refused = ergon(flow_app, capsys, "jobs", "retry", f"{flow}.3")
    assert refused.startswith("1 error: the job")
    assert "waits for other steps" in refused
    flow_app.is_up = True
    assert "running" in ergon(flow_app, capsys, "flows", "retry", flow)
    app.drain()
    assert "ergon flows signal" in ergon(flow_app, capsys, "why", flow)
    assert "no step of the flow" in ergon(flow_app, capsys, "flows", "signal", flow, "other")
    with pytest.raises(ResultTimeoutError, match="still running"):
        flow.result(0.0)
    ergon(flow_app, capsys, "flows", "signal", flow, "approved", "41")
    app.drain()
    assert flow.result(1) == 42
    assert "cannot be cancelled" in ergon(flow_app, capsys, "flows", "cancel", flow)
    shown = json.loads(ergon(flow_app, capsys, "jobs", "show", f"{flow}.1", "--json"))
    assert shown["flow_id"] == flow


def test_who_listens_hears_of_flows_that_fail_or_are_held(flow_app: FlowApp) -> None:
    """With the step that did it; a flow that goes on, or completes, is no news."""
    heard: list[tuple[str, Any, Any]] = []

    def listen(notice: Notice) -> None:
        if notice.name.startswith("flow."):
            heard.append((notice.name, notice["flow"], notice["job_id"]))

    steps = flow_app.shaky.step, flow_app.add.step
    add_listener(listen)
    try:
        made = {
            policy: flow_app.app.chain(*(step() for step in steps), name=policy, on_failure=policy)
            for policy in ("hold", "cancel", "continue")
        }
        flows = {policy: draft.enqueue() for policy, draft in made.items()}
        flow_app.app.drain()
    finally:
        remove_listener(listen)
    assert heard == [
        ("flow.held", "hold", f"{flows['hold']}.1"),
        ("flow.failed", "cancel", f"{flows['cancel']}.1"),
    ]


@on_every_store
def test_a_signal_that_comes_too_late_is_refused(
    flow_app: FlowApp, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where no worker has come to its step, which fails; and a drain ends such a step."""
    app = flow_app.app
    gate = app.wait_for_signal("approved", timeout=0.05)
    signalled, drained = (app.chain(gate, flow_app.add.step()).enqueue() for _ in range(2))
    time.sleep(0.1)
    assert "and the time limit is over since" in ergon(flow_app, capsys, "why", signalled)
    with pytest.raises(JobStateError, match="'approved' came too late") as caught:
        signalled.signal("approved", 1)
    assert f"ergon why {signalled}" in caught.value.remedy
    assert (signalled.status(), drained.status()) == ("failed", "running")
    app.drain()
    assert drained.status() == "failed"
    step = ergon(flow_app, capsys, "why", f"{drained}.1")
    assert "The signal 'approved' did not come within its time limit." in step


@pytest.mark.parametrize("typed", ['{"ok": tru}', "[1, 2", '"by Ada', '{"ok": 1, "ok": 2}', "NaN"])
def test_a_value_that_was_mistyped_completes_no_step(
    flow_app: FlowApp, capsys: pytest.CaptureFixture[str], typed: str
) -> None:
    """The first value of a signal holds, so what begins like JSON has to be JSON."""
    app = flow_app.app
    flow = app.chain(app.wait_for_signal("ok")).enqueue()
    refused = ergon(flow_app, capsys, "flows", "signal", flow, "ok", typed)
    assert refused.startswith("2 error: VALUE is not JSON")
    ergon(flow_app, capsys, "flows", "signal", flow, "ok", "by Ada")
    app.drain()
    assert flow.result(1) == "by Ada"


def test_a_signal_whose_answer_was_lost_may_be_sent_again(flow_app: FlowApp) -> None:
    """Its step has completed with it by then; another value is refused, and so is another name."""
    app = flow_app.app
    flow = app.chain(app.wait_for_signal("ok"), flow_app.add.step(1)).enqueue()
    for _ in range(2):
        flow.signal("ok", 41)
    with pytest.raises(JobStateError, match="has another value already"):
        flow.signal("ok", 42)
    with pytest.raises(JobStateError, match="no step of the flow"):
        flow.signal("o", 41)
    app.drain()
    flow.signal("ok", 41)
    assert flow.result() == 42


def test_a_flow_waits_for_a_signal_once(flow_app: FlowApp) -> None:
    """Whoever approves one thing must not approve another; and a value is what JSON can carry."""
    app, add = flow_app.app, flow_app.add
    wait = app.wait_for_signal
    both = r"steps 1 and 3 of the flow both wait for the signal 'ok' \(give each .* 'ok-3'"
    with pytest.raises(JobError, match=both):
        app.chain(wait("ok"), add.step(), wait("ok"), add.step()).enqueue()
    flow = app.chain(add.step(1), wait("ok"), add.step()).enqueue()
    for bad, flaw in ((float("nan"), "is nan"), (b"x", "of type bytes"), ({"a": {1}}, "set")):
        with pytest.raises(JobError, match=rf"value.* {flaw}"):
            flow.signal("ok", bad)
    flow.signal("ok", 1)
    flow.signal("ok", 1)
    with pytest.raises(JobStateError, match="has another value already"):
        flow.signal("ok", 2)
    app.drain()
    assert flow.result(1) == 2


def test_refusals_name_commands_that_find_the_store(
    flow_app: FlowApp, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a flow that is not there, goes on or is over; and of a step that is kept with its flow."""
    app, option = flow_app.app, f" --store {flow_app.url}"
    flow = app.chain(flow_app.shaky.step(), flow_app.add.step()).enqueue()
    refused: dict[str, Callable[[], object]] = {
        f"ergon flows{option}": lambda: app.client.flow("none").cancel(),
        f"ergon flows cancel {flow}{option}": flow.purge,
    }
    for command, ask in refused.items():
        with pytest.raises((JobStateError, JobNotFoundError)) as caught:
            ask()
        assert caught.value.remedy.endswith(f"  {command}")
    app.drain()
    with pytest.raises(JobStateError, match="takes no more steps") as caught:
        flow_app.add.options(after=[f"{flow}.1"]).enqueue(1)
    assert caught.value.remedy.endswith(f"  ergon flows retry {flow}{option}")
    assert invoke(["dlq", "purge", f"{flow}.1", "--store", flow_app.url]) == 1
    assert f"this deletes the flow:  ergon flows purge {flow}{option}" in capsys.readouterr().err
    for after in (5, [5], [None], b"x"):
        with pytest.raises(JobError, match="after"):
            flow_app.add.options(after=after).enqueue(1)  # type: ignore[arg-type]


@on_every_store
def test_a_large_flow_is_stopped_and_explained_whole(
    flow_app: FlowApp, capsys: pytest.CaptureFixture[str]
) -> None:
    """However many steps it has: all are counted, and all are cancelled when the call returns."""
    steps = [flow_app.add.step(1) for _ in range(1_100)]
    flow = flow_app.app.group(steps, then=flow_app.total.step()).enqueue()
    why = ergon(flow_app, capsys, "why", flow)
    assert "1,097 more are pending, 1 wait for steps before them." in why
    store = flow_app.app.client.store
    flows_of(store).apply(flow, CancelFlow())  # as far as one commit goes
    assert "cannot be purged" in ergon(flow_app, capsys, "flows", "purge", flow)
    told = ergon(flow_app, capsys, "why", f"{flow}.1099")
    assert "no worker starts it any more" in told
    assert "ergon worker" not in told
    assert "steps before" not in ergon(flow_app, capsys, "why", f"{flow}.1101")
    assert ergon(flow_app, capsys, "flows", "retry", flow).count("running")
    assert flow.cancel() == "cancelled"
    assert flow.show().state.cancelled == 1_101
    assert "purged" in ergon(flow_app, capsys, "flows", "purge", flow)
    assert flow_app.app.client.store.count(Search(flow=flow)) == 0


@pytest.mark.req("SCALE:move")
@pytest.mark.parametrize("flow_app", ["", "redis", "postgres"], indirect=True)
def test_a_store_with_flows_is_exported_imported_and_moved(
    flow_app: FlowApp, tmp_path: Path
) -> None:
    """Its joins come along: each step starts in its turn over there, nothing is decided here."""
    app, add = flow_app.app, flow_app.add
    flow = app.chain(add.step(1), app.wait_for_signal("more"), add.step()).enqueue()
    flow.signal("more", 5)
    file = str(tmp_path / "flows.jsonl")
    copy, last = (f"sqlite:///{tmp_path}/{name}.db" for name in ("copy", "last"))
    words = (
        ["export", flow_app.url, file],
        ["import", file, copy],
        ["move", flow_app.url, last, "--shut"],
    )
    assert [invoke(each) for each in words] == [0, 0, 0]
    for url in (copy, last):
        there = FlowApp(tmp_path, url)
        there.app.drain()
        assert there.app.client.flow(flow).result(timeout=10) == 6
        there.app.close()
    with pytest.raises(StoreReadOnlyError, match=r"last\.db"):
        flow.cancel()


@on_every_store
def test_a_step_of_a_stopped_flow_names_the_flow(flow_app: FlowApp) -> None:
    """Whoever sends it back alone is told what to do instead."""
    flow = flow_app.app.chain(flow_app.shaky.step(), flow_app.add.step()).enqueue()
    flow_app.app.drain()
    with pytest.raises(JobStateError, match="flow that was stopped") as caught:
        flow_app.app.client.requeue(f"{flow}.1")
    assert f"ergon flows retry {flow}" in caught.value.remedy
    other = flow_app.app.chain(flow_app.add.step(1)).enqueue()
    with pytest.raises(JobError, match="belong to 2 flows"):
        flow_app.app.client.enqueue("add", [1], after=[f"{flow}.1", f"{other}.1"])


def test_results_that_are_too_large_are_not_handed_on() -> None:
    """The step that would get them fails at once, without an attempt, and says what to do."""
    with App("memory://") as app:

        @app.job
        def load(size: int) -> str:
            return "x" * size

        @app.job
        def join(parts: list[str]) -> int:
            return len(parts)

        fits = app.group([load.step(7 << 20), load.step(7 << 20)], then=join.step()).enqueue()
        app.drain()
        assert fits.result() == 2
        flow = app.group([load.step(9 << 20), load.step(9 << 20)], then=join.step()).enqueue()
        app.drain()
        last = flow.steps()[-1]
        assert last.last_error is not None
        assert (last.status, last.attempts) == ("failed", 0)
        assert last.last_error.code == "results_too_large"
        assert "take 18,874,372 bytes" in last.last_error.message
        assert "and 16,711,680 can be sent; let these steps return" in last.last_error.message
        assert flow.status() == "failed"


def test_the_value_of_a_signal_is_bounded_like_arguments() -> None:
    """It becomes one of the next step, which could never run; another value can be sent then."""
    client = JobClient(store=MemoryJobStore())
    flow = client.chain(client.wait_for_signal("ok"), ("h", [])).enqueue()
    with pytest.raises(JobError, match="value takes 1,048,579 bytes of JSON"):
        flow.signal("ok", "x" * (1024 * 1024 + 1))
    flow.signal("ok", "x")
