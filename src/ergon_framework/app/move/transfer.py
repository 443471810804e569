"""Comparing two stores, copying what differs, verifying the copy, and freezing the source."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice, zip_longest
from typing import Any

from msgspec.structs import replace

from ergon_framework.app.move.fencing import FencedStore, write_states
from ergon_framework.app.store_location import is_same
from ergon_framework.core.text import toml_text
from ergon_framework.errors import DataLossError, StoreError
from ergon_framework.ports.record_codec import plain
from ergon_framework.ports.transfer import (
    PAGE_BYTES,
    C,
    Destination,
    FactRecord,
    JobRecord,
    MoveState,
    ProgramMove,
    QueueRecord,
    RecordReader,
    TransferRecord,
    move_state_of,
    store_id_of,
)
from ergon_framework.storage.conflicts import ConflictError, retry_conflicts
from ergon_framework.storage.failpoints import declare, failpoint

PAGE_SIZE = 500
"""Copies that are read at once."""


class Difference(StrEnum):
    """What one copy needs."""

    SAME = "same"  # nothing: it is on both sides
    NEW = "new"  # it is missing where it should go
    CHANGED = "changed"
    GONE = "gone"  # it is no longer where it came from


@dataclass(frozen=True, slots=True)
class KindDigest:
    """How many records of a kind a store has, and the digest over all of them, in order."""

    count: int
    digest: str


def all_records(store: RecordReader, kind: type[C]) -> Iterator[C]:
    """Every copy of a kind, in order."""
    after: Any = None
    while page := store.dump(kind, after, PAGE_SIZE):
        yield from page
        after = page[-1].sort_key


def differences(
    source: RecordReader, target: RecordReader, kind: type[TransferRecord]
) -> Iterator[tuple[Difference, TransferRecord]]:
    """What each copy needs, for the target to become what the source is.

    What is found gone is told before what is new, for places that cannot be compared: new things
    come last there. The target may be changed meanwhile as the steps say, and not otherwise.
    """
    wanted, there = all_records(source, kind), all_records(target, kind)
    theirs = next(there, None)
    for mine in wanted:
        while theirs is not None and _is_gone(theirs, mine):
            yield Difference.GONE, theirs
            theirs = next(there, None)
        if theirs is None or _thing(theirs) != _thing(mine):
            yield Difference.NEW, mine
            continue
        yield (Difference.SAME if theirs.content == mine.content else Difference.CHANGED), mine
        theirs = next(there, None)
    while theirs is not None:
        yield Difference.GONE, theirs
        theirs = next(there, None)


class RunningDigest:
    """Copies that are added up, one after the other."""

    def __init__(self) -> None:
        self._digest, self._count = hashlib.sha256(), 0

    def add(self, copy: TransferRecord) -> int:
        """Add a record; returns how many were added so far."""
        content = copy.content
        self._digest.update(len(content).to_bytes(8) + content)
        self._count += 1
        return self._count

    def sum(self) -> KindDigest:
        """The digest of all records added."""
        return KindDigest(self._count, self._digest.hexdigest())


def digest_of(
    store: RecordReader, kind: type[TransferRecord], watch: Callable[[int], None] = lambda _: None
) -> KindDigest:
    """Read all records of a kind and add them up; ``watch`` is told how many there were so far."""
    adding = RunningDigest()
    for copy in all_records(store, kind):
        watch(adding.add(copy))
    return adding.sum()


def is_empty(store: RecordReader, kinds: tuple[type[TransferRecord], ...]) -> bool:
    """Whether a store holds nothing but what every fresh one holds."""
    return not any(
        copy for kind in kinds for copy in store.dump(kind, None, 2) if not copy.is_given
    )


def _is_gone(theirs: TransferRecord, mine: TransferRecord) -> bool:
    """Whether a copy of the target lies before the next one of the source."""
    if type(mine).has_shared_places:
        return bool(theirs.sort_key < mine.sort_key)
    return bool(_thing(theirs) != _thing(mine))


def _thing(copy: TransferRecord) -> Any:
    """What makes it the same thing on both sides; an id that is used again is another job."""
    return (copy.identity, copy.job.created_at) if isinstance(copy, JobRecord) else copy.identity


@dataclass(frozen=True, slots=True)
class TransferProgress:
    """Progress of a move: how many records of a kind were read."""

    part: str
    what: str
    """What is being done: copying or verifying, and which kind."""
    done: int
    total: int | None = None
    """The number of records in all, if it is known."""


Tell = Callable[[TransferProgress], None]


@dataclass(slots=True)
class Moved:
    """What became of one kind."""

    part: str
    kind: str
    copied: int = 0
    discarded: int = 0
    sum: KindDigest | None = None
    """What both sides hold of it in the end; None when nothing was done."""


@dataclass(frozen=True)
class Transfer:
    """Two stores of one kind: the target is to become a copy of the source."""

    name: str
    source: FencedStore
    target: FencedStore
    kinds: tuple[type[TransferRecord], ...]
    identity: str
    """What identifies the source: its place, or for a zone an id that it keeps wherever it is."""
    where: str
    """What the target is called in front of people."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """How many of a kind there are, where that is easily known."""
    pulse: Callable[[], object] = lambda: None
    """What is quickly asked of the source and differs when something came into it."""
    birth: str = ""
    """What the source alone has since it was made, however it is reached; empty if unknown."""
    now: Callable[[], float] = time.time
    """The source's clock."""
    aside: Callable[[], None] = lambda: None
    """Sees to what lies beside the stores, when they hold the same."""
    is_import: bool = False
    """Whether the source is a file: then nothing is changed or discarded that the target holds."""
    origin: str = ""
    """What the source is called in front of people."""
    zone: str = ""
    """Whose facts they are, if they are facts."""
    program: ProgramMove | None = None
    """The move of a whole program, of which this is a part."""
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    """Which run of the move this is."""

    @property
    def destination(self) -> Destination:
        """What is written into the source when it is shut: where everything is now."""
        store_id = store_id_of(self.target)
        return Destination(self.where, self.zone, self.program, store_id=store_id)


