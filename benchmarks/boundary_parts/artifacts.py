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
    Contestant,
    ContestantError,
    Record,
    RunOptions,
    Target,
    Turn,
    race,
    records,
)
from jobs_parts.processes import cpu_seconds

from boundary_parts.producers import new_zone, turn_folder
from boundary_parts.servers import Node

KIB, MIB = 1 << 10, 1 << 20
BUCKET = "batch-files"
_names = count()


def put(options: RunOptions) -> Iterator[Record]:
    """Two mebibytes at a time, one after the other."""
    number = max(5, int(20 * options.seconds))
    node = Node(options.folder / "putting")
    try:
        local = Contestant("Ergon", partial(_local, options.folder, 2 * MIB, number))
        remote = Contestant("Ergon, over HTTP", partial(over_http, node, 2 * MIB, number))
        plain = Contestant(
            "plain write and fsync", partial(_plain, options.folder, 2 * MIB, number)
        )
        race([local, remote, plain], options.rounds)
    finally:
        node.stop()
    for made in (
        *records("put-2MiB", local, [(plain, Target(ratio=0.9))]),
        *records("put-2MiB-http", remote, [(plain, Target(ratio=0.9))]),
    ):
        yield made if "per_second" not in made else made | _bytes_per_second(made)


def _bytes_per_second(made: Record) -> Record:
    rate, (low, high) = made["per_second"], made["spread"]
    told, least, most = (round(each * 2 * MIB / 1e6) for each in (rate, low, high))
    return {"mb_per_second": told, "mb_per_second_spread": [least, most]}


def over_http(node: Node, size: int, number: int) -> Turn:
    """One connection of the standard library's client."""
    connection = node.connect()

    def store(data: bytes) -> None:
        name = f"{next(_names)}.bin"
        connection.request("PUT", f"/v1/objects/{BUCKET}/{name}", data)
        answer = connection.getresponse()
        if json.loads(answer.read()).get("size") != size:
            raise ContestantError(f"a put was answered with {answer.status}")

    try:
        return _timed(store, size, number, node.pid)
    except http.client.HTTPException as error:
        raise ContestantError(str(error)) from error
    finally:
        connection.close()


def _local(folder: Path, size: int, number: int) -> Turn:
    with new_zone(folder) as zone:
        return _timed(lambda data: zone.put(BUCKET, f"{next(_names)}.bin", data), size, number)


def _plain(folder: Path, size: int, number: int) -> Turn:
    with turn_folder(folder) as path:

        def store(data: bytes) -> None:
            with (path / str(next(_names))).open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())

        return _timed(store, size, number)


def _timed(
    store: Callable[[bytes], object], size: int, number: int, server: int | None = None
) -> Turn:
    """Only the calls are timed; what they store is new each time, and made in between.

    ``server`` is the process whose processor time is told, instead of ours.
    """
    base, latencies, used = os.urandom(size - 16), [], 0.0
    look = time.process_time if server is None else partial(cpu_seconds, [server])
    for _ in range(number):
        data = os.urandom(16) + base
        before, began = look(), time.perf_counter()
        store(data)
        latencies.append(time.perf_counter() - began)
        used += look() - before
    return Turn(number, sum(latencies), latencies, used)
