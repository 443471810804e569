"""The campaign on a fact store: those who append, receive and read die."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ergon_framework.ports.factstore import OUTBOUND, Corruption, FactStore
from tests.campaign.actors import Actor
from tests.campaign.campaign import Campaign
from tests.campaign.outage_retry import patiently, pause
from tests.campaign.programs.facts import BATCH, CONSUMERS, INBOX, PEER, WEB, name
from tests.differential.places import Place, open_facts
from tests.servers.server import free_port

LEAST = 40
"""Facts that wait for their readers, at any time."""
CALLS = {
    "appender": ("bind", "append"),
    "publisher": (),
    "node": ("append",),
    "receiver": ("receive",),
    "reader": ("confirm", "quarantine"),
}
"""What each of the programs asks of the store."""


@dataclass(frozen=True, slots=True)
class Writer:
    """A program that writes facts: where to, how it tells of them, and their first number."""

    log: str
    verb: str
    first: int = 0


WRITERS = {
    "appender": Writer(OUTBOUND, "appended"),
    "publisher": Writer(OUTBOUND, "published"),
    "receiver": Writer(INBOX, "received", 1),
}


class FactCampaign(Campaign):
    """Every fact is in its log once, and every consumer has settled it once."""

    what = "facts"
    ranks = ("appender", "receiver", "reader", "reader", "node", "publisher")

    def open(self, place: Place) -> None:
        """Somebody who counts."""
        self.store = open_facts(place)
        self.allowed = dict.fromkeys(WRITERS, 0)
        self.port = free_port()
        for consumer, (log, zone) in CONSUMERS.items():
            self.store.create_consumer(consumer, log, to_zone=zone)

    def close(self) -> None:
        """Close it."""
        self.store.close()

    def points(self, program: str) -> list[str]:
        """Those of the calls that a program makes."""
        calls = tuple(f"boundary.{call}." for call in CALLS[program])
        return self.known(calls) if calls else []

    def more(self, program: str) -> Sequence[str]:
        """The port of the node, for the node and for who talks to it."""
        return (str(self.port),) if program in {"node", "publisher"} else ()

    def start(self, program: str, arm: str) -> Actor:
        """A writer is told what was allowed and not yet done."""
        actor = super().start(program, arm)
        if program in WRITERS:
            actor.allow(self.allowed[program] - self._done(program))
        return actor

    def _done(self, program: str) -> int:
        """The batches that one who starts now will not write: it goes on where it thinks it is."""
        if program == "receiver":
            return patiently(lambda: self.store.link(PEER)).offset // BATCH
        return sum(words[0] == WRITERS[program].verb for words in self.book.lines())

    def feed(self) -> None:
        """Let some more be written when few are left to be read."""
        waiting = {each.log: 0 for each in patiently(self.store.consumers)}
        for each in patiently(self.store.consumers):
            waiting[each.log] = max(waiting[each.log], each.lag)
        for program, writer in WRITERS.items():
            is_behind = self.allowed[program] - self._done(program) > 2 * LEAST // BATCH
            if waiting[writer.log] < LEAST and not is_behind:
                self._allow(program, LEAST // BATCH)

    def _allow(self, program: str, batches: int) -> None:
        self.allowed[program] += batches
        for actor in self.actors:
            if actor.program == program:
                actor.allow(batches)

    def _heads(self) -> dict[str, int]:
        return {each.name: each.head for each in patiently(self.store.logs)}

    def struck(self, actor: Actor) -> None:
        """A writer dies while it writes."""
        if actor.program in WRITERS:
            self._allow(actor.program, 2)
            pause(self.dice.uniform(0.0, 0.01))

    def is_done(self) -> bool:
        """Whether all was written, and all consumers are at the end."""
        heads = self._heads()
        wanted = Counter[str]()
        for program, writer in WRITERS.items():
            wanted[writer.log] += self.allowed[program] * BATCH
        is_written = all(heads[log] == count for log, count in wanted.items())
        return is_written and not any(each.lag for each in patiently(self.store.consumers))

    def judged(self) -> dict[str, Any]:
        """Lost, doubled, moved and settled twice; and whether the chains hold."""
        books: dict[str, list[list[str]]] = {}
        for verb, *rest in self.book.lines():
            books.setdefault(verb, []).append(rest)
        told: Counter[str] = Counter()
        for log in (OUTBOUND, INBOX):
            told += self._judged_log(log, books)
        told += self._judged_reading(books)
        names = ("lost", "doubled", "moved", "flaws", "unread", "settled_twice")
        units = sum(self.allowed.values()) * BATCH
        again = len(books["read"]) - len({tuple(words) for words in books["read"]})
        return {"units": units} | {each: told[each] for each in names} | {"read_again": again}

    def _judged_log(self, log: str, books: dict[str, list[list[str]]]) -> Counter[str]:
        facts = _all_of(self.store, log)
        ids = Counter(message_id for _, message_id in facts)
        places = {message_id: offset for offset, message_id in facts}
        told, wanted = Counter[str](), set()
        for program, writer in WRITERS.items():
            if writer.log == log:
                wanted |= {self._id(program, n) for n in range(self.allowed[program] * BATCH)}
                for batch, *offsets in books.get(writer.verb, []):
                    for n, offset in enumerate(offsets):
                        found = places.get(self._id(program, int(batch) * BATCH + n))
                        told["moved"] += found != int(offset)
        told["lost"] = len(wanted - ids.keys())
        told["doubled"] = sum(ids.values()) - len(ids) + len(ids.keys() - wanted)
        told["flaws"] = [offset for offset, _ in facts] != list(range(1, len(facts) + 1))
        told["flaws"] += sum(isinstance(each, Corruption) for each in self.store.verify(log))
        return told

    def _id(self, program: str, number: int) -> str:
        """The id of the fact of that number, counted from 0."""
        senders = {"appender": self.place.zone, "publisher": WEB, "receiver": PEER}
        return name(senders[program], WRITERS[program].first + number)

    def _judged_reading(self, books: dict[str, list[list[str]]]) -> Counter[str]:
        """Each offset is settled once by each consumer, and was read before."""
        told = Counter[str]()
        settled: Counter[tuple[str, int]] = Counter()
        for consumer, after, through in books.get("confirmed", []):
            settled.update((consumer, n) for n in range(int(after) + 1, int(through) + 1))
        settled.update((consumer, int(offset)) for consumer, offset in books.get("aside", []))
        told["settled_twice"] = sum(n > 1 for n in settled.values())
        items = Counter((each.consumer, each.offset) for each in self.store.quarantine(state=None))
        told["settled_twice"] += sum(n > 1 for n in items.values())
        aside = {(consumer, int(offset)) for consumer, offset in books.get("aside", [])}
        told["lost"] = len(aside - items.keys())
        read = {(words[0], int(words[1])) for words in books.get("read", [])}
        for consumer, (log, zone) in CONSUMERS.items():
            facts = _all_of(self.store, log, zone)
            told["unread"] += sum((consumer, offset) not in read for offset, _ in facts)
        return told


def _all_of(store: FactStore, log: str, zone: str | None = None) -> list[tuple[int, str]]:
    """Every fact of a view: its offset and its id."""
    found: list[tuple[int, str]] = []
    after = 0
    while True:
        page = store.page(log, after, 1000, 1 << 24, zone)
        found += [(fact.offset, fact.message_id) for fact in page.facts]
        if page.through >= page.head:
            return found
        after = page.through
