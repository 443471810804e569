"""SQS: ten messages a request, and a delete of each by itself. The server is moto, in Python.

It takes most of the time of every contestant, so that only processor time says much.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from comparison import Record, RunOptions, Turn

from connector_parts import turns
from connector_parts.brokers import broker
from connector_parts.turns import BARE, BODY, Countdown, Entrant, Heat
from ergon_framework.connector.sqs import SqsConnector

RATE = 150
"""Messages of a turn, for each second that it should take."""
REGION = "us-east-1"
MOST = 10
"""What one request brings at most."""


def sqs(options: RunOptions) -> Iterator[Record]:
    """With asyncio and with threads; the bare client has threads only."""
    with broker("sqs") as server:
        yield from turns.run_heats(heats(server), options.rounds, round(RATE * options.seconds))


def heats(server: Any) -> list[Heat]:
    """The contestants on a server."""
    ours = Entrant("ergon", lambda count: turns.ours_async(count, _connector(server, count)))
    bare = Entrant("boto3", lambda count: _bare(server, count), BARE)
    threads = Entrant("ergon threads", lambda count: turns.ours(count, _connector(server, count)))
    return [Heat("sqs", ours, [bare]), Heat("sqs-threads", threads, [bare])]


def filled(server: Any, count: int) -> str:
    """The name of a queue with so many messages."""
    queue = str(server.new_queue())
    url = server.client.get_queue_url(QueueName=queue)["QueueUrl"]
    for start in range(0, count, MOST):
        numbers = range(start, min(count, start + MOST))
        entries = [{"Id": str(n), "MessageBody": BODY} for n in numbers]
        server.client.send_message_batch(QueueUrl=url, Entries=entries)
    return queue


def _connector(server: Any, count: int) -> Any:
    url = f"sqs://{REGION}/{filled(server, count)}"
    return lambda: SqsConnector(url, endpoint=server.endpoint, wait=1)


def _bare(server: Any, count: int) -> Turn:
    import boto3

    countdown, queue = Countdown(count), filled(server, count)

    def consume() -> None:
        client = boto3.session.Session().client(
            "sqs", region_name=REGION, endpoint_url=server.endpoint
        )
        url = client.get_queue_url(QueueName=queue)["QueueUrl"]
        while countdown.left:
            answer = client.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=MOST,
                WaitTimeSeconds=1,
                MessageAttributeNames=["All"],
            )
            for message in answer.get("Messages", []):
                countdown.handle(json.loads(message["Body"]))
                client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        client.close()

    return countdown.timed(consume)
