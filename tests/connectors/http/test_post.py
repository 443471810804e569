"""Posting transactions: what is sent, what answers mean, and who makes a request again."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from ergon_framework import ProducerTask
from ergon_framework.app.factories import connector_factory
from ergon_framework.app.settings import load_settings
from ergon_framework.connector import JsonlConnector, from_url
from ergon_framework.connector.http import (
    HttpPostConnector,
    PostFailedError,
    PostRefusedError,
)
from ergon_framework.connector.webhook import HmacSignature, WebhookReceiver, github_signature
from ergon_framework.errors import Business, ConfigurationError, ConnectorError, PayloadError
from ergon_framework.ports.transaction import Transaction
from ergon_framework.providers import Provider

pytestmark = pytest.mark.slow
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET = "hunter2"  # noqa: S105 - of nobody


class Receiver:
    """Answers with the statuses it is given, then with 200; keeps what came."""

    def __init__(self) -> None:
        self.answers: list[int | None] = []
        self.headers: dict[str, str] = {}
        self.came: list[tuple[dict[str, str], bytes]] = []
        self.port = 0

    @property
    def url(self) -> str:
        """Where it takes them."""
        return f"http://127.0.0.1:{self.port}/orders"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """On loopback."""
    with receiving(Receiver()) as found:
        yield found


@contextmanager
def receiving(receiver: Receiver) -> Iterator[Receiver]:
    """Its server, until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.came.append(({k.lower(): v for k, v in self.headers.items()}, body))
            status = receiver.answers.pop(0) if receiver.answers else 200
            if status is None:
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Length", "0")
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.end_headers()

        def do_HEAD(self) -> None:
            self.send_response(405)
            self.end_headers()

        def log_message(self, *args: object) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *args: object) -> None: ...

    server = Server(("127.0.0.1", 0), Handler)
    receiver.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def order(number: int = 1, **fields: Any) -> Transaction:
    """Something to send."""
    return Transaction(f"o{number}", {"number": number}, **fields)


def post(connector: HttpPostConnector, colour: str, *transactions: Transaction) -> None:
    """Dispatch from a thread or from an event loop."""
    if colour == "sync":
        connector.dispatch_transactions(transactions)
    else:
        asyncio.run(connector.dispatch_transactions_async(transactions))


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_what_is_sent(receiver: Receiver, colour: str) -> None:
    """The payload, the ids, the trace, the credentials; of the envelope nothing else."""
    metadata = {"traceparent": TRACEPARENT, "inner": "secret", "headers": {"X-Kind": "new"}}
    with HttpPostConnector(receiver.url, token=SECRET) as connector:
        post(connector, colour, order(correlation_id="flow ü", metadata=metadata), order(2))
        assert connector.health()
    (headers, body), (second, _) = receiver.came
    assert json.loads(body) == {"number": 1}
    assert headers["content-type"] == "application/json"
    assert headers["idempotency-key"] == "o1"
    assert headers["x-correlation-id"] == "flow%20%C3%BC"
    assert headers["traceparent"] == TRACEPARENT
    assert headers["x-kind"] == "new"
    assert headers["authorization"] == f"Bearer {SECRET}"
    assert not [name for name in headers if name.startswith("ergon-")]
    assert second["idempotency-key"] == "o2"
    assert "x-correlation-id" not in second


def test_texts_bytes_and_the_envelope(receiver: Receiver) -> None:
    """As they are; with the other fields of the transaction in headers, where that is wanted."""
    with HttpPostConnector(receiver.url, format="text", method="POST", envelope=True) as connector:
        connector.dispatch_transactions([Transaction("a", "ü", parent_id="p")])
        with pytest.raises(PayloadError):
            connector.dispatch_transactions([Transaction("a", "b"), Transaction("b", 7)])
    assert len(receiver.came) == 1
    headers, body = receiver.came[0]
    assert body == "ü".encode()
    assert headers["ergon-parent-id"] == "p"


