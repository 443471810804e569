"""A real SQS server for tests: the one that S3 tests use, as a process of its own."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from ergon_framework.connector.broker.url import import_client
from tests.servers.s3 import KEYS, REGION, S3Server
from tests.servers.server import started

_NUMBERS = itertools.count(1)


class SqsServer:
    """Queues on a server; every queue has dead letters beside it, as its redrive policy says."""

    def __init__(self, server: S3Server) -> None:
        self.server = server
        self.client = self._client()

    @property
    def endpoint(self) -> str:
        """How to reach it."""
        return self.server.endpoint

    def _client(self) -> Any:
        boto3 = import_client("boto3", extra="sqs", connector="sqs")
        session = boto3.session.Session(*KEYS.values())
        return session.client("sqs", region_name=REGION, endpoint_url=self.endpoint)

    def new_queue(self, *, is_fifo: bool = False, most_receives: int | None = 1000) -> str:
        """The name of a queue that holds nothing yet."""
        suffix, kind = (".fifo", {"FifoQueue": "true"}) if is_fifo else ("", {})
        name, client = f"queue-{next(_NUMBERS)}", self.client
        dead = client.create_queue(QueueName=f"{name}-dlq{suffix}", Attributes=kind)["QueueUrl"]
        if most_receives is not None:
            found = client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])
            arn = found["Attributes"]["QueueArn"]
            policy = {"deadLetterTargetArn": arn, "maxReceiveCount": most_receives}
            kind = {**kind, "RedrivePolicy": json.dumps(policy)}
        client.create_queue(QueueName=f"{name}{suffix}", Attributes=kind)
        return f"{name}{suffix}"

    def read(self, queue: str) -> list[dict[str, Any]]:
        """What can be received from a queue, without taking it."""
        url = self.client.get_queue_url(QueueName=queue)["QueueUrl"]
        found: list[dict[str, Any]] = []
        while True:
            answer = self.client.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=10,
                MessageAttributeNames=["All"],
                VisibilityTimeout=600,
            )
            if "Messages" not in answer:
                break
            found += answer["Messages"]
        for each in found:
            self.client.change_message_visibility(
                QueueUrl=url, ReceiptHandle=each["ReceiptHandle"], VisibilityTimeout=0
            )
        return found

    def send(self, queue: str, body: str, attributes: Mapping[str, str] | None = None) -> None:
        """Put a message into a queue as another program would."""
        url = self.client.get_queue_url(QueueName=queue)["QueueUrl"]
        given = {
            name: {"DataType": "String", "StringValue": value}
            for name, value in (attributes or {}).items()
        }
        self.client.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=given)


@pytest.fixture(scope="session")
def sqs_running() -> Iterator[SqsServer]:
    """A server for all tests of a run."""
    with started(S3Server) as server:
        yield SqsServer(server)


@pytest.fixture
def sqs(sqs_running: SqsServer, monkeypatch: pytest.MonkeyPatch) -> SqsServer:
    """An SQS server, with credentials for it in the environment."""
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    return sqs_running
