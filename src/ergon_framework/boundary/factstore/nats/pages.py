"""Stretches of a log: finding where one begins, and reading it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ergon_framework.boundary.factstore import page_plan
from ergon_framework.boundary.factstore.nats.schema import (
    NO_CHAIN,
    EntryPosition,
    LogEntry,
    LogState,
)
from ergon_framework.boundary.factstore.nats.session import StreamTransaction
from ergon_framework.boundary.factstore.page_plan import Hole, PageRead, fill_page
from ergon_framework.ports.factstore import Gap, LogPage

ENTRIES_PER_READ = 256
"""Entries of one answer."""


def search_entries(
    transaction: StreamTransaction, log_state: LogState, is_low: Callable[[LogEntry], bool]
) -> LogEntry | None:
    """The last kept entry of those that are low, which all lie before those that are not."""
    subject, found = transaction.subjects.entries(log_state.name), None
    low, high = max(1, log_state.first_seq), log_state.head_seq + 1
    while low < high:
        middle = (low + high) // 2
        there = transaction.stream.next(subject, middle)
        entry = None if there is None else transaction.entry(log_state, there)
        if entry is not None and entry.seq < high and is_low(entry):
            found, low = entry, entry.seq + 1
        elif there is not None and entry is None and there.seq < high:
            low = there.seq + 1  # this one cannot be read: search among those around it
        else:
            high = middle
    return found


def place_of(transaction: StreamTransaction, log_state: LogState, offset: int) -> EntryPosition:
    """Where an offset of the log is; without a chain when it is not there itself."""
    if offset < log_state.first - 1:
        return EntryPosition(max(0, log_state.first_seq - 1), b"")
    if offset > log_state.head:
        return EntryPosition(log_state.head_seq, b"")
    found = log_state.edge(offset) or transaction.remembered(log_state, offset)
    if found is not None:
        return found
    entry = search_entries(transaction, log_state, lambda each: each.offset <= offset)
    if entry is None:
        return EntryPosition(max(0, log_state.first_seq - 1), b"")
    return EntryPosition(entry.seq, entry.chain if entry.offset == offset else b"")


def entry_at(transaction: StreamTransaction, log_state: LogState, offset: int) -> LogEntry | None:
    """The entry of an offset, if it is kept and sound."""
    if not log_state.first <= offset <= log_state.head:
        return None
    there = transaction.stream.next(
        transaction.subjects.entries(log_state.name),
        place_of(transaction, log_state, offset - 1).seq + 1,
    )
    entry = None if there is None else transaction.entry(log_state, there)
    return entry if entry and entry.offset == offset and entry.seal is not None else None


def entries_after(
    transaction: StreamTransaction,
    log_state: LogState,
    after: int,
    to_zone: str | None = None,
    *,
    chunk: int = ENTRIES_PER_READ,
    max_bytes: int = 1 << 22,
    with_markers: bool = False,
) -> Iterator[LogEntry | Hole]:
    """The facts above an offset in a view, and what should be there but is not."""
    seen = max(after, log_state.first - 1)
    everything = transaction.subjects.entries(log_state.name)
    subject = everything if to_zone is None else transaction.subjects.facts(log_state.name, to_zone)
    seq = place_of(transaction, log_state, seen).seq + 1
    while seen < log_state.head:
        found = transaction.stream.following(subject, seq, chunk, max_bytes)
        for each in found:
            seq = each.seq + 1
            entry = transaction.entry(log_state, each)
            if entry is None:
                continue  # the next one shows what is missing
            if entry.offset > log_state.head:
                return
            before = entry.offset - 1 if to_zone is None else entry.alike
            for missing in range(max(seen + 1, log_state.first), before + 1):
                # Of a view only the fact right before is known to be missing: what lies between may
                # be of other zones.
                if to_zone is None or missing == before:
                    transaction.is_doubtful = True
                    yield Hole(missing)
            seen = entry.offset
            if with_markers or not entry.is_marker:
                yield Hole(entry.offset) if entry.seal is None else entry
        if not found:
            if to_zone is None:
                transaction.is_doubtful = True
                yield from (Hole(missing) for missing in range(seen + 1, log_state.head + 1))
            return


def all_after(
    transaction: StreamTransaction, log_state: LogState, after: int
) -> Iterator[LogEntry | Hole]:
    """Everything above an offset, markers included."""
    return entries_after(transaction, log_state, after, with_markers=True)


def empty_page(after: int) -> LogPage:
    """A page of a log that is not there."""
    return LogPage([], 0, 0, NO_CHAIN if after == 0 else b"", NO_CHAIN)


def read_page(
    transaction: StreamTransaction,
    log_state: LogState,
    after: int,
    limit: int,
    max_bytes: int,
    to_zone: str | None,
) -> PageRead:
    """A stretch that ends at a limit, before a corrupted fact, or at the head."""
    # One more than was asked for, to know whether there are more behind.
    wanted = min(ENTRIES_PER_READ, limit + 1)
    entries = entries_after(
        transaction, log_state, after, to_zone, chunk=wanted, max_bytes=max_bytes + (1 << 16)
    )
    found = fill_page(entries, log_state.head, limit, max_bytes)
    through = found.through
    chain = place_of(transaction, log_state, after).chain
    end = place_of(transaction, log_state, through).chain
    facts = [each.seen(to_zone) for each in found.given]
    gaps = gaps_within(transaction, log_state, after, through)
    return PageRead(LogPage(facts, through, log_state.head, chain, end, gaps), found.corrupted)


def count_waiting(
    transaction: StreamTransaction, log_state: LogState, cursor: int, to_zone: str | None
) -> tuple[int, float | None]:
    """How many facts of a view lie above a cursor, and since when the first of them does."""
    if cursor >= log_state.head:
        return 0, None
    seq = place_of(transaction, log_state, max(cursor, log_state.first - 1)).seq + 1
    found = transaction.stream.following(
        transaction.subjects.facts(log_state.name, to_zone), seq, 1
    )
    if not found:
        return 0, None
    entry = transaction.entry(log_state, found[0])
    return found[0].pending + 1, None if entry is None else entry.recorded_at


def gaps_of(transaction: StreamTransaction, log_state: LogState) -> list[Gap]:
    """Recorded losses, in order of their beginning."""
    if not log_state.gaps:
        return []
    found = transaction.all(Gap, transaction.subjects.gaps(log_state.name))
    return sorted(found.values(), key=lambda gap: (gap.first, gap.source_first is None))


def gaps_within(
    transaction: StreamTransaction, log_state: LogState, after: int, through: int
) -> list[Gap]:
    """Recorded losses that reach into a stretch."""
    return [
        gap for gap in gaps_of(transaction, log_state) if gap.last > after and gap.first <= through
    ]


def unexplained_offsets(
    transaction: StreamTransaction, log_state: LogState, cursor: int
) -> tuple[int, int] | None:
    """The first and the last offset above a cursor that are gone and that no gap explains."""
    if cursor + 1 >= log_state.first:
        return None
    return page_plan.unexplained(cursor, log_state.first, gaps_of(transaction, log_state))
