"""Checks of dead letters: recorded once, found again, and published, redriven or discarded."""

from __future__ import annotations

from functools import partial

from ergon_framework.ports.providerstore import DeadLetter, LetterStatus, StoredLetter
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.providerstore.under_test import (
    CLOCK,
    OTHER_TENANT,
    TENANT,
    ProviderStoreSubject,
    numbers_of,
    same,
)

CHECKS: list[Check[ProviderStoreSubject]] = []
check = register(CHECKS)

PENDING, PUBLISHED = LetterStatus.PENDING, LetterStatus.PUBLISHED
REDRIVE, REDRIVEN = LetterStatus.REDRIVE, LetterStatus.REDRIVEN
DISCARDED = LetterStatus.DISCARDED


@check()
def letter_comes_back_whole(s: ProviderStoreSubject) -> None:
    """Every field of a letter comes back as it was written, payload included."""
    full = DeadLetter(
        dead_letter_id="3c1d5e7f-3333-4a4a-8b8b-112233445566",
        tenant_id=TENANT,
        campaign_id="campaign-9",
        task_name="rank.snapshot",
        provider_name="rank",
        capability="snapshot",
        operation="fetch",
        idempotency_key="key-1",
        correlation_id="call-1",
        reason_code="dependency_unavailable",
        error_type="ConnectError",
        error_message="“no” answer: naïve, 漢字, 🍵",
        attempts=5,
        occurred_at=s.start + 0.25,
        http_status=503,
        retryable=True,
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        redrive_count=2,
        payload={"a": [1, 2.5, None, True, {"b": ["\0", "🍵", ""]}], "c": {}, "d": 1 << 53},
        has_secrets=True,
    )
    s.record(letters=[full])
    same(s.store.letters(), [StoredLetter(full, PENDING)], "the letter")
    same(s.store.due_letters(PENDING), [StoredLetter(full, PENDING)], "the letter that is due")


@check()
def unset_fields_stay_unset(s: ProviderStoreSubject) -> None:
    """A letter without a payload has none, and one with an empty payload has an empty one."""
    s.bury(1, payload=None)
    s.bury(2, payload={})
    same(s.stored(1), StoredLetter(s.letter(1, payload=None), PENDING), "without")
    same(s.stored(2).letter.payload, {}, "with an empty one")


@check()
def newest_letter_comes_first(s: ProviderStoreSubject) -> None:
    """Letters are listed from the newest on, in whatever order they were written."""
    s.bury(2, 5, 1)
    s.bury(4, 3)
    same(numbers_of(s.store.letters()), [5, 4, 3, 2, 1], "the letters")
    same(numbers_of(s.store.letters(limit=2)), [5, 4], "the first two")


@check()
def letters_are_listed_in_pages(s: ProviderStoreSubject) -> None:
    """Without a limit of one's own, a hundred letters are listed, or are due."""
    s.bury(*range(130))
    same(numbers_of(s.store.letters()), list(range(129, 29, -1)), "the letters")
    same(numbers_of(s.store.due_letters(PENDING)), list(range(100)), "the due ones")
    same(len(s.store.letters(limit=1000)), 130, "how many there are")


@check()
def letters_by_status(s: ProviderStoreSubject) -> None:
    """Letters of one status, or of some, can be asked for."""
    for number, status in enumerate(LetterStatus):
        s.bury_as(number, status)
    for number, status in enumerate(LetterStatus):
        same(numbers_of(s.store.letters(statuses=[status])), [number], status.value)
        same(s.stored(number).status, status, "as the letter says")
    found = s.store.letters(statuses=(DISCARDED, PENDING, REDRIVE))
    same(numbers_of(found), [4, 2, 0], "of three statuses")


@check()
def letters_by_tenant(s: ProviderStoreSubject) -> None:
    """A tenant's letters are its own."""
    s.bury(1, 3)
    s.bury(2, tenant_id=OTHER_TENANT)
    same(numbers_of(s.store.letters(tenant_id=TENANT)), [3, 1], "of one tenant")
    same(numbers_of(s.store.letters(tenant_id=OTHER_TENANT)), [2], "of the other")
    same(s.store.letters(tenant_id="nobody"), [], "of a tenant without letters")