def test_a_transaction_does_not_replace_credentials(receiver: Receiver) -> None:
    """Its headers may come from another program."""
    given = {"Authorization": "evil", "Host": "evil", "X-Api-Key": "evil", "Content-Length": "3"}
    with HttpPostConnector(receiver.url, token=SECRET, headers={"X-Api-Key": "k"}) as connector:
        connector.dispatch_transactions([order(metadata={"headers": given})])
    headers, _ = receiver.came[0]
    assert "evil" not in headers.values()
    assert headers["authorization"] == f"Bearer {SECRET}"


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_passing_failure_is_tried_again_under_the_same_id(
    receiver: Receiver, colour: str
) -> None:
    """A lost connection, a conflict with our own request, 5xx and 429."""
    receiver.answers = [None, 503, 409, 429]
    with HttpPostConnector(receiver.url) as connector:
        post(connector, colour, order())
    assert [headers["idempotency-key"] for headers, _ in receiver.came] == ["o1"] * 5


def test_a_server_says_when_to_come_again(receiver: Receiver) -> None:
    """When attempts are spent, whoever dispatches is told."""
    receiver.answers = [503]
    receiver.headers = {"Retry-After": "7"}
    with (
        HttpPostConnector(receiver.url, attempts=1) as connector,
        pytest.raises(PostFailedError, match="answers 503") as caught,
    ):
        connector.dispatch_transactions([order()])
    assert caught.value.retry_after_seconds == 7
    assert caught.value.http_status == 503


@pytest.mark.parametrize("status", [302, 400, 401, 404, 409, 422])
def test_a_refusal_is_a_business_failure(receiver: Receiver, status: int) -> None:
    """With its status; what was posted before it is told, and nothing after it is sent."""
    receiver.answers = [200, status, status]
    with HttpPostConnector(receiver.url, attempts=2 if status == 409 else 5) as connector:
        with pytest.raises(PostRefusedError, match=f"answers {status}") as caught:
            connector.dispatch_transactions([order(1), order(2), order(3)])
        assert connector.health() is (status in (400, 409, 422)), "another one may be taken"
    assert isinstance(caught.value, Business)
    assert caught.value.http_status == status
    assert caught.value.details == {"http_status": status, "posted": 1, "given": 3}
    assert {headers["idempotency-key"] for headers, _ in receiver.came} == {"o1", "o2"}


def test_a_producer_sets_refusals_aside(receiver: Receiver) -> None:
    """And goes on with the others."""

    class Send(ProducerTask):
        def produce_transaction(self, transaction: Transaction) -> Any:
            return self.connectors["out"].dispatch_transactions([transaction])

    receiver.answers = [200, 422, 200]
    with HttpPostConnector(receiver.url) as connector:
        report = Send(connectors={"out": connector}).produce_transactions(
            [order(1), order(2), order(3)]
        )
    assert (report.succeeded, report.failed) == (2, 1)
    assert len(receiver.came) == 3


def test_a_provider_guards_the_requests(receiver: Receiver) -> None:
    """Its policy makes them again, and its quota holds them back."""
    receiver.answers = [503, 200]
    orders = Provider("orders", attempts=3, backoff=0.01)
    with HttpPostConnector(receiver.url, provider=orders) as connector:
        connector.dispatch_transactions([order()])
        assert len(receiver.came) == 2
        receiver.answers = [503] * 3
        with pytest.raises(PostFailedError, match="answers 503"):
            connector.dispatch_transactions([order(2)])
        assert len(receiver.came) == 5
        receiver.answers = [422]
        with pytest.raises(PostRefusedError):
            asyncio.run(connector.dispatch_transactions_async([order(3)]))
    orders.close()


def test_settings_name_a_provider(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By where it is declared."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "posting_shop.py").write_text(
        "from ergon_framework.providers import Provider\n"
        'orders = Provider("orders", attempts=3, backoff=0.01)\n'
    )
    file = tmp_path / "ergon.toml"
    file.write_text(
        f'[connectors.out]\nurl = "{receiver.url.replace("http", "post+http", 1)}"\n'
        'provider = "posting_shop:orders"\ntoken = "env:TOKEN"\n'
    )
    settings = load_settings(file, {"TOKEN": SECRET})
    factory = connector_factory("out", settings.connectors["out"], settings)
    factory.check()
    assert SECRET not in repr(factory)
    with factory.make() as connector:
        receiver.answers = [503]
        connector.dispatch_transactions([order()])
        assert len(receiver.came) == 2
        assert SECRET not in repr(connector) + repr(vars(connector))


