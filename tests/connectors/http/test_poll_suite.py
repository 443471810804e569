"""The connector suite with the pages of an HTTP API, in both colours."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from ergon_framework.connector.http import HttpPollConnector
from ergon_framework.ports.transaction import Transaction
from ergon_framework.testing.link import CuttableLink
from ergon_framework.testing.suites import ConnectorFaults, exercise_connector
from tests.connectors.http.paged_api import PagedApi, serving
from tests.connectors.recorded_results import check_recorded

pytestmark = pytest.mark.slow
NUMBERS = itertools.count()
OPTIONS: dict[str, Any] = {
    "items": "data",
    "ids": "id",
    "payload": "body",
    "correlation": "flow",
    "offset": "offset",
    "interval": 0.0,
    "wait": 0.0,
}


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_it_behaves_as_every_connector_must(
    tmp_path: Path, colour: Literal["sync", "async"]
) -> None:
    """The whole suite, as far as an API that is only read can honour it."""
    apis: dict[Any, tuple[PagedApi, CuttableLink, Path]] = {}

    @contextmanager
    def made() -> Iterator[HttpPollConnector]:
        state = tmp_path / f"{next(NUMBERS)}.db"
        with serving(PagedApi()) as api, CuttableLink(api.port) as link:
            url = f"http://127.0.0.1:{link.port}/items"
            with HttpPollConnector(url, state=str(state), **OPTIONS) as connector:
                apis[connector] = api, link, state
                yield connector

    def seed(connector: HttpPollConnector, transactions: Iterable[Transaction]) -> None:
        api = apis[connector][0]
        for each in transactions:
            item = {"id": each.transaction_id, "body": each.payload, "flow": each.correlation_id}
            api.items.append(item)

    def crash(connector: HttpPollConnector) -> HttpPollConnector:
        # The system frees the lock of a process that dies; one that lives has to let go of it.
        _, link, state = apis[connector]
        connector.close()
        url = f"http://127.0.0.1:{link.port}/items"
        other = HttpPollConnector(url, state=str(state), **OPTIONS)
        apis[other] = apis[connector]
        return other

    def cut(connector: HttpPollConnector) -> None:
        apis[connector][1].cut()
        apis[connector][1].heal()

    def put_malformed(connector: HttpPollConnector) -> None:
        api = apis[connector][0]
        api.items.append({"id": None, "number": len(api.items)})

    report = exercise_connector(
        made,
        colour=colour,
        seed=seed,
        dead_letters=lambda connector: [each[::2] for each in connector.dead_letters()],
        order="strict",
        ids="unique",
        carries=("correlation_id",),
        faults=ConnectorFaults(crash=crash, cut=cut, put_malformed=put_malformed),
        skip=["parked_outlives_its_consumer"],  # it is parked in memory
        patience=20,
        raises=False,
    )
    report.raise_for_failures(recommended=True)
    check_recorded("http-poll", report)
