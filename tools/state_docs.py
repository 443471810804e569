"""Writes docs/reference/states.md from the tables the engines run on.

python tools/state_docs.py            write the page
python tools/state_docs.py --check    fail when the page is stale
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import (
    ALLOWED,
    CancelRequested,
    Discarded,
    EditRequested,
    ExecutorMissing,
    Expired,
    Failed,
    HandlerMissing,
    HeldBack,
    JobEvent,
    JobRule,
    JobSnapshot,
    JobStatus,
    LeaseExpired,
    ProcessDied,
    Released,
    RequeueRequested,
    RescheduleRequested,
    RunRequested,
    Signalled,
    Succeeded,
    Unread,
    next_transition,
)
from ergon_framework.core.loop import StopReason
from ergon_framework.core.retry import RFC_STEP_RETRIES, RFC_SUCCESS_RETRIES
from ergon_framework.core.transaction_lifecycle import (
    ROUTES,
    VERBS,
    Cue,
    Ending,
    LifecycleStep,
    Verb,
)

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/reference/states.md"
INTRO = """\
# States

The tables the engines run on, written by `make docs` from the code itself; `make check` fails when
this page is stale. Do not edit. What is told about these changes is in [notices](notices.md)."""

LIFECYCLE = """\
## A transaction's lifecycle

Every transaction begins in `process`, which for a producer is its produce hook. A row says what
follows when a step is left; **bold** is an ending, and every transaction gets exactly one. A step,
after its retries, is left by one of these:"""

TIMED_OUT = """\
`failed` reads `timed_out` when the failure that led to the exception phase was a timeout."""

RETRIES = """\
## What is tried again

A failed attempt is repeated while the step has attempts left and the kind of its failure allows it.
A success handler repeats refusals too."""

SETTLEMENT = """\
## What the source is told

After the ending, where the connector offers the verb."""

STOPPING = """\
## Why a call ends

The `stop_reason` of its report. The first reason stays; only an abort puts another in its place."""

JOBS = """\
## A job's life

