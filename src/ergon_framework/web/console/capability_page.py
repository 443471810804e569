"""The page of one capability of a provider: its last hour by minute, circuits, quotas and latest
calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ergon_framework.app.dead_letters import letter_document
from ergon_framework.core.circuit_breaker import CircuitState
from ergon_framework.core.rollup import Rollup, merged
from ergon_framework.core.text import counted
from ergon_framework.jobs.views import moment
from ergon_framework.ports.journal import JournalEntry, JournalQuery
from ergon_framework.ports.providerstore import (
    ALL_TENANTS,
    AttemptRow,
    LaneNow,
    MinuteOfLane,
)
from ergon_framework.web.backend_pool import BackendPool
from ergon_framework.web.backends import ProviderBackend
from ergon_framework.web.console.formatting import Chip, number, span
from ergon_framework.web.console.journal_look import JournalLook
from ergon_framework.web.console.journal_pages import entry_view
from ergon_framework.web.console.part_pages import provider_rows
from ergon_framework.web.dead_letter_routes import WAITING
from ergon_framework.web.responses import ResourceNotFoundError

HOUR = 3600.0
LATEST = 900.0
"""Seconds for which the latest attempts are shown."""
MOST_LANES, MOST_ATTEMPTS = 50, 50
MOST_LETTERS = 500
"""How many dead letters, the newest, are searched for those of one capability."""
SHOWN_LETTERS = 20
MOST_EVENTS, SHOWN_EVENTS = 1000, 30
"""How many journal entries of this hour are read, and how many of one capability are shown."""
ATTEMPT_COLUMNS = (
    "at",
    "operation",
    "attempt",
    "outcome",
    "reason",
    "http_status",
    "milliseconds",
    "tenant",
    "correlation_id",
)
_NOT_MADE = 0
"""The attempt number of a call that a gate refused."""


async def capability_document(
    pool: BackendPool, look: JournalLook, provider: str, capability: str
) -> dict[str, Any]:
    """Everything about a capability. Raises an error if it was never called."""
    for part, source in pool.backends.providers.items():
        found = await pool.call(part, partial(_look, source, provider, capability))
        if found is not None:
            return {**found, **await _told(look, (provider, capability), found["now"])}
    raise ResourceNotFoundError(
        "no such capability of a provider was called through these stores",
        remedy="the page of providers lists those that were",
    )


async def _told(look: JournalLook, name: tuple[str, str], now: float) -> dict[str, Any]:
    """The journal's entries of the last hour."""
    query = JournalQuery(names=("circuit", "cooldown", "quota"), since=now - HOUR)
    entries: list[JournalEntry] = await look.ask(
        lambda journal: journal.newest(query, MOST_EVENTS), []
    )
    own = [each for each in entries if _lane_named(each) == name]
    return {
        "events": [entry_view(each) for each in own[::-1][:SHOWN_EVENTS]],
        "stretches": stretches_of(own, now),
    }


def _look(source: ProviderBackend, provider: str, capability: str) -> dict[str, Any] | None:
    looking = source.looking
    if looking is None or not source.has_tables():
        return None
    store = source.opened()
    now = store.now()
    rows = provider_rows(looking.figures(now, WAITING))
    name = (provider, capability)
    row = next((each for each in rows if (each["provider"], each["capability"]) == name), None)
    if row is None:
        return None
    minutes = [each for each in looking.minutes(now - HOUR, now - HOUR) if each.key[1:] == name]
    lanes = looking.lanes_of(*name, now, MOST_LANES)
    attempts = looking.latest_attempts(*name, now - LATEST, MOST_ATTEMPTS)
    letters = [
        letter_document(each)
        for each in store.letters(statuses=WAITING, limit=MOST_LETTERS)
        if (each.letter.provider_name, each.letter.capability) == name
    ]
    hour = hour_of(minutes, now)
    return {
        **row,
        "at": moment(now),
        "now": now,
        "sentences": list(sentences_of(lanes, hour, now)),
        "hour": hour,
        "lanes": [_lane(each, now) for each in lanes],
        "items": [_attempt(each) for each in attempts],
        "letters": letters[:SHOWN_LETTERS],
        "number_of_letters": len(letters),
    }


