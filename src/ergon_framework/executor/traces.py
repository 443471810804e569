"""Where an exception was raised: files, lines, functions and source lines, and nothing else.

Neither locals nor arguments nor messages are in it: they may hold what the job is about. The
message of the error itself is told beside it.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

MOST_FRAMES = 20
"""Frames of one exception that are told: the innermost."""
MOST_CAUSES = 3
"""Exceptions of a chain that are told: the last."""
LONGEST_LINE = 200
LONGEST = 4096
"""Characters of one line, and of all."""
_OURS = str(Path(__file__).parent)


def traceback_of(error: BaseException) -> str | None:
    """The traceback of an exception and of what it came from; None where nothing is known."""
    try:
        told = "\n".join(_lines(error))
    except BaseException:  # a loader of the user's may raise when it is asked for a source line
        return None
    told = told.encode("utf-8", "replace").decode()
    return told if len(told) <= LONGEST else "…" + told[-LONGEST:]


def _lines(error: BaseException) -> Iterator[str]:
    chain = [error]
    while len(chain) < MOST_CAUSES and (earlier := _before(chain[-1])) is not None:
        if earlier in chain:
            break
        chain.append(earlier)
    for number, each in enumerate(reversed(chain)):
        if number:
            yield "which led to:"
        yield from _frames(each)
        yield type(each).__name__[:LONGEST_LINE]


def _before(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None:
        return error.__cause__
    return None if error.__suppress_context__ else error.__context__


def _frames(error: BaseException) -> Iterator[str]:
    found = traceback.StackSummary.extract(
        traceback.walk_tb(error.__traceback__), limit=-_DEEPEST, capture_locals=False
    )
    frames = [each for each in found if not each.filename.startswith(_OURS)]
    if len(frames) > MOST_FRAMES:
        yield f"  … {len(frames) - MOST_FRAMES} more frames"
    for frame in frames[-MOST_FRAMES:]:
        yield f"  {frame.filename[:LONGEST_LINE]}:{frame.lineno} in {frame.name[:LONGEST_LINE]}"
        if frame.line:
            yield f"    {frame.line[:LONGEST_LINE]}"


_DEEPEST = min(sys.getrecursionlimit(), 1000)