What may be seen of a job, in which states, and what becomes of it. A charge is a spent attempt."""

CUES = {
    Cue.OK: "the hook returned",
    Cue.FAILED: "its attempts are used up, or its failure is not retryable",
    Cue.EXPIRED: "the transaction's time is over",
    Cue.STOPPED: "the whole call is aborted",
}
MEANINGS = {
    Verb.ACK: "it is done; forget it",
    Verb.NACK: "it has failed for good",
    Verb.RELEASE: "it has no outcome; give it to somebody else",
    Verb.RELEASE_AFTER: "a gate kept it from beginning; bring it again in so many seconds",
}
_ERROR = Failure(Kind.DEFECT, "error")
_REFUSED = Failure(Kind.REJECTED, "handler_not_found")
_GATE = Failure(Kind.HELD, "held")
SEEN: tuple[tuple[str, JobEvent, int], ...] = (
    ("the executor answered success", Succeeded(), 0),
    ("the signal came that it waits for", Signalled(), 0),
    ("its handler discarded it", Discarded(), 0),
    ("an attempt failed, and attempts are left", Failed(_ERROR), 0),
    ("the last attempt failed", Failed(_ERROR), 4),
    ("the failure is final, such as handler_not_found", Failed(_REFUSED), 0),
    ("no executor can be asked: empty handler", Failed(_REFUSED, False), 0),
    ("a gate held it", HeldBack(_GATE), 0),
    ("its executor died with this request alone", ProcessDied(), 0),
    ("its executor died with several requests", ProcessDied(was_alone=False), 0),
    ("its executor died before it read the request", ProcessDied(was_read=False), 0),
    ("its time passed before its executor read the request", Unread(300.0), 0),
    ("the worker gave it back", Released(), 0),
    ("its worker has no such handler", HandlerMissing("", "resize"), 0),
    ("its lease expired", LeaseExpired(), 0),
    ("its expiry passed before it was started", Expired(), 0),
    ("no worker had its executor for `executor_wait`", ExecutorMissing("node"), 0),
    ("no worker had its handler for `executor_wait`", ExecutorMissing("", "resize"), 0),
    ("somebody cancelled it", CancelRequested(), 0),
    ("somebody wants it to run now", RunRequested(), 0),
    ("somebody wants it to run at another time", RescheduleRequested(60.0), 0),
    ("somebody sent it back from the dead letters", RequeueRequested(), 0),
    ("somebody sent it back with other arguments, as a new job", EditRequested("new"), 0),
)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    columns = list(head)
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def remarks(kinds: type[StrEnum]) -> dict[str, str]:
    """The comment behind each member: what it means is written once, where it is defined."""
    found = dict(re.findall(r'^ +\w+ = "(\w+)"  # (.+)$', inspect.getsource(kinds), re.MULTILINE))
    for member in kinds:
        if member.value not in found:
            raise SystemExit(f"{kinds.__name__}.{member.name} needs a comment that says what it is")
    return found


def lifecycle() -> str:
    """Step by cue."""
    head = ["step", *(f"`{cue}`" for cue in Cue)]
    return table(
        head, ([f"`{step}`", *(_route(step, cue) for cue in Cue)] for step in LifecycleStep)
    )


def cues() -> str:
    """What the columns of the lifecycle mean."""
    return "\n".join(f"- `{cue}`: {CUES[cue]}" for cue in Cue)


def _route(step: LifecycleStep, cue: Cue) -> str:
    route = ROUTES[step, cue]
    return f"**`{route}`**" if isinstance(route, Ending) else f"`{route}`"


def retries() -> str:
    """Which kinds of failure are repeated by which steps."""
    meaning = remarks(Kind)
    head = ["failure", "meaning", "process, exception, fetch", "success"]
    sets = (RFC_STEP_RETRIES, RFC_SUCCESS_RETRIES)
    return table(
        head,
        (
            [f"`{kind}`", meaning[kind.value], *("yes" if kind in one else "no" for one in sets)]
            for kind in Kind
        ),
    )


def settlement() -> str:
    """Ending by verb."""
    return table(
        ["ending", "verb", "meaning"],
        ([f"`{how}`", f"`{VERBS[how]}`", MEANINGS[VERBS[how]]] for how in Ending),
    )


def stopping() -> str:
    """Every reason to stop."""
    meaning = remarks(StopReason)
    rows = ([f"`{reason}`", meaning[reason.value]] for reason in StopReason)
    return table(["reason", "meaning"], rows)


def jobs() -> str:
    """Event by what it leads to, asked of the machine itself."""
    rows = []
    for text, seen, attempts in SEEN:
        states = sorted(ALLOWED[type(seen)], key=list(JobStatus).index)
        moves = [next_transition(JobSnapshot(one, attempts, 1), seen, JobRule()) for one in states]
        charges = "yes" if any(move.attempts > attempts for move in moves) else "no"
        after = dict.fromkeys(f"`{move.status}`" for move in moves)
        rows.append([text, ", ".join(f"`{one}`" for one in states), ", ".join(after), charges])
    return table(["seen", "in", "becomes", "charge"], rows)


def render() -> str:
    """The whole page."""
    parts = [INTRO, LIFECYCLE, cues(), lifecycle(), TIMED_OUT, RETRIES, retries()]
    parts += [SETTLEMENT, settlement(), STOPPING, stopping(), JOBS, jobs()]
    return "\n\n".join(parts) + "\n"


def main(root: Path = ROOT) -> int:
    """Write or check the page; 1 when it is stale."""
    return keep_page(root, PAGE, render(), "tools/state_docs.py")


def keep_page(root: Path, page: str, text: str, tool: str) -> int:
    """Write a generated page or, with ``--check``, compare it; 1 when it is stale."""
    file = root / page
    if "--check" not in sys.argv[1:]:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        print(f"{page}: written")
        return 0
    if file.exists() and file.read_text(encoding="utf-8") == text:
        print(f"{file.stem}: the page is up to date")
        return 0
    print(f"{page} is stale: run make docs, or python {tool}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
