"""Rows of files in a bucket, against a server on loopback."""

from __future__ import annotations

import gzip
import io
import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.connector import from_url
from ergon_framework.connector.files import FilesConnector
from ergon_framework.errors import ConfigurationError
from ergon_framework.ports.transaction import Transaction
from ergon_framework.storage.objectstore.s3_client import bucket_of, connect
from ergon_framework.testing.link import CuttableLink
from ergon_framework.testing.suites import ConnectorFaults, exercise_connector
from tests.connectors.files.folders import payloads
from tests.servers.s3 import KEYS, REGION, S3Server
from tests.waiting import until

pytestmark = pytest.mark.slow
PREFIX = "orders/in"
NUMBERS = itertools.count()


class Place:
    """A bucket that somebody fills, and connectors that read it."""

    def __init__(self, server: S3Server, state: Path) -> None:
        self.server = server
        self.bucket = server.bucket()
        self.state = state

    def put(self, name: str, data: bytes) -> None:
        """An object."""
        connect(bucket_of(self.server.url(self.bucket, PREFIX))).put(name, data)

    def reading(self, port: int | None = None, **options: Any) -> Any:
        """A connector, through a link or not."""
        url = f"s3://{self.bucket}/{PREFIX}?region={REGION}&state={self.state}"
        endpoint = self.server.endpoint if port is None else f"http://127.0.0.1:{port}"
        return from_url(url, endpoint=endpoint, **options)


@pytest.fixture
def place(s3_server: S3Server, tmp_path: Path) -> Place:
    """An empty bucket."""
    return Place(s3_server, tmp_path / "state")


def test_rows_of_all_formats(place: Place) -> None:
    """In the order of their keys, also of those with slashes; hidden ones are passed over."""
    parquet = io.BytesIO()
    table = import_module("pyarrow").Table.from_pylist([{"n": "4"}])
    import_module("pyarrow.parquet").write_table(table, parquet)
    place.put("b/one.csv", b"n\n2\n3\n")
    place.put("a.jsonl.gz", gzip.compress(b'{"n": "1"}\n'))
    place.put("c.parquet", parquet.getvalue())
    place.put("_temporary/part.csv", b"n\n9\n")
    place.put("readme.txt", b"text")
    with place.reading() as connector:
        assert connector.get_transactions_count() == 4
        assert [each["n"] for each in payloads(connector)] == ["1", "2", "3", "4"]
        assert payloads(connector) == []
        place.put("d.csv", b"n\n5")
        assert payloads(connector) == [{"n": "5"}]
        (seen,) = connector.observe()
        assert seen.found == f"s3://{place.bucket}/{PREFIX} has 4 files to read"


