"""The store's Lua scripts: what words in capitals stand for, and how pieces become a script."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import cache

from ergon_framework.core import flow as machine
from ergon_framework.core.claim import DEFAULT_BOUNDS
from ergon_framework.core.flow import FlowEvent, FlowStatus, OnFailure, Sweep
from ergon_framework.core.job import EDITED, SUPERSEDED
from ergon_framework.jobs.stores.flow_settlement import SLICE
from ergon_framework.jobs.stores.transitions import (
    MAX_HISTORY_BYTES,
    MAX_HISTORY_ENTRIES,
)
from ergon_framework.ports.flow import CANCELLED_BY_FLOW
from ergon_framework.storage.redis.client import RedisScript, read_lua

KEYS = {
    "JOB": "job",  # a hash: id to row
    "BODY": "body",  # a hash: id to what running it needs
    "TALE": "tale",  # a hash: id to what happened to it
    "ALL": "all",  # by order of adding
    "LANES": "lanes",  # those with due jobs
    "DUE": "due:",  # … and the jobs of each
    "SOON": "later",  # by due time
    "LEASES": "leases",  # running, by the end of the lease
    "EXPIRING": "expiring",  # waiting, by expiry
    "PURGING": "purging",  # ended, by when they go
    "UNIQUE": "unique",  # a hash: unique key to the id of its holder
    "RUNNING": "running",  # a hash: limit key to how many run
    "ASIDE": "aside",  # groups of jobs that wait for a limit key
    "BLOCKED": "blocked:",  # … and the jobs of each
    "COUNTS": "counts",  # a hash: status and queue to how many
    "QUEUES": "queues",  # a hash: the settings of queues
    "IN": "in:",  # jobs of some statuses, by order of adding
    "WORKERS": "workers",  # a hash
    "EXECUTORS": "executors",  # a hash: name to when it was last seen
    "SCHEDULES": "schedules",  # a hash
    "UNREADABLE": "unreadable",  # a hash: id to what is wrong with a row that was set aside
    "LAST_SEQ": "seq",
    "LAST_FENCE": "fence",
    "BAR": "bar",  # where everything went; not there while the store may be worked with
    "FLOW_KEYS": "flow:",  # those of flows begin with this
    "WORK": "flow:work",  # what is left to be done in slices, to steps at a join or of a flow
}
"""All keys of a store but three; those that end with a colon are the beginnings of several."""

_FIELDS = (
    *("STAGE", "STATUS", "FLAGS", "FENCE", "DELIVERIES", "ATTEMPTS", "EXCUSED"),
    *("CHANGED_AT", "CLAIMED_AT", "LEASED_UNTIL", "PURGE_AT", "RUN_AT", "EXPIRES_AT"),
    *("WHY_LENGTH", "WORKER_LENGTH", "SEQ", "MOST_OF_KEY", "PRIORITY", "CREATED_AT"),
    *("QUEUE_LENGTH", "EXECUTOR_LENGTH", "UNIQUE_LENGTH", "KEY_LENGTH"),
    *("QUEUE", "EXECUTOR", "UNIQUE_KEY", "LIMIT_KEY", "WHY", "WORKER"),
    *("ID", "TAG"),  # these two are not part of the row
)
"""The places of a row that was taken apart. What changes most comes first."""
_NUMBERS = (
    {"ENDED": 0, "ACTIVE": 1, "WAITS": 2, "LATER": 3, "LIMITED": 4, "OUTDATED": 5}
    | {"JOINING": 6, "SIGNALLING": 7, "IS_STEP": 64}
    | {"PENDING": 0, "RUNS": 1, "RETRYING": 2, "COMPLETED": 3, "FAILED": 4, "CANCELLED": 5}
    | {"IS_CHARGED": 1, "IS_SOLO": 2, "HAS_EXPIRY": 4, "HAS_TALE": 8, "IS_UNIQUE": 16}
    | {"HAS_KEY": 32, "IS_RESET": 1, "IF_EXPIRED": 2, "SOLO": 4}
    | {"REJECT": 0, "EXISTING": 1, "REPLACE": 2, "EXTEND": 3}
    | {"MOST_HISTORY": MAX_HISTORY_BYTES, "MOST_ENTRIES": MAX_HISTORY_ENTRIES}
    | {"MOST_PROMOTED": DEFAULT_BOUNDS.max_promoted, "MOST_LANES": DEFAULT_BOUNDS.max_lanes}
    | {"MOST_REFUSED": DEFAULT_BOUNDS.max_refused, "GLANCE": DEFAULT_BOUNDS.scan_size}
    | {"MOST_AT_ONCE": 1000, "MOST_ARGS": 1000, "MOST_CLOSED": 64}
    | {"MOST_SWEPT": SLICE, "MOST_PAGES": 4, "MOST_OPENED": 10}
)
HEAD = ">BBBI8I4I4I4ddddddI4I4I8I4ddI4I4I4I4"
"""The numbers of a row, as Lua packs them."""

_FLOW_KEYS = {
    "STEP": "step",  # a hash: the id of a job to its place in a flow
    "FLOW": "flow",  # a hash: id to how it stands
    "PLAN": "plan",  # a hash: id to how it was written
    "FLOWS": "flows",  # by order of adding
    "FLOWS_IN": "in:",  # those of one status, by order of adding
    "FLOW_PURGING": "purging",  # ended, by when they go
    "STEPS": "steps:",  # of a flow, by order of adding
    "JOINS": "joins:",  # of a flow: a list in the order of adding
    "JOIN": "join",  # a hash: id to how many predecessors are left
    "MEMBERS": "members",  # a hash: id to its predecessors
    "WAITING": "waiting:",  # steps at a join, by order of adding
    "PARKED": "parked:",  # of a flow: a set of joins that opened while it stopped
    "SIGNALS": "signals:",  # steps that wait for a signal of a flow, by order of adding
    "STAGED": "staged:",  # of a flow that is yet to be added: a list of parts of it
    "WORK_KINDS": "kinds",  # a hash: what is to be done, and how far that came
}
"""The keys of flows: few scripts need them, so they are no words of their own in every call."""

_PLACE = ("FLOW_ID", "JOIN_AT", "FEEDS", "DELAY", "SIGNAL", "EARLY")
"""What a step has beside its row."""
_FLOW_ROW = (
    *("ON_FAILURE", "STANDING", "UNFINISHED", "STEPS_COMPLETED", "STEPS_FAILED"),
    *("STEPS_CANCELLED", "UNCOUNTED", "KEEP", "FLOW_PURGE_AT", "MADE_AT", "MOVED_AT"),
    *("TITLE", "FLOW_SEQ"),
)
"""How a flow stands. The first seven are the fields of ``FlowState``."""
FLOW_STATUSES = tuple(FlowStatus)
POLICIES = tuple(OnFailure)
"""By the number that stands for each in the row of a flow."""
_EVENTS: dict[type[FlowEvent], str] = {
    machine.StepsAdded: "steps_added",
    machine.StepEnded: "step_ended",
    machine.StepReturned: "step_returned",
    machine.StepSkipped: "step_skipped",
    machine.CancelFlow: "cancel",
    machine.RetryFlow: "retry",
    machine.SkipFailed: "skip",
    machine.SweepEnded: "sweep_ended",
}


def event_name(event: FlowEvent) -> str:
    """What the scripts call an event."""
    return _EVENTS[type(event)]


def _numbers_of(names: tuple[str, ...], values: type[Enum]) -> dict[str, str]:
    return {name: str(n) for n, (name, _) in enumerate(zip(names, values, strict=True))}


_at = FLOW_STATUSES.index
_FLOWS_AT = f"KEYS[{list(KEYS).index('FLOW_KEYS') + 1}]"


def _set_of(statuses: frozenset[FlowStatus]) -> str:
    """A table of Lua that has these."""
    numbers = sorted(map(_at, statuses))
    return "{" + ", ".join(f"[{number}] = true" for number in numbers) + "}"


_STATUS_NAMES = tuple(f"FLOW_{status.name}" for status in FlowStatus)
_FLOW_NAMES = {
    **{name: f'({_FLOWS_AT} .. "{key}")' for name, key in _FLOW_KEYS.items()},
    **{name: str(n) for n, name in enumerate(_PLACE, 1)},
    **{name: str(n) for n, name in enumerate(_FLOW_ROW, 1)},
    **_numbers_of(_STATUS_NAMES, FlowStatus),
    **_numbers_of(("CANCEL_REST", "GO_ON", "HOLD_REST"), OnFailure),
    **{f"SWEEP_{each.name}": f'"{each.value}"' for each in Sweep},
    "FINAL_FLOWS": _set_of(frozenset(each for each in FlowStatus if each.is_final)),
    "STOPPING_FLOWS": _set_of(frozenset(each for each in FlowStatus if each.is_stopping)),
    "FLOW_ENDS": f"{{[{_at(FlowStatus.FAILING)}] = {_at(FlowStatus.FAILED)},"
    f" [{_at(FlowStatus.CANCELLING)}] = {_at(FlowStatus.CANCELLED)}}}",
    "FLOW_EVENTS": "{"
    + ", ".join(f"{name} = {_set_of(machine.ALLOWED[kind])}" for kind, name in _EVENTS.items())
    + "}",
    "CANCELLED_BY_FLOW": f'"{CANCELLED_BY_FLOW}"',
    "EDITED": f'"{EDITED}"',
    "SUPERSEDED": "{" + ", ".join(f"{each} = true" for each in sorted(SUPERSEDED)) + "}",
}


_LABEL_NAMES = {
    name: f'(KEYS[{list(KEYS).index("IN") + 1}] .. "{key}")'
    for name, key in {
        "TAGGED": "tag:",  # jobs that can be found by one tag, by order of adding
        "LABELS": "tags",  # a hash: the id of a job to all that it can be found by
        "TAKERS": "keys",  # a hash: unique key to who took it last, of jobs with a rule
    }.items()
}
"""Most stores have no job with tags, and none with a rule for its unique key: these are no words of
their own in every call, either."""

_LANE_NAMES = {
    name: f'(KEYS[{list(KEYS).index("DUE") + 1}] .. "{key}")'
    for name, key in {"OPEN_LANES": "open", "CLOSED_LANES": "closed"}.items()
}
"""Where lanes stand apart by whether their queue is paused: see ``open_lanes`` in ``claim.lua``. No
lane is called like these: its name begins with a number.
"""

KEY_WAKES, KEY_BUCKETS = (f"{KEYS['BLOCKED']}{each}" for each in ("wakes", "tokens"))
_KEY_LIMIT_NAMES = {
    name: f'(KEYS[{list(KEYS).index("BLOCKED") + 1}] .. "{key}")'
    for name, key in {
        "KEY_BUCKETS": "tokens",  # limit keys of queues, by when their buckets will be full
        "KEY_WAKES": "wakes",  # those whose jobs wait for a token, by when there is one
        "KEY_RUNNING": "running",  # a hash: limit key of a queue to how many run
        "DUE_KEYS": "keys:",  # of a lane: the limit keys that have due jobs and take turns
        "DUE_OF_KEY": "due:",  # … and the jobs of each
    }.items()
}
"""Of queues that limit each of their limit keys. No group of jobs that wait is called like these:
its name begins with a number.
"""

MARK = "mark"
"""The key of the move state. Few scripts need it, so it is no key of every call."""
_BAR_AT = f"KEYS[{list(KEYS).index('BAR') + 1}]"

_NAMES = {
    **{name: f"KEYS[{n}]" for n, name in enumerate(KEYS, 1)},
    "MARK": f'(string.sub({_BAR_AT}, 1, -{len(KEYS["BAR"]) + 1}) .. "{MARK}")',
    **{name: str(n) for n, name in enumerate(_FIELDS, 1) if name.strip()},
    **{name: str(number) for name, number in _NUMBERS.items()},
    **_FLOW_NAMES,
    **_LABEL_NAMES,
    **_KEY_LIMIT_NAMES,
    **_LANE_NAMES,
    "HEAD": f'"{HEAD}"',
    "FOREVER": "math.huge",
}


ROWS = "rows"
JOBS = (ROWS, "transitions", "flow", "steps")
"""What every script begins with that moves jobs, or looks at them."""


def script(*pieces: str) -> RedisScript:
    """One script of the store, made of pieces that follow each other."""
    return script_of(joined(pieces))


def joined(pieces: Sequence[str]) -> str:
    """The text of pieces that follow each other; ``head.lua`` says why most stand in a function."""
    if ROWS not in pieces:
        return "\n".join(map(source_of, pieces))
    at = pieces.index(ROWS)
    before, inner = [*map(source_of, pieces[:at]), source_of("head")], map(source_of, pieces[at:])
    return "\n".join([*before, "return (function()", *inner, "end)()"])


@cache
def fenced(given: RedisScript) -> RedisScript:
    """The same script, which changes nothing unless the move state is its last argument."""
    fence = script_of(source_of("fence"))
    return RedisScript(f"{fence.text.decode()}\n{given.text.decode()}", keys=len(KEYS), names={})


def source_of(piece: str) -> str:
    """The text of one piece."""
    return read_lua(f"{__package__}.lua", f"{piece}.lua")


def script_of(source: str) -> RedisScript:
    """A script that has the keys of the store, and knows the words in capitals."""
    return RedisScript(source, keys=len(KEYS), names=_NAMES)
