"""The behaviour every connector must show, as checks that run without a test framework."""

from __future__ import annotations

import contextlib
import difflib
import inspect
from collections.abc import Callable, Collection, Iterator
from typing import Any, Literal

from ergon_framework.errors import WiringError, describe
from ergon_framework.testing.suites.connector.dispatch import CHECKS as DISPATCH_CHECKS
from ergon_framework.testing.suites.connector.faults import CHECKS as FAULT_CHECKS
from ergon_framework.testing.suites.connector.faults import ConnectorFaults
from ergon_framework.testing.suites.connector.fetch import CHECKS as FETCH_CHECKS
from ergon_framework.testing.suites.connector.lifecycle import CHECKS as LIFECYCLE_CHECKS
from ergon_framework.testing.suites.connector.settlement import CHECKS as SETTLEMENT_CHECKS
from ergon_framework.testing.suites.connector.under_test import (
    ConnectorSubject,
    DeadLetters,
    Seed,
    Shape,
    methods_of,
)
from ergon_framework.testing.suites.drivers import CheckCaller, LoopCaller, ThreadCaller, outcome
from ergon_framework.testing.suites.framework import (
    Check,
    CheckFailed,
    CheckOutcome,
    CheckResult,
    ConnectorSuiteError,
    SuiteReport,
)

CONNECTOR_CHECKS: tuple[Check[ConnectorSubject], ...] = (
    *FETCH_CHECKS,
    *DISPATCH_CHECKS,
    *SETTLEMENT_CHECKS,
    *LIFECYCLE_CHECKS,
    *FAULT_CHECKS,
)
LONGEST_SETUP = 30.0  # seconds: a factory may start a server
ORDERS = {
    "none": frozenset[str](),
    "fifo": frozenset({"fifo"}),
    "strict": frozenset({"fifo", "strict_order"}),
}
IDS = {"repeat": "repeating_ids", "unique": "unique_ids"}
FIELDS = ("metadata", "correlation_id", "trace_id", "source", "parent_id", "created_at")
"""What a connector may carry beside id and payload."""


def exercise_connector(
    make_connector: Callable[[], Any],
    *,
    colour: Literal["auto", "sync", "async", "both"] = "auto",
    seed: Seed | None = None,
    dead_letters: DeadLetters | None = None,
    order: Literal["none", "fifo", "strict"] = "fifo",
    ids: Literal["repeat", "unique"] = "repeat",
    carries: Collection[str] = FIELDS,
    shape: Shape | None = None,
    faults: ConnectorFaults | None = None,
    skip: Collection[str] = (),
    patience: float = 5.0,
    raises: bool = True,
) -> SuiteReport:
    """Try out everything a connector promises; raise when it breaks a required promise.

    ``make_connector`` gives a fresh, empty connector for each check: the connector itself or a
    context manager around it (sync or async), or an awaitable of either. Closing is tried at the
    end. What the connector offers is found by the names of its methods; checks that need more are
    skipped and named in the report.

    ``colour``: ``auto`` exercises whatever it offers; the others demand it.
    ``seed(connector, transactions)`` puts transactions in when it cannot be dispatched to.
    ``dead_letters(connector)`` gives the (id, reason) pairs that were set aside; without it an
    attribute ``dead`` of (transaction, reason) pairs is used. ``order``: ``strict`` promises that
    released transactions come back in their old order. ``ids``: ``unique`` promises that the same
    transaction dispatched again changes nothing, and that other content under its id is refused;
    otherwise it is new work. ``carries`` names the fields that the system behind the connector has
    room for. ``shape`` is a pair of functions for a connector that takes payloads of one shape
    only: any data put into that shape, and taken out again. ``faults`` says how to break what a
    broker can survive. ``skip`` waives checks by name.
    ``patience`` is how many seconds one call may take.
    """
    _refuse_an_instance(make_connector)
    _refuse_unknown(skip)
    promised = ORDERS[order] | {IDS[ids]} | {f"carries {field}" for field in carries}
    suite = _Suite(
        make_connector, seed, dead_letters, promised, frozenset(skip), patience, shape, faults
    )
    other_ids = frozenset(IDS.values()) - {IDS[ids]}
    title, colours = suite.probe(colour)
    results = tuple(
        suite.result(check, each)
        for each in colours
        for check in CONNECTOR_CHECKS
        if each in check.colours and not check.needs & other_ids
    )
    report = SuiteReport(title, results, ConnectorSuiteError)
    if raises:
        report.raise_for_failures()
    return report