def tell_now_and_then(tell: Tell, part: Transfer, doing: str, kind: str, count: int) -> None:
    """Report progress once for each page of records."""
    if count % PAGE_SIZE == 1:
        total = part.totals.get(kind)
        is_beyond = total is not None and count > total  # it grew meanwhile
        tell(TransferProgress(part.name, f"{doing} {kind}", count, None if is_beyond else total))


def shut(store: FencedStore, gone: Destination) -> None:
    """Freeze a store for workers and producers, and write down where everything is now.

    Processes that have it open are refused first (``freeze``), then those that open it later (the
    move state). Where a store caches what it read, writing the state also makes the former look.
    The move of a program is written down before: whoever finds a frozen store knows with what it
    has to be opened again. A store that is shut for the same place already stays a part of it.
    """
    state = store.state
    if gone.program is not None:
        state = replace(state, moved_with=gone.program)
        store.write_state(state)
        failpoint("move.part.named")
    elif state.moved_with is not None and state.moved_to and is_same(state.moved_to, gone.place):
        gone = replace(gone, program=state.moved_with)
    store.freeze(gone.text)
    failpoint("move.part.frozen")
    store.write_state(
        replace(
            state,
            moved_to=gone.place,
            moved_with=gone.program,
            is_undone=gone.is_undone,
            moved_to_id=gone.store_id,
        )
    )


def reopen(store: FencedStore) -> bool:
    """Open a frozen store again; returns whether it was frozen."""
    state = store.state
    store.freeze(None)
    failpoint("move.part.thawed")
    if state != MoveState():  # a token of its own: a run that is under way is refused from now on
        token = secrets.token_hex(8)
        open_again = {"moved_to": "", "moved_with": None, "is_undone": False, "moved_to_id": ""}
        store.write_state(replace(state, **open_again, token=token))
    return bool(state.moved_to or state.moved_with)


