"""The connector's calls to a NATS server: consumers, pulls, acknowledgements, publishing.

``OrderedReader`` reads a stream from a place on, without acknowledgements.
"""

from __future__ import annotations

import json
import secrets
import shlex
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ergon_framework.errors import (
    ConfigurationError,
    ConnectorError,
    StoreError,
    StoreUnavailableError,
)
from ergon_framework.storage.nats import NatsClient
from ergon_framework.storage.nats.client import Sendable
from ergon_framework.storage.nats.errors import (
    NO_JETSTREAM,
    NO_STREAM,
    no_jetstream,
    translate,
)
from ergon_framework.storage.nats.pull import (
    NO_MESSAGES,
    TOO_LARGE,
    Pulled,
    PullSubscription,
    place_of,
)

if TYPE_CHECKING:
    from nats.aio.msg import Msg


NO_CONSUMER = 10014
CHUNK = 256
"""Messages that are published before the first of them is acknowledged."""
DEFAULT_ACK_WAIT = 30.0
MESSAGE_ID = "Nats-Msg-Id"
_MAX_REASON = 1000
_NANOSECONDS = 1_000_000_000


class NatsConnectorError(ConnectorError):
    """The connector refuses what it was asked to do."""

    code = "nats_connector"


class ConflictingMessageError(NatsConnectorError):
    """The transaction's id stands for a message with other content, which was published before."""

    code = "conflicting_message"


class ConsumerUnservedError(StoreUnavailableError):
    """The server can be reached, but the consumer was deleted or has no leader."""

    is_refusal: ClassVar[bool] = True


_NOWHERE = (1 << 63) - 1
"""A place in a stream that no message has."""


class SubjectUnheardError(StoreUnavailableError):
    """The server can be reached, but none of its streams takes what is published to the subject."""

    is_refusal: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class DurableConsumer:
    """The durable consumer that is read, and how it is made when there is none."""

    stream: str
    durable: str
    filter_subject: str | None = None
    ack_wait: float | None = None
    deliver: str = "all"


@dataclass(frozen=True, slots=True)
class JetStreamSession:
    """What is known of a server after the first connection."""

    ack_wait: float = DEFAULT_ACK_WAIT


