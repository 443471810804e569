"""The order of a move, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from msgspec.structs import replace as replace_struct

from ergon_framework.app.move import endpoints, lock, object_copy, preflight, transfer
from ergon_framework.app.move.endpoints import Asked, no_work_at, zones_at
from ergon_framework.app.move.fencing import FencedStore
from ergon_framework.app.move.lock import MoveLock, announced_files
from ergon_framework.app.move.transfer import Moved, Tell, Transfer
from ergon_framework.app.store_location import is_one_store, is_same
from ergon_framework.boundary.data_folder import DataFolder
from ergon_framework.errors import ConfigurationError, StoreError, StoreUnavailableError
from ergon_framework.ports.transfer import (
    Destination,
    login_hint,
    move_state_of,
    moved_away,
    place_operand,
    shut_command,
    store_id_of,
)
from ergon_framework.storage.failpoints import declare, failpoint
from ergon_framework.storage.incoming import Announcement

__all__ = ["Asked", "MoveReport", "run"]

declare("move.back.shut")


@dataclass
class MoveReport:
    """What became of everything, and what was left out and why."""

    moved: list[Moved] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_shut: bool = False
    """Whether the source is frozen, by this move or an earlier one."""


@dataclass
class _Move:
    """One move, with its stores open."""

    asked: Asked
    parts: list[Transfer]
    outcome: MoveReport = field(default_factory=MoveReport)
    found: list[list[Moved]] = field(default_factory=list)
    is_ending: bool = False
    """Whether its target may be complete by now, and in use."""


def run(asked: Asked, tell: Tell) -> MoveReport:
    """Move jobs and provider calls, or a zone, or only find out what that would be."""
    return run_all([asked], tell)[0]


def run_all(several: Sequence[Asked], tell: Tell) -> list[MoveReport]:
    """Moves that begin and end together: nobody works in a target before all of them are filled.

    All are refused if one is. If one fails on the way, the sources that were open before are open
    again, and the targets stay marked until the same moves are run again and end. Once a target may
    be complete, the sources stay shut: nobody knows whether it is in use already.
    """
    for asked in several:
        _refuse_places(asked)
    with ExitStack() as stack:
        held = stack.enter_context(
            lock.alone(each for each in several if each.shuts and not each.is_trial)
        )
        announced = stack.enter_context(announced_files(several))
        # The last first, as when they are marked: stores on servers are made with a mark.
        moves = [
            (_open_zone if each.is_zone else _open_work)(each, stack) for each in reversed(several)
        ]
        moves.reverse()
        left = _without_ended(moves)
        for move in left:
            _refuse(move)
        with _open_again_unless_done(left, held):
            for move in moves:
                _claim(move, has_ended=move not in left)
            _mark(left, announced)
            for move in left:
                _copy(move, tell, stack, held)
            # Copying may have taken hours, and a lease that was lost meanwhile may be that of
            # another move now.
            held.refuse_lost()
            for move in left:
                if not move.asked.is_trial:
                    # Before the write: if its answer is lost, the target may be complete, and the
                    # sources must not be opened again.
                    move.is_ending = True
                    transfer.end(move.parts, move.found)
        for move in moves:
            move.outcome.moved += [each for found in move.found for each in found]
            move.outcome.is_shut = _are_shut(move.parts)
        _name_the_program(moves)
    return [move.outcome for move in moves]


def _refuse_places(asked: Asked) -> None:
    """Refuse what is wrong whatever the stores hold, before any is made."""
    asked.source.refuse_missing()
    for place in (asked.source, asked.target):
        place.refuse_memory()
    if is_one_store(asked.source, asked.target):
        raise preflight.into_itself(asked.target.name)
    if asked.is_zone:
        endpoints.refuse_objects(asked)
    elif asked.objects is not None:
        raise ConfigurationError(
            "only a zone has objects, and jobs are what would be moved",
            remedy="leave out --objects, or give --zone NAME",
        )


def _open_zone(asked: Asked, stack: ExitStack) -> _Move:
    return _Move(asked, [endpoints.zone_part(asked, stack)])


def _open_work(asked: Asked, stack: ExitStack) -> _Move:
    """Jobs and provider calls. Jobs come last: workers call providers."""
    notes: list[str] = []
    parts = [*endpoints.call_part(asked, notes), *endpoints.job_part(asked, stack, notes)]
    if not parts:
        raise _nothing(asked, notes)
    notes += [
        f"the facts of zone {zone} stay: --zone {zone} moves them"
        for zone in zones_at(asked.source)
    ]
    return _Move(asked, parts, MoveReport(notes=notes))


def _nothing(asked: Asked, notes: Sequence[str]) -> ConfigurationError:
    """The error of a move that has no parts; notes tell what would have to stay."""
    if notes:
        return ConfigurationError(
            f"{asked.source.name} keeps provider calls and no jobs, and {asked.target.name} cannot"
            " keep provider calls",
            remedy="name a store on SQLite or PostgreSQL as TO",
        )
    return no_work_at(asked.source)


def _without_ended(moves: Sequence[_Move]) -> Sequence[_Move]:
    """The moves without those that had ended when the process died between two ends.

    Their targets may be in use since. When all have ended, all are compared as ever.
    """
    ended = [move for move in moves if all(map(_is_ended, move.parts))]
    return moves if len(ended) == len(moves) else [move for move in moves if move not in ended]


def _is_ended(part: Transfer) -> bool:
    """Whether everything is in the target, and nothing can have come into the source since.

    A target that the way back has begun to shut has to be opened again.
    """
    state = move_state_of(part.target)
    is_open = not state.moved_to and state.moved_with is None
    is_filled = state.sums is not None and is_open and preflight.is_copy_of(state, part)
    gone = move_state_of(part.source)
    return is_filled and transfer.went_to(gone, part.where, lambda: store_id_of(part.target))


def _name_the_program(moves: Sequence[_Move]) -> None:
    """Make parts that had been moved and shut before, each by itself, parts of the program."""
    for part in (part for move in moves if not move.asked.is_trial for part in move.parts):
        state = move_state_of(part.source)
        if state.moved_to and part.program is not None and state.moved_with is None:
            transfer.shut(part.source, part.destination)


def _refuse(move: _Move) -> None:
    """Refuse what cannot be before anything is written."""
    for part in move.parts:
        preflight.refuse_other(part)
        found = partial(store_id_of, part.target)
        transfer.refuse_elsewhere(part.source, move.asked.source.name, part.where, found)


def _claim(move: _Move, *, has_ended: bool) -> None:
    """Have the stores refuse all earlier runs: one that was stopped may be continued any time.

    A target that is to be filled is claimed when it is marked.
    """
    if move.asked.is_trial:
        return
    for part in move.parts:
        if move.asked.shuts:
            part.source.claim(part.token)
        if has_ended:
            part.target.claim(part.token)


def _mark(moves: Sequence[_Move], announced: Announcement) -> None:
    """Write into all targets that the moves have begun.

    Several files are refused from one moment on. Should this fail after it, they stay refused until
    the same moves are run again, as marked ones do.
    """
    meant = [move for move in reversed(moves) if not move.asked.is_trial]
    files = list(dict.fromkeys(file for move in meant if (file := move.asked.target.file)))
    if len(files) > 1:
        announced.announce(files)
    announced.settle()
    # The last is marked first: anybody may begin with jobs, and whoever does so learns from that
    # mark about the zones on the same server.
    for move in meant:
        transfer.begin(*move.parts)
    announced.withdraw(files)


def _copy(move: _Move, tell: Tell, stack: ExitStack, held: MoveLock) -> None:
    """Copy and compare each part, or only look at it."""
    asked = move.asked
    if asked.is_zone:
        [part] = move.parts
        move.parts = [_with_objects(move, part, tell, stack)]
    if asked.is_trial:
        move.found = [transfer.look(part, tell) for part in move.parts]
    else:
        before_shut = held.refuse_lost if asked.shuts else None
        move.found = [transfer.move(part, tell, before_shut) for part in move.parts]


def _with_objects(move: _Move, part: Transfer, tell: Tell, stack: ExitStack) -> Transfer:
    """Copy a zone's objects; its facts, which will see to those that came meanwhile."""
    # Only after the move state is written: if the bucket fails now, the next run goes on.
    stores = endpoints.object_stores(move.asked, part, stack)
    if stores is None:
        move.outcome.notes.append("objects stay where they are: --objects FROM TO copies them")
        return part
    if move.asked.is_trial:
        move.outcome.moved.append(object_copy.look(stores, tell))
        return part
    moved = object_copy.move(stores, tell)
    move.outcome.moved.append(moved)
    return replace(part, aside=lambda: object_copy.settle(stores, moved, tell))