@pytest.mark.parametrize("scheme", ["standard", "github"])
def test_our_own_receiver_takes_what_is_signed(
    receiver: Receiver, tmp_path: Path, scheme: str
) -> None:
    """And refuses what somebody else has signed; a repeat is known by its id."""
    name = "webhook-id" if scheme == "standard" else "idempotency-key"
    with HttpPostConnector(receiver.url, secret=SECRET, signature=scheme) as connector:
        connector.dispatch_transactions([order()])
    with HttpPostConnector(receiver.url, secret="other", signature=scheme) as connector:  # noqa: S106
        connector.dispatch_transactions([order()])
    check = (
        github_signature(SECRET)
        if scheme == "github"
        else HmacSignature(
            SECRET,
            header="webhook-signature",
            encoding="base64",
            prefix="v1,",
            content="{webhook-id}.{webhook-timestamp}.{body}",
            timestamp="webhook-timestamp",
        )
    )
    target = JsonlConnector(outbox=tmp_path / "box")
    application = WebhookReceiver(target, check, name="shop", id_header=name)

    async def forwarded() -> list[int]:
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as http:
            return [
                (await http.post("/", content=body, headers=headers)).status_code
                for headers, body in receiver.came
            ]

    statuses = asyncio.run(forwarded())
    assert statuses == [202, 401]
    target.close()


def test_closing_cuts_requests_off() -> None:
    """Whoever waits for one is told, in both colours."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as door:
        connector = HttpPostConnector(f"http://127.0.0.1:{door.getsockname()[1]}/")
        failures: list[BaseException] = []

        def send() -> None:
            try:
                connector.dispatch_transactions([order()])
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        connection, _ = door.accept()
        with connection:
            connector.close()
            thread.join(60)
        assert isinstance(failures[0], ConnectorError)
        assert "closed" in str(failures[0])
        assert not connector.health()
        connector.close()


def test_a_slow_receiver_is_given_up() -> None:
    """However slowly it sends."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as door:
        halted = threading.Event()

        def dribble() -> None:
            connection, _ = door.accept()
            with connection:
                connection.recv(1000)
                for byte in b"HTTP/1.1 200 OK\r\nx: " + b"y" * 10_000:
                    try:
                        connection.send(bytes([byte]))
                    except OSError:
                        return
                    if halted.wait(0.02):
                        return

        server = threading.Thread(target=dribble, daemon=True)
        server.start()
        url = f"http://127.0.0.1:{door.getsockname()[1]}/"
        with (
            HttpPostConnector(url, timeout=0.5, attempts=1) as connector,
            pytest.raises(PostFailedError, match=r"within 0\.5 s"),
        ):
            connector.dispatch_transactions([order()])
        halted.set()
        server.join(60)


def test_the_doctor_sends_nothing(receiver: Receiver) -> None:
    """It asks for the head."""
    with HttpPostConnector(receiver.url) as connector:
        (seen,) = connector.observe()
        assert "answers HEAD with 405" in seen.found
    assert receiver.came == []
    with HttpPostConnector("http://127.0.0.1:1/", timeout=2.0) as connector:
        (seen,) = connector.observe()
        assert seen.is_grave


def test_a_url_makes_one() -> None:
    """With its options."""
    with from_url("post+https://app:secret@host/orders?attempts=2&max_in_flight=3") as connector:
        assert isinstance(connector, HttpPostConnector)
        assert connector.name == "https://host/orders"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "GET"}, "POST, PUT or PATCH"),
        ({"id_header": "a b"}, "id_header is no name"),
        ({"attempts": 0}, "attempts must be"),
        ({"timeout": 0}, "timeout must be"),
        ({"provider": "shop:orders"}, "App.provider"),
        ({"secret": ""}, "secret is empty"),
        ({"secret": "s", "signature": "stripe"}, "standard or github"),
        ({"secret": "whsec_ü"}, "no base64"),
        ({"format": "xml"}, "json, text or bytes"),
        ({"max_in_flight": 0}, "max_in_flight must be"),
    ],
)
def test_mistakes_are_told_at_once(options: dict[str, Any], message: str) -> None:
    """What is wrong, and what to write."""
    with pytest.raises(ConfigurationError, match=message):
        HttpPostConnector("https://host/", **options)