@check()
def letters_by_id(s: ProviderStoreSubject) -> None:
    """Letters can be asked for by their ids; one that is not there is left out."""
    s.bury(*range(1, 7))
    ids = ["letter-4", "letter-99", "letter-2", "letter-4"]
    same(numbers_of(s.store.letters(ids=ids)), [4, 2], "the letters")
    same(s.store.letters(ids=["letter-99"]), [], "of an unknown id")
    many = [f"letter-{n}" for n in range(2000)]
    same(len(s.store.letters(ids=many)), 6, "of many ids")


@check()
def filters_hold_together(s: ProviderStoreSubject) -> None:
    """A letter is listed when it meets everything that was asked for."""
    s.bury(1, 2, 3)
    s.bury(4, tenant_id=OTHER_TENANT)
    s.bury_as(5, PUBLISHED)
    ids = ["letter-2", "letter-3", "letter-4", "letter-5"]
    found = s.store.letters(statuses=[PENDING], tenant_id=TENANT, ids=ids)
    same(numbers_of(found), [3, 2], "the letters")
    found = s.store.letters(statuses=[PENDING], tenant_id=TENANT, ids=ids, limit=1)
    same(numbers_of(found), [3], "the first of them")


@check()
def oldest_letter_is_due_first(s: ProviderStoreSubject) -> None:
    """The relay gets the letters of a status from the oldest on, and no more than it asked for."""
    s.bury_as(0, PUBLISHED)
    s.bury(2, 5, 1)
    s.bury_as(3, REDRIVE)
    s.bury(4)
    same(numbers_of(s.store.due_letters(PENDING)), [1, 2, 4, 5], "those to publish")
    same(numbers_of(s.store.due_letters(PENDING, 2)), [1, 2], "the first two")
    same(numbers_of(s.store.due_letters(REDRIVE)), [3], "those to send")


@check()
def due_letters_of_some_tasks(s: ProviderStoreSubject) -> None:
    """A relay that names its tasks gets their letters alone, however many others are older."""
    for number in range(5):
        s.bury(number, task_name="others")
    s.bury(5, 7, task_name="mine")
    s.bury(6, task_name="mine too")
    due = s.store.due_letters
    same(numbers_of(due(PENDING, 2, task_names=["mine"])), [5, 7], "those of one task")
    names = {"mine", "mine too", "nobody's"}
    same(numbers_of(due(PENDING, task_names=names)), [5, 6, 7], "those of several")
    same(numbers_of(due(PENDING, task_names=())), [], "those of no task")
    same(len(due(PENDING)), 8, "how many there are of any task")


@check()
def letter_written_again_is_left_out(s: ProviderStoreSubject) -> None:
    """A letter that is there already is neither doubled nor changed, wherever it stands by now."""
    s.bury(1, 2)
    s.move(1, PUBLISHED, PENDING)
    before = s.stored(1)
    s.record(letters=[s.letter(1, error_message="another"), s.letter(2), s.letter(3), s.letter(3)])
    same(s.stored(1), before, "the letter that was published")
    same(numbers_of(s.store.letters()), [3, 2, 1], "the letters")


@check()
def payload_is_a_copy(s: ProviderStoreSubject) -> None:
    """What the caller and readers do with a payload does not reach the store."""
    payload = {"items": [1]}
    s.bury(1, payload=payload)
    payload["items"].append(2)
    read = s.stored(1).letter.payload or {}
    read["items"].append(3)
    same(s.stored(1).letter.payload, {"items": [1]}, "the payload")


@check()
def large_payload(s: ProviderStoreSubject) -> None:
    """A payload of a megabyte comes back whole."""
    payload = {"text": "tea " * 250_000}
    s.bury(1, payload=payload)
    same(s.stored(1).letter.payload == payload, True, "whether it is the same")


@check()
def letter_moves(s: ProviderStoreSubject) -> None:
    """A letter that is where it was thought to be takes the new status, and leaves the old list."""
    s.bury(1, 2)
    same(s.move(1, PUBLISHED, PENDING), True, "whether it moved")
    same(s.stored(1).status, PUBLISHED, "its status")
    same(s.stored(1).letter, s.letter(1), "the letter")
    same(numbers_of(s.store.due_letters(PENDING)), [2], "those that are due")
    same(s.move(1, REDRIVE, PENDING, PUBLISHED), True, "whether it moved from one of two")
    same(numbers_of(s.store.due_letters(REDRIVE)), [1], "those to send again")


