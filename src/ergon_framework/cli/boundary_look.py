"""``ergon boundary tail|objects|journal|policy``: into a zone's store, without a consumer."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ergon_framework.cli.boundary_node import ZoneName
from ergon_framework.cli.command_run import ConfigPath, JsonFlag
from ergon_framework.cli.output import printable, show_list, show_one, stop_if_unread

if TYPE_CHECKING:
    from ergon_framework.boundary.node.policy import Permissions
    from ergon_framework.boundary.zone import LocalZone
    from ergon_framework.ports.factstore import StoredFact

POLL_INTERVAL = 0.5
"""Seconds between two looks at a log that is followed."""
PAGE, PAGE_BYTES = 100, 4 * 1024 * 1024

OfZone = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="The zone's folder [default: as in the settings]."),
]


@contextmanager
def looked_into(data: Path | None, config: Path | None, zone: str | None) -> Iterator[LocalZone]:
    """The zone in a folder, or the one of the settings wherever its stores are; for reading."""
    from ergon_framework.app.node import zone_meant
    from ergon_framework.boundary.backup import looked_at, open_read_only

    if data is not None:
        with open_read_only(data) as found:
            yield found
        return
    setup = zone_meant(config, zone)
    with looked_at(setup.name, setup.settings) as found:
        yield found


def policy(config: ConfigPath = None, zone: ZoneName = None, as_json: JsonFlag = False) -> None:
    """Show which certificates may do what at a zone's node.

    The policy is shown as it is in force. A node reads its policy file again when it changes. When
    the file has a mistake, the command says so, and the node keeps the last good policy.

    Example: ergon boundary policy --zone plant
    """
    from ergon_framework.app.node import zone_meant
    from ergon_framework.boundary.node.policy import Policy, read_policy

    setup = zone_meant(config, zone)
    settings = setup.settings
    if settings.policy is not None:
        found = read_policy(settings.policy)
    elif settings.cert is None:
        found = Policy.open()
    else:
        found = Policy.default(setup.name, settings.peers)
    permits = dict(found.identities)
    if found.anonymous is not None:
        permits["(no certificate)"] = found.anonymous
    if found.others is not None:
        permits["(everybody else)"] = found.others
    rows = [_permit(name, each) for name, each in permits.items()]
    columns = ["identity", "operations", "assert", "target", "logs", "consumers", "buckets"]
    show_list(rows, columns, as_json=as_json)


def _permit(name: str, permit: Permissions) -> dict[str, Any]:
    from ergon_framework.boundary.node.policy import OPERATIONS

    is_all = permit.operations >= set(OPERATIONS)
    return {
        "identity": name,
        "operations": ["all"] if is_all else sorted(permit.operations),
        "assert": permit.asserts.as_written(),
        "target": permit.targets.as_written(),
        "logs": permit.logs.as_written(),
        "consumers": permit.consumers.as_written(),
        "buckets": permit.buckets.as_written(),
    }


Most = Annotated[int, typer.Option(min=1, help="Show at most this many.")]


def journal(
    limit: Most = 100,
    data: OfZone = None,
    config: ConfigPath = None,
    zone: ZoneName = None,
    as_json: JsonFlag = False,
) -> None:
    """List what operators did at a zone, the newest first.

    The list has seals, seeks, releases, discards and truncations, each with its reason.

    Example: ergon boundary journal --limit 20
    """
    from ergon_framework.core.rfc3339 import format_rfc3339

    with looked_into(data, config, zone) as found:
        entries = found.store.journal(limit)
    rows = [
        {"at": format_rfc3339(at), "action": action, "details": details}
        for at, action, details in entries
    ]
    show_list(rows, ["at", "action", "details"], as_json=as_json)


def objects(
    bucket: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only objects in this bucket.")
    ] = None,
    limit: Most = 100,
    data: OfZone = None,
    config: ConfigPath = None,
    zone: ZoneName = None,
    as_json: JsonFlag = False,
) -> None:
    """List the objects of a zone by bucket and key.

    `ergon boundary get` fetches one.

    Example: ergon boundary objects --bucket batch-files
    """
    from ergon_framework.boundary.node.wire import object_view

    with looked_into(data, config, zone) as found:
        named = found.store.objects(bucket, limit=limit)
        number, size = found.store.object_totals()
    rows = [{**object_view(each), "referenced": each.is_referenced} for each in named]
    show_list(rows, ["bucket", "key", "size", "referenced", "digest"], as_json=as_json)
    if not as_json and number > len(rows):
        told = f"{len(rows)} of {number} names, which stand for {size:,} bytes; --limit shows more"
        print(told, file=sys.stderr)


def tail(
    log: Annotated[
        str, typer.Option(metavar="NAME", help="The log to follow: outbound or inbound:ZONE.")
    ] = "outbound",
    after: Annotated[
        int | None,
        typer.Option(
            metavar="OFFSET",
            min=0,
            help="Begin after this offset [default: at the end of the log].",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many.")] = None,
    follow: Annotated[
        bool, typer.Option(help="Wait for more. --no-follow prints what is there and ends.")
    ] = True,
    content: Annotated[
        bool, typer.Option("--content", help="Also print the content of each fact.")
    ] = False,
    data: OfZone = None,
    config: ConfigPath = None,
    zone: ZoneName = None,
    as_json: JsonFlag = False,
) -> int:
    """Follow the facts of a log, without a consumer.

    Nothing is confirmed, and no cursor moves. With --no-follow it prints all facts that are kept,
    and ends. JSON is one object per line.

    Example: ergon boundary tail --log inbound:plant --content
    """
    number = 0
    try:
        with looked_into(data, config, zone) as found:
            for fact in _facts(found, log, after, is_followed=follow):
                view = _fact_view(fact, shows=content)
                if as_json:
                    show_one(view, as_json=True)
                else:
                    print(printable("  ".join(map(str, view.values()))), flush=True)
                number += 1
                if number == limit:
                    break
    except KeyboardInterrupt:
        return 130
    return 0


def _facts(
    zone: LocalZone, log: str, after: int | None, *, is_followed: bool
) -> Iterator[StoredFact]:
    pause = threading.Event()
    heads = {each.name: each.head for each in zone.store.logs()}
    at = after if after is not None else (heads.get(log, 0) if is_followed else 0)
    while True:
        page = zone.store.page(log, at, PAGE, PAGE_BYTES)
        yield from page.facts
        if page.through > at:
            at = page.through
        elif is_followed:
            pause.wait(POLL_INTERVAL)
            stop_if_unread()
        else:
            return


def _fact_view(fact: StoredFact, *, shows: bool) -> dict[str, Any]:
    from ergon_framework.core.rfc3339 import format_rfc3339

    view: dict[str, Any] = {
        "offset": fact.offset,
        "recorded_at": format_rfc3339(fact.recorded_at),
        "from_zone": fact.from_zone,
        "to_zone": fact.to_zone,
        "message_id": fact.message_id,
        "bytes": len(fact.envelope) + len(fact.fact),
    }
    if shows:
        view["fact"] = json.loads(fact.fact)
    return view
