"""Webhooks: what is stored before the answer, what is refused, and what happens on bad days."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette

from ergon_framework import App, JobsConnector, JsonlConnector, MemoryConnector, Transaction
from ergon_framework.connector.webhook import WebhookReceiver, github_signature
from ergon_framework.errors import ConfigurationError, PayloadError, StoreUnavailableError
from tests.connectors.webhook import sender
from tests.connectors.webhook.sender import NOW, SECRET, apost, encode, post

EVENT = {"id": "evt_1", "type": "paid", "data": {"amount": 500}}


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[JobsConnector]:
    """A queue of jobs on disk."""
    url = f"sqlite:///{tmp_path}/work.db"
    with JobsConnector(url, queue="webhooks", handler="on_event") as connector:
        yield connector


class Target:
    """Keeps what it is given, or raises, or hangs, as a test says."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.stored: list[Transaction] = []
        self.open = asyncio.Event()
        self.open.set()
        self.done = asyncio.Event()

    async def dispatch_transactions_async(self, transactions: Iterable[Transaction]) -> None:
        """Store them, late perhaps."""
        await self.open.wait()
        if self.error is not None:
            raise self.error
        self.stored += transactions
        self.done.set()


def stripe(target: Any, **options: Any) -> WebhookReceiver:
    """A receiver whose clock stands still."""
    return WebhookReceiver.stripe(target, SECRET, now=lambda: NOW, **options)


def signed(event: Any = EVENT) -> tuple[bytes, sender.Headers]:
    """A body and its headers."""
    body = encode(event)
    return body, sender.stripe(body, SECRET)


def test_it_is_stored_when_it_is_answered(jobs: JobsConnector) -> None:
    """A 202 means that the job is in the store, with the event and the names of the receiver."""
    answer = post(stripe(jobs), *signed())
    assert (answer.status_code, answer.json()) == (202, {"id": "stripe:evt_1"})
    (found,) = jobs.fetch_transactions(10)
    assert (found.transaction_id, found.payload) == ("stripe:evt_1", {"event": EVENT})


def test_a_repeat_changes_nothing(jobs: JobsConnector) -> None:
    """The same delivery again is answered as the first, also when its body differs a little."""
    receiver = stripe(jobs)
    for event in (EVENT, EVENT, {**EVENT, "pending_webhooks": 2}):
        assert post(receiver, *signed(event)).status_code == 202
    assert jobs.get_transactions_count() == 1
    jobs.ack(jobs.fetch_transactions(1)[0])
    assert post(receiver, *signed()).status_code == 202  # also after it was worked on
    assert jobs.get_transactions_count() == 0


def test_many_at_once_are_one(jobs: JobsConnector) -> None:
    """Repeats that come at the same time are one job, and all are told so."""

    async def storm() -> list[int]:
        receiver = stripe(jobs)
        answers = await asyncio.gather(*(apost(receiver, *signed()) for _ in range(20)))
        return [each.status_code for each in answers]

    assert asyncio.run(storm()) == [202] * 20
    assert jobs.get_transactions_count() == 1


def test_a_handler_of_an_app(tmp_path: Path) -> None:
    """A job of the handler, with its options, its arguments checked, and the sender's trace."""
    app = App(f"sqlite:///{tmp_path}/app.db", name="shop")

    @app.job(attempts=7)
    def on_push(event: dict[str, Any], headers: dict[str, str]) -> None: ...

    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    receiver = WebhookReceiver.github(on_push, SECRET)
    body = encode({"ref": "main"})
    with app:
        for _ in range(2):
            answer = post(receiver, body, {**sender.github(body), "traceparent": trace})
            assert answer.status_code == 202
        (job,) = (app.client.find(each.id) for each in app.client.jobs())
        assert (job.id, job.max_attempts) == ("github:d-1", 7)
        given = {"event": {"ref": "main"}, "headers": {"x-github-event": "push"}}
        assert json.loads(job.kwargs) == given
        assert "0af7651916cd43dd8448eb211c80319c" in str(job.trace_context)
        listed = encode(["not", "a", "dict"])
        assert post(receiver, listed, sender.github(listed, delivery="d-2")).status_code == 400


def test_an_inbox_of_json_lines(tmp_path: Path) -> None:
    """Any connector that outlives the process will do, also one that blocks."""
    with JsonlConnector(outbox=tmp_path / "inbox") as outbox:
        assert post(stripe(outbox), *signed()).status_code == 202
    with JsonlConnector(tmp_path / "inbox") as inbox:
        (found,) = inbox.fetch_transactions(10)
    assert (found.transaction_id, found.source) == ("stripe:evt_1", "stripe")


