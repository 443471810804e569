from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.core.failure import Failure, Kind

failures = st.builds(
    Failure, st.sampled_from(Kind), st.text(), st.text(), st.none() | st.floats(0.0, 1e6)
)


@given(failures)
def test_a_failure_crosses_every_border_unchanged(failure: Failure) -> None:
    """Pickling, copying and plain values bring back an equal record."""
    assert pickle.loads(pickle.dumps(failure)) == failure  # noqa: S301 - our own bytes
    assert copy.deepcopy(failure) == failure
    values = dataclasses.asdict(failure)
    assert Failure(**values | {"kind": Kind(str(values["kind"]))}) == failure


def test_a_failure_cannot_be_changed() -> None:
    """What was decided from a record stays explained by it."""
    failure = Failure(Kind.TIMEOUT, "step_timeout")
    with pytest.raises(dataclasses.FrozenInstanceError):
        failure.kind = Kind.DEFECT  # type: ignore[misc]
    assert not hasattr(failure, "__dict__")


def test_the_kinds_are_a_closed_list() -> None:
    """Another kind cannot be made up: the machinery would have no branch for it."""
    assert {str(kind) for kind in Kind} == {
        "transient",
        "throttled",
        "held",
        "timeout",
        "lost",
        "rejected",
        "defect",
        "cancelled",
    }
    with pytest.raises(ValueError, match="no_such_kind"):
        Kind("no_such_kind")


def test_little_is_needed_for_a_failure() -> None:
    """Kind and code are enough; there is no message and no promise by default."""
    failure = Failure(Kind.LOST, "dead_channel")
    assert (failure.message, failure.retry_after) == ("", None)