# ---- the circuit, as the journal tells ----------------------------------------------------------


def _lane_named(entry: JournalEntry) -> tuple[object, object]:
    return entry.fields.get("provider_name"), entry.fields.get("capability")


def stretches_of(entries: Iterable[JournalEntry], now: float) -> list[dict[str, Any]]:
    """When circuits were open and half-open in the last hour, in percent of it. ``entries`` are the
    oldest first.

    The times of all tenants are combined.
    """
    begun: dict[object, tuple[str, float]] = {}
    found: list[tuple[str, float, float]] = []
    for each in entries:
        level = _STATES.get(each.name)
        if level is None:
            continue
        tenant = each.fields.get("tenant_id")
        if tenant in begun:
            found.append((*begun.pop(tenant), each.at))
        if level:
            begun[tenant] = (level, each.at)
    found += [(level, at, now) for level, at in begun.values()]
    first = now - HOUR
    return [
        {
            "kind": level,
            "left": round(max(0.0, min(99.6, 100 * (start - first) / HOUR)), 2),
            "width": round(max(0.4, 100 * (stop - max(start, first)) / HOUR), 2),
        }
        for level, start, stop in found
    ]


_STATES = {"circuit.opened": "bad", "circuit.half_opened": "warn", "circuit.closed": ""}


# ---- the last hour ------------------------------------------------------------------------------