def _are_shut(parts: Sequence[Transfer]) -> bool:
    return all(move_state_of(part.source).moved_to for part in parts)


@contextmanager
def _open_again_unless_done(moves: Sequence[_Move], held: MoveLock) -> Iterator[None]:
    """Reopen sources when a move fails, if they were open before: work has to go on there.

    A move that has lost its lock leaves them to the one that may have the lock now.
    """
    parts = [part for move in moves if move.asked.shuts for part in move.parts]
    was_open = [part for part in parts if not move_state_of(part.source).moved_to]
    try:
        yield
    except BaseException as error:
        if any(_may_be_complete(move) for move in moves):
            _add_remedy(error, "the old stores stay shut, for TO may be complete and in use")
            raise
        try:
            held.refuse_lost()
        except StoreError:
            _add_remedy(error, "the old stores were left as they are")
            raise error from None
        _add_remedy(error, "the old stores are open as before")
        for part in was_open:
            with suppress(StoreError):  # why the move failed is what is told; --reopen is left
                part.source.recover()
                transfer.reopen(part.source)
        raise


def _may_be_complete(move: _Move) -> bool:
    """Whether programs may use the target already. A target that cannot be read counts as used."""
    try:
        states = [move_state_of(part.target) for part in move.parts] if move.is_ending else []
    except StoreError:
        return True
    return any(not state.is_incomplete for state in states)


