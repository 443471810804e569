"""A worker does not read from the store what it has just written there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import Failed, JobEvent, Succeeded
from ergon_framework.jobs.claims import Claim
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.fresh_results import MAX_RESULT, FreshResults
from ergon_framework.jobs.payload_codec_store import results_reader
from ergon_framework.jobs.settlement import Settler
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.stores.memory.flows import MemoryFlows
from ergon_framework.ports.flow import step_id
from ergon_framework.ports.jobstore import ClaimedJob, Settlement
from tests.jobs.manual_worker import SETTINGS, Hand
from tests.jobs.real_worker import at_work, worker
from tests.jobs.test_payload_codec import python, settings

pytestmark = pytest.mark.req("JOBS:store")

FAILED = Failed(Failure(Kind.REJECTED, "refused", "no such picture"))


def settled(
    number: int,
    result: bytes | None = b"1",
    seen: JobEvent | None = None,
    flow_id: str | None = "f",
) -> Settlement:
    """What a worker reports of a step, or of a job that is none."""
    job = ClaimedJob(
        *(number, 1, f"s{number}", "work", "", "q", b"[]", b"{}", 0, 1, 0, False, 0.0, 0.0),
        flow_id=flow_id,
    )
    return Settler(SETTINGS, "w").settle_claim(Claim(job), seen or Succeeded(), 0.0, 0.1, result)


class Asked:
    """Counts which results the flows of stores are asked for."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.ids: list[str] = []
        real = MemoryFlows.results

        def results(flows: MemoryFlows, ids: Sequence[str]) -> Any:
            self.ids += ids
            return real(flows, ids)

        patch.setattr(MemoryFlows, "results", results)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What is asked of every store in memory."""
    return Asked(monkeypatch)


def test_only_results_of_steps_are_kept() -> None:
    """Of those that have completed; nobody uses that of a job without a flow."""
    fresh = FreshResults()
    fresh.keep([settled(1), settled(2, seen=FAILED), settled(3, flow_id=None), settled(4, None)])
    assert fresh.known.keys() <= {"s1", "s4"}
    assert fresh.known["s1"] == b"1"
    fresh.keep([settled(1, b"2")])
    assert fresh.known["s1"] == b"2"


def test_there_is_a_bound() -> None:
    """The oldest go first, and a large one is not kept at all."""
    fresh = FreshResults(most=10_000)
    fresh.keep([settled(n, b'"' + b"x" * 800 + b'"') for n in range(30)])
    assert list(fresh.known) == [f"s{n}" for n in range(21, 30)]
    fresh.keep([settled(99, b'"' + b"x" * MAX_RESULT + b'"')])
    assert "s99" not in fresh.known
    fresh.keep([settled(n) for n in range(1000)])
    assert len(fresh.known) == 10_000 // 201


def test_what_is_known_is_not_read(asked: Asked) -> None:
    """The rest is, and both are told together; nothing is made up for what is nowhere."""
    store = MemoryJobStore()
    client = JobClient(store=store)
    flow = client.group([("a", []), ("a", [])]).enqueue()
    for number in range(2):
        Hand(store).run(Succeeded(), number)
    one, two, none = (step_id(flow, n) for n in (1, 2, 9))
    read = results_reader(store, known={one: b'"known"'})
    assert read is not None
    assert read([one, two, none])[one] == b'"known"'
    assert msgspec.json.decode(read([one, two, none])[two] or b"") == 1
    assert read([none]).get(none) is None
    asked.ids.clear()
    assert read([one]) == {one: b'"known"'}
    assert asked.ids == []


@pytest.mark.slow
@pytest.mark.parametrize("codec", [{}, {"compress_above": 100}], ids=["plain", "compressed"])
def test_a_worker_reads_no_result_that_it_has_just_settled(
    tmp_path: Path, asked: Asked, codec: dict[str, Any]
) -> None:
    """Every step of a chain that one worker runs gets what the one before has returned."""
    store = MemoryJobStore()
    made = settings(**codec)
    client = JobClient(store=store, settings=made)
    chain = client.chain(("echo", ["x" * 300]), ("length", []), ("echo", []), ("echo", []))
    flow = chain.enqueue()
    with at_work(worker(store, executor=python(tmp_path), settings=made)):
        found = client.flow(flow).result(timeout=60)
    assert found == [[[[len(str([["x" * 300], {}]))], {}]], {}]
    assert set(asked.ids) == {step_id(flow, 4)}  # by the client


@pytest.mark.slow
def test_a_result_that_came_too_late_is_not_used(tmp_path: Path, asked: Asked) -> None:
    """What another worker has settled is read; what this one was refused is not kept."""
    store = MemoryJobStore()
    made = settings()
    client = JobClient(store=store, settings=made)
    flow = client.chain(("echo", ["first"]), ("echo", [])).enqueue()
    real = MemoryJobStore.settle_and_claim
    first = step_id(flow, 1)
    stolen: list[Settlement] = []

    def settle(self: MemoryJobStore, settlements: Sequence[Settlement], request: Any) -> Any:
        for each in settlements:
            if each.id == first and not stolen:
                # Somebody else has settled it a moment before.
                stolen.append(msgspec.structs.replace(each, result=b'"other"', entry=b'{"n":1}'))
                real(self, stolen, None)
        return real(self, settlements, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryJobStore, "settle_and_claim", settle)
        with at_work(worker(store, executor=python(tmp_path), settings=made)):
            assert client.flow(flow).result(timeout=60) == [["other"], {}]
    assert first in asked.ids
