"""Results of steps become arguments of others when a worker has claimed these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from ergon_framework.core.job import Released
from ergon_framework.errors import PayloadKeyError, StoreUnavailableError
from ergon_framework.jobs.claims import Claim
from ergon_framework.jobs.flow_results import MAX_TOGETHER, hand_over
from ergon_framework.ports.flow import step_id
from ergon_framework.ports.jobstore import ClaimedJob

pytestmark = pytest.mark.req("JOBS:store")


def step(*sources: int) -> Claim:
    """A claimed step whose arguments are the results of these steps of its flow."""
    numbers = list(sources)
    place = ("job-1", "work", "", "q", b"[null]", b"{}", 0, 1, 0, False, 0.0, 0.0)
    uses = [(0, numbers[0] if len(numbers) == 1 else numbers)]
    return Claim(ClaimedJob(1, 1, *place, uses=uses, flow_id="f"))


class Reader:
    """Results as a store answers them; it keeps how it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.locked: set[str] = set()
        self.is_away = False

    def __call__(self, ids: Sequence[str]) -> Mapping[str, bytes | None]:
        self.asked.append([*ids])
        if self.is_away:
            raise StoreUnavailableError("away")
        if self.locked & {*ids}:
            raise PayloadKeyError("the key is not at hand")
        return {each: each.rpartition("/")[2].encode() for each in ids}


@pytest.fixture
def reader() -> Reader:
    """A store whose every step has returned something."""
    return Reader()


def value(number: int, reader: Reader) -> bytes:
    """What that step returned."""
    return reader([step_id("f", number)])[step_id("f", number)] or b""


def test_one_look_serves_all_steps_that_use_few_results(reader: Reader) -> None:
    """Steps of chains use one each."""
    claims = [step(n) for n in range(5)]
    hand_over(claims, reader)
    assert len(reader.asked) == 1
    assert [each.job.args for each in claims] == [b"[" + value(n, reader) + b"]" for n in range(5)]


def test_a_step_of_many_results_is_read_by_itself(reader: Reader) -> None:
    """Those of several such steps need not be held at once."""
    large = range(10, 10 + MAX_TOGETHER + 1)
    claims = [step(1), step(*large), step(2)]
    hand_over(claims, reader)
    assert [len(each) for each in reader.asked] == [2, len(large)]
    assert all(each.outcome is None for each in claims)


def test_a_result_without_a_key_holds_its_own_step_only(reader: Reader) -> None:
    """The others of the claim run."""
    reader.locked = {step_id("f", 2)}
    claims = [step(n) for n in range(4)]
    hand_over(claims, reader)
    assert [each.outcome is None for each in claims] == [True, True, False, True]
    assert claims[3].job.args == b"[" + value(3, reader) + b"]"


def test_a_store_that_is_away_gets_all_steps_back(reader: Reader) -> None:
    """Without a charge."""
    reader.is_away = True
    claims = [step(n) for n in range(3)]
    hand_over(claims, reader)
    assert [type(each.outcome) for each in claims] == [Released] * 3