def _add_remedy(error: BaseException, left: str) -> None:
    """Add to an error what the failed move has left behind, and how to resume it."""
    if isinstance(error, StoreUnavailableError):
        error.remedy += f"; {left}, and the same command goes on from there"


# ---- the way back -------------------------------------------------------------------------------


_INSIST = "if what was done in TO may be lost, add --force"


@dataclass
class _WayBack:
    """The way back of one move: a source to open again, and the target to shut first."""

    asked: Asked
    sources: Mapping[str, FencedStore]
    in_use: Sequence[Transfer] = ()
    """The parts that programs may be using in TO."""


Warn = Callable[[str], None]


def reopen(asked: Asked, tell: Tell = lambda _: None, warn: Warn = lambda _: None) -> list[str]:
    """Open a frozen source again; returns which of its parts were opened.

    Unless forced, the target must hold the same records: otherwise work that was done there would
    be lost, and work that was begun there would be done twice. The target is frozen first.
    """
    return reopen_all([asked], tell, warn)[0]


def reopen_all(
    several: Sequence[Asked], tell: Tell = lambda _: None, warn: Warn = lambda _: None
) -> list[list[str]]:
    """Let several sources be worked with again, or, if one may not be, none of them.

    No source is opened before all targets are shut: a process that dies on the way leaves both
    sides shut, and never both open. The same command goes on. ``warn`` is told of targets that
    could not be reached, and so were not shut; only --force goes on without them.
    """
    for asked in several:
        asked.source.refuse_missing()
    with ExitStack() as stack:
        held = stack.enter_context(lock.alone(several))
        found = [_may_reopen(asked, tell, warn, stack) for asked in several]
        held.refuse_lost()
        for way in found:
            _shut_others(way, stack)
        held.refuse_lost()
        return [
            [name for name, source in way.sources.items() if transfer.reopen(source)]
            for way in found
        ]


def _may_reopen(asked: Asked, tell: Tell, warn: Warn, stack: ExitStack) -> _WayBack:
    """What there is to be opened again; refused if something was done in the target since."""
    sources = endpoints.sources(asked, stack)
    if not sources:
        raise no_work_at(asked.source)
    for name, source in sources.items():
        _refuse_part_alone(source, asked)
        found = partial(endpoints.id_at, asked.target, name)
        transfer.refuse_elsewhere(source, asked.source.name, asked.target.name, found)
    shut = [name for name, source in sources.items() if move_state_of(source).moved_to]
    parts: list[Transfer] = []
    if shut and not asked.is_forced:
        parts = _parts(asked, shut, stack)
        for part in parts:
            _refuse_worked_with(part, tell)
    elif shut:
        try:
            parts = _parts(asked, shut, stack)
        except (ConfigurationError, StoreUnavailableError) as error:  # gone, or it does not answer
            warn(f"{asked.target.name} was not shut: see that nobody works there; {error.message}")
    return _WayBack(asked, sources, [part for part in parts if _is_in_use(part)])


