"""A fact, from the zones of the settings that live on this machine, or from a node that is asked.

Each zone tells in which of its logs the fact lies, who has it, and what keeps it from the others.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from ergon_framework.app.explain.explanation import Explanation, Question, sentences
from ergon_framework.app.node import node_address
from ergon_framework.app.zones import all_zones
from ergon_framework.boundary.backup import looked_at
from ergon_framework.boundary.node.status import status
from ergon_framework.boundary.node.wire import gap_view, quarantine_view
from ergon_framework.boundary.store_urls import fact_file
from ergon_framework.boundary.zone import PEER, LocalZone
from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.core.text import counted, failure_text
from ergon_framework.errors import BoundaryNotFoundError
from ergon_framework.ports.factstore import INBOUND, OUTBOUND, StoredFact
from ergon_framework.storage.urls import given_options

Shape = Mapping[str, Any]

_ADMIN = "bsfg.v1.BoundaryAdmin/"
_TIMEOUT = 10.0
_WORST = ("lost", "quarantined", "refused", "waiting", "confirmed", "appended")
"""What the whole is called, by the worst of what was found."""


class Site(NamedTuple):
    """A zone as it is seen from here: by its folder or through its node."""

    status: Shape
    quarantine: list[Shape]
    gaps: list[Shape]
    lookup: Callable[[str, str, str], Shape]
    """Looks a message up in a log of a zone; ``BoundaryNotFoundError`` if it is not there."""
    fact: Callable[[str, int], StoredFact | None]
    """What lies at an offset of a log, where that can be seen."""
    options: str
    """The options with which a command finds the zone's node."""


class FactStatus(NamedTuple):
    """A sentence, and the word for what it means to the fact."""

    word: str
    text: str


def explain_fact(asked: Question) -> Iterator[Explanation]:
    """The fact with this message id in every zone that can be asked."""
    found = list(_everywhere(asked))
    entries = [each for each in asked.entries if each.name.startswith("fact.")]
    if any(each.name == "fact.refused" for each in entries) and not found:
        found.append(FactStatus("refused", "No zone has it: its append was refused."))
    if found:
        word = min((each.word for each in found), key=_WORST.index)
        why = [*(each.text for each in found), *sentences(entries)]
        yield Explanation("fact", asked.unit, word, why)


def _everywhere(asked: Question) -> Iterator[FactStatus]:
    if asked.node is not None:
        asked.looked.append(f"the node at {asked.node}")
        address = node_address(asked.config, url=asked.node)
        with closing(address.connect(_TIMEOUT)) as transport:

            def ask(method: str, **fields: Any) -> Any:
                body = json.dumps(fields).encode()
                return json.loads(transport.call(_ADMIN + method, body, timeout=_TIMEOUT))

            yield from _at_site(asked.unit, _remote_site(ask, f" --url {shlex.quote(asked.node)}"))
        return
    for name, setup in all_zones(asked.settings).items():
        file = fact_file(setup.settings)
        place = "on its server" if file is None else f"in {file.parent}"
        asked.looked.append(f"zone {name} {place}")
        # The folder of a zone that was never served has no file, and none is made by looking.
        if file is None or file.is_file():
            with looked_at(name, setup.settings) as zone:
                options = f" --zone {shlex.quote(name)}{given_options(asked.config, None)}"
                yield from _at_site(asked.unit, _local_site(zone, options))


def _local_site(zone: LocalZone, options: str) -> Site:
    return Site(
        status(zone),
        [quarantine_view(each) for each in zone.store.quarantine(state=None)],
        [gap_view(each) for each in zone.store.gaps()],
        zone.lookup,
        lambda log, offset: _stored(zone, log, offset),
        options,
    )


def _stored(zone: LocalZone, log: str, offset: int) -> StoredFact | None:
    facts = zone.store.page(log, offset - 1, 1, 1).facts
    return facts[0] if facts and facts[0].offset == offset else None


def _remote_site(ask: Callable[..., Any], options: str) -> Site:
    return Site(
        ask("GetStatus"),
        ask("ListQuarantine", state="all")["items"],
        ask("ListGaps")["gaps"],
        lambda zone, unit, log: ask("LookupFact", from_zone=zone, message_id=unit, log=log),
        lambda _log, _offset: None,
        options,
    )


