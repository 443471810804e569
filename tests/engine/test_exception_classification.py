"""Exceptions are the user's objects: whatever one does when it is looked at, it is classified."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.transaction_lifecycle import LifecycleStep
from ergon_framework.engine.classify import classify, fetch_failure
from ergon_framework.errors import (
    ErgonError,
    ExceptionType,
    NonRetryableException,
    TransactionException,
    describe,
)
from ergon_framework.testing.scripted import ScriptedConnector, transactions
from tests.engine.bodies import rules
from tests.engine.colours import Colour, consume

BASES: tuple[type[BaseException], ...] = (
    TransactionException,
    NonRetryableException,
    ErgonError,
    ValueError,
    TimeoutError,
    asyncio.CancelledError,
)
ATTRIBUTES = (
    "category", "code", "message", "remedy", "details", "transaction_id", "failure_kind",
    "retry_after_seconds", "__class__", "__cause__", "__context__", "__notes__", "args",
)  # fmt: skip
METHODS = (
    "__str__", "__repr__", "__eq__", "__bool__", "__len__", "__setattr__", "__getattribute__",
    "__format__", "__hash__", "__init__",
)  # fmt: skip


class Text(str):
    """A string that cannot be used."""

    __slots__ = ()

    def _no(self, *_given: Any) -> Any:
        raise RuntimeError("no")

    __format__ = __len__ = __bool__ = __str__ = __eq__ = __hash__ = _no


def _member(dice: random.Random) -> Any:
    """What an attribute or a method of a hostile class does."""
    raised = dice.choice([RuntimeError, AttributeError, RecursionError, MemoryError, SystemExit])

    def fails(*_given: Any, **_named: Any) -> Any:
        raise raised("hostile")

    odd = dice.choice(
        [None, 7, "", "nonsense", "BUSINESS", [], {}, float("nan"), object(), Text("x"), b"x"]
    )
    return dice.choice([fails, lambda *_given, **_named: odd])


def hostile(dice: random.Random) -> type[BaseException]:
    """A class of exceptions with a few members that do harm."""
    members: dict[str, Any] = {}
    for name in dice.sample(ATTRIBUTES, dice.randint(0, 4)):
        act = _member(dice)
        members[name] = property(act) if dice.random() < 0.6 else act() if _is_calm(act) else act
    for name in dice.sample(METHODS, dice.randint(0, 3)):
        members[name] = _member(dice)
    if "__init__" in members or dice.random() < 0.3:
        members["__init__"] = lambda self, *_given: None  # forgets super().__init__()
    kind = type("Hostile", (dice.choice(BASES),), members)
    assert issubclass(kind, BaseException)
    return kind


def _made(kind: type[BaseException]) -> BaseException:
    try:
        return kind("text")
    except BaseException:  # its constructor could not work; user code has half-made ones, too
        return kind.__new__(kind, "text")


def _is_calm(act: Any) -> bool:
    try:
        act()
    except BaseException:
        return False
    return True


def _check(failure: Failure, given: TransactionException) -> None:
    assert isinstance(failure.kind, Kind)
    assert (type(failure.code), type(failure.message)) == (str, str)
    assert failure.retry_after is None or type(failure.retry_after) is float
    assert issubclass(type(given), TransactionException)
    assert type(given.category) is ExceptionType
    assert given.transaction_id == "t1"
    assert str.__str__(str(given)) is not None


@pytest.mark.req("RFC-004:15a", "R0-ERR", "R1-E2", "T3.29")
@pytest.mark.parametrize("seed", range(400))
def test_nothing_that_an_exception_does_raises_in_the_classifier(seed: int) -> None:
    """Random hostile classes: a failure of plain values, and an exception a handler can use."""
    dice = random.Random(seed)  # noqa: S311
    error = _made(hostile(dice))
    for step in LifecycleStep:
        _check(*classify(error, step, "t1"))
    assert isinstance(fetch_failure(error).kind, Kind)
    assert type(describe(error)) is str


@pytest.mark.req("RFC-004:15a", "R0-I3", "R0-ERR")
@pytest.mark.parametrize("seed", range(60))
def test_a_hostile_exception_costs_nobody_his_outcome(colour: Colour, seed: int) -> None:
    """Raised by any hook or by the fetch: each transaction has one outcome; the call goes on."""
    dice = random.Random(seed)  # noqa: S311
    hook = dice.choice(["process", "success", "exception", "fetch"])
    error = _made(hostile(dice))

    def throws() -> None:  # the script would look at the exception itself
        raise error

    hooks: dict[str, Any] = {} if hook == "fetch" else {hook: {"t1": [throws]}}
    if hook == "exception":
        hooks["process"] = {"t1": [ValueError("first")]}
    answers: list[Any] = [transactions(2)]
    if hook == "fetch":
        answers.insert(0, throws)
    source = ScriptedConnector(answers, settling=True)
    outcome = consume(colour, source, rules(size=2, steps={"fetch": {"max_attempts": 2}}), **hooks)
    if hook == "fetch" and outcome.error is not None:
        assert outcome.report == 0
        return
    assert outcome.error is None
    assert outcome.report == 2
    assert outcome.report.failed == (hook != "fetch")
    assert sorted(name for _verb, name in source.settled) == ["t1", "t2"]


class OutOfStock(TransactionException):
    """As people write it: the category on the class, a constructor of its own, no super()."""

    category = ExceptionType.BUSINESS

    def __init__(self, sku: str) -> None:
        self.sku = sku


class Busy(TransactionException):
    """The same with the category as a word."""

    def __init__(self) -> None:
        self.category = "business"  # type: ignore[assignment]


@pytest.mark.req("R2-E1", "R0-I8", "T3.29")
def test_a_subclass_without_super_is_what_it_says_it_is(colour: Colour) -> None:
    """Its category counts, and the handler is given that very exception, with the id on it."""
    for error in (OutOfStock("a-1"), Busy()):
        policy = rules(steps={"process": {"max_attempts": 3}})
        outcome = consume(colour, [transactions(1)], policy, process=[error])
        assert outcome.calls() == ["process:t1", "exception:t1"]
        told = outcome.happened[-1].argument
        assert told is error
        assert (told.category, told.transaction_id) == (ExceptionType.BUSINESS, "t1")
    assert str(OutOfStock("a-1")) == "a-1"
    assert OutOfStock("a-1").to_dict()["details"]["category"] == "business"


@pytest.mark.req("R2-E1", "T3.29")
def test_an_exception_that_cannot_be_handed_on_is_wrapped(colour: Colour) -> None:
    """The handler gets one of ours with the user's as its cause, and a category it can read."""

    class Odd(TransactionException):
        @property
        def category(self) -> Any:  # type: ignore[override]
            return "odd"

        def __init__(self) -> None:
            pass

    error = Odd()
    outcome = consume(colour, [transactions(1)], rules(), process=[error])
    told = outcome.happened[-1].argument
    assert told.cause is error
    assert (told.category, told.transaction_id) == (ExceptionType.SYSTEM, "t1")
