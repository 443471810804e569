"""One SQS queue, with calls combined into batches of ten messages, of which parts may fail.

Deletes and changes of visibility that arrive while a request is under way go into the next one.
Each has a future, which ends with that message's part of the answer.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ergon_framework.connector.base import OwnThreads
from ergon_framework.connector.sqs.wire import MAX_BATCH_BYTES, size_of
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import ChannelLostError, ConnectorError

BATCH = 10
"""Messages of one request."""
MAX_VISIBILITY = 43_200
"""Seconds for which a message can be invisible, from its receipt on."""
_LOST = frozenset({"ReceiptHandleIsInvalid", "InvalidParameterValue", "MessageNotInflight"})


class SqsConnectorError(ConnectorError):
    """The connector was asked for something it must refuse, or SQS refused a part of a batch."""

    code = "sqs_connector"


@dataclass(frozen=True, slots=True)
class SqsQueue:
    """A client with the addresses it needs."""

    client: Any
    url: str
    dead_letters: str | None
    max_receives: int | None = None

    def receive(self, most: int, wait: int, visibility: int) -> list[dict[str, Any]]:
        """Up to so many messages, within so many seconds."""
        answer = self.client.receive_message(
            QueueUrl=self.url,
            MaxNumberOfMessages=min(most, BATCH),
            WaitTimeSeconds=wait,
            VisibilityTimeout=visibility,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["MessageGroupId", "ApproximateReceiveCount"],
        )
        found: list[dict[str, Any]] = answer.get("Messages", [])
        return found

    def send(self, url: str, entries: Sequence[dict[str, Any]]) -> None:
        """Send messages in as few requests as they fit into. Raises if any was not taken."""
        refused: list[str] = []
        for batch in _batches(entries):
            numbered = [{"Id": str(n), **each} for n, each in enumerate(batch)]
            answer = self.client.send_message_batch(QueueUrl=url, Entries=numbered)
            refused += [each["Code"] for each in answer.get("Failed", [])]
        if refused:
            raise SqsConnectorError(
                f"{len(refused)} of {len(entries)} messages were not taken: {refused[0]}",
                remedy="dispatch again: the others will be there twice, unless the queue is FIFO",
            )

    def delete(self, handles: Sequence[str]) -> list[str | None]:
        """Delete up to ten messages; for each None, or the code of its error."""
        entries = [{"Id": str(n), "ReceiptHandle": each} for n, each in enumerate(handles)]
        answer = self.client.delete_message_batch(QueueUrl=self.url, Entries=entries)
        return _codes(len(entries), answer)

    def show_again(self, wanted: Sequence[tuple[str, int]]) -> list[str | None]:
        """Let up to ten messages become visible in so many seconds; for each None, or a code."""
        entries = [
            {"Id": str(n), "ReceiptHandle": handle, "VisibilityTimeout": seconds}
            for n, (handle, seconds) in enumerate(wanted)
        ]
        answer = self.client.change_message_visibility_batch(QueueUrl=self.url, Entries=entries)
        return _codes(len(entries), answer)

    def count(self) -> int:
        """About how many messages wait, delayed ones included."""
        names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesDelayed")
        found = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=list(names))
        return sum(int(found["Attributes"].get(name, 0)) for name in names)


class Batcher:
    """Combines what several callers want at about the same time into one request."""

    def __init__(
        self, request: Callable[[Sequence[Any]], Sequence[str | None]], threads: OwnThreads
    ) -> None:
        self._request = request
        self._threads = threads
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Also in a forked child: its parent asks for what is wanted there."""
        self._lock = threading.Lock()
        self._wanted: deque[tuple[Any, Future[None]]] = deque()
        self._is_working = False

    def submit(self, wanted: Any) -> Future[None]:
        """Put it into the next request."""
        future: Future[None] = Future()
        with self._lock:
            self._wanted.append((wanted, future))
            if self._is_working:
                return future
            self._is_working = True
        self._threads.submit(self._work)
        return future

    def _work(self) -> None:
        while batch := self._next():
            try:
                codes = self._request([wanted for wanted, _ in batch])
            except BaseException as error:
                for _, future in batch:
                    future.set_exception(error)
                continue
            for (_, future), code in zip(batch, codes, strict=True):
                if code is None:
                    future.set_result(None)
                else:
                    future.set_exception(refusal(code))

    def _next(self) -> list[tuple[Any, Future[None]]]:
        with self._lock:
            batch = [self._wanted.popleft() for _ in range(min(BATCH, len(self._wanted)))]
            self._is_working = bool(batch)
            return batch


def refusal(code: str) -> ConnectorError:
    """The error for one message of a batch."""
    if code.rpartition(".")[2] in _LOST:
        return ChannelLostError(
            f"SQS does not know the delivery any more ({code}); the message comes again",
            remedy="raise visibility, if something stops the whole process for longer than that",
        )
    return SqsConnectorError(f"SQS refused a part of a batch: {code}")


def _codes(count: int, answer: dict[str, Any]) -> list[str | None]:
    failed = {each["Id"]: str(each["Code"]) for each in answer.get("Failed", [])}
    return [failed.get(str(n)) for n in range(count)]


def _batches(entries: Iterable[dict[str, Any]]) -> Iterable[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    room = 0
    for entry in entries:
        size = size_of(entry)
        if batch and (len(batch) == BATCH or size > room):
            yield batch
            batch = []
        if not batch:
            room = MAX_BATCH_BYTES
        batch.append(entry)
        room -= size
    if batch:
        yield batch