@dataclass(slots=True)
class JetStream:
    """One client of a server, as the connector uses it. Any thread may call."""

    client: NatsClient
    pulls: PullSubscription = field(init=False)

    def __post_init__(self) -> None:
        self.pulls = PullSubscription(self.client)

    @property
    def name(self) -> str:
        """The name of the server that is shown to users."""
        return self.client.address.name

    def open(self, options: DurableConsumer | None) -> JetStreamSession:
        """Connect, and find the consumer; it is made when there is none."""
        self.client.version()
        if options is None:
            return JetStreamSession()
        config = self.consumer(options.stream, options.durable)
        if config is None:
            config = self._make(options)
        _refuse_unfit(config, options)
        self.check_settling(options)
        return JetStreamSession(config["ack_wait"] / _NANOSECONDS)

    def check_settling(self, options: DurableConsumer) -> None:
        """Raise an error if the user may not settle deliveries, because each would be repeated for
        ever.

        It reports progress on a delivery that no consumer has ever made.
        """
        place = f"1.{_NOWHERE}.{_NOWHERE}.0.0"
        self.settle(f"$JS.ACK.{options.stream}.{options.durable}.{place}", b"+WPI")

    def consumer(self, stream: str, durable: str) -> dict[str, Any] | None:
        """How a consumer is configured; None when there is none of that name."""
        answer = self.api(f"CONSUMER.INFO.{stream}.{durable}", None, NO_CONSUMER)
        return None if answer is None else answer["config"]

    def delivered(self, stream: str, durable: str) -> int | None:
        """Up to which message the consumer knows to have delivered; None when it is not there."""
        answer = self.api(f"CONSUMER.INFO.{stream}.{durable}", None, NO_CONSUMER)
        return None if answer is None else int(answer["delivered"]["stream_seq"])

    def waiting(self, stream: str, durable: str) -> int:
        """How many messages the consumer has not delivered yet."""
        answer = self.api(f"CONSUMER.INFO.{stream}.{durable}", None)
        return int((answer or {})["num_pending"])

    def _make(self, options: DurableConsumer) -> dict[str, Any]:
        config: dict[str, Any] = {
            "durable_name": options.durable,
            "ack_policy": "explicit",
            "ack_wait": int((options.ack_wait or DEFAULT_ACK_WAIT) * _NANOSECONDS),
            "deliver_policy": options.deliver,
            "max_deliver": -1,
        }
        if options.filter_subject:
            config["filter_subject"] = options.filter_subject
        return self.create_consumer(options.stream, options.durable, config)

    def create_consumer(self, stream: str, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """Make a consumer; its configuration as the server has completed it."""
        request = {"stream_name": stream, "config": {"name": name, **config}}
        answer = self.api(f"CONSUMER.CREATE.{stream}.{name}", request)
        made: dict[str, Any] = (answer or {})["config"]
        return made

    # ---- messages -------------------------------------------------------------------------------

    def pull(self, stream: str, consumer: str, most: int, wait: float, room: int) -> Pulled:
        """Up to so many messages: those that are there, or the first that comes within ``wait``."""
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        return self.client.begin(self._pull(subject, most, wait, room)).result()

    async def _pull(self, subject: str, most: int, wait: float, room: int) -> Pulled:
        found = await self.pulls.pull(subject, most, room=room)
        if not found.messages and TOO_LARGE in found.reason.lower():
            found = await self.pulls.pull(subject, 1)  # one message that is larger than all of it
        if not wait or found.messages or found.status not in NO_MESSAGES:
            return found
        # One alone, so that no other message is on its way to a pull that was given up.
        return await self.pulls.pull(subject, 1, wait=wait)

    def give_up_pull(self) -> None:
        """End the pull under way, if there is one. It does not block."""
        self.client.begin(self._give_up())

    async def _give_up(self) -> None:
        self.pulls.give_up()

    def settle(self, reply: str, how: bytes) -> bool:
        """Settle a delivery at the server. Returns whether the consumer exists and has
        received it.
        """
        return not self.client.send([(reply, how, None)]).status

    def in_progress(self, replies: Sequence[str]) -> None:
        """Tell the server that these deliveries are worked on."""
        for start in range(0, len(replies), CHUNK):
            part = replies[start : start + CHUNK]
            self.client.send_each([(each, b"+WPI", None) for each in part])

    def publish(self, messages: Sequence[Sendable]) -> None:
        """Publish, and wait until the stream has stored each."""
        for start in range(0, len(messages), CHUNK):
            part = messages[start : start + CHUNK]
            for message, reply in zip(part, self.client.send_each(part), strict=True):
                if reply.status:
                    raise _unheard(self.name, message[0])
                answer = json.loads(reply.data)
                if "error" in answer:
                    raise translate(self.name, answer["error"])
                if answer.get("duplicate"):
                    self._refuse_other(message, answer)

    def _refuse_other(self, message: Sendable, answer: Mapping[str, Any]) -> None:
        """Refuse other content under an id that the stream knows. A message that it has deleted
        cannot be compared.
        """
        try:
            there = self.api(f"STREAM.MSG.GET.{answer['stream']}", {"seq": answer["seq"]})
        except StoreUnavailableError:
            raise
        except StoreError:
            return
        if there and b64decode(there["message"].get("data", "")) != message[1]:
            identity = (message[2] or {}).get(MESSAGE_ID, "")
            raise ConflictingMessageError(
                f"the id {identity!r} stands for a message with another payload",
                remedy="a new unit of work needs an id of its own: transaction.derive(...) gives"
                " one",
                details={"transaction_id": identity},
            )

    def api(
        self, subject: str, request: Mapping[str, Any] | None, none_for: int = 0
    ) -> dict[str, Any] | None:
        """Call the server's API. Returns None for the error that the thing does not exist."""
        data = json.dumps(request).encode() if request is not None else b""
        reply = self.client.request(f"$JS.API.{subject}", data)
        if reply.status:
            raise no_jetstream(self.name)
        answer: dict[str, Any] = json.loads(reply.data)
        error = answer.get("error")
        if error is None:
            return answer
        code = error.get("err_code", 0)
        if none_for and code == none_for:
            return None
        if code == NO_STREAM:
            raise missing_stream(self.name, subject.split(".")[2])
        raise no_jetstream(self.name) if code in NO_JETSTREAM else translate(self.name, error)


def reason_of(text: str) -> bytes:
    """The end of a message that is not delivered again, with the reason as the server tells it."""
    return f"+TERM {' '.join(text.split())}".encode()[:_MAX_REASON]


def delayed(seconds: float) -> bytes:
    """The settlement that has the server deliver the message again after so many seconds."""
    return b'-NAK {"delay": %d}' % int(seconds * _NANOSECONDS)


def missing_stream(name: str, stream: str) -> ConfigurationError:
    """The error of a stream that was never made."""
    return ConfigurationError(
        f"{name} has no stream {stream!r}",
        remedy=f"make it, with the subjects it is for: nats stream add {shlex.quote(stream)}"
        f" --subjects={shlex.quote(stream.lower() + '.>')} --storage=file --defaults",
    )


def _unheard(name: str, subject: str) -> SubjectUnheardError:
    return SubjectUnheardError(
        f"{name} has no stream that takes the subject {subject!r} just now",
        remedy="see which subjects the streams have: nats stream ls --subjects",
        details={"is_lost": False},
    )


def _refuse_unfit(config: Mapping[str, Any], options: DurableConsumer) -> None:
    """Refuse a consumer of the server whose configuration contradicts the options."""
    about = f"the consumer {options.durable!r} of the stream {options.stream!r}"
    edit = f"nats consumer edit {shlex.quote(options.stream)} {shlex.quote(options.durable)}"
    if config.get("deliver_subject"):
        raise ConfigurationError(
            f"{about} is a push consumer", remedy="name a pull consumer, or one that is not there"
        )
    if config.get("ack_policy") != "explicit":
        raise ConfigurationError(
            f"{about} has the ack policy {config.get('ack_policy')!r}, not explicit",
            remedy="name another consumer: the policy of one cannot be changed",
        )
    found = config["ack_wait"] / _NANOSECONDS  # a consumer without acknowledgements has none
    if options.ack_wait is not None and abs(found - options.ack_wait) > 0.001:
        raise ConfigurationError(
            f"{about} has an ack_wait of {found:g} s, not {options.ack_wait:g}",
            remedy=f"leave ack_wait out, or change the consumer: {edit}"
            f" --wait={options.ack_wait:g}s",
        )
    filters = config.get("filter_subjects") or [config.get("filter_subject", "")]
    if options.filter_subject is not None and filters != [options.filter_subject]:
        raise ConfigurationError(
            f"{about} reads {', '.join(filters) or 'all subjects'}, not {options.filter_subject}",
            remedy=f"leave filter_subject out, or change the consumer: {edit}"
            f" --filter={shlex.quote(options.filter_subject)}",
        )


_INACTIVE = 300 * 1_000_000_000
"""Nanoseconds without a pull after which the server drops the consumer."""


class OrderedReader:
    """Hands out the messages of a stream in order, each once. One thread at a time.

    The consumer at the server is made anew whenever something is missing: after a connection was
    lost, or when the server has dropped it. It then begins behind the last message that was handed
    out.
    """

    def __init__(self, stream: str, filter_subject: str | None, start: int) -> None:
        self._stream = stream
        self._filter = filter_subject
        self._next = start
        """The first sequence of the stream that was not handed out."""
        self._consumer = ""
        self._session: object = None
        self._place = 0

    def read(
        self, jetstream: JetStream, session: object, most: int, wait: float, room: int
    ) -> list[Msg]:
        """The next messages, as they are there or as the first of them comes."""
        if session is not self._session or not self._consumer:
            self._begin(jetstream, session)
        pulled = jetstream.pull(self._stream, self._consumer, most, wait, room)
        if pulled.status and pulled.status not in NO_MESSAGES:
            self._consumer = ""  # it is gone: the next read makes another one
        found: list[Msg] = []
        for message in pulled.messages:
            place = place_of(message.reply)
            if place.place != self._place + 1:
                self._consumer = ""  # one before it did not arrive
                break
            self._place, self._next = place.place, place.sequence + 1
            found.append(message)
        return found

    def _begin(self, jetstream: JetStream, session: object) -> None:
        config: dict[str, Any] = {
            "ack_policy": "none",
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": max(self._next, 1),
            "max_deliver": 1,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _INACTIVE,
        }
        if self._filter:
            config["filter_subject"] = self._filter
        name = f"ergon-{secrets.token_hex(6)}"
        jetstream.create_consumer(self._stream, name, config)
        self._consumer, self._session, self._place = name, session, 0
