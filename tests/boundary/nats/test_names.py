"""Going through very many names of objects, page by page and in little memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.factstore.nats.objects_and_links import (
    FirstNames,
    NamePlace,
    scan_names,
)
from ergon_framework.boundary.factstore.nats.schema import ObjectRecord, encode
from ergon_framework.ports.factstore import OUTBOUND, FactStore, StoredObject
from ergon_framework.ports.transfer import ObjectNameRecord
from ergon_framework.storage.nats import NatsStream, Stored
from ergon_framework.testing.suites.factstore.under_test import new
from tests.boundary.nats.conftest import Open

pytestmark = pytest.mark.req("SCALE:boundary-nats")

SUBJECTS = [f"s{n}" for n in range(12)]
WRITTEN = st.lists(
    st.tuples(st.sampled_from(SUBJECTS), st.integers(0, 30) | st.none()), max_size=60
)


def by_size(name: ObjectRecord) -> NamePlace | None:
    """An order that changes with what is written of a name; those of size 0 do not belong."""
    return (name.size, name.key) if name.size else None


@settings(deadline=None)
@given(WRITTEN, st.integers(0, 31), st.integers(0, 8), st.integers(1, 5))
def test_a_stretch_is_what_sorting_everything_gives(
    written: list[tuple[str, int | None]], start: int, limit: int, most: int
) -> None:
    """Whatever is replaced or taken away, in whatever order it comes by."""
    messages = [
        Stored(
            subject,
            seq,
            b"" if size is None else encode(ObjectRecord("b", subject, b"d", size)),
            {},
        )
        for seq, (subject, size) in enumerate(written, 1)
    ]
    newest = {subject: size for subject, size in dict(written).items() if size}
    every = sorted(
        (size, subject) for subject, size in newest.items() if (size, subject) > (start,)
    )
    found = scan_names(lambda: messages, by_size, (start,), limit, max_names=most)
    places = [(name.size, name.key) for name in found.names]
    assert places == every[: len(places)]
    assert len(places) >= min(limit, len(every))
    assert len(places) == len(every) if found.is_last else len(places) <= len(every)


def test_no_more_is_kept_than_was_said() -> None:
    """Twenty thousand names come by, and a few are in memory."""

    def by_name(name: ObjectRecord) -> NamePlace:
        return name.bucket, name.key

    def read() -> Iterator[Stored]:
        for n in range(20_000):
            key = hashlib.sha256(b"%d" % n).hexdigest()
            yield Stored(key, n + 1, encode(ObjectRecord("b", key, b"d", 1)), {})

    most, first = 0, FirstNames(by_name, ("", ""), is_after=True, limit=50)
    for message in read():
        first.take(message)
        most = max(most, len(first))
    assert most <= 2 * 50
    found = scan_names(read, by_name, ("", ""), 30, max_names=50)
    assert found.names == first.names()
    assert len(found.names) == 50
    assert not found.is_last


def pages(store: FactStore, bucket: str | None, limit: int) -> list[StoredObject]:
    """All names, page by page."""
    found, after = list[StoredObject](), ("", "")
    while page := store.objects(bucket, after=after, limit=limit):
        assert len(page) <= limit
        found += page
        after = (page[-1].bucket, page[-1].key)
    return found


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The subjects that were walked through."""
    walked: list[str] = []
    walk = NatsStream.walk

    def noted(self: NatsStream, subject: str, seq: int = 1, limit: int = 500) -> Iterator[Stored]:
        walked.append(subject)
        return walk(self, subject, seq, limit)

    monkeypatch.setattr(NatsStream, "walk", noted)
    return walked


def test_thousands_of_names_in_pages(open_store: Open, walks: list[str]) -> None:
    """The same as the model says, and the stream is read once for several pages."""
    store, model = open_store(max_names=600), MemoryFactStore("plant-a", clock=lambda: 1.0)
    kinds = ("key-{}", "Schlüssel {}", "x" * 80 + "{}", "a/b/{}.bin")
    copies = [
        ObjectNameRecord(
            StoredObject(
                f"bucket {n % 3}",
                kinds[n % 4].format(n * 7919 % 3001),
                hashlib.sha256(b"%d" % n).digest(),
                n,
                float(n * 31 % 977),
                n % 5 == 0,
            )
        )
        for n in range(3000)
    ]
    for each in (store, model):
        each.records.load(copies)
        for copy in copies[100:400:7]:
            if not copy.object.is_referenced:
                each.unbind(copy.object.bucket, copy.object.key)
    wanted = pages(model, None, 1000)
    assert len(wanted) > 2900
    walks.clear()
    assert pages(store, None, 150) == wanted
    assert len(walks) <= 3 * len(wanted) // 600 + 1
    assert pages(store, "bucket 1", 99) == [each for each in wanted if each.bucket == "bucket 1"]
    for limit in (1, 40, 700, 5000):
        assert store.orphans(600.0, limit) == model.orphans(600.0, limit)


def test_names_that_change_between_pages(open_store: Open) -> None:
    """What another process names or takes away is seen in the next page."""
    one, two = open_store(), open_store()
    for key in "abdef":
        one.bind("files", key, hashlib.sha256(key.encode()).digest(), 1)

    def keys(after: str) -> list[str]:
        return [each.key for each in one.objects(after=("files", after), limit=2)]

    assert keys("") == ["a", "b"]
    two.bind("files", "c", bytes(32), 1)
    assert keys("b") == ["c", "d"]
    two.unbind("files", "e")
    assert keys("d") == ["f"]
    two.unbind("files", "c")  # neither the newest name nor the one that was taken away last
    assert keys("b") == ["d", "f"]
    two.append(OUTBOUND, [new("x")])
    assert keys("d") == ["f"]
