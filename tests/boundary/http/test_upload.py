"""A body between the socket and a thread that writes it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ergon_framework.boundary.http.exchange import HIGH_WATER, RequestBody
from tests.boundary.http.workbench import run

pytestmark = pytest.mark.req("BOUNDARY:http", "BOUNDARY:objects")


def test_waits_for_as_much_as_is_wanted() -> None:
    """Less than that is not worth a wake-up, unless it is all."""

    async def main() -> None:
        upload = RequestBody(lambda: None)
        waiting = asyncio.create_task(upload.has_more(10))
        await asyncio.sleep(0)
        upload.feed(b"12345")
        await asyncio.sleep(0)
        assert not waiting.done()
        upload.feed(b"67890")
        assert await waiting
        assert upload.take() == [b"12345", b"67890"]
        upload.feed(b"end")
        upload.end()
        assert await upload.has_more(10)
        assert upload.take() == [b"end"]
        assert not await upload.has_more(10)

    run(main())


def test_who_wants_too_much_gets_what_there_is_room_for() -> None:
    """Nothing is read beyond the limit, so nobody waits for more than that."""

    async def main() -> None:
        upload = RequestBody(lambda: None)
        upload.feed(bytes(HIGH_WATER))
        assert await upload.has_more(HIGH_WATER * 2)

    run(main())


def test_failure_is_told_at_once() -> None:
    """Whoever waits hears of it, and so does whoever asks later; after the end it means nothing."""

    async def main() -> None:
        upload = RequestBody(lambda: None)
        waiting = asyncio.create_task(upload.has_more(10))
        await asyncio.sleep(0)
        upload.feed(b"half")
        upload.fail(ConnectionResetError("gone"))
        for each in (waiting, upload.has_more(1)):
            with pytest.raises(ConnectionResetError, match="gone"):
                await each
        whole = RequestBody(lambda: None)
        whole.end()
        whole.fail(ConnectionResetError("gone"))
        assert not await whole.has_more(1)

    run(main())


def test_thread_takes_while_the_loop_feeds() -> None:
    """No byte is lost or doubled, and a socket that was paused is always read again."""

    async def main() -> None:
        paces, room = 0, asyncio.Event()

        def repace() -> None:
            nonlocal paces
            paces += 1
            room.set()

        upload = RequestBody(repace)
        taken: list[bytes] = []
        is_over = threading.Event()

        def take() -> None:
            while not is_over.is_set():
                taken.extend(upload.take())
            taken.extend(upload.take())

        sent = [number.to_bytes(4, "big") * (HIGH_WATER // 16) for number in range(200)]
        thread = asyncio.create_task(asyncio.to_thread(take))
        for piece in sent:
            room.clear()
            upload.feed(piece)
            if upload.is_full:
                await room.wait()
        is_over.set()
        await thread
        assert taken == sent

    run(main())
