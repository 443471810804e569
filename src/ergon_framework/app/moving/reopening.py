"""The way back: a store that was moved and shut is opened again."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace

from ergon_framework.app.moving import copying, earlier, opening, shutting
from ergon_framework.app.moving.opening import Asked
from ergon_framework.app.moving.parts import Part, Tell
from ergon_framework.app.moving.zones import no_work_at
from ergon_framework.boundary.folder import DataFolder
from ergon_framework.errors import ConfigurationError, StoreError, StoreUnavailableError
from ergon_framework.ports.moving import mark_of, moved_away

_INSIST = "if what was done in TO may be lost, add --force"


def reopen(asked: Asked, tell: Tell = lambda _: None) -> list[str]:
    """Let a source be worked with again that was shut; which of its parts were.

    Unless it is forced, the target must hold the same: what was done there would be left behind,
    and what was begun there would be done twice.
    """
    asked.source.refuse_missing()
    with ExitStack() as stack:
        sources = opening.sources(asked, stack)
        if not sources:
            raise no_work_at(asked.source)
        for source in sources.values():
            shutting.refuse_elsewhere(source, asked.source.name, asked.target.name)
        shut = [name for name, source in sources.items() if mark_of(source).moved_to]
        if shut and not asked.is_forced:
            for part in _parts(asked, shut, stack):
                _refuse_worked_with(part, asked.source.name, tell)
        return [name for name, source in sources.items() if shutting.reopen(source)]


def _parts(asked: Asked, shut: Collection[str], stack: ExitStack) -> list[Part]:
    """Both sides of what was shut, to be looked at; a folder of TO stays locked meanwhile."""
    # Whoever still has FROM open can change nothing there: that is no reason to wait.
    trial = replace(asked, is_trial=True, is_forced=True)
    try:
        return list(_opened(trial, shut, stack))
    except (ConfigurationError, StoreUnavailableError) as error:
        raise type(error)(
            error.message, remedy=f"{error.remedy}; {_INSIST}", details=error.details
        ) from error


def _opened(trial: Asked, shut: Collection[str], stack: ExitStack) -> Iterator[Part]:
    if trial.is_zone:
        file = trial.target.file
        if file is not None and file.parent.is_dir():
            stack.enter_context(closing(DataFolder.lock(file.parent)))
        yield opening.zone_part(trial, stack)
    if "provider calls" in shut:
        yield from opening.call_part(trial, [])
    if "jobs" in shut:
        yield from opening.job_part(trial, stack)


def _refuse_worked_with(part: Part, source: str, tell: Tell) -> None:
    mark = mark_of(part.target)
    if mark.moved_to:
        gone = moved_away(part.where, mark.moved_to)
        raise type(gone)(
            gone.message, remedy=f"work with that one; {_INSIST}", details=gone.details
        )
    if mark.is_half and earlier.is_copy_of(mark, part):
        return  # nobody got in so far
    found = copying.look(part, tell)
    changed = [f"{n} {each.kind}" for each in found if (n := each.copied + each.discarded)]
    if changed:
        raise StoreError(
            f"{part.where} does not hold what {source} holds; others are {', '.join(changed)}",
            remedy=f"go on working with TO; {_INSIST}",
            details={"differing": changed},
        )
