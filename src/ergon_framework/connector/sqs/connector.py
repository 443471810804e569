"""``SqsConnector``: its fetch, dispatch and settlement, sync and async.

The client library blocks, so threads make its requests for event loops as well: a request takes
milliseconds, and handing it to a thread takes a small part of one.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Self, TypeVar

from ergon_framework.connector.base import (
    Delivered,
    DroppedDeliveries,
    ThreadedConsuming,
    inherited,
    refuse_extra,
    settling,
)
from ergon_framework.connector.broker.connection import BrokerConnection
from ergon_framework.connector.broker.dead_letters import refuse_own_dead_letters
from ergon_framework.connector.broker.in_flight import MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES, InFlight
from ergon_framework.connector.broker.message import (
    MalformedMessageError,
    MessageCodec,
    with_reason,
)
from ergon_framework.connector.broker.options import Bound, takes_options
from ergon_framework.connector.broker.refusals import Refusals
from ergon_framework.connector.broker.url import BrokerUrl, import_client
from ergon_framework.connector.broker.wakeup import Wakeup
from ergon_framework.connector.sqs.held import HeldMessage, HeldMessages
from ergon_framework.connector.sqs.queue import (
    BATCH,
    MAX_VISIBILITY,
    Batcher,
    SqsConnectorError,
    SqsQueue,
    refusal,
)
from ergon_framework.connector.sqs.wire import (
    MAX_BATCH_BYTES,
    as_received,
    attributes_of,
    incoming,
    outgoing,
    plain_id,
    size_of,
)
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import (
    ChannelLostError,
    ConfigurationError,
    ErgonError,
    PayloadError,
    describe,
)
from ergon_framework.ports.transaction import Transaction
from ergon_framework.storage.server import Observation
from ergon_framework.storage.urls import refuse_unreadable
from ergon_framework.telemetry.tracing import dispatching

T = TypeVar("T")

logger = logging.getLogger("ergon.connector")
EXAMPLE = "sqs://eu-central-1/orders"
CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
LONGEST_WAIT = 20
FIFO = ".fifo"
HEADROOM = 4096
"""How many bytes smaller a message is than SQS allows, so that the reason of a dead
letter fits in.
"""
FEW_RECEIVES = 5
"""A redrive policy with fewer receives than this would dead-letter messages that were
only parked.
"""


class SqsDelivery(Delivered):
    """A received message."""

    __slots__ = ("held",)

    held: HeldMessage


class SqsConnector(ThreadedConsuming):
    """Consumes an SQS queue, and produces into it.

    ``url`` is ``sqs://region/queue``, or ``sqs://region/account/queue`` for a queue of another
    account. Credentials are those that AWS clients find: variables, files or a role. ``endpoint``
    is the address of a server that is not AWS. What is fetched is kept invisible to others for
    ``visibility`` seconds, renewed while it is in hand. What failed for good goes to
    ``dead_letter_queue``, by default the queue of the redrive policy. ``wait`` is how many seconds
    a fetch waits for messages. Those for a FIFO queue have the group ``message_group`` names: a
    field of the transaction (``correlation_id``), or a path into it (``payload.customer``).
    """

    joins_trace: ClassVar[bool] = True

    @takes_options(visibility=Bound(1, MAX_VISIBILITY), wait=Bound(0, LONGEST_WAIT))
    def __init__(
        self,
        url: str,
        *,
        name: str | None = None,
        format: str = "json",
        endpoint: str | None = None,
        visibility: int = 30,
        wait: float = LONGEST_WAIT,
        dead_letter_queue: str | None = None,
        message_group: str = "correlation_id",
        max_message_bytes: int = MAX_BATCH_BYTES - HEADROOM,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_in_flight_bytes: int = MAX_IN_FLIGHT_BYTES,
        ca: str | None = None,
    ) -> None:
        place = BrokerUrl.of(url, port=443, schemes=["sqs"], example=EXAMPLE)
        place.refuse_query("SqsConnector")
        if not place.path or place.user:
            raise ConfigurationError(
                "the URL of the connector cannot be read",
                remedy=f"write {EXAMPLE}; credentials are found where AWS clients look for them",
            )
        if endpoint is not None and not endpoint.lower().startswith(("http://", "https://")):
            raise ConfigurationError(
                "endpoint is the address of a server, with http:// or https:// before it",
                remedy="write endpoint=http://localhost:4566, or leave it out for AWS",
            )
        refuse_unreadable(ca=ca)
        self.name = name
        self.malformed = 0
        self._region = place.host
        self._account, _, self.queue = place.path.rpartition("/")
        self._title = f"sqs://{place.host}/{place.path}"
        self._endpoint, self._ca = endpoint, ca
        self._was_reached = False
        self._visibility = visibility
        self._wait = _whole("wait", wait, 0, LONGEST_WAIT)
        self.waits_for_work = self._wait > 0
        refuse_own_dead_letters(queue=self.queue, dead_letter_queue=dead_letter_queue)
        self._dead_letter_queue = dead_letter_queue
        self._group_path = message_group.split(".")
        self._max_bytes = max_message_bytes
        self._codec = MessageCodec(format, max_message_bytes, name)
        self._wakeup = Wakeup()
        self._refusals = Refusals(self._title)
        self._connection = BrokerConnection(
            self._title, self._connect, lambda queue: queue.client.close(), self._wakeup
        )
        self._in_flight = InFlight(self._wakeup, max_in_flight, max_in_flight_bytes)
        self._held = HeldMessages(
            self._visibility, self._in_flight, lambda some: self._queue().show_again(some)
        )
        self._deletes = Batcher(
            lambda some: self._ask_queue(lambda queue: queue.delete(some), "DeleteMessage"),
            self._threads,
        )
        self._returns = Batcher(
            lambda some: self._ask_queue(
                lambda queue: queue.show_again(some), "ChangeMessageVisibility"
            ),
            self._threads,
        )
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Also in a forked child: the request under way is its parent's, and what came of it."""
        self._receiving: Future[None] | None = None
        self._dropped: DroppedDeliveries[HeldMessage] = DroppedDeliveries()

    # ---- opening and closing ----

    def health(self) -> bool:
        """Whether it can be used, as far as is known; not while something is refused."""
        return self._connection.state.is_healthy and not self._refusals

    def observe(self) -> list[Observation]:
        """What ``ergon doctor`` says: whether the queue is there, and where failures go."""
        try:
            queue = self._queue()
        except Exception as error:
            remedy = getattr(error, "remedy", "") or "see that region, queue and rights are right"
            found = error.message if isinstance(error, ErgonError) else describe(error)
            return [Observation("queue", found, remedy, is_grave=True)]
        told = [Observation("queue", f"{self.queue} is there")]
        if queue.dead_letters is None:
            told.append(Observation("dead letters", "go nowhere", _NO_DEAD_LETTERS))
        if queue.max_receives is not None and queue.max_receives < FEW_RECEIVES:
            told.append(
                Observation(
                    "redrive",
                    f"a message is set aside after {queue.max_receives} receives, and each parking"
                    " is one",
                    f"set maxReceiveCount of the queue to {FEW_RECEIVES} or more",
                )
            )
        return told + self._refusals.observations()

    def close(self) -> None:
        """Give back what was not handed out, and close."""
        if self._connection.state.is_closed:
            return
        left = self._held.close()
        self._wakeup.stop()
        with suppress(Exception):
            self._show([(each.handle, 0) for each in left])
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- producing ----

    def dispatch_transactions(self, transactions: Iterable[Transaction], **extra: Any) -> None:
        """Send one message for each, ten in a request; returns when SQS has them all."""
        refuse_extra(self, extra, _SETTINGS)
        given = list(transactions)
        with dispatching("sqs.send", "messaging.message.id", given):
            entries = self._entries(given)
            queue = self._queue()
            self._asked(queue, lambda: queue.send(queue.url, entries), "SendMessage")

    # ---- consuming ----

    def fetch_transactions(
        self, batch_size: int, *, wait: float | None = None, **extra: Any
    ) -> list[Transaction]:
        """Up to ``batch_size`` messages; an empty list when none came within ``wait`` seconds."""
        arguments = self._checked(batch_size, wait, extra)
        while True:
            self._await(*arguments)
            taken = self._take(batch_size)
            if taken is not None:
                return taken

    def stop_waiting(self) -> None:
        """Make the fetch under way stop waiting. What its request brings is for the next fetch."""
        self._wakeup.stop()

    def ack(self, transaction: Transaction) -> None:
        """The transaction succeeded: delete its message."""
        with self._settling(transaction, "ack") as held:
            if held is not None:
                self._delete(held).result()

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        """The transaction failed for good: its message goes to the dead letters, with why."""
        with self._settling(transaction, "nack") as held:
            if held is not None:
                self._bury(held, describe(exc))
                self._delete(held).result()

    def release(self, transaction: Transaction) -> None:
        """The transaction was not finished: let its message be received again."""
        self.release_after(transaction, 0.0, verb="release")

    def release_after(
        self, transaction: Transaction, seconds: float, *, verb: str = "release_after"
    ) -> None:
        """A gate is closed: let the message be received again in so many seconds, twelve hours at
        most.
        """
        with self._settling(transaction, verb) as held:
            if held is not None:
                self._return(held, seconds).result()

    def get_transactions_count(self) -> int:
        """About how many messages wait."""
        queue = self._queue()
        return self._asked(queue, queue.count, action="")

    # ---- the same for event loops ----

    async def dispatch_transactions_async(
        self, transactions: Iterable[Transaction], **extra: Any
    ) -> None:
        """The async version of ``dispatch_transactions``."""
        await self._threads.run(self.dispatch_transactions, list(transactions), **extra)

    async def fetch_transactions_async(
        self, batch_size: int, *, wait: float | None = None, **extra: Any
    ) -> list[Transaction]:
        """The async version of ``fetch_transactions``. Cancelled, it has taken nothing."""
        arguments = self._checked(batch_size, wait, extra)
        while True:
            try:
                await self._threads.run(self._await, *arguments)
            except asyncio.CancelledError:
                self._wakeup.stop()
                raise
            taken = self._take(batch_size)
            if taken is not None:
                return taken

    async def ack_async(self, transaction: Transaction) -> None:
        """The async version of ``ack``."""
        with self._settling(transaction, "ack") as held:
            if held is not None:
                await _ended(self._delete(held))

    async def release_async(self, transaction: Transaction) -> None:
        """The async version of ``release``."""
        await self.release_after_async(transaction, 0.0, verb="release")

    async def release_after_async(
        self, transaction: Transaction, seconds: float, *, verb: str = "release_after"
    ) -> None:
        """The async version of ``release_after``."""
        with self._settling(transaction, verb) as held:
            if held is not None:
                await _ended(self._return(held, seconds))

    async def get_transactions_count_async(self) -> int:
        """The async version of ``get_transactions_count``."""
        return await self._threads.run(self.get_transactions_count)

    # ---- inside: the queue ----

    def _connect(self) -> SqsQueue:
        boto3 = import_client("boto3", extra="sqs", connector="sqs")
        config = import_client("botocore.config", extra="sqs", connector="sqs").Config(
            connect_timeout=5,
            read_timeout=LONGEST_WAIT + 10,
            max_pool_connections=32,
            # Once more at once, for a connection that had gone stale. Everything else waits as the
            # core decides.
            retries={"mode": "standard", "total_max_attempts": 2},
        )
        with self._settings_told():
            client = boto3.session.Session(botocore_session=_session()).client(
                "sqs",
                region_name=self._region,
                endpoint_url=self._endpoint,
                verify=self._ca,
                config=config,
            )
            return self._found(client)

    @contextmanager
    def _settings_told(self) -> Iterator[None]:
        """Make an error that only an operator can resolve end the run, instead of
        waiting for it.
        """
        errors = import_client("botocore.exceptions", extra="sqs", connector="sqs")
        try:
            yield
        except errors.ClientError as error:
            raise _explained(self._title, error) from error
        except (errors.NoCredentialsError, errors.PartialCredentialsError) as error:
            if self._was_reached:  # a role's credentials come from a server, which may be away
                raise
            raise ConfigurationError(
                f"{self._title}: {describe(error)}", remedy=CREDENTIALS
            ) from error
        except errors.ProfileNotFound as error:
            raise ConfigurationError(
                f"{self._title}: {describe(error)}", remedy="correct AWS_PROFILE, or unset it"
            ) from error
        except (errors.InvalidRegionError, ValueError) as error:
            raise ConfigurationError(
                f"{self._title}: {describe(error)}",
                remedy=f"write {EXAMPLE}, with an endpoint such as http://localhost:4566",
            ) from error

    def _found(self, client: Any) -> SqsQueue:
        url = _url_of(client, self.queue, self._account)
        found = client.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy"])
        policy = json.loads(found.get("Attributes", {}).get("RedrivePolicy", "{}"))
        account, dead = self._account, self._dead_letter_queue
        if dead is None and "deadLetterTargetArn" in policy:
            account, dead = policy["deadLetterTargetArn"].split(":")[-2:]
        try:
            dead_url = None if dead is None else _url_of(client, dead, account)
        except client.exceptions.ClientError as error:
            raise _explained(f"{self._title}: its dead-letter queue {dead}", error) from error
        self._was_reached = True
        receives = policy.get("maxReceiveCount")
        return SqsQueue(client, url, dead_url, None if receives is None else int(receives))

    def _queue(self) -> SqsQueue:
        return self._connection.get()

    def _ask_queue(self, request: Callable[[SqsQueue], T], action: str) -> T:
        queue = self._queue()
        return self._asked(queue, lambda: request(queue), action)

    def _asked(self, queue: SqsQueue, request: Callable[[], T], action: str, title: str = "") -> T:
        """What a request answers; a broken connection is made anew at the next use.

        What only an operator can change is remembered until the same action is taken again: the
        queue may well be found, and received from, by a user who may not do this.
        """
        try:
            answer = request()
        except queue.client.exceptions.ClientError as error:
            found = self._refusal(queue, error, title)
            if action and isinstance(found, ConfigurationError) and "AccessDenied" in str(error):
                self._refusals.note(action, found)
            raise found from error
        except SqsConnectorError:
            raise
        except Exception as error:
            raise self._connection.lost(queue, error) from error
        self._refusals.taken(action)
        return answer

    def _refusal(self, queue: SqsQueue, error: Any, title: str = "") -> Exception:
        """What SQS answered; where only an operator can change it, the health is bad until then."""
        found = _explained(title or self._title, error)
        if isinstance(found, ConfigurationError):
            self._connection.lost(queue, found)  # the next use looks whether the queue is there
        return found

    # ---- inside: producing ----

    def _entries(self, transactions: list[Transaction]) -> list[dict[str, Any]]:
        """Encode all messages before the first is sent: a batch with a bad one is refused as a
        whole.
        """
        entries = []
        encoded = self._codec.encode_all(transactions)
        for transaction, message in zip(transactions, encoded, strict=True):
            entry = outgoing(message.body, message.headers)
            if not message.body or size_of(entry) > self._max_bytes:
                raise PayloadError(
                    f"transaction {transaction.transaction_id!r} is {size_of(entry)} bytes long as"
                    f" a message; SQS takes 1 to {self._max_bytes}",
                    remedy="store the data elsewhere, in S3 say, and send its address",
                    details={"transaction_id": transaction.transaction_id},
                )
            if self.queue.endswith(FIFO):
                entry |= self._fifo(transaction)
            entries.append(entry)
        return entries

    def _fifo(self, transaction: Transaction) -> dict[str, str]:
        found: Any = getattr(transaction, self._group_path[0], None)
        for each in self._group_path[1:]:
            found = found.get(each) if isinstance(found, Mapping) else None
        group = transaction.transaction_id if found is None else str(found)
        return {
            "MessageGroupId": plain_id(group),
            "MessageDeduplicationId": plain_id(transaction.transaction_id),
        }

    # ---- inside: consuming ----

    def _checked(
        self, batch_size: int, wait: float | None, extra: Mapping[str, Any]
    ) -> tuple[int, int]:
        refuse_extra(self, extra, _SETTINGS)
        _whole("batch_size", batch_size, 1, math.inf)
        self._wakeup.begin()
        return batch_size, self._wait if wait is None else _whole("wait", wait, 0, LONGEST_WAIT)

    def _await(self, most: int, seconds: int) -> None:
        """Wait until a message can be handed out, or a receive request came back empty."""
        for held in self._dropped.take():
            self._held.let_go(held)  # it becomes visible when its time is over
        while not (self._held.can_take or self._wakeup.is_stopped):
            queue = self._connection.wait()
            if queue is None:
                return
            if queue.dead_letters is None:
                raise ConfigurationError(
                    f"{self._title} has no dead-letter queue", remedy=_NO_DEAD_LETTERS
                )
            room = self._in_flight.wait_for_room(most)
            if not room:
                return
            is_behind = self._held.has_arrived  # others of their groups, which are in hand
            # With some behind there is work, so an empty answer does not end the fetch.
            if self._has_asked(queue, room, max(seconds, is_behind)) and not is_behind:
                return

    def _has_asked(self, queue: SqsQueue, most: int, seconds: int) -> bool:
        """Receive messages. Returns whether an answer came, empty or not."""
        receiving = self._begin_receiving(queue, most, seconds)
        self._wakeup.wait(None, lambda: receiving.done() or self._held.can_take)
        return receiving.done() and self._ended_well(queue, receiving)

    def _begin_receiving(self, queue: SqsQueue, most: int, seconds: int) -> Future[None]:
        if self._receiving is None or self._receiving.done():
            self._receiving = self._threads.submit(self._receive, queue, most, seconds)
            self._receiving.add_done_callback(lambda _: self._wakeup.notify())
        return self._receiving

    def _receive(self, queue: SqsQueue, most: int, seconds: int) -> None:
        asked_at = SYSTEM_CLOCK.now()
        found = queue.receive(most, seconds, self._visibility)
        # A long poll may have brought them at its very end: they are ours from then on, at least
        # as long as counted here.
        if self._connection.state.is_closed:
            queue.show_again([(each["ReceiptHandle"], 0) for each in found])
        else:
            self._held.add(found, asked_at if not seconds else SYSTEM_CLOCK.now())

    def _ended_well(self, queue: SqsQueue, receiving: Future[None]) -> bool:
        error = receiving.exception()
        if error is None:
            return True
        if self._connection.state.is_closed:
            self._queue()  # says that it is closed
        if isinstance(error, queue.client.exceptions.ClientError):
            found = self._refusal(queue, error)
            if isinstance(found, ConfigurationError):
                raise found from error
        self._connection.lost(queue, error)
        return False

    def _take(self, most: int) -> list[Transaction] | None:
        """The messages that are there. None when all of them were set aside and there may be more
        after them.
        """
        if self._connection.state.is_closed:
            self._queue()  # says that it is closed
        taken: list[Transaction] = []
        found = self._held.take(most)
        for held in found:
            try:
                body, headers = incoming(held.raw)
                delivery = self._codec.decode(SqsDelivery, body, headers, fallback_id=held.identity)
            except MalformedMessageError as error:
                self._threads.submit(self._set_aside, held, describe(error))
                self.malformed += 1
                continue
            delivery.belongs_to(self, held=held)
            self._dropped.watch(delivery, held)
            taken.append(delivery)
        return taken if taken or not found else None

    # ---- inside: settling ----

    @contextmanager
    def _settling(self, transaction: Transaction, verb: str) -> Iterator[HeldMessage | None]:
        with settling(SqsDelivery, transaction, self, verb, SqsConnectorError) as delivery:
            if delivery is None:
                yield None
                return
            held = delivery.held
            if held not in self._held:
                raise inherited(delivery, verb)
            if not self._held.is_ours(held):
                self._held.let_go(held)
                raise ChannelLostError(
                    f"{self._title}: message {held.identity} became visible before it was settled",
                    remedy="raise visibility, if something stops the process for longer than that",
                )
            yield held
            self._dropped.forget(held)
            self._held.let_go(held)
            self._wakeup.notify()

    def _delete(self, held: HeldMessage) -> Future[None]:
        return self._deletes.submit(held.handle)

    def _return(self, held: HeldMessage, seconds: float) -> Future[None]:
        left = MAX_VISIBILITY - 1 - math.ceil(SYSTEM_CLOCK.now() - held.received_at)
        shown = min(_whole("release_after's seconds", seconds, 0, math.inf), max(0, left))
        behind = self._held.let_go(held, with_group=True)
        for each in behind:
            self._returns.submit((each.handle, 0))
        return self._returns.submit((held.handle, shown))

    def _bury(self, held: HeldMessage, reason: str) -> None:
        queue = self._queue()
        if queue.dead_letters is None:
            raise SqsConnectorError(
                f"{self._title} has no dead-letter queue", remedy=_NO_DEAD_LETTERS
            )
        try:
            body, headers = incoming(held.raw)
        except MalformedMessageError:
            body, headers = held.raw["Body"].encode(), attributes_of(held.raw)
        entry = as_received(outgoing(body, with_reason(headers, reason)), held.raw)
        if queue.dead_letters.endswith(FIFO):
            entry |= {
                "MessageGroupId": held.group or held.identity,
                "MessageDeduplicationId": held.identity,
            }
        dead_letters = queue.dead_letters
        title = f"{self._title}: its dead-letter queue"
        send = functools.partial(queue.send, dead_letters, [entry])
        self._asked(queue, send, "SendMessage to the dead letters", title)

    def _set_aside(self, held: HeldMessage, reason: str) -> None:
        """Move what is no transaction to the dead letters. If that fails, it is delivered again."""
        try:
            self._bury(held, reason)
            self._delete(held).result()
        except Exception as error:
            logger.warning("%s: could not be set aside: %s", self._title, describe(error))
            self.malformed -= 1
        finally:
            self._held.let_go(held)
            self._wakeup.notify()

    def _show(self, wanted: list[tuple[str, int]]) -> None:
        for start in range(0, len(wanted), BATCH):
            self._queue().show_again(wanted[start : start + BATCH])


