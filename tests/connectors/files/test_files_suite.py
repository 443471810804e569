"""The connector suite with rows of files, in both colours."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from ergon_framework.connector.files import FilesConnector
from ergon_framework.ports.transaction import Transaction
from ergon_framework.testing.suites import ConnectorFaults, exercise_connector
from tests.connectors.files.folders import NUMBERS, put_rows, reading
from tests.connectors.recorded_results import check_recorded

pytestmark = pytest.mark.slow
OPTIONS = {"ids": "tid", "payload": "data"}
BAD = {"csv": "tid,data\none field\n", "jsonl": "not json\n"}


@pytest.mark.timeout(200)
@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_it_behaves_as_every_connector_must(
    tmp_path: Path, colour: Literal["sync", "async"], form: str
) -> None:
    """The whole suite with what a folder has: others write it, and nothing is sent there."""
    folders: dict[int, Path] = {}

    def connect(folder: Path) -> FilesConnector:
        connector = reading(folder, **OPTIONS)
        folders[id(connector)] = folder
        return connector

    @contextmanager
    def made() -> Iterator[FilesConnector]:
        folder = tmp_path / str(next(NUMBERS))
        folder.mkdir()
        with connect(folder) as connector:
            yield connector

    def crash(connector: FilesConnector) -> FilesConnector:
        connector.close()  # nothing is given back by it
        return connect(folders[id(connector)])

    def seed(connector: FilesConnector, given: Iterable[Transaction]) -> None:
        put_rows(folders[id(connector)], form, given)

    def put_malformed(connector: FilesConnector) -> None:
        path = folders[id(connector)] / f"{next(NUMBERS):06}.{form}"
        path.write_text(BAD[form])

    def dead(connector: FilesConnector) -> list[tuple[Any, str]]:
        letters = connector.read_dead_letters()
        return [(each.get("transaction_id"), each["reason"]) for each in letters]

    report = exercise_connector(
        made,
        colour=colour,
        seed=seed,
        dead_letters=dead,
        order="strict",
        carries=(),
        shape=(json.dumps, json.loads),
        faults=ConnectorFaults(crash=crash, put_malformed=put_malformed),
        skip=["unserialisable_payload_is_refused"],  # rows are written by others
        patience=20,
    )
    if form == "csv":
        check_recorded("files", report)