def problem(answer: Any, status: int, code: str) -> str:
    """What a refusal says, in the one shape."""
    assert answer.status_code == status, answer.text
    document = answer.json()
    assert set(document) == {"code", "message", "details"}
    assert document["code"] == code
    assert document["details"]["remedy"]
    message: str = document["message"]
    return message


def test_what_is_not_signed_is_not_stored(caplog: pytest.LogCaptureFixture) -> None:
    """It is answered with 401; the log names neither the body nor the secret."""
    target, body = Target(), encode({**EVENT, "card": "4242424242424242"})
    receiver = stripe(target)
    with caplog.at_level(logging.DEBUG, "ergon.connector"):
        for _ in range(9):
            wrong = post(receiver, body, sender.stripe(body, "another"))
            assert "4242" not in problem(wrong, 401, "unauthenticated")
        old = post(receiver, body, sender.stripe(body, SECRET, at=NOW - 999))
        assert "999 s" in problem(old, 401, "unauthenticated")
    assert target.stored == []
    assert receiver.refused == {"unauthenticated": 10}
    assert len(caplog.records) == 4  # the 1st, 2nd, 4th and 8th
    assert "4242" not in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b"null",
        b"[]",
        b"7",
        b"{}",
        b'{"id": null}',
        b'{"id": true}',
        b'{"id": ""}',
        b'{"id": {"a": 1}}',
        b'{"id": "a\\u0000b"}',
        b'{"id": "\\ud800"}',
        b'{"id": "' + b"x" * 151 + b'"}',
        b'{"id": NaN}',
    ],
)
def test_a_body_that_is_wrong_is_refused(body: bytes) -> None:
    """Signed or not, what has no id or is no JSON is answered with 400 and not stored."""
    target = Target()
    problem(post(stripe(target), body, sender.stripe(body, SECRET)), 400, "bad_request")
    assert target.stored == []


def test_a_body_that_is_too_large_is_not_read_to_its_end() -> None:
    """With and without a length in its head, it is refused as soon as that is known."""
    receiver = stripe(Target(), max_body_bytes=1000)
    body = encode({"id": "x" * 1000})
    problem(post(receiver, body, sender.stripe(body, SECRET)), 413, "too_large")

    async def endless() -> Any:
        sent = 0
        while sent < 4096:  # far fewer than there would be
            sent += 1
            yield b"x" * 512
        raise AssertionError("it was read to its end")

    async def go() -> Any:
        return await apost(receiver, endless())

    problem(asyncio.run(go()), 413, "too_large")
    lying = {**sender.stripe(body, SECRET), "content-length": "9" * 5000}
    problem(post(receiver, body, lying), 413, "too_large")


def test_a_body_of_exactly_the_limit_is_taken() -> None:
    """The bound is the largest body that is taken."""
    target, body = Target(), encode({"id": "x"})
    receiver = stripe(target, max_body_bytes=len(body))
    assert post(receiver, body, sender.stripe(body, SECRET)).status_code == 202


def test_a_target_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    """The sender is asked to come again; what the error said of the payload is told nowhere."""
    target = Target(RuntimeError("cannot insert {'card': '4242'}"))
    answer = post(stripe(target), *signed())
    problem(answer, 503, "store_unavailable")
    assert answer.headers["retry-after"] == "5"
    assert "4242" not in answer.text + caplog.text
    target.error = StoreUnavailableError("the database does not answer")
    problem(post(stripe(target), *signed()), 503, "store_unavailable")
    target.error = None
    assert post(stripe(target), *signed()).status_code == 202


def test_what_can_never_be_stored_is_refused_for_good() -> None:
    """A payload that the target does not take is no reason to send it again."""
    problem(post(stripe(Target(PayloadError("too deep"))), *signed()), 400, "bad_request")


def test_a_target_that_hangs() -> None:
    """The sender is not kept waiting, its place is taken until it is over, and nothing is lost."""

    async def go() -> None:
        target = Target()
        target.open.clear()
        receiver = stripe(target, timeout=0.05, max_requests=1)
        problem(await apost(receiver, *signed()), 503, "store_unavailable")
        problem(await apost(receiver, *signed()), 503, "too_busy")
        target.open.set()
        await target.done.wait()
        await asyncio.sleep(0)  # the place is free when the task has ended
        assert (await apost(receiver, *signed())).status_code == 202

    asyncio.run(go())


def test_a_body_that_does_not_come() -> None:
    """A sender that stops in the middle of its body is told so, and its place is free again."""

    async def half() -> Any:
        yield b'{"id"'
        await asyncio.Event().wait()

    async def go() -> None:
        target = Target()
        receiver = stripe(target, timeout=0.05, max_requests=1)
        problem(await apost(receiver, half()), 408, "request_timeout")
        assert (await apost(receiver, *signed())).status_code == 202

    asyncio.run(go())


