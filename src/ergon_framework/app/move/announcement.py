"""Files that a move is going to make, refused to everybody else from before they are made."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ergon_framework.app.move.endpoints import Asked
from ergon_framework.boundary import data_folder
from ergon_framework.ports.transfer import MoveState
from ergon_framework.storage.incoming import Announcement


@contextmanager
def announced_files(several: Sequence[Asked], source: str = "") -> Iterator[Announcement]:
    """Announce the files of the moves that are not there yet; cancelled if the moves are refused.

    Files that are there may be in use, and are announced when nothing stands against the moves.
    ``source`` is what the stores become a copy of, where that is not what the moves name as FROM.
    """
    # The last first, as when they are marked.
    meant = [each for each in reversed(several) if not each.is_trial and each.target.file]
    announced = Announcement(_expected(meant[0], source) if meant else MoveState())
    made: list[Path] = []
    try:
        for each in meant:
            made += _made_for(each)
        announced.announce_new(
            list(dict.fromkeys(file for each in meant if (file := each.target.file)))
        )
        yield announced
    except BaseException:
        announced.cancel()
        for folder in reversed(made):
            with suppress(OSError):  # something is in it by now
                folder.rmdir()
        raise


def _made_for(asked: Asked) -> list[Path]:
    """Make the folder of a zone that is to be filled; the folders that were not there, outer first.

    Without its folder nothing can be said beside its file.
    """
    if asked.target.file is None or not asked.is_zone:
        return []
    folder = asked.target.file.parent
    data_folder.refuse_half_restored(folder, data_folder.FILE)
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    with suppress(OSError):  # whoever locks the folder says so
        data_folder.make(folder)
    return missing[::-1]


def _expected(asked: Asked, source: str) -> MoveState:
    """What a file is refused with before its part is known: which command fills it."""
    what = "facts" if asked.is_zone else "jobs"
    return MoveState(
        source or f"{what} of {asked.source.name}",
        token=secrets.token_hex(8),
        program=asked.program,
    )
