"""What the messages of a zone's stream are called.

``log.<log>.f.<zone>`` are the facts of a log to a zone and ``log.<log>.m`` the markers of a peer's
losses, in the order of their offsets; ``shelf.<log>`` says how the log stands. No message can be
replaced: ``repair.<log>.<sequence>`` is read instead of one that is damaged. ``id.…`` is what the
ledger knows of an id, for ever. The rest are small records, of which the newest counts.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b32encode

from ergon_framework.boundary.logs.losses import NOBODY

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,48}")
_LONGEST = 64
NOT_A_PEER = "_"


def token(name: str) -> str:
    """A name as one word of a subject: as it is, spelt out, or hashed when it is long."""
    if _PLAIN.fullmatch(name):
        return f"n{name}"
    data = name.encode()
    if len(data) <= _LONGEST:
        return "x" + b32encode(data).decode().rstrip("=").lower()
    return "h" + hashlib.sha256(data).hexdigest()


class Subjects:
    """The subjects of one zone."""

    def __init__(self, space: str, zone: str) -> None:
        self.root = f"{space}.{token(zone)}"
        self.stream = f"ERGON_{space}_{token(zone)}"
        self.everything = f"{self.root}.>"
        self.bell = f"ergon-bell.{self.root}"
        self.zone = f"{self.root}.zone"
        self.tally = f"{self.root}.tally"
        self.fence = f"{self.root}.fence"
        self.mark = f"{self.root}.mark"
        self.shelves = f"{self.root}.shelf.*"
        self.consumers = f"{self.root}.consumer.*"
        self.items = f"{self.root}.item.*.*"
        self.links = f"{self.root}.link.*"
        self.objects = f"{self.root}.object.*.*"

    def attribute(self, name: str) -> str:
        """A text that was written down about the store."""
        return f"{self.root}.attribute.{token(name)}"

    def shelf(self, log: str) -> str:
        """How a log stands."""
        return f"{self.root}.shelf.{token(log)}"

    def entries(self, log: str) -> str:
        """Facts and markers of a log."""
        return f"{self.root}.log.{token(log)}.>"

    def facts(self, log: str, to_zone: str | None = None) -> str:
        """Facts of a log, or those to one zone."""
        zone = "*" if to_zone is None else token(to_zone)
        return f"{self.root}.log.{token(log)}.f.{zone}"

    def entry(self, log: str, to_zone: str) -> str:
        """A fact or, when it goes to nobody, a marker."""
        kind = "m" if to_zone == NOBODY else f"f.{token(to_zone)}"
        return f"{self.root}.log.{token(log)}.{kind}"

    def repair(self, log: str, seq: int) -> str:
        """An entry as it was, in the place of the damaged one with a sequence."""
        return f"{self.root}.repair.{token(log)}.{seq}"

    def repairs(self, log: str) -> str:
        """All of those of a log."""
        return f"{self.root}.repair.{token(log)}.*"

    def id(self, key: bytes) -> str:
        """What the ledger knows of an id."""
        digits = key.hex()
        return f"{self.root}.id.{digits[:2]}.{digits[2:4]}.{digits[4:]}"

    def ids(self, *digits: str) -> str:
        """Ids whose keys begin with some pairs of digits: none, one or two."""
        return ".".join((self.root, "id", *digits, *("*" for _ in range(3 - len(digits)))))

    def gap(self, log: str, first: int, *, is_ours: bool) -> str:
        """A recorded loss."""
        return f"{self.root}.gap.{token(log)}.{first}.{'own' if is_ours else 'peer'}"

    def gaps(self, log: str) -> str:
        """Recorded losses of a log."""
        return f"{self.root}.gap.{token(log)}.*.*"

    def consumer(self, name: str) -> str:
        """A consumer."""
        return f"{self.root}.consumer.{token(name)}"

    def item(self, consumer: str, number: int) -> str:
        """Something that was set aside."""
        return f"{self.root}.item.{token(consumer)}.{number}"

    def item_numbered(self, number: int) -> str:
        """The same, for whomever."""
        return f"{self.root}.item.*.{number}"

    def items_of(self, consumer: str) -> str:
        """What was set aside for a consumer."""
        return f"{self.root}.item.{token(consumer)}.*"

    def whole(self, consumer: str, content: bytes) -> str:
        """That something was set aside with its payload."""
        return f"{self.root}.whole.{token(consumer)}.{hashlib.sha256(content).hexdigest()}"

    def wholes_of(self, consumer: str) -> str:
        """All of those."""
        return f"{self.root}.whole.{token(consumer)}.*"

    def object(self, bucket: str, key: str) -> str:
        """A name of an object."""
        return f"{self.root}.object.{token(bucket)}.{token(key)}"

    def objects_in(self, bucket: str) -> str:
        """Names in a bucket."""
        return f"{self.root}.object.{token(bucket)}.*"

    def content(self, digest: bytes, bucket: str, key: str) -> str:
        """That a name stands for these bytes."""
        return f"{self.root}.bytes.{digest.hex()}.{token(bucket)}.{token(key)}"

    def names_of(self, digest: bytes) -> str:
        """Whatever names stand for these bytes."""
        return f"{self.root}.bytes.{digest.hex()}.*.*"

    def link(self, peer: str) -> str:
        """A link to a peer."""
        return f"{self.root}.link.{token(peer) if peer else NOT_A_PEER}"

    def note(self, number: int) -> str:
        """An entry of the journal."""
        return f"{self.root}.note.{number}"