_SETTINGS = "a fetch takes wait, and a dispatch takes none"
_NO_DEAD_LETTERS = "give the queue a redrive policy, or the connector a dead_letter_queue"
_MISTAKES = (
    "AccessDenied",
    "InvalidAddress",
    "InvalidClientTokenId",
    "NonExistentQueue",
    "QueueDoesNotExist",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
)


def _url_of(client: Any, queue: str, account: str) -> str:
    """The URL of a queue. An empty account means that of the credentials."""
    owner = {"QueueOwnerAWSAccountId": account} if account else {}
    found: str = client.get_queue_url(QueueName=queue, **owner)["QueueUrl"]
    return found


def _explained(title: str, error: Any) -> Exception:
    """The error for what SQS answered to a whole request."""
    code = str(error.response["Error"]["Code"])
    if any(each in code for each in _MISTAKES):
        return ConfigurationError(
            f"{title}: SQS answers {code} to {error.operation_name}",
            remedy="see that region and queue are right, and what the credentials may do",
        )
    return refusal(code)


async def _ended(future: Future[None]) -> None:
    # Shielded: the answer to a request has to find its future, also after a cancellation.
    await asyncio.shield(asyncio.wrap_future(future))


def _whole(name: str, value: object, least: int, most: float) -> int:
    """A whole number within bounds, rounded up."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        bound = f" to {most:g}" if math.isfinite(most) else " or more"
        raise ConfigurationError(f"{name} is {value!r}", remedy=f"give {least}{bound}")
    return math.ceil(value)


@functools.cache
def _data_loader() -> Any:
    """Reads the descriptions of Amazon's services, which takes 0.1 s, once per process."""
    session = import_client("botocore.session", extra="sqs", connector="sqs")
    return session.get_session().get_component("data_loader")


def _session() -> Any:
    """One for each client: threads may not make clients of one session at the same time."""
    made = import_client("botocore.session", extra="sqs", connector="sqs").get_session()
    made.register_component("data_loader", _data_loader())
    return made
