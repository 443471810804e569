"""A random life of two fact stores: producers, peers, consumers and operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.errors import BoundaryError
from ergon_framework.ports.factstore import (
    OUTBOUND,
    AppendOutcome,
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
from ergon_framework.testing.suites.factstore.under_test import INBOX, PEER, PLENTY, Clock, new
from tests.differential.twins import Twins, same

ZONE = "plant-a"
LOGS = (OUTBOUND, OUTBOUND, INBOX)
CONSUMERS = {"one": (OUTBOUND, None), "two": (INBOX, None), "view": (OUTBOUND, "b")}
NAMES = tuple(CONSUMERS)
HOLDERS = (None, None, None, "h1", "h2")
DIGESTS = (b"\x01" * 32, b"\x01" * 32, b"\x02" * 32)
BODIES = (b"x" * 10, b"x" * 10, b"x" * 10, b"y" * 30)
AGES = (0, 0, 0, 0, 0, 1, 2, 5, 40)
"""How many ids ago the id of a fact was new."""
STATES = ("released", "released", "released", "discarded", "settled", "quarantined")
PATIENCE = 15.0

Open = Callable[[Clock], FactStore]


class FactTwins(Twins):
    """The memory store and another one."""

    def __init__(self, name: str, seed: int, store: Open, zone: str = ZONE) -> None:
        super().__init__(seed)
        self.store = name
        self._open = store
        self.model = MemoryFactStore(zone, clock=self.clock)
        self.stores: list[FactStore] = [self.model, store(self.clock)]
        self.made = 0
        for consumer in NAMES:
            self.create(consumer)

    def acts(self) -> Sequence[Callable[[], None]]:
        """Mostly what producers and consumers do."""
        usual = (self.append, self.append, self.work, self.serve, self.confirm, self.set_aside)
        often = (self.receive, self.read, self.find, self.settle, self.wait, self.append_soon)
        rare = (self.seek, self.truncate, self.operate, self.create, self.lookup)
        return usual * 6 + often * 3 + rare * 2 + (self.reopen,) * (self.seed % 2)

    def look(self) -> None:
        """Everything that can be listed."""
        self.both(lambda store: store.logs())
        self.both(lambda store: store.consumers())
        self.both(lambda store: store.quarantine(state=None))
        self.both(lambda store: (store.objects(), store.orphans(self.clock())))
        self.both(lambda store: store.object_totals())
        self.both(lambda store: store.links())
        self.both(lambda store: store.gaps())
        self.both(lambda store: [said for _, *said in store.journal()])
        self.both(lambda store: store.aged(OUTBOUND, self.clock() - 10.0))
        for log in (OUTBOUND, INBOX):
            flaws = [each for each in self.stores[1].verify(log) if isinstance(each, Corruption)]
            same([], flaws)

    def close(self) -> None:
        """Close both."""
        for store in self.stores:
            store.close()

    def both(self, call: Callable[[FactStore], Any]) -> Any:
        """Ask both stores; the answer, which must be one."""
        return same(*(_answer(call, store) for store in self.stores))

    # ---- producers and peers --------------------------------------------------------------------

    def append(self) -> None:
        """New, known and conflicting facts, now and then into a log that is full."""
        log, facts = self._log(), self._facts(5)
        room = self.dice.choice((None, None, None, 20, 70))
        capacity = None if room is None else self._size(log) + room
        self.both(lambda store: store.append(log, facts, capacity=capacity))

    def append_soon(self) -> None:
        """The same without waiting, twice."""
        log, batches = self._log(), (self._facts(3), self._facts(3))

        def call(store: FactStore) -> list[list[AppendOutcome]]:
            answers: list[Future[list[AppendOutcome] | BaseException]] = [Future() for _ in batches]
            for facts, answer in zip(batches, answers, strict=True):
                store.append_soon(log, facts, answer.set_result)
            return [_checked(answer.result(PATIENCE)) for answer in answers]

        self.both(call)

    def receive(self) -> None:
        """What a peer sent, what it lost, and what the puller refused."""
        offset, refused = self.dice.randint(0, self.made + 1), []
        gaps = [self._loss() for _ in range(self.dice.choice((0, 0, 1, 2)))]
        gaps.sort(key=lambda gap: gap.first)
        facts = self._facts(4)
        link = Link(PEER, "e1", offset, b"\x03" * 32)
        if self.dice.random() < 0.3:
            self.made += 1  # no two refused facts are alike
            item = Quarantined(0, "", INBOX, offset, "artifact_missing", "", 1, self.clock())
            refused.append(replace(item, envelope=b"%d" % self.made, fact=b"{}"))
        self.both(lambda store: store.receive(PEER, facts, link, refused, gaps))

    def _facts(self, most: int) -> list[NewFact]:
        return [self._fact() for _ in range(self.dice.randint(0, most))]

    def _fact(self) -> NewFact:
        """A fact, whose id may have been used before."""
        dice = self.dice
        age = dice.choice(AGES)
        self.made += age == 0
        references: tuple[Reference, ...] = ()
        if dice.random() < 0.3:
            references = (Reference("files", dice.choice("klm"), dice.choice(DIGESTS), 5),)
        return new(
            f"id-{self.made - age}",
            source_offset=self.made,
            from_zone=dice.choice("bbbc"),
            to_zone=dice.choice("bc"),
            fact=dice.choice(BODIES),
            references=references,
        )

    def _loss(self) -> Gap:
        """Some losses lie before, some among, and some behind the facts that come with them."""
        dice = self.dice
        first, last = self.made + dice.randint(-3, 4), self.made + dice.randint(4, 5)
        reason, at = dice.choice(("disk", "age")), dice.choice((1.5, 1.5, 2.5))
        return Gap(OUTBOUND, first, last, reason, at)

    # ---- readers --------------------------------------------------------------------------------

    def find(self) -> None:
        """Look an id up."""
        number, zone = self.made - self.dice.randint(0, 30), self.dice.choice("bc")
        log = self.dice.choice((None, *LOGS))
        self.both(lambda store: store.find(zone, f"id-{number}", log))

    def read(self) -> None:
        """Read without a consumer."""
        log, limit, zone = self._log(), self.dice.randint(1, 4), self.dice.choice((None, "b", "c"))
        after = self._offset(log)
        self.both(lambda store: store.page(log, after, limit, 150, zone))

    def serve(self) -> None:
        """Fetch a page."""
        name, holder = self._name(), self.dice.choice(HOLDERS)
        limit, most = self.dice.randint(1, 5), self.dice.choice((120, PLENTY))
        self.both(lambda store: store.serve(name, limit, most, holder=holder, lease=10.0))

    def work(self) -> None:
        """Fetch a page and confirm it, while an operator may be at work too."""
        name, holder = self._name(), self.dice.choice(HOLDERS)
        found = self.both(lambda store: store.serve(name, 8, PLENTY, holder=holder))
        if self.dice.random() < 0.1:
            for item in self.model.quarantine(name)[:3]:
                self.both(lambda store, item=item: store.settle(item.id, "released"))  # type: ignore[misc]
        if isinstance(found, Fetched):
            through = found.page.through
            self.both(lambda store: store.confirm(name, through, holder=holder))

    def confirm(self) -> None:
        """Confirm something, right or wrong."""
        name, step = self._name(), self.dice.choice((-1, 0, 1, 1, 2, 3))
        cursor, _, holder = self._place(name)
        self.both(lambda store: store.confirm(name, cursor + step, holder=holder))

    def set_aside(self) -> None:
        """Quarantine the next fact, or another one."""
        name, step = self._name(), self.dice.choice((0, 0, 0, 0, 0, 1, -1))
        _, following, holder = self._place(name)
        options: dict[str, Any] = {"reason": "handler_failed", "message": "no", "attempts": 2}
        self.both(lambda store: store.set_aside(name, following + step, holder=holder, **options))

    # ---- operators ------------------------------------------------------------------------------

    def settle(self) -> None:
        """Decide about one of the newest items."""
        items = self.model.quarantine(state=None)[-5:]
        number = self.dice.choice(items).id if items else 99
        state = self.dice.choice(STATES)
        self.both(lambda store: store.settle(number, state, reason="why not"))

    def seek(self) -> None:
        """Send a consumer somewhere else."""
        name = self._name()
        offset = self._offset(CONSUMERS[name][0])
        self.both(lambda store: store.seek(name, offset, reason="why not"))

    def truncate(self) -> None:
        """Drop payloads."""
        log, loss = self._log(), self.dice.choice((None, None, None, None, "disk", "age"))
        through = self._offset(log)
        self.both(lambda store: store.truncate(log, through, loss_reason=loss))

    def create(self, name: str = "") -> None:
        """Create a consumer, mostly one that is there, and now and then anew."""
        name = name or self._name()
        log, zone = CONSUMERS[name]
        options: dict[str, Any] = {"from_end": self.dice.random() < 0.5, "to_zone": zone}
        if self.dice.random() < 0.3:
            self.both(lambda store: store.delete_consumer(name))
        if self.dice.random() < 0.1:
            log = INBOX if log == OUTBOUND else OUTBOUND  # refused when it is there
        options["is_required"] = self.dice.random() < 0.7
        self.both(lambda store: store.create_consumer(name, log, **options))

    def operate(self) -> None:
        """Names of objects, and links."""
        key, digest = self.dice.choice("klm"), self.dice.choice(DIGESTS)
        peer, name = self.dice.choice(("", PEER, PEER)), self._name()
        before = self.clock() - self.dice.choice((0.0, 10.0))
        calls: tuple[Callable[[FactStore], object], ...] = (
            lambda store: store.bind("files", key, digest, 5),
            lambda store: store.bind("files", key, digest, 5),
            lambda store: store.unbind("files", key),
            lambda store: store.unbind("files", key, before=before),
            lambda store: store.seal(peer, "drill"),
            lambda store: store.open(peer),
            lambda store: store.accept_epoch(peer or PEER, "e2"),
            lambda store: store.release_lease(name, "h1"),
        )
        self.both(self.dice.choice(calls))

    def lookup(self) -> None:
        """Look at one thing of each kind."""
        key, digest, name = self.dice.choice("klm"), self.dice.choice(DIGESTS), self._name()
        self.both(lambda store: store.object("files", key))
        self.both(lambda store: store.is_bound(digest))
        self.both(lambda store: store.consumer(name))
        self.both(lambda store: store.link(PEER))

    def wait(self) -> None:
        """Time passes, and once in a while the clock is set back."""
        self.clock.forward(self.dice.choice((0.5, 5.0, 5.0, 20.0, -3.0)))
        for one in self.model.consumers():
            if one.is_overlong(self.clock()):
                # A stranger is refused, and the lease made shorter. A call of the holder that fails
                # for another reason may make it shorter or not.
                self.both(lambda store, one=one: store.serve(one.name, 1, 1, holder="x"))  # type: ignore[misc]

    def reopen(self) -> None:
        """The other store goes on with what a new process would find."""
        self.stores[1].close()
        self.stores[1] = self._open(self.clock)

    # ---- words ----------------------------------------------------------------------------------

    def _log(self) -> str:
        return self.dice.choice(LOGS)

    def _name(self) -> str:
        return self.dice.choice(NAMES)

    def _offset(self, log: str) -> int:
        """One that the log has, mostly, and mostly a late one."""
        memory_log = self.model.database.state.logs.get(log)
        first, head = (memory_log.first, memory_log.head) if memory_log else (1, 0)
        return max(0, self.dice.choice((self.dice.randint(first - 2, head + 2), head - 5)))

    def _size(self, log: str) -> int:
        memory_log = self.model.database.state.logs.get(log)
        return memory_log.size if memory_log else 0

    def _place(self, name: str) -> tuple[int, int, str | None]:
        """Where a consumer stands, which fact it is given next, and mostly who may say so."""
        one = self.model.database.state.consumers.get(name)
        if one is None:  # it could not be created: the other calls are refused alike
            return 0, 1, None
        rows = self.model.database.state.memory_log(one.log).after(one.cursor, one.to_zone)
        following = next((row.fact.offset for row in rows), one.cursor + 1)
        return one.cursor, following, one.holder if self.dice.random() < 0.8 else "nobody"


def _checked(answer: list[AppendOutcome] | BaseException) -> list[AppendOutcome]:
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _answer(call: Callable[[FactStore], Any], store: FactStore) -> Any:
    try:
        return _seen(call(store))
    except BoundaryError as error:
        return type(error), error.code, error.reason, error.message, error.details


def _seen(answer: Any) -> Any:
    """An answer without what stores may do each in their own way."""
    match answer:
        case list() | tuple():
            return [_seen(each) for each in answer]
        case LogPage():
            is_known = bool(answer.chain and answer.head)  # one without facts may not be there yet
            return replace(answer, chain=bytes(is_known), end_chain=b"")
        case Fetched():
            return replace(answer, consumer=_seen(answer.consumer), page=_seen(answer.page))
        case ConsumerInfo():
            return replace(answer, served=max(answer.served, answer.cursor))
        case LedgerEntry() | Conflict():
            return replace(answer, digest=answer.digest[:16])
        case Link() | StoredObject():
            return replace(answer, at=0.0)
        case _:
            return answer
