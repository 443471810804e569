from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.loop import StopReason
from ergon_framework.core.transaction_lifecycle import End, Ending
from ergon_framework.engine.report import Report
from ergon_framework.engine.run import OutcomeCounts

NAMES = (
    "succeeded",
    "failed",
    "timed_out",
    "handler_failures",
    "aborted",
    "parked",
    "discarded",
    "released",
    "settlement_failures",
    "abandoned",
    "batches",
    "stranded",
    "duplicates",
    "malformed",
    "dead_letters",
    "elapsed",
    "stop_reason",
)
FULL = Report(
    succeeded=4,
    discarded=1,
    failed=3,
    timed_out=2,
    handler_failures=1,
    aborted=4,
    parked=10,
    released=6,
    settlement_failures=7,
    abandoned=8,
    batches=9,
    stranded=("a", "b"),
    duplicates=("c",),
    malformed=11,
    dead_letters=("d.jsonl",),
    elapsed=1.5,
    stop_reason=StopReason.LIMIT,
)
FAILURE = Failure(Kind.TRANSIENT, "test")
repeatable = settings(derandomize=True, deadline=None, max_examples=40)
numbers = st.integers(0, 10**6)
endings = st.builds(
    End, st.sampled_from(Ending), st.none() | st.just(FAILURE), st.none() | st.just(FAILURE)
)


def values(report: Report) -> list[object]:
    """Every field."""
    return [getattr(report, name) for name in NAMES]


@pytest.mark.req("T3.18")
@repeatable
@given(numbers, numbers, numbers, numbers)
def test_it_is_the_number_of_outcomes(
    succeeded: int, failed: int, timed_out: int, aborted: int
) -> None:
    """Each outcome is counted once; what was cut off has none."""
    report = Report(succeeded=succeeded, failed=failed, timed_out=timed_out, aborted=aborted)
    assert isinstance(report, int)
    assert report == succeeded + failed + timed_out == report.processed
    assert type(report.processed) is int


@pytest.mark.req("T3.18")
def test_it_works_wherever_a_number_does() -> None:
    """Compared, added, formatted, put into JSON and used as a condition."""
    assert FULL + 1 == 11
    assert range(20)[FULL] == 10
    assert f"{FULL:03d}" == "010"
    assert json.dumps(FULL) == "10"
    assert FULL > 9
    assert not Report()


def test_an_empty_report_has_every_field() -> None:
    """Counts are zero, tuples are empty, and the source was empty."""
    expected = [*[0] * 11, (), (), 0, (), 0, StopReason.EMPTY]
    assert values(Report()) == expected


@pytest.mark.parametrize("name", ["sucesses", "processed", "real"])
def test_an_unknown_field_is_refused(name: str) -> None:
    """A misspelt count would otherwise be lost silently."""
    fields: dict[str, Any] = {name: 1}
    with pytest.raises(TypeError, match=f"Report has no field '{name}'"):
        Report(**fields)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_it_survives_pickling(protocol: int) -> None:
    """A report crosses processes with everything it says."""
    again = pickle.loads(pickle.dumps(FULL, protocol))  # noqa: S301 - our own bytes
    assert type(again) is Report
    assert again == 10
    assert values(again) == values(FULL)
    assert again.stop_reason is StopReason.LIMIT


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy])
def test_it_survives_copying(copier: type) -> None:
    """A copy says the same."""
    again = copier(FULL)
    assert type(again) is Report
    assert values(again) == values(FULL)


def test_its_dictionary_is_plain() -> None:
    """Nothing in it needs Ergon to be read: JSON gives it back as it was."""
    shape = FULL.to_dict()
    assert list(shape) == ["processed", *NAMES]
    assert shape["processed"] == 10
    assert type(shape["processed"]) is int
    assert type(shape["stop_reason"]) is str
    assert (shape["stranded"], shape["duplicates"]) == (["a", "b"], ["c"])
    assert json.loads(json.dumps(shape)) == shape


def test_its_text_shows_what_happened_and_no_zeros() -> None:
    """A short call has a short text, in logs and at the prompt."""
    report = Report(succeeded=3, batches=2, stop_reason=StopReason.STOPPED)
    text = "Report(3: succeeded=3, batches=2, stop_reason=<StopReason.STOPPED: 'stopped'>)"
    assert repr(report) == str(report) == f"{report}" == text
    assert all(f"{name}=" in repr(FULL) for name in NAMES)


def test_its_text_does_not_name_every_id() -> None:
    """A log line stays one line, however many are stranded; the field has them all."""
    ids = tuple(f"t{n}" for n in range(715))
    report = Report(stranded=ids, duplicates=ids[:5])
    assert f"{report}".count("'t") == 10
    assert "stranded=('t0', 't1', 't2', 't3', 't4', ... 715 in all)" in repr(report)
    assert report.stranded == ids
    assert report.to_dict()["stranded"] == list(ids)


# ---- where the counts come from -----------------------------------------------------------------


@pytest.mark.req("T3.18", "R0-I3")
@repeatable
@given(st.lists(endings, max_size=12), st.integers(0, 12))
def test_every_ending_is_counted_exactly_once(ends: list[End], cut: int) -> None:
    """The counts are disjoint, whoever counted, and a failed handler is counted beside them."""
    tallies = OutcomeCounts(), OutcomeCounts()
    for position, end in enumerate(ends):
        tallies[position >= cut].count(end)
    total = OutcomeCounts()
    for tally in tallies:
        total.add(tally)
    assert total.ended == len(ends)
    done, failed = [total.succeeded, total.discarded], [total.failed, total.timed_out]
    counted = [*done, *failed, total.aborted, total.parked]
    assert counted == [sum(end.how is how for end in ends) for how in Ending]
    assert total.handler_failures == sum(end.handler_failure is not None for end in ends)