def went_to(state: MoveState, place: str, id_there: Callable[[], str]) -> bool:
    """Whether what a shut store held went to this place, whatever the place was called then."""
    if not state.moved_to:
        return False
    # Asked only where the names differ: the store there may have to be opened for it.
    return is_same(state.moved_to, place) or (
        bool(state.moved_to_id) and state.moved_to_id == id_there()
    )


def refuse_elsewhere(
    store: object, name: str, place: str, id_there: Callable[[], str] = lambda: ""
) -> None:
    """What was moved to one place is not said to be at another.

    ``id_there`` tells by what the store at the place is known, if it is there.
    """
    state = move_state_of(store)
    gone = state.destination
    if gone is None or went_to(state, place, id_there):
        return
    remedy = f"name {gone.place} as TO; with --reopen {name} can be used again"
    if gone.program is not None:
        line = f"url = {toml_text(gone.program.to)}"
        if gone.program.is_undone:
            line = gone.program.old_line
        remedy = (
            f"it went there with all parts of {gone.program.settings}, which is to have {line}"
            f" under [store]; `{gone.undo_command()}` lets it be used again with all others,"
            f" {gone.undo_condition}{gone.login_hint}"
        )
    raise StoreError(f"what {name} held was moved to {gone.place}, not to {place}", remedy=remedy)


MAX_NAMED = 3
"""How many differing records an error names."""
_WORDS = {
    Difference.NEW: "is missing",
    Difference.CHANGED: "is not the same",
    Difference.GONE: "should not be there",
}


def verified(part: Transfer, read: Sequence[KindDigest], tell: Tell) -> list[KindDigest] | None:
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


def _both(part: Transfer, kind: type[TransferRecord], tell: Tell) -> tuple[KindDigest, KindDigest]:
    name = kind.title

    def watched(doing: str) -> Callable[[int], None]:
        return lambda count: tell_now_and_then(tell, part, doing, name, count)

    wanted = digest_of(part.source, kind, watched("verifying"))
    with _damage_in(part.where):
        return wanted, digest_of(part.target, kind, watched("verifying moved"))


@contextmanager
def _damage_in(where: str) -> Iterator[None]:
    """Name the store in the error of a damaged record."""
    try:
        yield
    except DataLossError as error:
        raise DataLossError(
            f"{where} was damaged on the way or since: {error.message}",
            reason=error.reason,
            remedy="check its disk; name an empty store as TO when it is sound",
            details=error.details,
        ) from error


def _differing(
    part: Transfer, kind: type[TransferRecord], wanted: KindDigest, there: KindDigest
) -> StoreError:
    found = _by_place(part, kind) if kind.has_shared_places else _by_order(part, kind)
    named = list(islice(found, MAX_NAMED))
    return StoreError(
        f"{part.where} does not hold the same {kind.title}: {wanted.count} of them with the digest"
        f" {wanted.digest[:16]} were to be there, and {there.count} with {there.digest[:16]} are;"
        f" {', '.join(named) or 'what differed a moment ago is the same now'}",
        remedy="see that nobody uses TO, and that nothing is twice in the file; then import it into"
        " an empty store"
        if part.is_import
        else "see that nobody uses either store, then move again: it goes on from there;"
        " --shut refuses who still uses FROM",
        details={"differing": named},
    )


def _by_place(part: Transfer, kind: type[TransferRecord]) -> Iterator[str]:
    """What is wrong, where places say what belongs together."""
    for step, copy in differences(part.source, part.target, kind):
        if step is not Difference.SAME:
            yield f"{label(copy)} {_WORDS[step]}"


def _by_order(part: Transfer, kind: type[TransferRecord]) -> Iterator[str]:
    """What is wrong, where the order alone says it: after one that is another, nothing more."""
    for mine, theirs in zip_longest(all_records(part.source, kind), all_records(part.target, kind)):
        if mine is None or theirs is None:
            step = Difference.GONE if mine is None else Difference.NEW
            yield f"{label(mine or theirs)} {_WORDS[step]}"
        elif mine.identity != theirs.identity:
            yield f"{label(mine)} is missing where {label(theirs)} is"
            return
        elif mine.content != theirs.content:
            yield f"{label(mine)} {_WORDS[Difference.CHANGED]}"


