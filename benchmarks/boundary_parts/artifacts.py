"""Artifacts: puts per second beside a plain write of the same bytes."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

from comparison import (
    Effort,
    Entry,
    FailedError,
    Goal,
    Record,
    Turn,
    race,
    records,
)

from boundary_parts.producers import fresh, new_zone
from boundary_parts.servers import Node

KIB, MIB = 1 << 10, 1 << 20
BUCKET = "batch-files"
_names = count()


def put(effort: Effort) -> Iterator[Record]:
    """Two mebibytes at a time, one after the other."""
    number = max(5, int(20 * effort.seconds))
    node = Node(effort.folder / "putting")
    try:
        local = Entry("Ergon", partial(_local, effort.folder, 2 * MIB, number))
        remote = Entry("Ergon, over HTTP", partial(over_http, node, 2 * MIB, number))
        plain = Entry("plain write and fsync", partial(_plain, effort.folder, 2 * MIB, number))
        race([local, remote, plain], effort.rounds)
    finally:
        node.stop()
    for made in (
        *records("put-2MiB", local, [(plain, Goal(ratio=0.9))]),
        *records("put-2MiB-http", remote, [(plain, Goal(ratio=0.9))]),
    ):
        rate = made.get("per_second")
        yield made if rate is None else made | {"mb_per_second": round(rate * 2 * MIB / 1e6)}


def over_http(node: Node, size: int, number: int) -> Turn:
    """One connection of the standard library's client."""
    link = node.connect()

    def store(data: bytes) -> None:
        name = f"{next(_names)}.bin"
        link.request("PUT", f"/v1/objects/{BUCKET}/{name}", data)
        answer = link.getresponse()
        if json.loads(answer.read()).get("size") != size:
            raise FailedError(f"a put was answered with {answer.status}")

    try:
        return _timed(store, size, number)
    except http.client.HTTPException as error:
        raise FailedError(str(error)) from error
    finally:
        link.close()


def _local(folder: Path, size: int, number: int) -> Turn:
    with new_zone(folder) as zone:
        return _timed(lambda data: zone.put(BUCKET, f"{next(_names)}.bin", data), size, number)


def _plain(folder: Path, size: int, number: int) -> Turn:
    with fresh(folder) as path:

        def store(data: bytes) -> None:
            with (path / str(next(_names))).open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())

        return _timed(store, size, number)


def _timed(store: Callable[[bytes], object], size: int, number: int) -> Turn:
    """Only the calls are timed; what they store is new each time, and made in between."""
    base, taken = os.urandom(size - 16), []
    for _ in range(number):
        data = os.urandom(16) + base
        began = time.perf_counter()
        store(data)
        taken.append(time.perf_counter() - began)
    return Turn(number, sum(taken), taken)
