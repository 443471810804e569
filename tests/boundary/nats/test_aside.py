"""What was set aside in a stream: found when it is released, and read only then."""

from __future__ import annotations

import pytest

from ergon_framework.boundary.factstore.nats import NatsFactStore
from ergon_framework.errors import BoundaryError
from ergon_framework.ports.factstore import OUTBOUND, Quarantined
from ergon_framework.ports.transfer import ConsumerCursorRecord, QuarantineRecord
from ergon_framework.storage.nats import Stored
from ergon_framework.testing.suites.factstore.under_test import new
from tests.boundary.nats.conftest import Open

pytestmark = pytest.mark.req("SCALE:boundary-nats")
PLENTY = 1 << 24


def filled(store: NatsFactStore, count: int) -> None:
    """A log whose facts a consumer has not read yet."""
    store.append(OUTBOUND, [new(f"id-{n}") for n in range(count)])
    store.create_consumer("c", OUTBOUND)


def set_aside(store: NatsFactStore, offset: int) -> Quarantined:
    """As a reader does whose handler failed."""
    store.serve("c", 1, PLENTY)
    return store.set_aside("c", offset, reason="handler_failed", message="", attempts=1)


def test_a_reader_does_not_read_what_was_set_aside_before(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or each of its steps would take longer the more there is in quarantine."""
    reader, stranger = open_store(), open_store()
    filled(reader, 12)
    for offset in range(1, 6):
        set_aside(reader, offset)
    asked: list[str] = []
    latest = reader.database.stream.latest

    def listened(subjects: list[str]) -> list[Stored]:
        asked.extend(subjects)
        return latest(subjects)

    monkeypatch.setattr(reader.database.stream, "latest", listened)
    for offset in range(6, 10, 2):
        stranger.append(OUTBOUND, [new(f"more-{offset}")])  # so that nothing remembered counts
        set_aside(reader, offset)
        stranger.append(OUTBOUND, [new(f"again-{offset}")])
        assert [fact.offset for fact in reader.serve("c", 1, PLENTY).page.facts] == [offset + 1]
        stranger.append(OUTBOUND, [new(f"last-{offset}")])
        assert reader.confirm("c", offset + 1) == offset + 1
    assert asked
    assert not [subject for subject in asked if ".item." in subject]
    assert [item.offset for item in stranger.quarantine("c")] == [1, 2, 3, 4, 5, 6, 8]


def test_what_another_process_releases_is_delivered(open_store: Open) -> None:
    """Although the reader knew that there was nothing to look for."""
    reader, operator = open_store(), open_store()
    filled(reader, 3)
    item = set_aside(reader, 1)
    assert [fact.offset for fact in reader.serve("c", 1, PLENTY).page.facts] == [2]
    operator.settle(item.id, "released")
    served = reader.serve("c", 9, PLENTY)
    assert (served.is_released, [fact.offset for fact in served.page.facts]) == (True, [1])
    reader.confirm("c", 1)
    assert [each.state for each in operator.quarantine("c", state=None)] == ["settled"]
    assert [fact.offset for fact in reader.serve("c", 9, PLENTY).page.facts] == [2, 3]


def test_a_release_is_not_overlooked_by_who_is_just_looking(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader saw nothing, and writes that down after something was released."""
    reader, operator = open_store(), open_store()
    filled(reader, 3)
    item = set_aside(reader, 1)
    operator.settle(item.id, "released")
    operator.settle(item.id, "quarantined")  # it has to be looked for, and is not there
    commit = reader.database.stream.commit
    released: list[Quarantined] = []

    def late(*arguments: object) -> int:
        if not released:
            released.append(operator.settle(item.id, "released"))
        return commit(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(reader.database.stream, "commit", late)
    found = [reader.serve("c", 1, PLENTY, holder="r") for _ in range(2)]
    assert released
    assert any(served.is_released for served in found)


def test_a_fact_is_set_aside_once_after_a_seek(open_store: Open) -> None:
    """It is the same item, wherever its consumer stood meanwhile."""
    store = open_store()
    filled(store, 4)
    first = set_aside(store, 1)
    set_aside(store, 2)
    store.seek("c", 0, reason="again")
    assert set_aside(store, 1).id == first.id
    assert [item.offset for item in store.quarantine("c")] == [1, 2]


def test_a_consumer_that_was_moved_here_looks_again(open_store: Open, nats_url: str) -> None:
    """What came with it may have been released where it was before."""
    store, target = open_store(), open_store(nats_url.replace("?", "-copy?"))
    for each in (store, target):
        filled(each, 3)
    item = set_aside(store, 1)
    store.settle(item.id, "released")
    assert not target.serve("c", 1, PLENTY).is_released
    target.records.load(store.records.dump(ConsumerCursorRecord, None, 10))
    target.records.load(store.records.dump(QuarantineRecord, None, 10))
    served = target.serve("c", 9, PLENTY)
    assert (served.is_released, [fact.offset for fact in served.page.facts]) == (True, [1])


def test_what_can_no_longer_be_delivered_is_set_aside_though_the_next_page_is_refused(
    open_store: Open,
) -> None:
    """One step that does both would be undone by the refusal, and find the same for ever."""
    store = open_store()
    store.append(OUTBOUND, [new(f"id-{n}") for n in range(3)])
    store.create_consumer("c", OUTBOUND, is_required=False)
    store.create_consumer("needed", OUTBOUND)
    item = set_aside(store, 1)
    store.settle(item.id, "released")
    store.serve("needed", 9, PLENTY)
    store.confirm("needed", 3)
    store.truncate(OUTBOUND, 3)
    with pytest.raises(BoundaryError, match="no longer kept"):
        store.serve("c", 9, PLENTY)
    [found] = store.quarantine("c", state=None)
    assert (found.state, found.reason) == ("quarantined", "corrupted")