def hour_of(minutes: Iterable[MinuteOfLane], now: float) -> dict[str, Any]:
    """Each minute of the last hour, all tenants together, and their sums."""
    first = now // 60 * 60 - 59 * 60
    by_minute: dict[int, list[Rollup]] = {}
    for each in minutes:
        if each.key.tenant_id != ALL_TENANTS:
            by_minute.setdefault(int((each.minute - first) // 60), []).append(each.rollup)
    known = {n: merged(found) for n, found in by_minute.items() if 0 <= n < 60}
    whole = merged(known.values())
    return {
        "from": moment(first),
        "calls": whole.succeeded + whole.failed + whole.dead_lettered,
        "attempts": whole.attempts,
        "success_rate": whole.success_rate,
        "p50": _seconds(whole.durations.percentile(50)),
        "p95": _seconds(whole.p95),
        "minutes": [_minute(n, known.get(n, Rollup())) for n in range(60)],
    }


def _minute(number_of: int, rollup: Rollup) -> dict[str, Any]:
    return {
        "n": number_of,
        "succeeded": rollup.succeeded,
        "failed": rollup.failed + rollup.dead_lettered,
        "p95": _seconds(rollup.p95),
    }


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


# ---- in words -----------------------------------------------------------------------------------


def sentences_of(lanes: Sequence[LaneNow], hour: Mapping[str, Any], now: float) -> Iterator[str]:
    """Sentences: what holds calls up, what will happen by itself, and how the last hour was."""
    is_open = [each for each in lanes if _circuit(each, now) == CircuitState.OPEN]
    if is_open:
        until = min(each.open_until for each in is_open if each.open_until is not None)
        yield (
            f"The circuit is open for {counted(len(is_open), 'tenant')}: calls are refused without"
            f" being made. In {span(until - now)} one call is let through to try."
        )
    trying = [each for each in lanes if _circuit(each, now) == CircuitState.HALF_OPEN]
    if trying:
        yield (
            f"The circuit is half open for {counted(len(trying), 'tenant')}: the next call is let"
            " through, and if it succeeds, so are the others."
        )
    waits = [each.cooldown_until for each in lanes if (each.cooldown_until or 0.0) > now]
    if waits:
        longest = max(each for each in waits if each is not None)
        yield f"The provider has asked to be left alone for {span(longest - now)} more."
    for each in lanes:
        yield from _quota(each, now)
    if not hour["calls"]:
        yield "No call has ended in the last hour."
        return
    rate = f"{100 * hour['success_rate']:.1f}".removesuffix(".0")
    yield (
        f"{number(hour['calls'])} calls ended in the last hour, and {rate} % of them succeeded."
        f" Half of the attempts took at most {span(hour['p50'])}, and 95 % {span(hour['p95'])}."
    )


def _quota(lane: LaneNow, now: float) -> Iterator[str]:
    pace = burn_down(lane, now)
    if pace is None or pace["used_up_in"] is None:
        return
    whose = f"of the tenant {lane.tenant_id}" if lane.tenant_id != ALL_TENANTS else "of all tenants"
    if not pace["left"]:
        yield f"The quota {whose} is used up. It begins anew in {span(pace['ends_in'])}."
    elif pace["used_up_in"] < pace["ends_in"]:
        yield (
            f"At this pace the quota {whose} is used up in {span(pace['used_up_in'])}, before it"
            f" begins anew in {span(pace['ends_in'])}."
        )


def burn_down(lane: LaneNow, now: float) -> dict[str, Any] | None:
    """How much of a quota window is used, in units and in time. None where there is no window."""
    used, limit, start, end = lane.quota_used, lane.quota_limit, lane.window_start, lane.window_end
    if used is None or limit is None or start is None or end is None or end <= start:
        return None
    passed = max(now - start, 0.001)
    left = max(0, limit - used)
    return {
        "used": used,
        "limit": limit,
        "left": left,
        "used_share": round(min(100.0, 100 * used / limit), 1) if limit else 100.0,
        "time_share": round(min(100.0, 100 * passed / (end - start)), 1),
        "ends_in": max(0.0, end - now),
        "used_up_in": left * passed / used if used else None,
    }


# ---- tables -------------------------------------------------------------------------------------


def _circuit(lane: LaneNow, now: float) -> CircuitState:
    state = CircuitState(lane.breaker_state)
    is_over = lane.open_until is not None and lane.open_until <= now
    # The column changes with the next call only: until then, a circuit whose time is over would let
    # a probe in.
    return CircuitState.HALF_OPEN if state is CircuitState.OPEN and is_over else state


_CIRCUIT = {
    CircuitState.CLOSED: Chip("ok", "closed"),
    CircuitState.HALF_OPEN: Chip("warn", "half open"),
    CircuitState.OPEN: Chip("bad", "open"),
}


def _lane(lane: LaneNow, now: float) -> dict[str, Any]:
    return {
        "tenant": None if lane.tenant_id == ALL_TENANTS else lane.tenant_id,
        "circuit": _CIRCUIT[_circuit(lane, now)]._asdict(),
        "consecutive_failures": lane.consecutive_failures,
        "open_until": moment(lane.open_until),
        "cooldown_until": moment(lane.cooldown_until),
        "last_error_code": lane.last_error_code,
        "last_error_at": moment(lane.last_error_at),
        "last_success_at": moment(lane.last_success_at),
        "quota": burn_down(lane, now),
    }


_OUTCOME = {
    "success": Chip("ok", "succeeded"),
    "retry": Chip("warn", "to be tried again"),
    "failed": Chip("bad", "failed"),
    "dead_letter": Chip("bad", "given up"),
}


def _attempt(row: AttemptRow) -> dict[str, Any]:
    is_made = row.attempt_number != _NOT_MADE
    chip = _OUTCOME.get(row.outcome, Chip("wait", row.outcome)) if is_made else Chip("wait", "held")
    return {
        "at": moment(row.created_at),
        "operation": row.operation,
        "attempt": row.attempt_number if is_made else None,
        "of": row.max_attempts,
        "outcome": row.outcome if is_made else "not_made",
        "chip": chip._asdict(),
        "reason": row.reason_code,
        "http_status": row.http_status,
        "milliseconds": row.duration_ms if is_made else None,
        "tenant": row.tenant_id,
        "correlation_id": row.correlation_id,
    }