@check()
def letter_moves_only_when(s: ProviderStoreSubject) -> None:
    """A letter that is elsewhere stays there."""
    s.bury(1)
    s.bury_as(2, DISCARDED)
    before = s.stored(1), s.stored(2)
    same(s.move(1, PUBLISHED, REDRIVE, PUBLISHED), False, "whether one moved")
    same(s.move(2, PUBLISHED, PENDING), False, "whether the other moved")
    same(s.move(1, PUBLISHED), False, "whether it moved from nowhere")
    same((s.stored(1), s.stored(2)), before, "the letters")


@check()
def unknown_letter_does_not_move(s: ProviderStoreSubject) -> None:
    """A letter that is not there cannot be moved, and is not made."""
    same(s.move(1, PUBLISHED, PENDING), False, "whether it moved")
    same(s.store.letters(), [], "the letters")


@check(CLOCK)
def instants_of_a_letter(s: ProviderStoreSubject) -> None:
    """When a letter was published and when it was sent again is kept, each for itself."""
    s.bury(1)
    same((s.stored(1).published_at, s.stored(1).redriven_at), (None, None), "at first")
    s.clock.forward(10.0)
    s.move(1, PUBLISHED, PENDING)
    same((s.stored(1).published_at, s.stored(1).redriven_at), (s.start + 10.0, None), "published")
    s.clock.forward(10.0)
    s.move(1, REDRIVE, PUBLISHED)
    same((s.stored(1).published_at, s.stored(1).redriven_at), (s.start + 10.0, None), "wanted")
    s.clock.forward(10.0)
    s.move(1, REDRIVEN, REDRIVE)
    found = s.stored(1).published_at, s.stored(1).redriven_at
    same(found, (s.start + 10.0, s.start + 30.0), "sent again")


@check(CLOCK)
def discarding_is_neither(s: ProviderStoreSubject) -> None:
    """A letter that is discarded was neither published nor sent again."""
    s.bury(1)
    s.move(1, DISCARDED, PENDING)
    same((s.stored(1).published_at, s.stored(1).redriven_at), (None, None), "the instants")


@check()
def one_relay_moves_a_letter(s: ProviderStoreSubject) -> None:
    """Of several relays that move a letter at once, one does."""
    s.bury(*range(5))
    for number in range(5):
        answers = s.together([partial(s.move, number, PUBLISHED, PENDING)] * 8)
        same(sum(answers), 1, f"moves of letter {number}")


@check()
def deleted_letter_is_gone(s: ProviderStoreSubject) -> None:
    """Letters that were deleted are not listed, not due and cannot be moved."""
    s.bury(1, 2, 3)
    same(s.store.delete_letters(["letter-1", "letter-3"]), 2, "how many there were")
    same(numbers_of(s.store.letters()), [2], "the letters")
    same(numbers_of(s.store.due_letters(PENDING)), [2], "those that are due")
    same(s.move(1, PUBLISHED, PENDING), False, "whether one of them moved")


@check()
def deleting_counts_what_was_there(s: ProviderStoreSubject) -> None:
    """Ids that are not there, or are named twice, are not counted."""
    s.bury(1, 2)
    same(s.store.delete_letters([]), 0, "of no ids")
    same(s.store.delete_letters(["letter-9"]), 0, "of an unknown id")
    same(s.store.delete_letters(["letter-1", "letter-1", "letter-9"]), 1, "of one that is there")
    same(s.store.delete_letters(["letter-1"]), 0, "of one that was deleted")
    s.bury(*range(10, 60))
    many = [f"letter-{n}" for n in range(2000)]
    same(s.store.delete_letters(many), 51, "of many ids")


@check()
def attempts_outlive_their_letter(s: ProviderStoreSubject) -> None:
    """Deleting a letter deletes no attempt."""
    row = s.attempt(correlation_id="call")
    s.record(row, letters=[s.letter(1)])
    s.store.delete_letters(["letter-1"])
    same(s.store.attempts_of("call"), [row], "the attempts")
    expect(s.store.health(row.tenant_id), "the lane is gone")
