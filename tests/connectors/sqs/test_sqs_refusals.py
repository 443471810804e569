"""An SQS that is there, and whose user may do one thing and not another."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ergon_framework.connector.sqs import SqsConnector
from ergon_framework.errors import ConfigurationError
from ergon_framework.ports.transaction import Transaction

DENIED = {"__type": "com.amazonaws.sqs#AccessDeniedException", "message": "not authorized"}


@contextmanager
def service(denied: set[str]) -> Iterator[str]:
    """As much of SQS as this needs, at an address on loopback: one message that never goes."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            action = self.headers["X-Amz-Target"].rpartition(".")[2]
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            is_denied = action in denied
            body = json.dumps(DENIED if is_denied else answer(action, asked)).encode()
            self.send_response(403 if is_denied else 200)
            self.send_header("Content-Type", "application/x-amz-json-1.0")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answer(action: str, asked: dict[str, Any]) -> dict[str, Any]:
    """What SQS answers to whom it lets."""
    if action == "GetQueueUrl":
        return {"QueueUrl": f"http://127.0.0.1/1/{asked['QueueName']}"}
    if action == "ReceiveMessage":
        return {"Messages": [{"MessageId": "m1", "ReceiptHandle": "h1", "Body": "1"}]}
    if action.endswith("Batch"):
        entries = [
            {"Id": e["Id"], "MessageId": "m", "MD5OfMessageBody": ""} for e in asked["Entries"]
        ]
        return {"Successful": entries, "Failed": []}
    return {"Attributes": {}}


def connected(address: str) -> SqsConnector:
    """A connector that does not wait."""
    options: dict[str, Any] = {"dead_letter_queue": "dead", "wait": 0}
    return SqsConnector("sqs://eu-central-1/orders", endpoint=address, **options)


@pytest.mark.parametrize("action", ["SendMessageBatch", "DeleteMessageBatch"])
def test_an_action_that_is_denied_is_bad_health(
    monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """Until it is taken again, also while everything else is: the work would be repeated."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "key")
    denied = {action}
    with (
        service(denied) as address,
        connected(address) as connector,
    ):
        (order,) = connector.fetch_transactions(1)

        def act() -> None:
            if action == "DeleteMessageBatch":
                connector.ack(order)
            else:
                connector.dispatch_transactions([Transaction("t1", 1)])

        with pytest.raises(ConfigurationError, match=f"AccessDenied.* to {action}") as caught:
            act()
        assert "credentials" in (caught.value.remedy or "")
        assert connector.fetch_transactions(1), "the queue is there"
        assert not connector.health()
        assert [each.remedy for each in connector.observe() if each.is_grave]
        denied.clear()
        act()
        assert connector.health()
