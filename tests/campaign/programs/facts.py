"""What the programs that keep facts share: facts whose content follows from their number."""

from __future__ import annotations

import hashlib

from ergon_framework.ports.factstore import Appended, AppendOutcome, FactStore, NewFact, Reference
from tests.campaign.outage_retry import patiently
from tests.differential.places import Place, open_facts

BATCH = 5
PEER = "plant-peer"
INBOX = f"inbound:{PEER}"
WEB = "web"
"""What precedes the number in the ids of facts that came through the node."""
ZONES = ("plant-x", "plant-y")
CONSUMERS = {"all": ("outbound", None), "some": ("outbound", ZONES[0]), "pulled": (INBOX, None)}
"""Name to log and view."""


def opened(url: str, zone: str) -> FactStore:
    """The store, when it can be opened."""
    return patiently(lambda: open_facts(Place(url, zone)))


def fact(sender: str, number: int, *references: Reference, source: int | None = None) -> NewFact:
    """The fact of that number."""
    message_id = name(sender, number)
    body = f'{{"of":"{message_id}"}}'.encode()
    digest = hashlib.sha256(body).digest()
    to_zone = ZONES[number % len(ZONES)]
    return NewFact(sender, message_id, to_zone, digest, b"{}", body, references, source)


def name(sender: str, number: int) -> str:
    """The id of a fact."""
    return f"{sender}-{number}"


def artifact(batch: int) -> Reference:
    """What the first fact of a batch refers to."""
    digest = hashlib.sha256(str(batch).encode()).digest()
    return Reference("files", f"key-{batch}", digest, batch)


def places(outcomes: list[AppendOutcome]) -> str:
    """The offsets of what was appended, as words."""
    taken = [each.offset for each in outcomes if isinstance(each, Appended)]
    assert len(taken) == len(outcomes), outcomes
    return " ".join(map(str, taken))
