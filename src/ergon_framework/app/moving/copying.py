"""Making one store what another is, in small commits that may be repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from ergon_framework.app.moving.comparing import PAGE, Step, Sum, differences, is_empty, summed
from ergon_framework.errors import StoreError
from ergon_framework.ports.copies import Copy, JobCopy
from ergon_framework.ports.moving import PAGE_BYTES, Archive, Mark, refuse_half_moved

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Mark).decode


@dataclass(frozen=True, slots=True)
class Told:
    """How far a move has come: so many copies of a kind were looked at."""

    part: str
    what: str
    """What is being done: copying or verifying, and which kind."""
    done: int
    total: int | None = None
    """How many there are, where that is known."""


Tell = Callable[[Told], None]


@dataclass(slots=True)
class Moved:
    """What became of one kind."""

    part: str
    kind: str
    copied: int = 0
    discarded: int = 0
    sum: Sum | None = None
    """What both sides hold of it in the end; None when nothing was done."""


@dataclass(frozen=True)
class Part:
    """Two stores of the same sort, one of which is to become what the other is."""

    name: str
    source: Archive
    target: Archive
    kinds: tuple[type[Copy], ...]
    identity: str
    """What the source is known by, however it is reached."""
    where: str
    """What the target is called in front of people."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """How many of a kind there are, where that is easily known."""


def look(part: Part, tell: Tell) -> list[Moved]:
    """Find out what a move would do; nothing is written."""
    found = []
    for kind in part.kinds:
        moved = Moved(part.name, title(kind))
        for count, (step, _) in enumerate(differences(part.source, part.target, kind), 1):
            moved.copied += step in (Step.NEW, Step.CHANGED)
            moved.discarded += step is Step.GONE
            _tell_now_and_then(tell, part, "comparing", moved.kind, count)
        found.append(moved)
    return found


def begin(part: Part) -> None:
    """Leave word that the target is not whole yet; :func:`refuse_other` comes before."""
    part.target.set_mark(_encode(Mark(part.identity)))


def move(part: Part, tell: Tell) -> list[Moved]:
    """Copy, compare both sides, and leave word that it is done; :func:`begin` comes before."""
    found = [_Copying(part, kind, tell).run() for kind in part.kinds]
    for moved, kind in zip(found, part.kinds, strict=True):
        moved.sum = _verified(part, kind, tell)
    sums = {each.kind: (each.sum.count, each.sum.digest) for each in found if each.sum is not None}
    part.target.set_mark(_encode(Mark(part.identity, sums)))
    return found


def refuse_other(part: Part) -> None:
    """Write into an empty store, or into an untouched earlier copy of the same one."""
    refuse_half_moved(part.source)
    found = part.target.mark()
    if found is None:
        if not is_empty(part.target, part.kinds):
            raise StoreError(
                f"{part.where} holds {part.name} already, and they are not an earlier copy",
                remedy="name an empty store; nothing was changed",
            )
        return
    mark = _decode(found)
    if mark.source != part.identity:
        raise StoreError(
            f"{part.where} holds {part.name} that were moved there from another store",
            remedy="name an empty store; nothing was changed",
        )
    if mark.sums is not None and not _is_untouched(part, mark.sums):
        raise StoreError(
            f"{part.where} has been in use since {part.name} were moved there: moving again would"
            " undo what was done meanwhile",
            remedy="go on with that store, or name an empty one; nothing was changed",
        )


def _is_untouched(part: Part, sums: dict[str, tuple[int, str]]) -> bool:
    found = {title(kind): summed(part.target, kind) for kind in part.kinds}
    return {kind: (each.count, each.digest) for kind, each in found.items()} == sums


def _verified(part: Part, kind: type[Copy], tell: Tell) -> Sum:
    """Read both sides anew, each by itself."""
    name = title(kind)

    def watch(count: int) -> None:
        _tell_now_and_then(tell, part, "verifying", name, count)

    wanted, there = summed(part.source, kind, watch), summed(part.target, kind)
    if wanted != there:
        raise StoreError(
            f"{part.where} does not hold the same {name}: {wanted.count} of them with the digest"
            f" {wanted.digest[:16]} were to be there, and {there.count} with {there.digest[:16]}"
            " are",
            remedy="see that nobody uses either store, then move again: it goes on from there",
        )
    return there


@dataclass
class _Copying:
    """One kind on its way."""

    part: Part
    kind: type[Copy]
    tell: Tell
    _coming: list[Copy] = field(default_factory=list)
    _going: list[Copy] = field(default_factory=list)
    _size: int = 0

    def run(self) -> Moved:
        """Bring the target to what the source is."""
        moved = Moved(self.part.name, title(self.kind))
        is_fresh = not self.part.target.dump(self.kind, None, 1)
        # A key may have gone from one to another: first all let go of theirs.
        if is_fresh or not self.kind.holds_keys or self._walk(moved, _lets_go):
            self._walk(moved, lambda _step, _copy: True)
        return moved

    def _walk(self, moved: Moved, is_meant: Callable[[Step, Copy], bool]) -> int:
        """Do what is meant by now; how much is left."""
        left = 0
        steps = differences(self.part.source, self.part.target, self.kind)
        for count, (step, copy) in enumerate(steps, 1):
            _tell_now_and_then(self.tell, self.part, "copying", moved.kind, count)
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
        return left

    def _refuse_impossible(self, step: Step) -> None:
        """Some things never go and never change: then it is not an earlier copy."""
        if (step is Step.GONE and not self.kind.may_leave) or (
            step is Step.CHANGED and not self.kind.may_change
        ):
            raise StoreError(
                f"{self.part.where} holds {title(self.kind)} that the other store does not have",
                remedy="name an empty store",
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


def title(kind: type[Copy]) -> str:
    """What a kind is called in front of people."""
    return _TITLES.get(kind.__name__, kind.__name__)


_TITLES = {
    "QueueCopy": "queue settings",
    "JobCopy": "jobs",
    "ScheduleCopy": "schedules",
    "LogCopy": "logs",
    "FactCopy": "facts",
    "IdCopy": "ids of facts",
    "GapCopy": "gaps",
    "ConsumerCopy": "consumers",
    "ItemCopy": "quarantined facts",
    "NameCopy": "names of objects",
    "AwaitedCopy": "awaited names",
    "LinkCopy": "links",
    "NoteCopy": "notes of operators",
    "ZoneCopy": "epoch",
    "RowCopy": "provider rows",
}


def _tell_now_and_then(tell: Tell, part: Part, doing: str, kind: str, count: int) -> None:
    if count % PAGE == 1:
        tell(Told(part.name, f"{doing} {kind}", count, part.totals.get(kind)))