class _Suite:
    """What is the same for every check."""

    def __init__(
        self,
        make_connector: Callable[[], Any],
        seed: Seed | None,
        dead_letters: DeadLetters | None,
        promised: frozenset[str],
        waived: frozenset[str],
        patience: float,
        shape: Shape | None,
        faults: ConnectorFaults | None,
    ) -> None:
        self._make = make_connector
        self._seed = seed
        self._dead_letters = dead_letters
        self._promised = promised
        self._waived = waived
        self._patience = patience
        self._shape = shape
        self._faults = faults or ConnectorFaults()

    def probe(self, colour: str) -> tuple[str, list[str]]:
        """The connector's name, and the colours to exercise."""
        with self._subject("async") as subject:  # on a loop, any kind of factory works
            connector = subject.connector
            title = type(connector).__name__
            offered = [each for each in ("sync", "async") if "fetch" in methods_of(connector, each)]
            can_put = self._seed is not None or any(
                "dispatch" in methods_of(connector, each) for each in offered
            )
        wanted = {"auto": offered, "both": ["sync", "async"]}.get(colour, [colour])
        for missing in set(wanted or ["sync"]) - set(offered):
            name = "fetch_transactions" + ("_async" if missing == "async" else "")
            raise WiringError(
                f"{title} has no method {name}",
                remedy=f"write it, or choose another colour; it offers {offered or 'none'}",
            )
        if not can_put:
            raise WiringError(
                f"{title} has no dispatch_transactions, so nothing can be put in to be fetched",
                remedy="give exercise_connector a seed(connector, transactions)",
            )
        return title, wanted

    def result(self, check: Check[ConnectorSubject], colour: str) -> CheckResult:
        """Run one check on a connector of its own."""
        how, reason = CheckOutcome.WAIVED, ""
        if check.name not in self._waived:
            how, reason = self._run(check, colour)
        return CheckResult(check.name, check.sentence, colour, check.required, how, reason)

    def _run(self, check: Check[ConnectorSubject], colour: str) -> tuple[CheckOutcome, str]:
        try:
            with self._subject(colour) as subject:
                missing = check.needs - subject.capabilities - self._promised
                if missing:
                    return CheckOutcome.SKIPPED, f"needs {', '.join(sorted(missing))}"
                check.run(subject)
        except CheckFailed as error:
            return CheckOutcome.FAILED, str(error)
        except Exception as error:
            return CheckOutcome.FAILED, describe(error)
        return CheckOutcome.PASSED, ""

    @contextlib.contextmanager
    def _subject(self, colour: str) -> Iterator[ConnectorSubject]:
        caller: CheckCaller = ThreadCaller() if colour == "sync" else LoopCaller()
        with contextlib.closing(caller), _entered(self._make, caller, self._patience) as connector:
            yield ConnectorSubject(
                connector,
                colour,
                caller,
                seed=self._seed,
                dead_letters=self._dead_letters,
                patience=self._patience,
                promised=self._promised,
                shape=self._shape,
                faults={name: getattr(self._faults, name) for name in self._faults.offered},
            )


@contextlib.contextmanager
def _entered(make: Callable[[], Any], caller: CheckCaller, patience: float) -> Iterator[Any]:
    """The result of ``make``: a connector, closed at the end, or a context manager around one."""
    made = _called(make, caller, "make_connector")
    is_manager = hasattr(made, "__enter__") or hasattr(made, "__aenter__")
    if is_manager and not _is_connector(made):
        enter = getattr(made, "__aenter__", None) or made.__enter__
        leave = getattr(made, "__aexit__", None) or made.__exit__
        connector = _called(enter, caller, "entering what make_connector gave")
        try:
            yield connector
        finally:
            _called(lambda: leave(None, None, None), caller, "leaving what make_connector gave")
        return
    try:
        yield made
    finally:
        close = getattr(made, "aclose", None) if isinstance(caller, LoopCaller) else None
        close = close or getattr(made, "close", None)
        if close is not None:
            with contextlib.suppress(Exception):  # closing has checks of its own
                outcome(caller.start(close), patience, "close")


def _called(call: Callable[[], Any], caller: CheckCaller, what: str) -> Any:
    result = outcome(caller.start(call), LONGEST_SETUP, what)
    if not inspect.isawaitable(result):
        return result
    if inspect.iscoroutine(result):
        result.close()
    raise WiringError(
        "make_connector is asynchronous, but the connector is exercised with threads",
        remedy='pass colour="async", or a factory that is not asynchronous',
    )


def _is_connector(made: Any) -> bool:
    return any("fetch" in methods_of(made, colour) for colour in ("sync", "async"))


def _refuse_an_instance(make_connector: Any) -> None:
    if not callable(make_connector):
        name = type(make_connector).__name__
        raise WiringError(
            f"exercise_connector needs a factory, not a {name}: each check gets a fresh connector",
            remedy=f"pass the class, or exercise_connector(lambda: {name}(...))",
        )


def _refuse_unknown(names: Collection[str]) -> None:
    known = {check.name for check in CONNECTOR_CHECKS}
    unknown = sorted(set(names) - known)
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, 1)
        raise WiringError(
            f"there is no check {unknown[0]!r} to skip",
            remedy=f"did you mean {near[0]!r}?" if near else "see CONNECTOR_CHECKS",
        )
