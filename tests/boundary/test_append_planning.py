"""What an append is, decided without any store: the rules that the stores share."""

from __future__ import annotations

import hashlib

import pytest

from ergon_framework.boundary.factstore.append_plan import (
    AppendPlanner,
    Condition,
    KnownFact,
    judge_known,
)
from ergon_framework.boundary.factstore.hashchain import PreparedFact, prepare
from ergon_framework.ports.factstore import (
    OUTBOUND,
    Appended,
    AppendOutcome,
    CapacityExceeded,
    Conflict,
    MissingReference,
    NewFact,
    Reference,
)

pytestmark = pytest.mark.req("P1", "P7")

ARTIFACT = Reference("b", "k", b"d" * 32, 3)


class Target:
    """A log of keys, and what is known from before."""

    def __init__(
        self, known: dict[str, KnownFact] | None = None, objects: tuple[Reference, ...] = ()
    ) -> None:
        self.fresh: dict[bytes, tuple[int, NewFact]] = {}
        self.placed: list[str] = []
        self._known = known or {}
        self._objects = {(each.bucket, each.key): each for each in objects}

    def log(self, name: str) -> str:
        return name

    def size(self, log: str) -> int:
        return 10 * len(self.placed)

    def known(self, log: str, fact: PreparedFact) -> KnownFact | None:
        return self._known.get(fact.new.message_id)

    def object(self, wanted: Reference) -> Reference | None:
        return self._objects.get((wanted.bucket, wanted.key))

    def place(self, log: str, fact: PreparedFact) -> int:
        self.placed.append(fact.new.message_id)
        self.fresh[fact.key] = len(self.placed), fact.new
        return len(self.placed)


def fact(message_id: str, body: bytes = b"0123456789", **fields: object) -> PreparedFact:
    """A fact of ten bytes, if nothing else is said."""
    digest = hashlib.sha256(body).digest()
    new = NewFact("a", message_id, "b", digest, b"", body, **fields)  # type: ignore[arg-type]
    return prepare(OUTBOUND, new)


def appended(
    target: Target, *facts: PreparedFact, capacity: int | None = None
) -> list[AppendOutcome]:
    """The outcomes of one append."""
    return AppendPlanner(target).append(OUTBOUND, facts, capacity)


def test_new_facts_are_placed_in_order() -> None:
    """Each gets the next offset."""
    target = Target()
    assert appended(target, fact("1"), fact("2")) == [Appended(1), Appended(2)]
    assert target.placed == ["1", "2"]


def test_the_same_id_within_one_transaction() -> None:
    """The same content is a duplicate, other content a conflict; neither is placed."""
    target = Target()
    outcomes = appended(target, fact("1"), fact("1"), fact("1", b"other"))
    assert outcomes == [Appended(1), Appended(1, True, b""), Conflict(1, fact("1").new.digest)]
    assert target.placed == ["1"]


@pytest.mark.parametrize(
    ("condition", "digest", "outcome"),
    [
        (Condition.INTACT, 32, Appended(7, True, b"first")),
        (Condition.GONE, 16, Appended(7, True, b"first")),
        (Condition.DAMAGED, 32, Appended(7, True, b"first", is_damaged=True)),
        (Condition.REPAIRED, 0, Appended(7, True, b"first", is_repaired=True)),
    ],
)
def test_a_known_id_with_the_same_content(
    condition: Condition, digest: int, outcome: Appended
) -> None:
    """It is a duplicate, and the outcome says how the first one lies there."""
    new = fact("1").new
    assert judge_known(new, KnownFact(7, new.digest[:digest], condition, b"first")) == outcome


@pytest.mark.parametrize("condition", [Condition.INTACT, Condition.GONE, Condition.DAMAGED])
@pytest.mark.parametrize("digest", [b"x" * 32, b"x" * 16, b""])
def test_a_known_id_with_other_content(condition: Condition, digest: bytes) -> None:
    """It is a conflict, also when what was there can no longer be told."""
    assert judge_known(fact("1").new, KnownFact(7, digest, condition)) == Conflict(7, digest)


def test_an_artifact_that_is_missing_or_differs() -> None:
    """The fact is refused, unless it says that it needs none."""
    wanting = fact("1", references=(ARTIFACT,))
    other = Reference("b", "k", b"e" * 32, 3)
    assert appended(Target(), wanting) == [MissingReference(ARTIFACT, None)]
    assert appended(Target(objects=(other,)), wanting) == [MissingReference(ARTIFACT, other)]
    assert appended(Target(objects=(ARTIFACT,)), wanting) == [Appended(1)]
    easy = fact("1", references=(ARTIFACT,), needs_artifacts=False)
    assert appended(Target(), easy) == [Appended(1)]


def test_nothing_new_enters_behind_a_fact_for_which_there_was_no_room() -> None:
    """A smaller one would change the order; a duplicate is answered all the same."""
    known = {"old": KnownFact(9, fact("old").new.digest, Condition.INTACT)}
    target = Target(known)
    facts = fact("1"), fact("2", b"x" * 11), fact("3", b""), fact("old")
    assert appended(target, *facts, capacity=20) == [
        Appended(1),
        CapacityExceeded(10),
        CapacityExceeded(10),
        Appended(9, True),
    ]
    assert target.placed == ["1"]


def test_what_a_peer_sent_is_not_refused() -> None:
    """Its artifacts were fetched before, and its log has no capacity."""
    target = Target({"2": KnownFact(9, b"x" * 32, Condition.INTACT)})
    facts = [fact("1", references=(ARTIFACT,)), fact("2"), fact("1")]
    outcomes = AppendPlanner(target).receive("inbound:b", facts)
    assert outcomes == [Appended(1), Conflict(9, b"x" * 32), Appended(1, True, b"")]
