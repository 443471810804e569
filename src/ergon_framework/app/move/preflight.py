"""Whether a target may be written, and whether source and target are in use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ergon_framework.app.move.transfer import (
    Difference,
    Transfer,
    all_records,
    differences,
    digest_of,
    is_empty,
)
from ergon_framework.app.store_location import is_same
from ergon_framework.boundary.data_folder import DataFolder, FolderInUseError
from ergon_framework.errors import ConfigurationError, StoreError
from ergon_framework.ports.factstore import ConsumerStore
from ergon_framework.ports.jobstore import JobAdmin
from ergon_framework.ports.transfer import (
    FactRecord,
    JobRecord,
    MoveState,
    move_state_of,
    moved_away,
    place_operand,
    store_id_of,
)


def refuse_other(part: Transfer) -> None:
    """Write into an empty store, or into an untouched earlier copy of the same one."""
    refuse_half_source(part.source)
    if part.birth and store_id_of(part.target) == part.birth:
        raise into_itself(part.where)
    state = move_state_of(part.target)
    if state.destination is not None and not is_back(state, part):
        operand = place_operand(part.where)
        raise moved_away(part.where, state.destination, operand, part.zone)
    if state.is_incomplete and state.program is not None and part.program is None:
        raise StoreError(
            f"{part.where} is to get all parts of {state.program.settings} in one move, which has"
            " not ended: one part alone would be worked with before the others are there",
            remedy=f"end that one: {state.resume_remedy}",
            details={"program": state.program.settings},
        )
    if not state.source:
        if not is_empty(part.target, part.kinds):
            raise StoreError(
                f"{part.where} holds {part.name} already, and they are not"
                f" {'of this import' if part.is_import else 'an earlier copy'}",
                remedy="name an empty store as TO; nothing was changed",
            )
        return
    if not is_copy_of(state, part):
        raise _another(state, part)
    if state.sums is not None and not _is_untouched(part, state.sums):
        raise StoreError(
            f"{part.where} has been in use since {part.name} were {_verb(part)}ed there:"
            f" {_verb(part)}ing again would undo what was done meanwhile",
            remedy="go on with that store, or name an empty one as TO; nothing was changed",
        )
    _refuse_foreign(state, part)


def refuse_half_source(source: object) -> None:
    """Read no store that another move has not filled yet."""
    state = move_state_of(source)
    if state.is_incomplete:
        raise StoreError(
            f"{state.what_is_incomplete} into FROM has not ended:"
            f" it is to become a copy of {state.source}",
            remedy=f"end that one first: {state.resume_remedy}, and then this one",
        )


def into_itself(name: str) -> ConfigurationError:
    """The error of two names of one store."""
    return ConfigurationError(
        f"{name} cannot be moved into itself", remedy="name another store as TO"
    )


def is_back(state: MoveState, part: Transfer) -> bool:
    """Whether the target was shut because the source was opened again, whatever it was called.

    A zone that is a copy is known by its epoch; of other copies and originals the id tells.
    """
    if not state.moved_to or not part.origin:
        return False
    is_known = bool(state.moved_to_id) and state.moved_to_id == store_id_of(part.source)
    is_copy = state.is_undone and bool(state.source) and is_copy_of(state, part)
    return is_known or is_copy or is_same(state.moved_to, part.origin)


def is_copy_of(state: MoveState, part: Transfer) -> bool:
    """Whether a state was left by a move of the same source, however its name is written."""
    return _is_born_alike(state, part) or is_same(state.source, part.identity)


def is_original_of(part: Transfer) -> bool:
    """Whether the source is a copy that an earlier move made of the target."""
    state = move_state_of(part.source)
    if state.birth and state.birth == store_id_of(part.target):
        return True
    known_by = part.identity if part.zone else f"{part.name} of {part.where}"
    return bool(state.source) and is_same(state.source, known_by)


def _is_born_alike(state: MoveState, part: Transfer) -> bool:
    return bool(state.birth) and state.birth == part.birth


def _verb(part: Transfer) -> str:
    return "import" if part.is_import else "mov"


def _another(state: MoveState, part: Transfer) -> StoreError:
    if part.is_import:
        return StoreError(
            f"{part.where} holds {part.name} of another source than this file: {state.source}",
            remedy="name an empty store as TO; nothing was changed",
            details={"source": state.source},
        )
    has_epoch = FactRecord in part.kinds  # which is the same wherever the zone is
    again = "" if has_epoch else "if both are one store, write FROM as it was written then; else "
    return StoreError(
        f"{part.where} holds {part.name} that were moved there from another store: {state.source},"
        f" not {part.identity}",
        remedy=f"{again}name an empty store as TO; nothing was changed",
        details={"source": state.source},
    )


def _is_untouched(part: Transfer, sums: dict[str, tuple[int, str]]) -> bool:
    found = {kind.title: digest_of(part.target, kind) for kind in part.kinds}
    # The version that wrote the sums may not have known a kind; then there was none of it.
    known = {kind: each for kind, each in found.items() if kind in sums or each.count}
    return {kind: (each.count, each.digest) for kind, each in known.items()} == sums


def _refuse_foreign(state: MoveState, part: Transfer) -> None:
    """Refuse to copy again when none of the jobs that were copied before is left in the source.

    Jobs leave a store one by one. If all of them are gone, the source may be another store of the
    same name, or was emptied. Then the first copy may be the only one, and this move would discard
    it.
    """
    if JobRecord not in part.kinds or not part.target.dump(JobRecord, None, 1):
        return
    steps = differences(part.source, part.target, JobRecord)
    if any(step in (Difference.SAME, Difference.CHANGED) for step, _ in steps):
        return
    if not _were_purged(state, part):
        raise StoreError(
            f"none of the jobs that were moved to {part.where} before is in the other store any"
            " more: it was emptied or replaced, or all of them were purged there, and moving again"
            " would discard them all",
            remedy="if TO holds nothing you need, empty it, or name an empty store as TO; nothing"
            " was changed",
        )


def _were_purged(state: MoveState, part: Transfer) -> bool:
    """Whether no copy is needed: the very same store went on without these jobs, or it is time for
    every one of them to go, wherever it is.
    """
    if _is_born_alike(state, part) and _went_on(part):
        return True
    now = part.now()
    return all(_is_past(copy, now) for copy in all_records(part.target, JobRecord))


def _went_on(part: Transfer) -> bool:
    """Whether all that the source has came after what was copied. One that was put back from a
    backup is the very same store, too, but an older one, and the records are newer than it.
    """
    oldest = min(
        (copy.job.created_at for copy in all_records(part.source, JobRecord)), default=None
    )
    newest = max(copy.job.created_at for copy in all_records(part.target, JobRecord))
    return oldest is not None and oldest >= newest


def _is_past(copy: JobRecord, now: float) -> bool:
    return copy.job.purge_at is not None and copy.job.purge_at <= now


GONE_AFTER = 60.0
"""Seconds since a worker told of itself after which it is taken for gone."""


def locked(folder: Path) -> DataFolder:
    """The folder of a zone that is to be read, held so that no node starts there meanwhile."""
    try:
        return DataFolder.lock(folder)
    except FolderInUseError as error:
        raise FolderInUseError(
            error.message,
            remedy="stop the zone's node; --force moves what it leaves behind meanwhile",
            details=error.details,
        ) from error


def refuse_workers(admin: JobAdmin, now: float, where: str, *, is_target: bool = False) -> None:
    """Refuse a store that workers use; in a target even with --force, for their work is lost."""
    alive = [each for each in admin.workers() if now - each.seen_at < GONE_AFTER]
    if alive:
        named = ", ".join(f"{each.id} (process {each.pid} on {each.host})" for each in alive)
        forced = "" if is_target else "; --force moves what they leave behind meanwhile"
        raise StoreError(
            f"workers use {where}: {named}", remedy=f"stop them and wait a minute{forced}"
        )


def refuse_readers(store: ConsumerStore, clock: Callable[[], float], where: str) -> None:
    """Refuse a zone that has an active reader."""
    held = [each for each in store.consumers() if each.is_held(clock())]
    if held:
        named = ", ".join(f"{each.name} (held by {each.holder})" for each in held)
        raise StoreError(
            f"consumers read from {where}: {named}",
            remedy="stop the zone's nodes and wait a minute; --force moves it nevertheless",
        )
