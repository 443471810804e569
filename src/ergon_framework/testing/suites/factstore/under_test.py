"""The fact store under test, as the checks see it: a clock set by hand, and short words."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ergon_framework.errors import BoundaryError
from ergon_framework.ports.factstore import (
    OUTBOUND,
    Appended,
    AppendOutcome,
    ConsumerInfo,
    FactStore,
    Fetched,
    Gap,
    Link,
    LogPage,
    NewFact,
    Quarantined,
    Reference,
    StoredFact,
)
from ergon_framework.ports.transfer import find_records
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.framework import expect, fail
from ergon_framework.testing.suites.stores import StoreSubject

PLENTY = 1 << 20  # bytes of a page that is cut by its number of facts alone
PEER = "plant-b"
INBOX = f"inbound:{PEER}"
LEASE = 30.0

Clock = Callable[[], float]
MakeStore = Callable[[Clock], FactStore]
Reopen = Callable[[FactStore], FactStore]
Corrupt = Callable[[FactStore, str, int], None]
Restore = Callable[[str, Clock], FactStore]


@dataclass(frozen=True, slots=True)
class Ways:
    """What the author of a store lets the checks do to it, beside calling it."""

    reopen: Reopen | None = None
    corrupt: Corrupt | None = None
    restore: Restore | None = None


class FactStoreSubject(StoreSubject[FactStore]):
    """One fresh, empty store and its clock."""

    def __init__(self, store: FactStore, clock: HandClock, ways: Ways, patience: float) -> None:
        super().__init__(store, patience)
        self.clock = clock
        self._ways = ways

    @property
    def capabilities(self) -> frozenset[str]:
        """What the checks may use beside the port."""
        names = ("reopen", "corrupt", "restore")
        found = {name for name in names if getattr(self._ways, name) is not None}
        is_copied = find_records(self.store) is not None
        return frozenset(found | ({"moving"} if is_copied else set()))

    def reopen(self) -> None:
        """Go on with what a new process would find."""
        if self._ways.reopen is not None:
            self.store = self._ways.reopen(self.store)

    def corrupt(self, log: str, offset: int) -> None:
        """Damage a row behind the store's back."""
        if self._ways.corrupt is not None:
            self._ways.corrupt(self.store, log, offset)

    def restore(self, folder: str) -> FactStore:
        """Open a backup."""
        return (self._ways.restore or fail)(folder, self.clock)  # type: ignore[call-arg]

    # ---- putting in -----------------------------------------------------------------------------

    def append(self, *facts: NewFact, log: str = OUTBOUND, **options: Any) -> list[AppendOutcome]:
        """Append in one call; as many outcomes as facts."""
        outcomes = self.store.append(log, facts, **options)
        same(len(outcomes), len(facts), "outcomes")
        return outcomes

    def put(self, *ids: str, log: str = OUTBOUND, **fields: Any) -> list[int]:
        """Append a new fact of each id in one call; their offsets."""
        outcomes = self.append(*(new(each, **fields) for each in ids), log=log)
        return [added(each) for each in outcomes]

    def one(self, fact: NewFact, log: str = OUTBOUND, **options: Any) -> AppendOutcome:
        """Append one fact."""
        return self.append(fact, log=log, **options)[0]

    def again(self, message_id: str, log: str = OUTBOUND, **fields: Any) -> Appended:
        """Append what is there already; the answer."""
        answer = self.one(new(message_id, **fields), log)
        if not isinstance(answer, Appended):
            return fail(f"the same fact again got {answer!r:.200}")
        expect(answer.is_duplicate, f"the same fact again was stored at {answer.offset}")
        return answer

    def bind(self, key: str, data: bytes = b"bytes", bucket: str = "files") -> Reference:
        """Give bytes a name; the reference a fact would make to them."""
        digest = hashlib.sha256(data).digest()
        self.store.bind(bucket, key, digest, len(data))
        return Reference(bucket, key, digest, len(data))

    def receive(
        self, *facts: NewFact, peer: str = PEER, gaps: Sequence[Gap] = (), **fields: Any
    ) -> list[AppendOutcome]:
        """What a puller would hand over, with a link that has come so far."""
        reached = [fact.source_offset or 0 for fact in facts] + [gap.last for gap in gaps]
        link = replace(Link(peer, "e1", max(reached, default=0)), **fields)
        return self.store.receive(peer, facts, link, gaps=gaps)

    # ---- taking out -----------------------------------------------------------------------------

    def page(
        self,
        after: int = 0,
        limit: int = 1000,
        max_bytes: int = PLENTY,
        *,
        log: str = OUTBOUND,
        to_zone: str | None = None,
    ) -> LogPage:
        """Read a stretch of a log."""
        return self.store.page(log, after, limit, max_bytes, to_zone)

    def ids(self, log: str = OUTBOUND, to_zone: str | None = None) -> list[str]:
        """The ids of everything a log keeps, in order."""
        return [fact.message_id for fact in self.page(log=log, to_zone=to_zone).facts]

    def head(self, log: str = OUTBOUND) -> int:
        """The highest offset of a log."""
        return self.page(log=log).head

    def consumer(self, name: str = "c", log: str = OUTBOUND, **options: Any) -> ConsumerInfo:
        """Create a consumer."""
        return self.store.create_consumer(name, log, **options)

    def serve(
        self, name: str = "c", limit: int = 1000, max_bytes: int = PLENTY, **options: Any
    ) -> Fetched:
        """What a consumer is given."""
        return self.store.serve(name, limit, max_bytes, **options)

    def served(self, name: str = "c", limit: int = 1000, **options: Any) -> list[int]:
        """The offsets a consumer is given."""
        return offsets(self.serve(name, limit, **options).page.facts)

    def done(self, through: int, name: str = "c", **options: Any) -> None:
        """Let a consumer fetch and confirm up to there."""
        self.serve(name, **options)
        same(self.store.confirm(name, through, **options), through, "the cursor")

    def set_aside(self, offset: int, name: str = "c", **changes: Any) -> Quarantined:
        """Quarantine a fact."""
        fields: dict[str, Any] = {"reason": "handler_failed", "message": "no", "attempts": 3}
        return self.store.set_aside(name, offset, **(fields | changes))

    # ---- errors ---------------------------------------------------------------------------------

    def refused(
        self,
        call: Callable[[], Any],
        reason: str = "",
        code: str = "failed_precondition",
        kind: type[BoundaryError] = BoundaryError,
    ) -> BoundaryError:
        """The refusal that ``call`` must meet with."""
        error = self.refusal(call)
        if not isinstance(error, kind):
            return fail(f"expected a {kind.__name__} {code} {reason}, found {error!r:.200}")
        same((error.code, error.reason), (code, reason), "code and reason of the refusal")
        return error