def test_an_object_that_is_archived_holds_up_no_others(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names it once, health stays, and those behind it are read."""
    boto3 = import_module("boto3").session.Session(*KEYS.values())
    client = boto3.client("s3", region_name=REGION, endpoint_url=place.server.endpoint)
    key = f"{PREFIX}/a.csv"
    client.put_object(Bucket=place.bucket, Key=key, Body=b"n\n1\n", StorageClass="GLACIER")
    place.put("b.csv", b"n\n2\n")
    with place.reading() as connector:
        assert payloads(connector) == [{"n": "2"}]
        assert payloads(connector) == []
        assert connector.health()
    (told,) = [each.getMessage() for each in caplog.records]
    assert f"cannot read s3://{place.bucket}/{key}, and try again" in told
    assert "InvalidObjectState" in told


def test_a_key_that_cannot_be_listed_is_named(place: Place) -> None:
    """The client lists no key with an empty part, so no object is read: it says which to rename."""
    place.server.ask("PUT", f"/{place.bucket}/{PREFIX}//a.csv", b"n\n1\n")
    with place.reading() as connector:
        (seen,) = connector.observe()
    assert f'"{PREFIX}//a.csv"' in seen.found
    assert "aws s3 mv" in seen.remedy


def test_it_goes_on_where_it_stopped(place: Place) -> None:
    """The same ids again, and nothing that was settled."""
    place.put("a.csv", b"n\n" + b"".join(b"%d\n" % n for n in range(9)))
    with place.reading() as connector:
        held = connector.fetch_transactions(9)
        for each in held[:3] + held[5:7]:
            connector.ack(each)
    with place.reading() as connector:
        again = connector.fetch_transactions(9)
        assert [each.payload["n"] for each in again] == ["3", "4", "7", "8"]
        assert again[0].transaction_id == held[3].transaction_id


def test_an_object_that_changes_while_it_is_read(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Its ETag is another one: the rest of it is not taken for the rest of the first."""
    rows = [json.dumps(f"{n}" + "x" * 1_000_000).encode() + b"\n" for n in range(9)]
    place.put("a.jsonl", b"".join(rows))
    with place.reading() as connector:
        first = payloads(connector, 2)
        place.put("a.jsonl", b"".join(rows[5:]))
        found = []
        while more := payloads(connector):
            found += more
        read = [each[0] for each in first + found]
        assert read[-4:] == ["5", "6", "7", "8"]
        assert read[: len(read) - 4] == [str(n) for n in range(len(read) - 4)]
        assert len(read) < 9 + 4
        assert "changed where it had been read" in caplog.text


def test_a_server_that_is_away_is_waited_for(place: Place) -> None:
    """What is in hand is settled meanwhile, and reading goes on behind it."""
    place.put("a.jsonl", b"1\n2\n")
    with (
        CuttableLink(place.server.port) as link,
        place.reading(link.port) as connector,
        ThreadPoolExecutor() as pool,
    ):
        first, _ = connector.fetch_transactions(2)
        link.cut()
        connector.ack(first)
        place.put("b.jsonl", b"3\n")
        waiting = pool.submit(payloads, connector)
        until(lambda: not connector.health(), "the outage to be noticed")
        assert not waiting.done()
        link.heal()
        assert waiting.result(60) == [3]
        assert connector.health()


def test_a_stop_ends_the_wait(place: Place) -> None:
    """For a server that was never there, too."""
    with (
        CuttableLink(place.server.port) as link,
        place.reading(link.port) as connector,
        ThreadPoolExecutor() as pool,
    ):
        link.cut()
        waiting = pool.submit(connector.fetch_transactions, 1)
        until(lambda: not connector.health(), "the outage to be noticed")

        def is_stopped() -> bool:
            connector.stop_waiting()
            return waiting.done()

        until(is_stopped, "the end of the fetch")
        assert waiting.result() == []


@pytest.mark.parametrize("wrong", ["bucket", "keys"])
def test_a_wrong_setting_is_told_without_secrets(
    place: Place, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A bucket that is not there, and credentials that are not let in."""
    if wrong == "bucket":
        place.bucket = "nobodys-bucket"
    else:
        place.server.let_in(everybody=False)
    try:
        with place.reading() as connector:
            with pytest.raises(ConfigurationError, match=r"no bucket|denied") as caught:
                connector.fetch_transactions(1)
            (seen,) = connector.observe()
            text = f"{caught.value}{seen}{connector!r}{caplog.text}"
            assert seen.is_grave
            assert not any(each in text for each in KEYS.values() if each != "ergon")
    finally:
        place.server.let_in(everybody=True)


def test_it_behaves_as_every_connector_must(s3_server: S3Server, tmp_path: Path) -> None:
    """The whole suite; both colours use the same code, which a folder is exercised with."""
    places: dict[int, Place] = {}

    def opened(place: Place) -> FilesConnector:
        connector: FilesConnector = place.reading(ids="tid", payload="data")
        places[id(connector)] = place
        return connector

    @contextmanager
    def made() -> Iterator[FilesConnector]:
        with opened(Place(s3_server, tmp_path / f"state{next(NUMBERS)}")) as connector:
            yield connector

    def crash(connector: FilesConnector) -> FilesConnector:
        connector.close()
        return opened(places[id(connector)])

    def put(connector: FilesConnector, lines: list[str]) -> None:
        places[id(connector)].put(f"{next(NUMBERS):06}.jsonl", "\n".join(lines).encode())

    def seed(connector: FilesConnector, given: list[Transaction]) -> None:
        put(connector, [json.dumps({"tid": e.transaction_id, "data": e.payload}) for e in given])

    exercise_connector(
        made,
        colour="sync",
        seed=seed,
        dead_letters=lambda each: [
            (letter.get("transaction_id"), letter["reason"]) for letter in each.read_dead_letters()
        ],
        order="strict",
        carries=(),
        shape=(json.dumps, json.loads),
        faults=ConnectorFaults(crash=crash, put_malformed=lambda each: put(each, ["no json"])),
        skip=["unserialisable_payload_is_refused"],  # rows are written by others
        patience=20,
    )
