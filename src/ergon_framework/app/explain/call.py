"""A provider call, from its rows: attempts, refusals, what its lane stands at, its dead letter."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from ergon_framework.app.explain.explanation import Explanation, Question
from ergon_framework.app.settings.stores import (
    call_stores,
    has_calls,
    is_in_memory,
    place_of,
    resolve_url,
)
from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.core.text import counted, duration, failure_text
from ergon_framework.errors import ErgonError
from ergon_framework.ports.providerstore import (
    ABANDONED,
    ALL_TENANTS,
    AttemptRow,
    LaneHealth,
    LaneKey,
    LetterStatus,
    ProviderStore,
    StoredLetter,
)
from ergon_framework.storage.urls import pasteable

if TYPE_CHECKING:
    from ergon_framework.providers.stores.inspector import SqlProviderInspector

MAX_ROWS = 200
MAX_SHOWN = 10
WAITING = (LetterStatus.PENDING, LetterStatus.PUBLISHED)
"""Letters with whose calls nothing has been done since they were given up."""
_FATES = {
    LetterStatus.PENDING: "waits to be carried to its queue",
    LetterStatus.PUBLISHED: "is in the dead-letter queue",
    LetterStatus.REDRIVE: "is to be sent again",
    LetterStatus.REDRIVEN: "was sent again",
    LetterStatus.DISCARDED: "was discarded",
}


def explain_call(asked: Question) -> Iterator[Explanation]:
    """The calls with this correlation id, execution id, idempotency key or dead letter.

    One explanation for each tenant: the same key means different calls to different tenants.
    """
    troubles = []
    for url in _stores(asked):
        try:
            yield from _in_store(url, asked)
        except ErgonError as error:  # the others may know it
            troubles.append(error)
        else:
            asked.looked.append(_place(url))
    if troubles:
        raise troubles[0]


def lanes_holding(asked: Question, units: Collection[str]) -> Iterator[str]:
    """The gates that keep the calls of these units from being made."""
    from ergon_framework.providers.store_urls import open_store

    for url in _stores(asked):
        rows = _inspector(url).attempts_named(sorted(units), MAX_ROWS)
        refused = [row for row in rows if row.attempt_number == 0]
        if refused:
            with closing(open_store(url)) as store:
                # The last refusal only: a gate that refused before may be open by now.
                yield from _lanes(store, refused[-1:], ())


def _in_store(url: str, asked: Question) -> Iterator[Explanation]:
    from ergon_framework.providers.store_urls import open_store

    unit = asked.unit
    looking = _inspector(url)
    found = looking.attempts_named([unit], MAX_ROWS)
    named = looking.letters_named(unit, _keys(found))
    with closing(open_store(url)) as store:
        for tenant in sorted({row.tenant_id for row in found} | set(named)):
            rows = [row for row in found if row.tenant_id == tenant]
            ids = named.get(tenant, [])
            letters = store.letters(ids=ids[:MAX_SHOWN], limit=MAX_SHOWN) if ids else []
            why = [*_attempts(rows), *_lanes(store, rows, letters)]
            if len(ids) > MAX_SHOWN:
                why.append(f"{len(ids) - MAX_SHOWN} older dead letters are left out.")
            for each in letters:
                why += _letter(each, asked.options(url))
            yield Explanation("call", unit, _status(rows, letters), why, tenant=tenant)


def _keys(rows: Sequence[AttemptRow]) -> dict[str, set[str]]:
    """The idempotency keys of these attempts, by tenant."""
    keys: dict[str, set[str]] = {}
    for row in rows:
        if row.idempotency_key is not None:
            keys.setdefault(row.tenant_id, set()).add(row.idempotency_key)
    return keys


def _stores(asked: Question) -> Iterator[str]:
    """The stores of provider calls that are there, with their tables."""
    named = asked.store
    urls = call_stores(asked.settings) if named is None else {"": resolve_url(named, Path())}
    for url in urls.values():
        if is_in_memory(url):
            continue
        if has_calls(url, "provider_execution_metrics"):
            yield url
        else:
            asked.looked.append(f"{_place(url)}, where there are none yet")


def _place(url: str) -> str:
    return f"the provider calls in {place_of(url)}"


def _inspector(url: str) -> SqlProviderInspector:
    from ergon_framework.providers.migrations.database import database_of
    from ergon_framework.providers.stores.inspector import SqlProviderInspector

    return SqlProviderInspector(database_of(url))


def _status(rows: Sequence[AttemptRow], letters: Sequence[StoredLetter]) -> str:
    if not rows or any(_gave_up_after(rows[-1], each) for each in letters):
        return "dead_letter"
    last = rows[-1]
    if last.reason_code == ABANDONED:
        return ABANDONED
    return "refused" if last.attempt_number == 0 else str(last.outcome)


def _gave_up_after(last: AttemptRow, stored: StoredLetter) -> bool:
    """Whether the call was given up without another row: a worker that is killed writes none."""
    return stored.status in WAITING and stored.letter.occurred_at > last.created_at


# ---- what is told --------------------------------------------------------------------------------


def _attempts(rows: Sequence[AttemptRow]) -> Iterator[str]:
    shown = rows[-MAX_SHOWN:]
    if len(rows) > len(shown):
        yield f"{len(rows) - len(shown)} older attempts are left out."
    for row in shown:
        yield _attempt(row)


def _attempt(row: AttemptRow) -> str:
    at = format_rfc3339(row.created_at)
    what = f"{row.operation} of {row.provider_name}/{row.capability}"
    code = row.reason_code or "no reason recorded"
    if row.attempt_number == 0:
        return f"{at}: {what} was refused by a gate ({code}); nothing was sent."
    which = f"attempt {row.attempt_number} of {row.max_attempts}"
    took = f"after {duration(row.duration_ms / 1000)}"
    if row.reason_code == ABANDONED:
        return f"{at}: {what}, {which}, was given up by its reader {took}; it had not failed."
    if row.outcome == "success":
        return f"{at}: {what}, {which}, succeeded {took}."
    status = "" if row.http_status is None else f", HTTP status {row.http_status}"
    then = {
        "retry": "another attempt was to follow",
        "dead_letter": "it was given up with a dead letter",
    }.get(row.outcome, "it was given up")
    return f"{at}: {what}, {which}, failed {took} ({code}{status}); {then}."


def _lanes(
    store: ProviderStore, rows: Sequence[AttemptRow], letters: Sequence[StoredLetter]
) -> Iterator[str]:
    """How the lanes of the last attempts stand now."""
    keys = [LaneKey(row.tenant_id, row.provider_name, row.capability) for row in rows]
    for each in letters:
        letter = each.letter
        keys.append(LaneKey(letter.tenant_id, letter.provider_name, letter.capability))
    now = store.now()
    for key in dict.fromkeys(keys):
        for tenant in (key.tenant_id, ALL_TENANTS):
            for lane in store.health(tenant):
                if lane.key[1:] == key[1:]:
                    yield from _lane(lane.observed(now), now)


def _lane(lane: LaneHealth, now: float) -> Iterator[str]:
    name = f"{lane.key.provider_name}/{lane.key.capability}"
    if lane.breaker_state == "open":
        until = "" if lane.open_until is None else f" until {format_rfc3339(lane.open_until)}"
        failures = counted(lane.consecutive_failures, "failure")
        yield f"The circuit of {name} is open{until}, after {failures}: nobody calls it."
    elif lane.breaker_state == "half_open":
        yield f"The circuit of {name} is half open: only probes are let through."
    if lane.cooldown_until is not None and lane.cooldown_until > now:
        until = format_rfc3339(lane.cooldown_until)
        yield f"The provider of {name} asked for a pause until {until}."
    account = lane.account
    if account is not None and account.remaining <= 0:
        end = format_rfc3339(account.window.end)
        yield f"The quota of {name} is used up ({account.used} of {account.limit}) until {end}."


def _letter(stored: StoredLetter, options: str) -> Iterator[str]:
    from ergon_framework.providers.delivery.dead_letters import redrive_refusal

    letter = stored.letter
    at = format_rfc3339(letter.occurred_at)
    why = failure_text(letter.reason_code, letter.error_message)
    attempts = counted(letter.attempts, "attempt")
    yield (
        f"It was given up at {at} after {attempts}: {why}. Its dead letter"
        f" {letter.dead_letter_id} {_FATES[stored.status]}."
    )
    if stored.status not in WAITING:
        return
    refusal = redrive_refusal(letter)
    if refusal is None:
        yield f"This sends it again:  {pasteable('dlq requeue', letter.dead_letter_id, options)}"
    else:
        yield f"It cannot be sent again: {refusal}."