def new(message_id: str, **fields: Any) -> NewFact:
    """A fact as the edge would hand it in; the digest goes by what is in ``fact``."""
    body = fields.get("fact", b'{"subject":"batch:1","predicate":"done","object_json":1}')
    zones = fields.get("from_zone", "plant-a"), fields.get("to_zone", PEER)
    whole: dict[str, Any] = {
        "from_zone": zones[0],
        "message_id": message_id,
        "to_zone": zones[1],
        "digest": hashlib.sha256(repr((zones, body)).encode()).digest(),
        "envelope": b'{"message_id":"%s"}' % message_id.encode(),
        "fact": body,
    }
    return NewFact(**(whole | fields))


def other(message_id: str, **fields: Any) -> NewFact:
    """A fact of that id with other content."""
    return new(message_id, **({"fact": b'{"other":true}'} | fields))


def sent(message_id: str, source_offset: int, **fields: Any) -> NewFact:
    """A fact as a peer sends it."""
    zones = {"from_zone": PEER, "to_zone": "plant-a"}
    return new(message_id, source_offset=source_offset, **(zones | fields))


def added(answer: AppendOutcome) -> int:
    """The offset of a fact that must have been stored just now."""
    if not isinstance(answer, Appended) or answer.is_duplicate:
        return fail(f"a new fact got {answer!r:.200}")
    return answer.offset


def offsets(facts: Sequence[StoredFact]) -> list[int]:
    """Their offsets, in order."""
    return [fact.offset for fact in facts]


def same(found: object, wanted: object, what: str) -> None:
    """Fail the check unless both are equal."""
    if found != wanted:
        fail(f"{what}: expected {wanted!r:.300}, found {found!r:.300}")
