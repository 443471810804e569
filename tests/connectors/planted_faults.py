"""An honest connector to a small broker, and connectors that bear its faults wrongly in one way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ergon_framework.connector.broker.message import MalformedMessageError, MessageCodec
from ergon_framework.errors import ChannelLostError
from ergon_framework.ports.transaction import Transaction, new_id
from ergon_framework.testing.suites import ConnectorFaults
from tests.connectors.planted_delivery import Entry, Honest


class HonestBroker(Honest):
    """Stores bodies and headers, and knows which channel each delivery came through."""

    def __init__(self) -> None:
        super().__init__()
        self.codec = MessageCodec()
        self.channel = 0
        self.came_through: dict[int, int] = {}
        self.malformed = 0

    def encode(self, transaction: Transaction) -> Any:
        message = self.codec.encode(transaction, {})
        return json.dumps([message.body.decode(), message.headers, new_id()])

    def decode(self, stored: Any) -> Any:
        body, headers, identity = json.loads(stored)
        return self.codec.decode(Transaction, body.encode(), headers, fallback_id=identity)

    def pick(self, count: int) -> list[Entry]:
        picked: list[Entry] = []
        while self.waiting and len(picked) < count:
            entry = self.waiting.pop(0)
            try:
                self.decode(entry[1])
                picked.append(entry)
            except MalformedMessageError as error:
                self.set_aside(entry, error)
        return picked

    def set_aside(self, entry: Entry, error: Exception) -> None:
        self.malformed += 1
        self.dead.append((Transaction(f"malformed-{entry[0]}"), str(error)))

    def deliver(self, entry: Entry) -> Any:
        transaction = super().deliver(entry)
        self.came_through[id(transaction)] = self.channel
        return transaction

    def settle(self, transaction: Transaction, verb: str) -> Entry | None:
        if self.came_through.get(id(transaction), self.channel) != self.channel:
            raise ChannelLostError("the channel of this delivery is gone")
        return super().settle(transaction, verb)

    # ---- what happens to it ---------------------------------------------------------------------

    def left_over(self) -> list[Entry]:
        """What comes back when a consumer or a channel is gone."""
        return sorted(entry for _, entry in self.flying.values())

    def crash(self) -> HonestBroker:
        other = type(self)()
        other.places, other.dead, other.parked = self.places, self.dead, self.parked
        other.waiting = sorted([*self.waiting, *self.left_over()])
        self.flying.clear()
        return other

    def cut(self) -> None:
        self.channel += 1
        self.waiting = sorted([*self.waiting, *self.left_over()])
        self.flying.clear()

    def put_malformed(self) -> None:
        self.add(json.dumps(["{", {}, new_id()]))

    def put_foreign(self, body: bytes, headers: Mapping[str, str]) -> None:
        self.add(json.dumps([body.decode(), dict(headers), new_id()]))

    def read_foreign(self) -> list[tuple[bytes, Mapping[str, str]]]:
        read = [json.loads(stored) for _, stored in self.waiting]
        return [(body.encode(), headers) for body, headers, _ in read]


FAULTS = ConnectorFaults(
    crash=lambda broker: broker.crash(),
    cut=lambda broker: broker.cut(),
    put_malformed=lambda broker: broker.put_malformed(),
    put_foreign=lambda broker, body, headers: broker.put_foreign(body, headers),
    read_foreign=lambda broker: broker.read_foreign(),
)
"""How each of them is broken."""


class AcksOnDelivery(HonestBroker):
    """What it has handed out is gone with it."""

    def left_over(self) -> list[Entry]:
        return []


class ParksInMemory(HonestBroker):
    """Keeps what is parked itself, so that its death ends every wait."""

    def left_over(self) -> list[Entry]:
        return sorted([*super().left_over(), *(entry for _, entry in self.parked)])

    def crash(self) -> HonestBroker:
        other = super().crash()
        other.parked = []
        return other


class RewritesWhatIsLeft(HonestBroker):
    """What a dead consumer left is sent again as a new message, without its headers."""

    def crash(self) -> HonestBroker:
        other = super().crash()
        read = [(place, json.loads(stored)) for place, stored in other.waiting]
        other.waiting = [(place, json.dumps([body, {}, new_id()])) for place, (body, *_) in read]
        return other


class DeliversAllAgain(HonestBroker):
    """Knows only one position: a new consumer begins where the last commit was."""

    def __init__(self) -> None:
        super().__init__()
        self.acked: list[Entry] = []

    def ack(self, transaction: Transaction) -> None:
        entry = self.settle(transaction, "ack")
        self.acked += [] if entry is None else [entry]

    def left_over(self) -> list[Entry]:
        return sorted([*super().left_over(), *self.acked])


class SettlesByTag(HonestBroker):
    """Takes an ack on the next channel, where it means nothing."""

    def settle(self, transaction: Transaction, verb: str) -> Entry | None:
        if self.came_through.get(id(transaction), self.channel) != self.channel:
            return None
        return super().settle(transaction, verb)


class AnyErrorWhenLost(HonestBroker):
    """Raises for a lost channel what the engine takes for a passing error."""

    def settle(self, transaction: Transaction, verb: str) -> Entry | None:
        try:
            return super().settle(transaction, verb)
        except ChannelLostError as error:
            raise RuntimeError("channel closed") from error


class NeverConnectsAgain(HonestBroker):
    """Goes on with the client that broke."""

    def fetch_transactions(self, batch_size: int) -> Any:
        if self.channel:
            return []
        return super().fetch_transactions(batch_size)


class SendsIntoTheVoid(HonestBroker):
    """Does not look whether the broker has what was sent."""

    def dispatch_transactions(self, transactions: Iterable[Transaction]) -> None:
        if not self.channel:
            super().dispatch_transactions(transactions)


class ChokesOnMalformed(HonestBroker):
    """Raises for a malformed message, and reads it again with the next fetch."""

    def set_aside(self, entry: Entry, error: Exception) -> None:
        self.waiting.insert(0, entry)
        raise error


class SkipsMalformed(HonestBroker):
    """Passes over what it cannot read, without a word."""

    def set_aside(self, entry: Entry, error: Exception) -> None:
        pass


class CallsMalformedNothing(HonestBroker):
    """Answers with nothing at all when the batch that it read was malformed."""

    def pick(self, count: int) -> list[Entry]:
        self.waiting, behind = self.waiting[:count], self.waiting[count:]
        picked = super().pick(count)
        self.waiting += behind
        return picked


class CountsMalformedOnly(HonestBroker):
    """Counts what it cannot read, and keeps none of it."""

    def set_aside(self, entry: Entry, error: Exception) -> None:
        self.malformed += 1


class TagsAreIds(HonestBroker):
    """Calls a message of another program by its delivery."""

    def decode(self, stored: Any) -> Any:
        body, headers, _ = json.loads(stored)
        return self.codec.decode(Transaction, body.encode(), headers, fallback_id=new_id())


class DropsForeignHeaders(HonestBroker):
    """Knows only headers of its own."""

    def put_foreign(self, body: bytes, headers: Mapping[str, str]) -> None:
        super().put_foreign(body, {})


class EnvelopeInTheBody(HonestBroker):
    """Wraps the payload in an envelope that other programs know nothing of."""

    def encode(self, transaction: Transaction) -> Any:
        body, headers, identity = json.loads(super().encode(transaction))
        return json.dumps([json.dumps({"payload": json.loads(body)}), headers, identity])

    def decode(self, stored: Any) -> Any:
        made = super().decode(stored)
        is_wrapped = isinstance(made.payload, dict) and "payload" in made.payload
        return made.with_payload(made.payload["payload"]) if is_wrapped else made