def label(copy: TransferRecord) -> str:
    """The name of a record in messages."""
    if isinstance(copy, JobRecord):
        return f"the job {copy.identity}"
    if isinstance(copy, FactRecord):
        return f"the fact at {copy.fact.offset} of {copy.log}"
    name = copy.identity
    text = " ".join(map(str, name)) if isinstance(name, tuple) else str(name)
    return f"{text} of the {type(copy).title}"


MAX_PASSES = 5
"""How often a source that keeps changing is copied before the move is given up."""

declare(
    *("move.part.begun", "move.part.copied", "move.part.shut"),
    *("move.part.verified", "move.part.ended"),
    *("move.part.named", "move.part.frozen", "move.part.thawed"),
)


def look(part: Transfer, tell: Tell) -> list[Moved]:
    """Find out what a move would do; nothing is written."""
    found = []
    for kind in part.kinds:
        moved = Moved(part.name, kind.title)
        for count, (step, _) in enumerate(differences(part.source, part.target, kind), 1):
            moved.copied += step in (Difference.NEW, Difference.CHANGED)
            moved.discarded += step is Difference.GONE
            tell_now_and_then(tell, part, "comparing", moved.kind, count)
        found.append(moved)
    return found


def begun(part: Transfer) -> MoveState:
    """What a store is refused with that a part is to fill."""
    return MoveState(part.identity, birth=part.birth, token=part.token, program=part.program)


def begin(*parts: Transfer) -> None:
    """Write into the target that a move is under way, so that nobody works with half a copy.

    ``preflight`` has decided before that the target may be written. Dying from here on leaves that
    state behind, and the next run of the same move continues.
    """
    copies = [part for part in parts if part.target.state.source]
    write_states([part.target for part in parts], [begun(part) for part in parts])
    for part in copies:  # which was shut if the source was opened again since
        part.target.freeze(None)
    failpoint("move.part.begun")


def move(part: Transfer, tell: Tell, before_shut: Callable[[], None] | None = None) -> list[Moved]:
    """Copy and compare both sides; :func:`begin` comes before, and :func:`end` after.

    What came into the source meanwhile is copied in further passes. With ``before_shut``, which may
    refuse it, the source is frozen after the first pass, which is the long one: so it is frozen
    only for the short ones.
    """
    found = [Moved(part.name, kind.title) for kind in part.kinds]
    is_shut = before_shut is None

    def attempt() -> list[Moved]:
        nonlocal is_shut
        read = [
            _Copying(part, kind, tell, moved).run()
            for kind, moved in zip(part.kinds, found, strict=True)
        ]
        failpoint("move.part.copied")
        if before_shut is not None and not is_shut:
            before_shut()
            # After the first copy, which takes longest: until here the source was in use.
            shut(part.source, part.destination)
            is_shut = True
            failpoint("move.part.shut")
        # Both sides are equal only if the source did not change while they were compared, which
        # the pulse before and after tells.
        pulse = part.pulse()
        sums = verified(part, read, tell)
        if sums is not None:
            part.aside()
        if sums is not None and part.pulse() == pulse:
            return _compared(found, sums)
        tell(TransferProgress(part.name, "copying what came meanwhile", 0))
        raise ConflictError

    return retry_conflicts(attempt, max_attempts=MAX_PASSES, give_up=lambda: _keeps_growing(part))


def _keeps_growing(part: Transfer) -> StoreError:
    return StoreError(
        f"{part.name} keep coming into the store that is moved: it was copied {MAX_PASSES} times,"
        f" and {part.where} does not hold the same {part.name} yet",
        remedy="stop whoever adds there, then move again, or move with --shut, which refuses them",
    )


def _compared(found: list[Moved], sums: list[KindDigest]) -> list[Moved]:
    for moved, each in zip(found, sums, strict=True):
        moved.sum = each
    failpoint("move.part.verified")
    return found


