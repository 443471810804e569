"""Comparing both sides at the end, and saying what is not the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, zip_longest

from ergon_framework.app.moving.comparing import Step, Sum, copies, differences, summed
from ergon_framework.app.moving.parts import Part, Tell, tell_now_and_then, title
from ergon_framework.errors import DataLossError, StoreError
from ergon_framework.ports.copies import Copy, FactCopy, JobCopy

NAMED = 3
"""Things that are named of those that differ."""
_WORDS = {
    Step.NEW: "is missing",
    Step.CHANGED: "is not the same",
    Step.GONE: "should not be there",
}


def verified(part: Part, read: Sequence[Sum], tell: Tell) -> list[Sum] | None:
    """Read both sides anew, each by itself; None when the source is no longer what was copied.

    ``read`` is what it was then, kind by kind.
    """
    sums = []
    for kind, copied in zip(part.kinds, read, strict=True):
        wanted, there = _both(part, kind, tell)
        if wanted not in (there, copied):
            return None
        if wanted != there:
            raise _differing(part, kind, wanted, there)
        sums.append(there)
    return sums


def _both(part: Part, kind: type[Copy], tell: Tell) -> tuple[Sum, Sum]:
    name = title(kind)

    def watched(doing: str) -> Callable[[int], None]:
        return lambda count: tell_now_and_then(tell, part, doing, name, count)

    wanted = summed(part.source, kind, watched("verifying"))
    with _damage_in(part.where):
        return wanted, summed(part.target, kind, watched("verifying moved"))


@contextmanager
def _damage_in(where: str) -> Iterator[None]:
    """Say in which of the two stores something is damaged."""
    try:
        yield
    except DataLossError as error:
        raise DataLossError(
            f"{where} was damaged on the way or since: {error.message}",
            reason=error.reason,
            remedy="check its disk; name an empty store as TO when it is sound",
            details=error.details,
        ) from error


def _differing(part: Part, kind: type[Copy], wanted: Sum, there: Sum) -> StoreError:
    told = _by_place(part, kind) if kind.has_shared_places else _by_order(part, kind)
    named = list(islice(told, NAMED))
    return StoreError(
        f"{part.where} does not hold the same {title(kind)}: {wanted.count} of them with the digest"
        f" {wanted.digest[:16]} were to be there, and {there.count} with {there.digest[:16]} are;"
        f" {', '.join(named) or 'what differed a moment ago is the same now'}",
        remedy="see that nobody uses either store, then move again: it goes on from there;"
        " --shut refuses who still uses FROM",
        details={"differing": named},
    )


def _by_place(part: Part, kind: type[Copy]) -> Iterator[str]:
    """What is wrong, where places say what belongs together."""
    for step, copy in differences(part.source, part.target, kind):
        if step is not Step.SAME:
            yield f"{label(copy)} {_WORDS[step]}"


def _by_order(part: Part, kind: type[Copy]) -> Iterator[str]:
    """What is wrong, where the order alone says it: after one that is another, nothing more."""
    for mine, theirs in zip_longest(copies(part.source, kind), copies(part.target, kind)):
        if mine is None or theirs is None:
            step = Step.GONE if mine is None else Step.NEW
            yield f"{label(mine or theirs)} {_WORDS[step]}"
        elif mine.name != theirs.name:
            yield f"{label(mine)} is missing where {label(theirs)} is"
            return
        elif mine.content != theirs.content:
            yield f"{label(mine)} {_WORDS[Step.CHANGED]}"


def label(copy: Copy) -> str:
    """What to call one thing in front of people."""
    if isinstance(copy, JobCopy):
        return f"the job {copy.name}"
    if isinstance(copy, FactCopy):
        return f"the fact at {copy.fact.offset} of {copy.log}"
    name = copy.name
    words = " ".join(map(str, name)) if isinstance(name, tuple) else str(name)
    return f"{words} of the {title(type(copy))}"
