"""What stored facts refer to, read from their payloads.

Every append marks the names that its fact refers to. Earlier versions left that out for zones with
``verify_refs = false``, so an outbound log is read once (:func:`record_references`), and until that
is done nothing is collected as an orphan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from ergon_framework.boundary.facts.validation import REFERENCE_MARK, references
from ergon_framework.errors import DataLossError, FactInvalidError
from ergon_framework.ports.factstore import OUTBOUND, FactStore, Reference, StoredFact

RECORDED = "references"
"""The attribute of a store that says how far its outbound log was read, or that it was."""
_ALL = "all"
_PAGE, _PAGE_BYTES = 500, 4 << 20  # facts that are read at once, and their bytes
_OBJECT = "object_json"


def references_of(fact: StoredFact) -> tuple[Reference, ...]:
    """What a stored fact refers to."""
    if REFERENCE_MARK not in fact.fact:
        return ()
    try:
        return references(msgspec.json.decode(fact.fact).get(_OBJECT))
    except (msgspec.DecodeError, AttributeError, FactInvalidError):
        return ()  # it was validated when the rules were others


def stored_facts(store: FactStore, log: str, after: int = 0) -> Iterator[list[StoredFact]]:
    """The facts of a log page by page, without those that cannot be read."""
    head = next((each.head for each in store.logs() if each.name == log), 0)
    while after < head:
        try:
            page = store.page(log, after, _PAGE, _PAGE_BYTES)
        except DataLossError:
            after += 1
            continue
        after = max(page.through, after + 1)
        yield page.facts


def are_recorded(store: FactStore) -> bool:
    """Whether every name that a fact refers to is marked."""
    return store.attribute(RECORDED) == _ALL


def left_to_read(store: FactStore) -> int:
    """How many facts have to be read before that is so."""
    outbound = next(each for each in store.logs() if each.name == OUTBOUND)
    return outbound.head - max(_reached(store), outbound.first - 1)


def record_references(store: FactStore, is_stopping: Callable[[], bool]) -> bool:
    """Mark what the facts of the outbound log refer to; False when it was stopped on the way.

    It is unknown what a truncated fact referred to. If there are truncated facts, every name that
    exists now is marked: objects without any reference have been collected before.
    """
    outbound = next(each for each in store.logs() if each.name == OUTBOUND)
    if outbound.first > 1 and not _reached(store):
        _mark_all(store)
    for facts in stored_facts(store, OUTBOUND, _reached(store)):
        if is_stopping():
            return False
        names = [(each.bucket, each.key) for fact in facts for each in references_of(fact)]
        if names:
            store.refer(list(dict.fromkeys(names)))
        if facts:
            # After the names are marked: a process that dies in between marks some of them twice,
            # and misses none.
            store.set_attribute(RECORDED, str(facts[-1].offset))
    store.set_attribute(RECORDED, _ALL)
    return True


def _reached(store: FactStore) -> int:
    """The offset up to which the outbound log was read."""
    found = store.attribute(RECORDED)
    return int(found) if found is not None and found.isdigit() else 0


def _mark_all(store: FactStore) -> None:
    after = ("", "")
    while page := store.objects(after=after, limit=_PAGE):
        store.refer([(each.bucket, each.key) for each in page if not each.is_referenced])
        after = (page[-1].bucket, page[-1].key)
