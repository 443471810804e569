from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ergon_framework.engine.intake import BatchReader, FetchResult
from ergon_framework.errors import FetchException
from ergon_framework.ports.transaction import Transaction

A, B, C = (Transaction(f"t{number}", {"secret": "s3cr3t"}) for number in range(3))
items = st.lists(st.sampled_from([A, B, C, None, 7, "s3cr3t", {"secret": "s3cr3t"}]), max_size=8)
repeatable = settings(derandomize=True, deadline=None, max_examples=40)


class Special(Transaction):
    """A connector's own kind of transaction."""


def read(answer: object) -> FetchResult:
    """What a connector's answer is read as."""
    delivery = FetchResult(5)
    assert BatchReader(lambda _: answer).read(5, delivery) is delivery
    assert delivery.requested == 5
    return delivery


def failing(error: BaseException, *first: object) -> Iterator[object]:
    """A generator that breaks after it gave some items."""
    yield from first
    raise error


@pytest.mark.req("T3.9")
@pytest.mark.parametrize("answer", [None, [], (), iter(()), deque()])
def test_nothing_is_an_empty_delivery(answer: object) -> None:
    """None counts as empty, and so does every empty iterable."""
    assert read(answer) == FetchResult(5)


@pytest.mark.req("T3.9", "RFC-004:13.2a")
@pytest.mark.parametrize("kind", [list, tuple, deque])
def test_order_and_number_are_the_connector_s(kind: type) -> None:
    """What is all there is taken, in its order, without dropping repeats or a surplus."""
    six = [C, A, B, A, C, C]
    assert read(kind(six)) == FetchResult(5, six)


@pytest.mark.req("RFC-004:13.2a")
def test_the_connector_s_list_stays_its_own() -> None:
    """What either side does with its list later is not seen by the other."""
    own = [A, B]
    delivery = read(own)
    own.clear()
    assert delivery.transactions == [A, B]
    delivery.transactions.clear()
    assert read([A]).transactions == [A]


@pytest.mark.req("T3.9", "R3-D3")
@repeatable
@given(items.map(lambda some: some[:5]))
def test_a_list_is_read_like_any_other_iterable(answer: list[object]) -> None:
    """A list of nothing but transactions may take a shorter way; nobody can tell."""
    as_list, as_iterator = read(answer), read(iter(answer))
    assert as_list.transactions == as_iterator.transactions
    assert str(as_list.error) == str(as_iterator.error)
    assert as_list.is_defect == as_iterator.is_defect


@pytest.mark.req("T3.9")
def test_a_transaction_of_a_derived_class_is_a_transaction() -> None:
    """Alone and among others."""
    special = Special("t9")
    assert read([special]) == FetchResult(5, [special])
    assert read([A, special, B]) == FetchResult(5, [A, special, B])


@pytest.mark.req("T3.9", "RFC-004:13.2a")
def test_an_iterator_is_read_as_far_as_was_asked_for() -> None:
    """What goes on is gone on with before the source is asked again; nothing is dropped."""
    given = iter([iter([A, B, C, A, B]), iter([C])])
    reader = BatchReader(lambda _: next(given))
    batches = [reader.read(2, FetchResult(2)).transactions for _ in range(4)]
    assert batches == [[A, B], [C, A], [B], [C]]
    assert not reader.is_open


@pytest.mark.req("T3.9")
def test_a_generator_that_ends_in_time_has_run_to_its_end() -> None:
    """What stands behind its last yield, a commit for example, is done within the fetch."""
    done: list[str] = []

    def rows() -> Iterator[Transaction]:
        yield from (A, B)
        done.append("committed")

    assert BatchReader(lambda _: rows()).read(2, FetchResult(2)).transactions == [A, B]
    assert done == ["committed"]


@pytest.mark.req("T3.9")
def test_a_generator_is_used_up_once() -> None:
    """A lazy answer is materialised."""
    lazy = (one for one in (A, B))
    assert read(lazy).transactions == [A, B]
    assert list(lazy) == []


@pytest.mark.req("T3.9", "RFC-004:7.1d")
def test_what_a_generator_gave_before_it_raised_is_kept() -> None:
    """The error is told as it is; asking again may help."""
    error = ConnectionError("gone")
    assert read(failing(error, A, B)) == FetchResult(5, [A, B], error)


@pytest.mark.parametrize("error", [SystemExit(1), GeneratorExit(), KeyboardInterrupt()])
def test_an_interruption_loses_nothing_either(error: BaseException) -> None:
    """Ctrl-C inside a generator keeps what has already left the source."""
    delivery = read(failing(error, A))
    assert delivery.transactions == [A]
    assert delivery.error is error


def test_an_interruption_after_nonsense_is_still_told() -> None:
    """A stop must not hide behind an earlier complaint."""
    error = KeyboardInterrupt()
    delivery = read(failing(error, A, 7, B))
    assert delivery.transactions == [A, B]
    assert delivery.error is error


@pytest.mark.req("T3.9", "RFC-004:7.1d")
@pytest.mark.parametrize("answer", ["t1", b"t1", {"t1": A}, 7, 1.5, object(), Transaction])
def test_what_is_no_list_is_a_defect_of_the_connector(answer: object) -> None:
    """A string or a dict can be iterated, but its parts are not what was meant."""
    delivery = read(answer)
    assert delivery.transactions == []
    assert isinstance(delivery.error, FetchException)
    assert f"returned {type(answer).__name__} instead" in delivery.error.message
    assert "None when there is nothing" in delivery.error.remedy
    assert delivery.is_defect


@pytest.mark.req("T3.9")
def test_a_bare_transaction_is_a_defect_and_yet_kept() -> None:
    """It has left the source already."""
    delivery = read(A)
    assert delivery.transactions == [A]
    assert isinstance(delivery.error, FetchException)
    assert delivery.is_defect


@pytest.mark.req("T3.9", "RFC-004:16b")
@repeatable
@given(items)
def test_valid_ones_are_kept_beside_others(answer: list[object]) -> None:
    """Nothing valid is dropped; the first other item is named by place and type, not by content."""
    delivery = read(answer)
    assert delivery.transactions == [one for one in answer if isinstance(one, Transaction)]
    wrong = [place for place, one in enumerate(answer) if not isinstance(one, Transaction)]
    assert delivery.is_defect == bool(wrong)
    if not wrong:
        assert delivery.error is None
        return
    assert isinstance(delivery.error, FetchException)
    first = f"item {wrong[0]} of the batch is {type(answer[wrong[0]]).__name__}, not a Transaction"
    assert delivery.error.message == first
    assert "s3cr3t" not in str(delivery.error)
    assert "Transaction(" in delivery.error.remedy