def test_a_sender_that_goes_away() -> None:
    """One that closes its connection gets no answer and keeps no place."""

    async def go() -> None:
        target = Target()
        receiver = stripe(target, max_requests=1)
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "headers": []}
        await receiver(scope, receive, send)
        assert sent == []
        assert (await apost(receiver, *signed())).status_code == 202

    asyncio.run(go())


def test_only_posts() -> None:
    """Anything else is answered with 405."""
    app = Starlette(routes=stripe(Target()).routes())

    async def go() -> Any:
        import httpx

        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get("/stripe")

    answer = asyncio.run(go())
    problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize("colour", ["starlette", "fastapi", "mounted"])
def test_it_is_part_of_another_application(colour: str) -> None:
    """As routes or mounted, beside others of its kind."""
    target = Target()
    one, two = stripe(target), stripe(target, name="second", path="/hooks/second")
    app: Any = Starlette(routes=[*one.routes(), *two.routes()])
    if colour == "fastapi":
        app = FastAPI(routes=[*one.routes(), *two.routes()])
    if colour == "mounted":
        app = FastAPI()
        app.mount("/stripe", one)
        app.mount("/hooks/second", two)
    slash = "/" if colour == "mounted" else ""
    for path, prefix in (("/stripe", "stripe"), ("/hooks/second", "second")):
        answer = post(app, *signed(), path=path + slash)
        assert answer.json() == {"id": f"{prefix}:evt_1"}
    assert len(target.stored) == 2  # each receiver has ids of its own


def test_ids() -> None:
    """In a header, inside of the body, a number, or a digest of the body where there is none."""
    target, body = Target(), encode({"meta": {"id": 17}})
    check = github_signature(SECRET)
    headers = {**sender.github(body), "X-Id": "h-1"}
    receivers = [
        WebhookReceiver(target, check, id_field="meta.id"),
        WebhookReceiver(target, check, id_header="X-Id"),
        WebhookReceiver(target, check),
        WebhookReceiver(target, check, format="text"),
    ]
    for each in receivers:
        assert post(each, body, headers).status_code == 202
    ids = [each.transaction_id for each in target.stored]
    assert ids[:2] == ["webhook:17", "webhook:h-1"]
    assert ids[2] == ids[3]
    assert len(ids[2]) == len("webhook:") + 64
    assert target.stored[3].payload == {"event": body.decode()}


def test_a_header_that_is_there_twice_is_not_believed() -> None:
    """Which of two ids or signatures counts must not depend on who reads."""
    target, body = Target(), encode(EVENT)
    receiver = WebhookReceiver.github(target, SECRET)
    pairs = [(k.lower().encode(), v.encode()) for k, v in sender.github(body).items()]
    scope = {
        "type": "http",
        "method": "POST",
        "headers": [*pairs, (b"x-github-delivery", b"d-2")],
    }
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(receiver(scope, receive, send))
    assert sent[0]["status"] == 400
    assert target.stored == []


def test_a_server_that_runs_it_alone() -> None:
    """It takes part in the lifespan protocol, and hangs up on websockets."""
    receiver = stripe(Target())
    events = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(events)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    async def go() -> None:
        await receiver({"type": "lifespan"}, receive, send)
        await receiver({"type": "websocket"}, receive, send)

    asyncio.run(go())
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]


def other_handler(event: Any, headers: Any, more: int) -> None:
    """Takes too much."""


def test_mistakes_are_found_when_it_is_made(tmp_path: Path) -> None:
    """Each is refused with what to write instead."""
    check, app = github_signature(SECRET), App(f"sqlite:///{tmp_path}/app.db", name="shop")
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (MemoryConnector(), {}, "keeps things in memory"),
        (object(), {}, "no dispatch_transactions"),
        (app.job(other_handler), {"headers": ("x-kind",)}, "cannot take a webhook"),
        (Target(), {"id_field": "id", "id_header": "x-id"}, "one id"),
        (Target(), {"id_field": "id", "format": "text"}, "no fields"),
        (Target(), {"format": "xml"}, "json or text"),
        (Target(), {"headers": "x-kind"}, "one text"),
        (Target(), {"name": ""}, "name"),
        (Target(), {"max_body_bytes": 0}, "max_body_bytes"),
        (Target(), {"timeout": float("nan")}, "timeout"),
    ]
    for target, options, text in wrong:
        with pytest.raises(ConfigurationError, match=text):
            WebhookReceiver(target, check, **options)
    with pytest.raises(ConfigurationError, match="anybody could send"):
        WebhookReceiver(Target(), None)  # type: ignore[arg-type]