def end(parts: Sequence[Transfer], found: Sequence[Sequence[Moved]]) -> None:
    """Write into the targets that the move is complete. Only when all of its parts are."""
    sums = [
        {each.kind: (each.sum.count, each.sum.digest) for each in moved if each.sum}
        for moved in found
    ]
    marks = [
        MoveState(part.identity, done, birth=part.birth, token=part.token, program=part.program)
        for part, done in zip(parts, sums, strict=True)
    ]
    write_states([part.target for part in parts], marks)
    failpoint("move.part.ended")


@dataclass
class _Copying:
    """Copies the records of one kind, in pages."""

    part: Transfer
    kind: type[TransferRecord]
    tell: Tell
    moved: Moved
    _coming: list[TransferRecord] = field(default_factory=list)
    _going: list[TransferRecord] = field(default_factory=list)
    _size: int = 0

    def run(self) -> KindDigest:
        """Make the target equal to the source; the digest of the source as it was read."""
        is_fresh = not self.part.target.dump(self.kind, None, 1)
        # A unique key may have passed from one job to another since the last copy. Jobs that gave
        # theirs up are written first, or the other's insert would violate the constraint.
        if not is_fresh and self.kind.holds_keys:
            left, read = self._walk(_frees_key)
            if not left:
                return read
        return self._walk(lambda _step, _copy: True)[1]

    def _walk(
        self, is_meant: Callable[[Difference, TransferRecord], bool]
    ) -> tuple[int, KindDigest]:
        """Apply the differences that ``is_meant`` selects; how many are left, and the digest."""
        left, read, moved = 0, RunningDigest(), self.moved
        steps = differences(self.part.source, self.part.target, self.kind)
        for count, (step, copy) in enumerate(steps, 1):
            tell_now_and_then(self.tell, self.part, "copying", moved.kind, count)
            # Over all that the source has, copied or not: verified() compares it with a second
            # reading.
            if step is not Difference.GONE:
                read.add(copy)
            if step is Difference.SAME:
                continue
            if not is_meant(step, copy):
                left += 1
                continue
            self._refuse_impossible(step)
            if self.part.is_import:
                self._refuse_conflict(step, copy)
            (self._going if step is Difference.GONE else self._coming).append(copy)
            moved.discarded += step is Difference.GONE
            moved.copied += step is not Difference.GONE
            self._size += len(copy.content)
            if len(self._coming) + len(self._going) >= PAGE_SIZE or self._size > PAGE_BYTES:
                self._flush()
        self._flush()
        return left, read.sum()

    def _refuse_impossible(self, step: Difference) -> None:
        """Refuse a target that is no earlier copy: it differs in what never goes or changes."""
        if (step is Difference.GONE and not self.kind.may_leave) or (
            step is Difference.CHANGED and not self.kind.may_change
        ):
            raise StoreError(
                f"{self.part.where} holds {self.kind.title} that the other store does not have",
                remedy="name an empty store as TO",
            )

    def _refuse_conflict(self, step: Difference, copy: TransferRecord) -> None:
        """Refuse to overwrite: an import fills an empty store, so what differs is not from it.

        Except the settings of a queue, which are written in two steps, and records that every store
        has from its beginning.
        """
        is_frame = self.kind.may_change and not self.kind.may_leave
        if step is Difference.GONE or (
            step is Difference.CHANGED and not is_frame and self.kind is not QueueRecord
        ):
            problem = (
                "is not in the file" if step is Difference.GONE else "differs from that in the file"
            )
            raise StoreError(
                f"{label(copy)} in {self.part.where} {problem}: somebody else writes there",
                remedy="name an empty store as TO; what is there was not overwritten",
                details={"kind": copy.kind, "key": plain(copy.identity, "key")},
            )

    def _flush(self) -> None:
        """Write one page. Deletions come first: an id may have been reused."""
        if self._going:
            self.part.target.discard(self._going)
        if self._coming:
            self.part.target.load(self._coming)
        self._going, self._coming, self._size = [], [], 0


def _frees_key(step: Difference, copy: TransferRecord) -> bool:
    is_final = isinstance(copy, JobRecord) and copy.job.status.is_final
    return step is Difference.GONE or (step is Difference.CHANGED and is_final)
