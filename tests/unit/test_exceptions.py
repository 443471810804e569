from __future__ import annotations

import asyncio
import concurrent.futures
import pickle

import pytest

from ergon_framework import errors
from ergon_framework.task import exceptions
from ergon_framework.task.exceptions import (
    ConsumerLoopTimeoutException,
    ExceptionCategory,
    ExceptionType,
    FetchException,
    FetchTimeoutException,
    InputException,
    LoopTimeoutException,
    NonRetryableException,
    ProducerLoopTimeoutException,
    TransactionException,
    TransactionTimeoutException,
)


class UnknownCustomerError(TransactionException):
    def __init__(self, customer: str) -> None:
        super().__init__(f"unknown customer {customer}", ExceptionType.BUSINESS)
        self.customer = customer


@pytest.mark.req("RFC-004:5.1a", "RFC-005:5")
def test_the_module_gives_what_the_errors_module_defines() -> None:
    """Nothing is defined twice: the RFC's path leads to the one tree of errors."""
    for name in exceptions.__all__:
        assert getattr(exceptions, name) is getattr(errors, name)


@pytest.mark.req("R0-ERR")
def test_there_are_three_categories_under_two_names() -> None:
    """BUSINESS, SYSTEM and TIMEOUT; both names of the enum are one."""
    assert ExceptionCategory is ExceptionType
    assert [member.name for member in ExceptionType] == ["BUSINESS", "SYSTEM", "TIMEOUT"]


def test_a_failure_is_of_the_system_unless_it_says_otherwise() -> None:
    """The category is SYSTEM by default and may be given by member or by word."""
    assert TransactionException("x").category is ExceptionType.SYSTEM
    assert TransactionException("x", ExceptionType.BUSINESS).category is ExceptionType.BUSINESS
    assert TransactionException("x", category="business").category is ExceptionType.BUSINESS


@pytest.mark.req("T3.29")
def test_the_category_alone_is_enough() -> None:
    """The shorthand with the category as the only argument leaves the message to us."""
    error = TransactionException(ExceptionType.BUSINESS)
    assert error.category is ExceptionType.BUSINESS
    assert str(error) == "transaction failed (business)"


@pytest.mark.req("T3.29")
def test_two_categories_in_one_call_do_not_swap() -> None:
    """A category given by name wins over one that stands where the message belongs."""
    error = TransactionException(ExceptionType.BUSINESS, ExceptionType.TIMEOUT)
    assert error.category is ExceptionType.TIMEOUT
    assert str(error) == "business"


def test_an_unknown_category_is_refused() -> None:
    """A category outside of the three is an error, not a new kind of failure."""
    with pytest.raises(ValueError, match="fatal"):
        TransactionException("x", category="fatal")


@pytest.mark.req("R1-E2")
def test_a_failure_carries_its_transaction_and_its_cause() -> None:
    """Wrapping keeps the id and the original; without a message the original is described."""
    cause = KeyError("customer")
    error = TransactionException(transaction_id="t1", cause=cause)
    assert error.transaction_id == "t1"
    assert error.cause is cause is error.__cause__
    assert str(error) == "KeyError: 'customer'"


def test_a_cause_that_cannot_be_printed_hides_nothing() -> None:
    """An exception whose text raises is still described by its type."""

    class SilentError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert str(TransactionException(cause=SilentError())) == "SilentError"


def test_a_failure_leaves_the_process_in_one_shape() -> None:
    """Code, message and details, with the category and the transaction's id among them."""
    error = TransactionException("bad", ExceptionType.BUSINESS, "t1", remedy="ask again")
    assert error.to_dict() == {
        "code": "transaction",
        "message": "bad",
        "details": {"remedy": "ask again", "category": "business", "transaction_id": "t1"},
    }
    assert str(error) == "bad (ask again)"


def test_special_failures_are_failures() -> None:
    """Non-retryable and timed-out failures are caught where failures are caught."""
    assert issubclass(NonRetryableException, TransactionException)
    assert TransactionTimeoutException("late").category is ExceptionType.TIMEOUT
    assert NonRetryableException("x", ExceptionType.BUSINESS).category is ExceptionType.BUSINESS


@pytest.mark.req("RFC-005:11f")
@pytest.mark.parametrize(
    "kind",
    [
        FetchTimeoutException,
        LoopTimeoutException,
        ConsumerLoopTimeoutException,
        ProducerLoopTimeoutException,
    ],
)
def test_timeouts_of_calls_are_timeout_errors(kind: type[FetchException]) -> None:
    """Whoever catches any of Python's timeout errors catches ours, with report and category."""
    error = kind("late", remedy="wait longer", report=7)
    for builtin in (TimeoutError, asyncio.TimeoutError, concurrent.futures.TimeoutError):
        assert isinstance(error, builtin)
    assert (error.report, error.category) == (7, ExceptionType.TIMEOUT)
    assert str(error) == "late (wait longer)"


def test_a_failed_fetch_is_no_failed_transaction() -> None:
    """Fetch and input errors end a call; they are not about one transaction."""
    assert not issubclass(FetchException, TransactionException)
    assert not issubclass(InputException, TransactionException)
    assert FetchException("x").report is None
    assert issubclass(FetchTimeoutException, FetchException)


@pytest.mark.parametrize("name", exceptions.__all__)
def test_every_exception_survives_pickling(name: str) -> None:
    """A worker process can tell its parent what happened."""
    kind = getattr(exceptions, name)
    if kind is ExceptionType:
        return
    error = kind("what", remedy="do")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(again) is kind
    assert again.to_dict() == error.to_dict()


def test_an_exception_of_the_users_own_survives_pickling() -> None:
    """A subclass with another constructor and attributes of its own comes back whole."""
    error = UnknownCustomerError("c7")
    error.transaction_id = "t1"
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(again) is UnknownCustomerError
    assert (again.customer, again.category, again.transaction_id) == (
        "c7",
        ExceptionType.BUSINESS,
        "t1",
    )
    assert str(again) == "unknown customer c7"


def test_a_cause_that_cannot_be_pickled_does_not_lose_the_failure() -> None:
    """The cause is left behind; what it said is in the message."""
    error = TransactionException(cause=ValueError(lambda: None), transaction_id="t1")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (again.message, again.transaction_id) == (error.message, "t1")


def test_every_error_of_the_tree_has_a_stable_code_and_a_base() -> None:
    """All errors descend from one base and name themselves for programs."""
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ]
    assert len(kinds) > 10
    for kind in kinds:
        assert issubclass(kind, errors.ErgonError)
        assert kind.code == kind.code.lower()
