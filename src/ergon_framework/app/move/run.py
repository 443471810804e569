"""The order of a move, and the way back."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace

from ergon_framework.app.move import endpoints, object_copy, preflight, transfer
from ergon_framework.app.move.endpoints import Asked, no_work_at, zones_at
from ergon_framework.app.move.transfer import Moved, Tell, Transfer
from ergon_framework.app.store_location import is_same
from ergon_framework.boundary.data_folder import DataFolder
from ergon_framework.errors import ConfigurationError, StoreError, StoreUnavailableError
from ergon_framework.ports.transfer import RecordStore, move_state_of, moved_away

__all__ = ["Asked", "Outcome", "run"]


@dataclass
class Outcome:
    """What became of everything, and what was left out and why."""

    moved: list[Moved] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_shut: bool = False
    """Whether the source is frozen, by this move or an earlier one."""
    was_open: bool = False
    """Whether the source could be worked with when the move began."""


def run(asked: Asked, tell: Tell) -> Outcome:
    """Move jobs and provider calls, or a zone, or only find out what that would be."""
    asked.source.refuse_missing()
    for place in (asked.source, asked.target):
        place.refuse_memory()
    if is_same(asked.source.name, asked.target.name):
        raise preflight.into_itself(asked.target.name)
    return (_move_zone if asked.is_zone else _move_work)(asked, tell)


def _move_work(asked: Asked, tell: Tell) -> Outcome:
    """Move jobs and provider calls."""
    if asked.objects is not None:
        raise ConfigurationError(
            "only a zone has objects, and jobs are what would be moved",
            remedy="leave out --objects, or give --zone NAME",
        )
    outcome = Outcome()
    with ExitStack() as stack:
        # Jobs come last: workers call providers.
        parts = [*endpoints.call_part(asked, outcome.notes), *endpoints.job_part(asked, stack)]
        if not parts:
            raise _nothing(asked, outcome.notes)
        _begin(asked, parts)
        outcome.was_open = not _are_shut(parts)
        outcome.moved += _moved(asked, parts, tell)
        outcome.is_shut = _are_shut(parts)
    outcome.notes += [
        f"the facts of zone {zone} stay: --zone {zone} moves them"
        for zone in zones_at(asked.source)
    ]
    return outcome


def _nothing(asked: Asked, notes: Sequence[str]) -> ConfigurationError:
    """The error of a move that has no parts; notes tell what would have to stay."""
    if notes:
        return ConfigurationError(
            f"{asked.source.name} keeps provider calls and no jobs, and {asked.target.name} cannot"
            " keep provider calls",
            remedy="name a store on SQLite or PostgreSQL as TO",
        )
    return no_work_at(asked.source)


def _move_zone(asked: Asked, tell: Tell) -> Outcome:
    outcome = Outcome()
    endpoints.refuse_objects(asked)  # before any store is made
    with ExitStack() as stack:
        part = endpoints.zone_part(asked, stack)
        _begin(asked, [part])
        outcome.was_open = not _are_shut([part])
        # Only after the move state is written: if the bucket fails now, the next run goes on.
        stores = endpoints.object_stores(asked, part, stack)
        if stores is None:
            outcome.notes.append("objects stay where they are: --objects FROM TO copies them")
        elif asked.is_trial:
            outcome.moved.append(object_copy.look(stores, tell))
        else:
            moved = object_copy.move(stores, tell)
            outcome.moved.append(moved)
            part = replace(part, aside=lambda: object_copy.settle(stores, moved, tell))
        outcome.moved += _moved(asked, [part], tell)
        outcome.is_shut = _are_shut([part])
    return outcome


# ---- both ---------------------------------------------------------------------------------------


def _begin(asked: Asked, parts: Sequence[Transfer]) -> None:
    """Refuse what cannot be before anything is written, and then leave word."""
    for part in parts:
        preflight.refuse_other(part)
        transfer.refuse_elsewhere(part.source, asked.source.name, part.where)
    if not asked.is_trial:
        transfer.begin(*parts)


def _moved(asked: Asked, parts: Sequence[Transfer], tell: Tell) -> list[Moved]:
    """Copy each part; none can be worked with in the target before all are there."""
    if asked.is_trial:
        return [each for part in parts for each in transfer.look(part, tell)]
    with _open_again_unless_done(asked, parts):
        found = [transfer.move(part, tell, shuts=asked.shuts) for part in parts]
        transfer.end(parts, found)
    return [each for moved in found for each in moved]


def _are_shut(parts: Sequence[Transfer]) -> bool:
    return all(move_state_of(part.source).moved_to for part in parts)


@contextmanager
def _open_again_unless_done(asked: Asked, parts: Sequence[Transfer]) -> Iterator[None]:
    """Reopen a source when the move fails, if it was open before: work has to go on there."""
    was_open = [part for part in parts if not move_state_of(part.source).moved_to]
    try:
        yield
    except BaseException:
        if asked.shuts:
            for part in was_open:
                with suppress(StoreError):  # why the move failed is what is told; --reopen is left
                    transfer.reopen(part.source)
        raise


_INSIST = "if what was done in TO may be lost, add --force"


def reopen(asked: Asked, tell: Tell = lambda _: None) -> list[str]:
    """Let a source be worked with again that was shut; which of its parts were.

    Unless it is forced, the target must hold the same: what was done there would be left behind,
    and what was begun there would be done twice.
    """
    return reopen_all([asked], tell)[0]


def reopen_all(several: Sequence[Asked], tell: Tell = lambda _: None) -> list[list[str]]:
    """Let several sources be worked with again, or, if one may not be, none of them."""
    with ExitStack() as stack:
        found = [_may_reopen(asked, tell, stack) for asked in several]
        return [
            [name for name, source in sources.items() if transfer.reopen(source)]
            for sources in found
        ]


def _may_reopen(asked: Asked, tell: Tell, stack: ExitStack) -> Mapping[str, RecordStore]:
    """What there is to be opened again; refused if something was done in the target since."""
    asked.source.refuse_missing()
    sources = endpoints.sources(asked, stack)
    if not sources:
        raise no_work_at(asked.source)
    for source in sources.values():
        transfer.refuse_elsewhere(source, asked.source.name, asked.target.name)
    shut = [name for name, source in sources.items() if move_state_of(source).moved_to]
    if shut and not asked.is_forced:
        for part in _parts(asked, shut, stack):
            _refuse_worked_with(part, asked.source.name, tell)
    return sources


def _parts(asked: Asked, shut: Collection[str], stack: ExitStack) -> list[Transfer]:
    """Both sides of what was shut, to be looked at; a folder of TO stays locked meanwhile."""
    # Processes that still have FROM open cannot write there, so they need not be waited for.
    trial = replace(asked, is_trial=True, is_forced=True)
    try:
        return list(_opened(trial, shut, stack))
    except (ConfigurationError, StoreUnavailableError) as error:
        raise type(error)(
            error.message, remedy=f"{error.remedy}; {_INSIST}", details=error.details
        ) from error


def _opened(trial: Asked, shut: Collection[str], stack: ExitStack) -> Iterator[Transfer]:
    if trial.is_zone:
        file = trial.target.file
        if file is not None and file.parent.is_dir():
            stack.enter_context(closing(DataFolder.lock(file.parent)))
        yield endpoints.zone_part(trial, stack)
    if "provider calls" in shut:
        yield from endpoints.call_part(trial, [])
    if "jobs" in shut:
        yield from endpoints.job_part(trial, stack)


def _refuse_worked_with(part: Transfer, source: str, tell: Tell) -> None:
    state = move_state_of(part.target)
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
        raise StoreError(
            f"{part.where} does not hold what {source} holds; others are {', '.join(changed)}",
            remedy=f"go on working with TO; {_INSIST}",
            details={"differing": changed},
        )
