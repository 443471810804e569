"""Two stores that are told the same, and must answer the same: random histories for hypothesis."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.errors import BoundaryError
from ergon_framework.ports.factstore import (
    OUTBOUND,
    Conflict,
    ConsumerInfo,
    Corruption,
    FactStore,
    Fetched,
    Gap,
    LedgerEntry,
    Link,
    LogPage,
    NewFact,
    Quarantined,
    Reference,
    StoredObject,
)
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.factstore.under_test import INBOX, PEER, PLENTY, new
from tests.boundary.suite.stores import Kind, Memory

LOGS = st.sampled_from([OUTBOUND, OUTBOUND, INBOX])
ZONES = st.sampled_from("bc")
NAMES = st.sampled_from(["one", "two", "view"])
HOLDERS = st.sampled_from([None, None, None, "h1", "h2"])
RIGHTS = st.sampled_from([True, True, True, True, False])  # whether it is the holder who calls
KEYS = st.sampled_from("kl")
DIGESTS = st.sampled_from([b"\x01" * 32, b"\x01" * 32, b"\x02" * 32])
OFFSETS = st.integers(0, 12)
REFERENCES = st.builds(Reference, st.just("files"), KEYS, DIGESTS, st.just(5))
FACTS = st.fixed_dictionaries(
    {
        "age": st.sampled_from([0, 0, 0, 0, 1, 2, 5]),  # how many ids ago this one was new
        "from_zone": st.sampled_from("bbbc"),
        "to_zone": ZONES,
        "fact": st.sampled_from([b"x" * 10, b"x" * 10, b"x" * 10, b"y" * 30]),
        "references": st.just(()) | st.just(()) | st.tuples(REFERENCES),
    }
)
LOSSES = st.builds(
    Gap,
    log=st.just(OUTBOUND),
    first=st.integers(-3, 4),
    last=st.integers(4, 5),
    reason=st.sampled_from(["disk", "age"]),
    at=st.sampled_from([1.5, 1.5, 2.5]),
)


class Twins(RuleBasedStateMachine):
    """The memory store beside another one; the kind of that is set by a subclass."""

    kind: Callable[[Path], Kind] = Memory

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp())
        self.clock = HandClock()
        self.kinds = Memory(self.home), type(self).kind(self.home)
        self.stores = [kind.make(self.clock) for kind in self.kinds]
        self.damaged: set[tuple[str, int]] = set()
        self.made = 0

    @initialize()
    def begin(self) -> None:
        """Some facts, a name, and three consumers: one of all, one elsewhere, one of a view."""
        self.both(lambda store: store.bind("files", "k", b"\x01" * 32, 5))
        for log, zones in ((OUTBOUND, "bcbbc"), (INBOX, "cb")):
            batch = [self.fact({"age": 0, "to_zone": zone}) for zone in zones]
            self.both(lambda store, log=log, batch=batch: store.append(log, batch))  # type: ignore[misc]
        for name in ("one", "two", "view"):
            self.create(name, False, True)

    def fact(self, fields: dict[str, Any]) -> NewFact:
        """A fact, whose id may have been used before."""
        fields = dict(fields)
        age = fields.pop("age")
        self.made += age == 0
        return new(f"id-{self.made - age}", source_offset=self.made, **fields)

    def both(self, call: Callable[[FactStore], Any]) -> Any:
        """Ask both stores; the answer, which must be one."""
        model, other = (_answer(call, store) for store in self.stores)
        assert model == other, f"the model says {model}, and {type(self).__name__} {other}"
        return model

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        shutil.rmtree(self.home)

    # ---- what may happen ------------------------------------------------------------------------

    @rule(log=LOGS, batch=st.lists(FACTS, max_size=5), room=st.sampled_from([None, None, 20, 70]))
    def append(self, log: str, batch: list[dict[str, Any]], room: int | None) -> None:
        facts = [self.fact(fields) for fields in batch]
        size = next((each.size for each in self.stores[0].logs() if each.name == log), 0)
        capacity = None if room is None else size + room
        self.both(lambda store: store.append(log, facts, capacity=capacity))

    @rule(
        batch=st.lists(FACTS, max_size=4),
        offset=OFFSETS,
        is_refused=st.booleans(),
        lost=st.lists(LOSSES, max_size=2),
    )
    def receive(
        self, batch: list[dict[str, Any]], offset: int, is_refused: bool, lost: list[Gap]
    ) -> None:
        begin = self.made  # some losses lie before, some among, and some behind the facts
        gaps = [replace(gap, first=begin + gap.first, last=begin + gap.last) for gap in lost]
        gaps.sort(key=lambda gap: gap.first)
        facts = [self.fact(fields) for fields in batch]
        link = Link(PEER, "e1", offset, b"\x03" * 32)
        item = Quarantined(0, "", INBOX, offset, "artifact_missing", "", 1, self.clock())
        self.made += 1  # no two refused facts are alike
        item = replace(item, envelope=b"%d" % self.made, fact=b"{}")
        refused = [item] if is_refused else []
        self.both(lambda store: store.receive(PEER, facts, link, refused, gaps))

    @rule(age=st.integers(0, 9), zone=ZONES, log=st.none() | LOGS)
    def find(self, age: int, zone: str, log: str | None) -> None:
        self.both(lambda store: store.find(zone, f"id-{self.made - age}", log))

    @precondition(lambda self: not self.damaged)  # how far one gets then is not agreed upon
    @rule(log=LOGS, after=OFFSETS, limit=st.integers(1, 4), zone=st.none() | ZONES)
    def read(self, log: str, after: int, limit: int, zone: str | None) -> None:
        self.both(lambda store: store.page(log, after, limit, 150, zone))

    @rule(name=NAMES, from_end=st.booleans(), is_required=st.booleans(), anew=st.booleans())
    def create(self, name: str, from_end: bool, is_required: bool, anew: bool = False) -> None:
        options: dict[str, Any] = {"from_end": from_end, "is_required": is_required}
        log = INBOX if name == "two" else OUTBOUND
        zone = "b" if name == "view" else None
        if anew:
            self.both(lambda store: store.delete_consumer(name))
        self.both(lambda store: store.create_consumer(name, log, to_zone=zone, **options))

    @rule(name=NAMES, limit=st.integers(1, 5), holder=HOLDERS, few=st.booleans())
    def serve(self, name: str, limit: int, holder: str | None, few: bool) -> None:
        most = 120 if few else PLENTY
        self.both(lambda store: store.serve(name, limit, most, holder=holder, lease=10.0))

    @rule(name=NAMES, holder=HOLDERS, meanwhile=st.sampled_from([None, None, "release", "seek"]))
    def work(self, name: str, holder: str | None, meanwhile: str | None) -> None:
        """Fetch a page and confirm it, while an operator may be at work too."""
        found = self.both(lambda store: store.serve(name, 3, PLENTY, holder=holder))
        if meanwhile == "release":
            for item in self.stores[0].quarantine(name):
                self.both(lambda store, item=item: store.settle(item.id, "released"))  # type: ignore[misc]
        elif meanwhile == "seek":
            self.both(lambda store: store.seek(name, 0, reason="why not"))
        if isinstance(found, Fetched):
            through = found.page.through
            self.both(lambda store: store.confirm(name, through, holder=holder))

    @rule(name=NAMES, step=st.sampled_from([-1, 0, 1, 1, 2, 3]), is_right=RIGHTS)
    def confirm(self, name: str, step: int, is_right: bool) -> None:
        cursor, _, holder = self.place(name, is_right)
        self.both(lambda store: store.confirm(name, cursor + step, holder=holder))

    @rule(name=NAMES, offset=OFFSETS)
    def seek(self, name: str, offset: int) -> None:
        self.both(lambda store: store.seek(name, offset, reason="why not"))

    @rule(name=NAMES, step=st.sampled_from([0, 0, 0, 0, 0, 1, -1]), is_right=RIGHTS)
    def set_aside(self, name: str, step: int, is_right: bool) -> None:
        _, following, holder = self.place(name, is_right)
        options: dict[str, Any] = {"reason": "handler_failed", "message": "no", "attempts": 2}
        self.both(lambda store: store.set_aside(name, following + step, holder=holder, **options))

    @rule(
        which=st.integers(0, 3),
        state=st.sampled_from(["released"] * 4 + ["discarded", "settled", "quarantined"]),
    )
    def settle(self, which: int, state: str) -> None:
        """Decide about one of the newest items."""
        items = self.stores[0].quarantine(state=None)[::-1]
        number = items[which % len(items)].id if items else 99
        self.both(lambda store: store.settle(number, state, reason="why not"))

    @rule(log=LOGS, through=OFFSETS, loss=st.sampled_from([None] * 4 + ["disk", "age"]))
    def truncate(self, log: str, through: int, loss: str | None) -> None:
        self.both(lambda store: store.truncate(log, through, loss_reason=loss))

    @rule(
        what=st.sampled_from(["bind", "unbind", "seal", "open", "accept", "release"]),
        key=KEYS,
        digest=DIGESTS,
        peer=st.sampled_from(["", PEER, PEER]),
        name=NAMES,
    )
    def operate(self, what: str, key: str, digest: bytes, peer: str, name: str) -> None:
        calls: dict[str, Callable[[FactStore], object]] = {
            "bind": lambda store: store.bind("files", key, digest, 5),
            "unbind": lambda store: store.unbind("files", key),
            "seal": lambda store: store.seal(peer, "drill"),
            "open": lambda store: store.open(peer),
            "accept": lambda store: store.accept_epoch(peer or PEER, "e2"),
            "release": lambda store: store.release_lease(name, "h1"),
        }
        self.both(calls[what])

    @rule(seconds=st.sampled_from([0.5, 5.0, 20.0, -3.0]), is_reopened=st.booleans())
    def wait(self, seconds: float, is_reopened: bool) -> None:
        self.clock.forward(seconds)
        reopen = self.kinds[1].ways().get("reopen")
        if reopen is not None and is_reopened:
            self.stores[1] = reopen(self.stores[1])

    @precondition(lambda self: not self.damaged and self.made > 15)
    @rule(log=LOGS, offset=OFFSETS)
    def damage(self, log: str, offset: int) -> None:
        model = self.stores[0]
        assert isinstance(model, MemoryFactStore)
        row = model.database.state.memory_log(log).row(offset)
        if row is not None and not row.is_marker:
            self.damaged.add((log, offset))
            for kind, store in zip(self.kinds, self.stores, strict=True):
                kind.ways()["corrupt"](store, log, offset)

    # ---- what must hold -------------------------------------------------------------------------

    @invariant()
    def they_are_alike(self) -> None:
        self.both(lambda store: store.logs())
        self.both(lambda store: store.consumers())
        self.both(lambda store: store.quarantine(state=None))
        self.both(lambda store: (store.objects(), store.orphans(self.clock())))
        self.both(lambda store: store.links())
        self.both(lambda store: store.gaps())
        self.both(lambda store: [said for _, *said in store.journal()])
        self.both(lambda store: store.aged(OUTBOUND, self.clock() - 10.0))
        if not self.damaged:
            found = [each for store in self.stores for each in store.verify(INBOX)]
            assert not [each for each in found if isinstance(each, Corruption)]

    def place(self, name: str, is_right: bool) -> tuple[int, int, str | None]:
        """Where a consumer stands, which fact it is given next, and who may say so."""
        model = self.stores[0]
        assert isinstance(model, MemoryFactStore)
        one = model.consumer(name)
        rows = model.database.state.memory_log(one.log).after(one.cursor, one.to_zone)
        following = next((row.fact.offset for row in rows), one.cursor + 1)
        return one.cursor, following, one.holder if is_right else "nobody"


def _answer(call: Callable[[FactStore], Any], store: FactStore) -> Any:
    try:
        return _seen(call(store), store)
    except BoundaryError as error:
        return type(error), error.code, error.reason, error.message, error.details


def _seen(answer: Any, store: FactStore) -> Any:
    """An answer without what stores may do each in their own way."""
    match answer:
        case list() | tuple():
            return [_seen(each, store) for each in answer]
        case LogPage():
            return replace(answer, chain=bytes(bool(answer.chain)), end_chain=b"")
        case Fetched():
            one, page = _seen(answer.consumer, store), _seen(answer.page, store)
            return replace(answer, consumer=one, page=page)
        case ConsumerInfo():
            return replace(answer, served=max(answer.served, answer.cursor))
        case LedgerEntry() | Conflict():
            return replace(answer, digest=answer.digest[:16])
        case Link() | StoredObject():
            return replace(answer, at=0.0)
        case _:
            return answer