def _refuse_part_alone(source: FencedStore, asked: Asked) -> None:
    """Refuse to open a part of a program without the others: they are worked with elsewhere."""
    whole, mine = move_state_of(source).moved_with, asked.program
    if whole is None:
        return
    if whole.is_undone:
        raise StoreError(
            f"{asked.source.name} is the copy, and was shut when the old stores of"
            f" {whole.settings} were opened again: those are the ones to work with",
            remedy=f"write {whole.old_line} under [store] in {whole.settings_file}; with that line,"
            f" `{whole.command()}` moves all parts again and lets this one be used"
            f"{login_hint(whole.to)}",
            details={"program": whole.settings},
        )
    if mine is None:
        raise StoreError(
            f"{asked.source.name} was moved with all parts of {whole.settings}: to open this one"
            " alone again would have the program work in two places",
            remedy=f"`{whole.command(reopens=True)}` lets this one be used again"
            f" with all others{login_hint(whole.to)}",
            details={"program": whole.settings},
        )
    left = [each for each in whole.sources if not any(is_same(each, own) for own in mine.sources)]
    if left and not asked.is_forced:
        raise StoreError(
            f"{asked.source.name} was moved with {', '.join(left)}, which {mine.settings} does not"
            " keep now, and which would stay shut",
            remedy=f"write the tables that {whole.settings} had then, and run"
            f" `{whole.command(reopens=True)}`; or, to open the others alone, add --force",
            details={"left": left},
        )


def _is_in_use(part: Transfer) -> bool:
    """Whether the target is the copy of the source, or its original, and takes in work."""
    state = move_state_of(part.target)
    if state.moved_to or state.is_incomplete:
        return False
    is_copy = state.sums is not None and preflight.is_copy_of(state, part)
    return is_copy or preflight.is_original_of(part)


def _shut_others(way: _WayBack, stack: ExitStack) -> None:
    """Freeze TO, so that no program goes on writing there once the source is open."""
    if not way.in_use:
        return
    asked = way.asked
    try:
        opened = endpoints.sources(replace(asked, source=asked.target, target=asked.source), stack)
    except ConfigurationError:
        return  # it is gone: the place that the source was moved to has no such zone
    undone = None if asked.program is None else replace_struct(asked.program, is_undone=True)
    for part in way.in_use:
        if part.name in opened:
            is_copy = not preflight.is_original_of(part)
            own_id = store_id_of(part.source)
            gone = Destination(asked.source.name, part.zone, undone, is_copy, own_id)
            opened[part.name].follow(part.target)
            transfer.shut(opened[part.name], gone)
    failpoint("move.back.shut")


def _parts(asked: Asked, shut: Collection[str], stack: ExitStack) -> list[Transfer]:
    """Both sides of what was shut, to be looked at; a folder of TO stays locked meanwhile."""
    # Processes that still have FROM open cannot write there, so they need not be waited for.
    trial = replace(asked, is_trial=True, is_forced=True, allows_lost=True)
    try:
        return list(_opened(trial, shut, stack, is_used=asked.is_forced))
    except (ConfigurationError, StoreUnavailableError) as error:
        raise type(error)(
            error.message, remedy=f"{error.remedy}; {_INSIST}", details=error.details
        ) from error


def _opened(
    trial: Asked, shut: Collection[str], stack: ExitStack, *, is_used: bool
) -> Iterator[Transfer]:
    """The parts of a way back. With ``is_used``, workers may be using TO; they are refused once it
    is shut.
    """
    if trial.is_zone:
        file = trial.target.file
        if file is not None and file.parent.is_dir() and not is_used:
            stack.enter_context(closing(DataFolder.lock(file.parent)))
        yield endpoints.zone_part(trial, stack)
    if "provider calls" in shut:
        yield from endpoints.call_part(trial, [])
    if "jobs" in shut:
        yield from endpoints.job_part(trial, stack, [], tolerates_workers=is_used)


def _refuse_worked_with(part: Transfer, tell: Tell) -> None:
    state = move_state_of(part.target)
    if preflight.is_back(state, part):
        return  # the way back was cut off when TO was shut
    if state.moved_to:
        gone = moved_away(part.where, state.moved_to)
        raise type(gone)(
            gone.message, remedy=f"work with that one; {_INSIST}", details=gone.details
        )
    if state.is_incomplete and preflight.is_copy_of(state, part):
        return  # nobody got in so far
    found = transfer.look(part, tell)
    changed = [f"{n} {each.kind}" for each in found if (n := each.copied + each.discarded)]
    if changed:
        go_on = "go on working with TO"
        if preflight.is_original_of(part):
            places = place_operand(part.where), place_operand(part.origin)
            command = shut_command(*places, part.zone)
            go_on += f", or take along what was done there: `{command}`{login_hint(part.where)}"
        raise StoreError(
            f"{part.where} does not hold what {part.origin} holds; others are {', '.join(changed)}",
            remedy=f"{go_on}; {_INSIST}",
            details={"differing": changed},
        )
