"""What goes to the node at once: facts from the front of the line, as they were put in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from ergon_framework.boundary.facts.canonical import canonical
from ergon_framework.boundary.facts.schema import identity_digest, spelled
from ergon_framework.boundary.model import Envelope, Fact, Receipt
from ergon_framework.boundary.spool.records import Spooled, SpooledFile
from ergon_framework.errors import ArtifactError, BoundaryError, DataLossError

_envelope = msgspec.json.Decoder(Envelope).decode
_fact = msgspec.json.Decoder(Fact).decode


@dataclass(frozen=True, slots=True)
class Load:
    """Either several facts without artifacts, or one of any kind."""

    items: Sequence[Spooled]
    pairs: Sequence[tuple[Envelope, Fact]] = field(repr=False)
    flaw: BoundaryError | None = None
    """Why its only fact cannot be sent: what is in the spool is not what was put in."""

    @property
    def key(self) -> tuple[str, str]:
        """Zone and message id of the first fact."""
        envelope = self.pairs[0][0]
        return envelope.from_zone, envelope.message_id

    def is_what_was_found(self, found: Receipt) -> bool:
        """Whether the node has this very content under the first fact's id."""
        return found.digest == spelled(self.items[0].digest)


def packed(line: Sequence[Spooled], most: int) -> Load:
    """The longest load from the front of the line."""
    items: list[Spooled] = []
    pairs: list[tuple[Envelope, Fact]] = []
    for item in line[:most]:
        if items and item.files:
            break
        try:
            pair = _unpacked(item)
        except DataLossError as flaw:
            return Load(items, pairs) if items else Load([item], [], flaw)
        items.append(item)
        pairs.append(pair)
        if item.files:
            break
    return Load(items, pairs)


def _unpacked(item: Spooled) -> tuple[Envelope, Fact]:
    try:
        envelope, fact = _envelope(item.envelope), _fact(item.fact)
        digest = identity_digest(envelope, fact, canonical(fact.object_json))
    except (msgspec.MsgspecError, UnicodeDecodeError, BoundaryError) as error:
        raise _corrupted() from error
    if digest != item.digest:
        raise _corrupted()
    return envelope, fact


def _corrupted() -> DataLossError:
    return DataLossError(
        "the fact in the outbox is not the one that was added",
        code="failed_precondition",
        reason="spool_corrupted",
        remedy="add it again from its source, then discard this one",
    )


def changed(file: SpooledFile, place: object) -> ArtifactError:
    """The error of a fact whose file has other bytes than when it was added."""
    return ArtifactError(
        f"{place}, the file for {file.bucket}/{file.key}, has changed since it was added",
        reason="file_changed",
        remedy="bring the same bytes back and retry the fact, or discard it and add another",
        details={"bucket": file.bucket, "key": file.key, "digest": file.digest},
    )


def lost(file: SpooledFile) -> ArtifactError:
    """The error of a fact whose file is no longer there."""
    return ArtifactError(
        f"the file for {file.bucket}/{file.key} is gone, or has another size",
        reason="file_missing",
        remedy="bring it back and retry the fact, or discard it",
        details={"bucket": file.bucket, "key": file.key},
    )
