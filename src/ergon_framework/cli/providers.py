"""``ergon providers``: how providers stand, a hand on their circuits, and old rows deleted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import closing
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ergon_framework.cli.command_run import ConfigPath, JsonFlag, finite
from ergon_framework.cli.db import StoreUrl
from ergon_framework.cli.output import progress, show_list, show_one, waiting
from ergon_framework.cli.provider_stores import OpenProviderStore, opened_each
from ergon_framework.errors import ConfigurationError, StoreUnavailableError
from ergon_framework.storage.urls import given_options

if TYPE_CHECKING:
    from ergon_framework.ports.providerstore import LaneKey, LaneState

app = typer.Typer(help="Show the health of providers; open or close a circuit; delete old records.")

_COLUMNS = [
    "tenant",
    "provider",
    "capability",
    "circuit",
    "success_1h",
    "p95_ms_1h",
    "quota",
    "last_error",
    "last_error_at",
    "last_success_at",
]
PRUNE_BATCH = 10_000
"""Rows of one step: processes that make calls write between two steps."""
_DAY_SECONDS = 86_400.0
_MIN_AGE_DAYS = 0.1
"""Rows of the last hour have to stay: health is computed from them."""


class CircuitCommand(StrEnum):
    """What an operator may do to a circuit."""

    OPEN = "open"
    CLOSE = "close"


@app.command()
def health(
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="ID", help="Only providers of this tenant.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many tenants.")] = 100,
    config: ConfigPath = None,
    store: StoreUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """List providers by tenant, with their circuits and quotas.

    Also the success rate and latency of the last hour, and the last error. The tenant * has the
    circuits that all tenants share.

    Example: ergon providers health --tenant acme
    """
    from ergon_framework.providers.service import ProviderHealthService

    summaries: dict[str, dict[str, Any]] = {}
    with waiting("reading"):
        for opened in opened_each(config, store):
            # Only what is in the store: this process has made no calls.
            service = ProviderHealthService(opened.store, flush_timeout=0)
            for each in opened.inspector.tenants(limit) if tenant is None else [tenant]:
                found = service.summary(each, detail=True)
                summaries.setdefault(each, {**found, "providers": []})["providers"] += found[
                    "providers"
                ]
    if as_json:
        show_list(summaries.values(), [], as_json=True)
    else:
        rows = (row for each, summary in summaries.items() for row in _rows(each, summary))
        show_list(rows, _COLUMNS, as_json=False)


@app.command()
def circuit(
    tenant: Annotated[
        str,
        typer.Argument(
            metavar="TENANT",
            help="The tenant; '*' (quoted) for the circuit that all tenants share.",
        ),
    ],
    provider: Annotated[str, typer.Argument(metavar="PROVIDER", help="The name of the provider.")],
    capability: Annotated[
        str,
        typer.Argument(
            metavar="CAPABILITY", help="The capability, as `ergon providers health` lists it."
        ),
    ],
    wish: Annotated[
        CircuitCommand,
        typer.Argument(
            metavar="open|close", help="open refuses all calls; close lets them through again."
        ),
    ],
    seconds: Annotated[
        float,
        typer.Option(
            "--for",
            metavar="S",
            min=0.001,
            callback=finite,
            help="Seconds for which the circuit stays open.",
        ),
    ] = 30.0,
    config: ConfigPath = None,
    store: StoreUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """Open a circuit for a while, or close it.

    While it is open every call is refused; when it is closed all calls pass again. Every process
    follows within a second. An open circuit lets probes in after --for. Closing also ends a pause
    that the provider asked for. Opening leaves such a pause, and the answer says until when it
    lasts.

    Example: ergon providers circuit acme openai chat open --for 60
    """
    from ergon_framework.core.circuit_breaker import BreakerRule, CircuitState
    from ergon_framework.core.rfc3339 import format_rfc3339
    from ergon_framework.ports.providerstore import LaneKey
    from ergon_framework.providers.shared_circuit import Circuit

    key = LaneKey(tenant, provider, capability)
    # The generator has the store open that it gave out last; closing it closes that one, too.
    with closing(opened_each(config, store)) as stores:
        opened = _store_of_lane(stores, key, given_options(config, store))
        before = opened.store.lane_state(key)
        state = CircuitState.OPEN if wish is CircuitCommand.OPEN else CircuitState.CLOSED
        forced = Circuit(opened.store, key, BreakerRule())
        forced.force(state, seconds)
        ended = forced.end_pause() if wish is CircuitCommand.CLOSE else None
        after = opened.store.lane_state(key)
        pause = after.cooldown_until if after.cooldown_until > opened.store.now() else None
    _check_written(before, after)
    until = after.breaker.open_until
    view = {
        **key._asdict(),
        "before": before.breaker.state.value,
        "now": after.breaker.state.value,
        "open_until": None if until is None else format_rfc3339(until),
        "pause_until": None if pause is None else format_rfc3339(pause),
    }
    title = f"the circuit is {after.breaker.state.value} now; every process sees it in a second"
    if ended is not None:
        title += f"; the pause that the provider asked for, until {format_rfc3339(ended)}, is over"
    show_one(view, as_json=as_json, title=title)


@app.command()
def prune(
    older_than: Annotated[
        float,
        typer.Option(
            metavar="DAYS",
            min=_MIN_AGE_DAYS,
            max=36_500.0,
            help="Delete only what is older than this many days.",
        ),
    ],
    config: ConfigPath = None,
    store: StoreUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """Delete old records of provider calls.

    Attempts, roll-ups, idempotency keys, quota windows and settled dead letters are deleted, in
    small steps, so that callers do not wait. The command may be stopped at any time. Circuits stay,
    and so do dead letters with which something is still to be done.

    Example: ergon providers prune --older-than 90
    """
    from ergon_framework.core.rfc3339 import format_rfc3339

    deleted, before = 0, 0.0
    with progress("deleted") as move:
        for opened in opened_each(config, store):
            before = opened.store.now() - older_than * _DAY_SECONDS
            while count := opened.store.prune(before, PRUNE_BATCH):
                deleted += count
                move(deleted)
    show_one({"deleted": deleted, "before": format_rfc3339(before)}, as_json=as_json)


def _rows(tenant: str, summary: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for item in summary["providers"]:
        quota, until, pause = item["quota"], item["open_until"], item["cooldown_until"]
        yield {
            "tenant": tenant,
            "provider": item["provider_name"],
            "capability": item["capability"],
            "circuit": item["breaker_state"]
            + (f" until {until}" if until else "")
            + (f", pause until {pause}" if pause else ""),
            "success_1h": _share(item["success_rate_1h"]),
            "p95_ms_1h": item["p95_latency_ms_1h"],
            "quota": quota and f"{quota['used_count']}/{quota['limit_count']}",
            "last_error": item["last_error_code"],
            "last_error_at": item["last_error_at"],
            "last_success_at": item["last_success_at"],
        }


def _share(rate: float | None) -> float | None:
    """A rate with four digits, rounded down: 1 only if nothing failed."""
    return None if rate is None else math.floor(rate * 10_000) / 10_000


def _store_of_lane(
    stores: Iterable[OpenProviderStore], key: LaneKey, options: str
) -> OpenProviderStore:
    """The store that has a lane; an unknown lane is refused, as its name is probably mistyped."""
    known: list[LaneKey] = []
    for opened in stores:
        keys = [lane.key for lane in opened.store.health(key.tenant_id)]
        if key in keys:
            return opened
        known += keys
    names = ", ".join(f"{each.provider_name} {each.capability}" for each in known[:5])
    raise ConfigurationError(
        f"the tenant {key.tenant_id!r} has made no calls to {key.provider_name!r}"
        f" {key.capability!r}",
        remedy=f"it has to: {names}"
        if names
        else f"this shows who has made calls:  ergon providers health{options}",
    )


def _check_written(before: LaneState, after: LaneState) -> None:
    """Raise when a circuit could not be written: it would otherwise change in this process only."""
    if after.version == before.version:
        raise StoreUnavailableError(
            "the store did not take the change; the circuit is as it was", remedy="try again"
        )
