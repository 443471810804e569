"""Making one store what another is, in small commits that may be repeated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ergon_framework.app.moving import shutting
from ergon_framework.app.moving.comparing import (
    PAGE,
    Adding,
    Step,
    Sum,
    differences,
)
from ergon_framework.app.moving.parts import Moved, Part, Tell, Told, tell_now_and_then, title
from ergon_framework.app.moving.verifying import verified
from ergon_framework.errors import StoreError
from ergon_framework.ports.copies import Copy, JobCopy
from ergon_framework.ports.moving import PAGE_BYTES, Mark, MarksTogether, encode_mark
from ergon_framework.storage.failpoints import declare, failpoint

MOST_TURNS = 5
"""How often a source that goes on growing is copied before that is called in vain."""

declare(
    *("move.part.begun", "move.part.copied", "move.part.shut"),
    *("move.part.verified", "move.part.ended"),
)


def look(part: Part, tell: Tell) -> list[Moved]:
    """Find out what a move would do; nothing is written."""
    found = []
    for kind in part.kinds:
        moved = Moved(part.name, title(kind))
        for count, (step, _) in enumerate(differences(part.source, part.target, kind), 1):
            moved.copied += step in (Step.NEW, Step.CHANGED)
            moved.discarded += step is Step.GONE
            tell_now_and_then(tell, part, "comparing", moved.kind, count)
        found.append(moved)
    return found


def begin(*parts: Part) -> None:
    """Leave word that the target is not whole yet; it was looked at before (``earlier.py``)."""
    _leave_word(parts, [Mark(part.identity, birth=part.birth) for part in parts])
    failpoint("move.part.begun")


def move(part: Part, tell: Tell, *, shuts: bool = False) -> list[Moved]:
    """Copy and compare both sides; :func:`begin` comes before, and :func:`end` after.

    What came into the source meanwhile is copied as well, a few times over. With ``shuts`` the
    source takes nothing more from when it was copied first, so that the last comparison holds.
    """
    found = [Moved(part.name, title(kind)) for kind in part.kinds]
    for turn in range(MOST_TURNS):
        read = [
            _Copying(part, kind, tell, moved).run()
            for kind, moved in zip(part.kinds, found, strict=True)
        ]
        failpoint("move.part.copied")
        if shuts and turn == 0:
            shutting.shut(part.source, part.where)
            failpoint("move.part.shut")
        pulse = part.pulse()
        sums = verified(part, read, tell)
        if sums is not None:
            part.aside()
        if sums is not None and part.pulse() == pulse:
            return _compared(found, sums)
        tell(Told(part.name, "copying what came meanwhile", 0))
    raise StoreError(
        f"{part.name} keep coming into the store that is moved: it was copied {MOST_TURNS} times,"
        f" and {part.where} does not hold the same {part.name} yet",
        remedy="stop whoever adds there, then move again, or move with --shut, which refuses them",
    )


def _compared(found: list[Moved], sums: list[Sum]) -> list[Moved]:
    for moved, each in zip(found, sums, strict=True):
        moved.sum = each
    failpoint("move.part.verified")
    return found


def end(parts: Sequence[Part], found: Sequence[Sequence[Moved]]) -> None:
    """Leave word that everything is there; when all parts of a move are, and not before."""
    sums = [
        {each.kind: (each.sum.count, each.sum.digest) for each in moved if each.sum}
        for moved in found
    ]
    marks = [
        Mark(part.identity, done, birth=part.birth) for part, done in zip(parts, sums, strict=True)
    ]
    _leave_word(parts, marks)
    failpoint("move.part.ended")


def _leave_word(parts: Sequence[Part], marks: Sequence[Mark]) -> None:
    """At once, where one database has it all: whoever works with a part that is open while another
    is not has used what the next move would have to write.
    """
    first, *others = parts
    if others and isinstance(first.target, MarksTogether):
        first.target.set_marks([encode_mark(mark) for mark in marks])
        return
    for part, mark in zip(parts, marks, strict=True):
        part.target.set_mark(encode_mark(mark))


@dataclass
class _Copying:
    """One kind on its way."""

    part: Part
    kind: type[Copy]
    tell: Tell
    moved: Moved
    _coming: list[Copy] = field(default_factory=list)
    _going: list[Copy] = field(default_factory=list)
    _size: int = 0

    def run(self) -> Sum:
        """Bring the target to what the source is; what the source was when it was read."""
        is_fresh = not self.part.target.dump(self.kind, None, 1)
        # A key may have gone from one to another: first all let go of theirs.
        if not is_fresh and self.kind.holds_keys:
            left, read = self._walk(_lets_go)
            if not left:
                return read
        return self._walk(lambda _step, _copy: True)[1]

    def _walk(self, is_meant: Callable[[Step, Copy], bool]) -> tuple[int, Sum]:
        """Do what is meant by now; how much is left, and what the source was."""
        left, read, moved = 0, Adding(), self.moved
        steps = differences(self.part.source, self.part.target, self.kind)
        for count, (step, copy) in enumerate(steps, 1):
            tell_now_and_then(self.tell, self.part, "copying", moved.kind, count)
            if step is not Step.GONE:
                read.add(copy)
            if step is Step.SAME:
                continue
            if not is_meant(step, copy):
                left += 1
                continue
            self._refuse_impossible(step)
            (self._going if step is Step.GONE else self._coming).append(copy)
            moved.discarded += step is Step.GONE
            moved.copied += step is not Step.GONE
            self._size += len(copy.content)
            if len(self._coming) + len(self._going) >= PAGE or self._size > PAGE_BYTES:
                self._flush()
        self._flush()
        return left, read.sum()

    def _refuse_impossible(self, step: Step) -> None:
        """Some things never go and never change: then it is not an earlier copy."""
        if (step is Step.GONE and not self.kind.may_leave) or (
            step is Step.CHANGED and not self.kind.may_change
        ):
            raise StoreError(
                f"{self.part.where} holds {title(self.kind)} that the other store does not have",
                remedy="name an empty store as TO",
            )

    def _flush(self) -> None:
        """What goes goes first: an id may be in use again."""
        if self._going:
            self.part.target.discard(self._going)
        if self._coming:
            self.part.target.load(self._coming)
        self._going, self._coming, self._size = [], [], 0


def _lets_go(step: Step, copy: Copy) -> bool:
    is_final = isinstance(copy, JobCopy) and copy.job.status.is_final
    return step is Step.GONE or (step is Step.CHANGED and is_final)