# ---- one zone ------------------------------------------------------------------------------------


def _at_site(unit: str, site: Site) -> Iterator[FactStatus]:
    for log in site.status["logs"]:
        name = log["log"]
        owner = site.status["zone"] if name == OUTBOUND else name.removeprefix(INBOUND)
        try:
            found = site.lookup(owner, unit, name)
        except BoundaryNotFoundError:
            continue
        yield from _in_log(site, name, owner, found)


def _in_log(site: Site, log: str, owner: str, found: Shape) -> Iterator[FactStatus]:
    zone, offset = site.status["zone"], found["offset"]
    if log == OUTBOUND:
        text = f"Zone {zone} has it in its outbound log, at offset {offset}"
    else:
        text = f"Zone {zone} has received it from zone {owner}, at offset {offset} of {log}"
    fact = site.fact(log, offset)
    when = "" if fact is None else f", since {format_rfc3339(fact.recorded_at)}"
    kept = "" if found["state"] == "retained" else "; its payload is past its time and was dropped"
    yield FactStatus("appended", f"{text}{when}{kept}.")
    for gap in site.gaps:
        if gap["log"] == log and gap["first_offset"] <= offset <= gap["last_offset"]:
            yield FactStatus("lost", f"Zone {zone} gave it up before all had it: {gap['reason']}.")
    aside = {each["consumer_name"]: each for each in site.quarantine if _is_it(each, log, offset)}
    readers = [each for each in site.status["consumers"] if each["log"] == log]
    # A node does not show the fact itself; then it is not known for whom it is, and all readers are
    # named.
    if fact is not None:
        readers = [each for each in readers if each["to_zone"] in (None, fact.to_zone)]
    for reader in readers:
        name = reader["consumer_name"]
        yield _reader(site, reader, offset, aside.get(name))
    if not readers:
        yield FactStatus("waiting", f"Nobody reads {log} of zone {zone} yet.")


def _is_it(item: Shape, log: str, offset: int) -> bool:
    return (item["log"], item["offset"]) == (log, offset)


def _reader(site: Site, reader: Shape, offset: int, aside: Shape | None) -> FactStatus:
    name, cursor = reader["consumer_name"], reader["cursor"]
    peer = name.removeprefix(PEER) if name.startswith(PEER) else None
    who = f"The consumer {name}" if peer is None else f"Zone {peer}"
    if aside is not None and aside["state"] in ("quarantined", "released"):
        return _set_aside(who, aside, site.options)
    if offset <= cursor:
        verb = "has confirmed it" if peer is None else "has pulled it"
        note = f", though it was set aside and {aside['state']}" if aside is not None else ""
        return FactStatus("confirmed", f"{who} {verb}{note}.")
    between = offset - cursor - 1
    place = f"{counted(between, 'offset')} before it come first" if between else "it is the next"
    verb = "confirmed" if peer is None else "pulled"
    text = f"{who} has not {verb} it: its cursor is at {cursor}, and {place}"
    held = "" if not reader.get("holder") else f"; {reader['holder']!r} holds the consumer"
    return FactStatus("waiting", f"{text}{held}{_sealed(site, peer)}.")


def _set_aside(who: str, aside: Shape, options: str) -> FactStatus:
    at = format_rfc3339(aside["at_unix_ms"] / 1000)
    why = failure_text(aside["reason"], aside["message"])
    item = aside["id"]
    if aside["state"] == "released":
        text = f"was set aside ({why}), is released, and goes out again"
    else:
        text = (
            f"does not get it: set aside at {at} after {counted(aside['attempts'], 'attempt')}"
            f" ({why}); ergon boundary quarantine release {item}{options} lets it go out again"
        )
    return FactStatus("quarantined", f"{who} {text}.")


def _sealed(site: Site, peer: str | None) -> str:
    if peer is None:
        return ""
    for link in site.status["links"]:
        if link["sealed"] and link["peer"] in (None, peer):
            reason = f" ({link['reason']})" if link.get("reason") else ""
            return (
                f"; an operator sealed the link{reason}, ergon boundary open{site.options} opens it"
            )
    return ""
