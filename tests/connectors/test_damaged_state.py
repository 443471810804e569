"""Files in which connectors keep what is done, damaged while nobody used them.

Nothing is lost, and what is done twice is done so with a word in the log.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ergon_framework import JsonlConnector, Transaction
from ergon_framework.connector import FilesConnector, HttpPollConnector
from ergon_framework.connector.jsonl import JsonlConnectorError
from ergon_framework.errors import ConnectorError
from tests.connectors.http.paged_api import PagedApi, serving

COUNT = 6
Open = Callable[[], Any]


def cut(path: Path) -> None:
    """Its last bytes are missing, and the end of a line with them."""
    os.truncate(path, path.stat().st_size - 5)


def noise(path: Path) -> None:
    """Bytes that nobody wrote, as after a fault of the disk."""
    path.write_bytes(b"\xff\x00\xfe}{" * 40)


def gone(path: Path) -> None:
    """Deleted."""
    path.unlink()


def later(path: Path) -> None:
    """With an entry of a version that is not written yet."""
    with path.open("ab") as file:
        file.write(b'{"kind": "of a later version", "rows": {"a": [1]}}\n')


@pytest.fixture(params=["jsonl", "files"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Open, Path]:
    """How a connector to a folder is opened, and the file in which it keeps what is done."""
    folder = tmp_path / "in"
    folder.mkdir()
    if request.param == "jsonl":
        lines = [json.dumps({"transaction_id": f"t{n}", "payload": n}) for n in range(COUNT)]
        (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
        return lambda: JsonlConnector(folder), folder / ".ergon" / "progress.jsonl"
    rows = "".join(f"t{n},{n}\n" for n in range(COUNT))
    (folder / "a.csv").write_text(f"id,n\n{rows}")
    options: dict[str, Any] = {"ids": "id", "settle": 0.0, "follow": True}
    state = folder / ".ergon" / "files-ergon" / "positions.jsonl"
    return lambda: FilesConnector(str(folder), **options), state


@pytest.mark.parametrize("damage", [cut, noise, gone, later])
def test_a_damaged_journal_loses_nothing_and_says_what_is_not_known(
    source: tuple[Open, Path], damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Each row that was not done comes; one that was comes again only with a word in the log."""
    opened, journal = source
    with opened() as connector:
        for each in connector.fetch_transactions(3):
            connector.ack(each)
    damage(journal)
    with caplog.at_level(logging.WARNING), opened() as connector:
        came = [each.transaction_id for each in connector.fetch_transactions(2 * COUNT)]
        assert connector.health()
    assert set(came) >= {"t3", "t4", "t5"}
    assert len(came) == len(set(came))
    assert str(journal) in caplog.text
    if damage is later:
        assert came == ["t3", "t4", "t5"]


def test_a_journal_that_was_never_there_is_no_news(
    source: tuple[Open, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """At the first start nothing is missing."""
    opened, _ = source
    with opened() as connector:
        assert len(connector.fetch_transactions(COUNT)) == COUNT
    assert caplog.text == ""


@pytest.fixture
def api() -> Iterator[PagedApi]:
    """An API of somebody else."""
    with serving(PagedApi()) as made:
        made.items += [{"id": f"t{n}"} for n in range(COUNT)]
        yield made


def polled(api: PagedApi, state: Path) -> HttpPollConnector:
    """A poller whose state is a file of its own."""
    options: dict[str, Any] = {"items": "data", "link_header": True, "wait": 0.0}
    return HttpPollConnector(api.url, state=str(state), ids="id", again="first", **options)


@pytest.mark.parametrize("damage", [gone, lambda path: os.truncate(path, 0)], ids=["gone", "empty"])
def test_a_poller_that_begins_anew_says_so(
    api: PagedApi, tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """What was done is done again, and not silently; at the first start nothing is said."""
    state = tmp_path / "polls.db"
    with caplog.at_level(logging.WARNING):
        with polled(api, state) as connector:
            for each in connector.fetch_transactions(3):
                connector.ack(each)
        assert caplog.text == ""
        damage(state)
        with polled(api, state) as connector:
            assert "t0" in {each.transaction_id for each in connector.fetch_transactions(COUNT)}
    assert "although it was polled before" in caplog.text
    assert str(state) in caplog.text


def test_a_damaged_state_of_a_poller_is_refused_by_name(api: PagedApi, tmp_path: Path) -> None:
    """It is there and cannot be used: nothing is read, and health is bad."""
    state = tmp_path / "polls.db"
    with polled(api, state) as connector:
        connector.fetch_transactions(1)
    noise(state)
    with polled(api, state) as connector:
        with pytest.raises(ConnectorError, match="cannot be used") as caught:
            connector.dead_letters()
        assert str(state) in str(caught.value)
        assert "cannot be reached" not in str(caught.value)
        assert not connector.health()


@pytest.fixture
def small_files() -> Iterator[Callable[[int], None]]:
    """Sets how large a file of this process may be, which fails as a full disk does."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, before)


def test_an_outbox_goes_on_when_there_is_room_again(
    tmp_path: Path, small_files: Callable[[int], None]
) -> None:
    """By itself; what was refused meanwhile is not in it, and nothing half written stays."""
    with JsonlConnector(outbox=tmp_path / "out") as connector:
        connector.dispatch_transactions([Transaction("t0", 0)])
        size = (tmp_path / "out" / "part-00000001.jsonl").stat().st_size
        small_files(size + 20)
        with pytest.raises(JsonlConnectorError, match="File too large"):
            connector.dispatch_transactions([Transaction("t1", 1)])
        assert not connector.health()
        small_files(resource.RLIM_INFINITY)
        connector.dispatch_transactions([Transaction("t2", 2)])
        assert connector.health()
    with JsonlConnector(tmp_path / "out") as connector:
        came = [each.transaction_id for each in connector.fetch_transactions(COUNT)]
    assert came == ["t0", "t2"]
