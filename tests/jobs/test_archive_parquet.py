"""Archived jobs as Parquet: the same records, in columns; converted when their file is closed."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.errors import MissingExtraError, StoreError, StoreUnavailableError
from ergon_framework.jobs.archive_files import JobArchive
from ergon_framework.jobs.archiver import Archiver
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.storage.failpoints import armed
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import DAY, JobStoreSubject

NOON = 1_899_979_200.0  # 2030-03-17T12:00:00Z


class Days:
    """A store and an archive, whose jobs end and are archived day by day."""

    def __init__(self, folder: Path) -> None:
        self.clock = HandClock()
        self.now = NOON
        self.subject = JobStoreSubject(MemoryJobStore(self.clock), self.clock, None, 5.0)
        self.archive = JobArchive(folder, now=lambda: self.now, format="parquet")
        self.archiver = Archiver(self.subject.store, self.archive)

    def day(self, *ids: str, **fields: Any) -> None:
        """Some jobs end and are archived, and the next day begins."""
        self.subject.put(*ids, **fields)
        for each in ids:
            self.subject.ended(each, keep=1.0, result=b'"ann"')
        self.clock.forward(2.0)
        while self.archiver.turn():
            pass
        self.now += DAY

    def files(self) -> list[str]:
        """What is in the folder."""
        return [each.name for each in self.archive.files()]


@pytest.fixture
def days(tmp_path: Path) -> Days:
    """An archive in Parquet."""
    return Days(tmp_path / "archive")


def test_a_closed_file_becomes_parquet(days: Days) -> None:
    """With the same records; the file of the day is appended to, and stays as it is."""
    days.day("a", "b", tags=("customer:42",), args=b"[1]")
    before = list(days.archive.lines())
    assert days.files() == ["jobs-20300317-000001.jsonl"]
    days.day("c")
    assert days.files() == ["jobs-20300317-000001.parquet", "jobs-20300318-000001.jsonl"]
    found = list(days.archive.lines())
    assert [line._replace(file="") for line in found[:2]] == [
        line._replace(file="") for line in before
    ]
    assert [line.job().id for line in days.archive.records()] == ["a", "b", "c"]
    shown = days.archive.find("b")
    assert shown is not None
    assert shown.job().tags == ("customer:42",)


def test_columns_are_for_other_programs(days: Days) -> None:
    """What an analyst asks for need not be looked for in JSON."""
    parquet = import_module("pyarrow.parquet")
    days.day("a", tags=("customer:42",), queue="mails")
    days.day("b")
    (row,) = parquet.read_table(days.archive.path / days.files()[0]).to_pylist()
    assert (row["status"], row["queue"], row["tags"]) == ("completed", "mails", ["customer:42"])
    assert row["finished_at"] >= row["created_at"]


def test_a_conversion_that_was_cut_off_loses_nothing(days: Days) -> None:
    """The old file is there until the new one is on the disk; then both are, and each job once."""
    days.day("a")
    for place in ("archive.rewrite.synced", "archive.rewrite.named"):
        with armed(f"{place}=error"), pytest.raises(StoreUnavailableError):
            days.archiver.turn()
        assert [line.key for line in days.archive.records()] == ["a"]
    assert days.archiver.turn() == 0
    assert days.files() == ["jobs-20300317-000001.parquet"]


def test_records_are_taken_out_of_parquet(days: Days) -> None:
    """As out of JSON Lines."""
    days.day("a", "b")
    days.day("c")
    with days.archive.locked() as writer:
        assert writer.rewrite(days.files()[0], lambda line: line.key == "a") == 1
    assert [line.key for line in days.archive.lines()] == ["b", "c"]


def test_a_missing_library_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not when the first file is closed."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'ergon-framework\[parquet\]'"):
        JobArchive(tmp_path, format="parquet")


def test_a_damaged_file_is_named(days: Days) -> None:
    """Whoever reads the archive is told which file it is, and what to do with it."""
    days.day("a")
    days.day("b")
    name = days.files()[0]
    (days.archive.path / name).write_bytes(b"PAR1xxxxPAR1")
    with pytest.raises(StoreError, match=name) as caught:
        list(days.archive.records())
    assert "move it out of the folder" in caught.value.remedy
