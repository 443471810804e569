"""Running one transaction by hand: given as JSON, or fetched from its connector by its id."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from ergon_framework.app.console import ExitCode
from ergon_framework.app.outcome import error_shape
from ergon_framework.app.run_parts import work_on
from ergon_framework.app.signals import Shutdown
from ergon_framework.app.wiring import Wiring
from ergon_framework.errors import (
    ConfigurationError,
    EnvelopeError,
    ErgonError,
    TransactionException,
    WiringError,
    describe,
)
from ergon_framework.ports.transaction import Transaction, new_id
from ergon_framework.task.base import choose_connector

MAX_RESULT = 10_000
"""Characters of a result's repr that are shown."""


class NotFoundError(ErgonError):
    """The connector has no transaction with this id."""

    code = "not_found"


@dataclass(frozen=True, slots=True)
class SingleOutcome:
    """How one transaction ended."""

    transaction_id: str
    outcome: str
    exit_code: ExitCode
    result: Any = None
    error: BaseException | None = None

    def to_dict(self, *, shows_result: bool = False) -> dict[str, Any]:
        """Plain values; the result only as its type, unless the caller asked to see it."""
        view: dict[str, Any] = {
            "transaction_id": self.transaction_id,
            "outcome": self.outcome,
            "exit_code": int(self.exit_code),
            "result_type": type(self.result).__name__ if self.outcome == "succeeded" else None,
        }
        if shows_result:
            view["result"] = self.result if _is_json(self.result) else self.result_text
        view["error"] = None if self.error is None else error_shape(self.error)
        return view

    @property
    def result_text(self) -> str:
        """The beginning of the result's repr, for people."""
        try:
            return repr(self.result)[:MAX_RESULT]
        except Exception as error:  # a repr of the user's, or a number of too many digits
            return f"<{type(self.result).__name__} without a repr: {describe(error)}>"


def transaction_from(payload: str, transaction_id: str | None, metadata: str | None) -> Transaction:
    """A transaction of JSON texts. What is wrong with them is said without repeating them."""
    content = None if metadata is None else _json("metadata", metadata)
    if content is not None and not isinstance(content, dict):
        raise EnvelopeError(
            f"metadata must be a JSON object, not {type(content).__name__}",
            remedy='for example --metadata \'{"source": "manual"}\'',
        )
    chosen = new_id() if transaction_id is None else transaction_id
    return Transaction(chosen, _json("payload", payload), content)


def process_one(wiring: Wiring, transaction: Transaction, shutdown: Shutdown) -> SingleOutcome:
    """One lifecycle of this transaction, with the task's policy. Nothing is settled."""
    return _process(wiring, lambda _task: transaction, transaction.transaction_id, shutdown)


def process_by_id(wiring: Wiring, transaction_id: str, shutdown: Shutdown) -> SingleOutcome:
    """Run one lifecycle for the transaction that the task's connector finds by its id."""

    def look_up(task: Any) -> Any:
        method = _look_up_method(task, wiring)
        found = method(transaction_id)
        return _checked_later(found) if inspect.isawaitable(found) else _checked(found)

    async def _checked_later(found: Awaitable[Any]) -> Transaction:
        return _checked(await found)

    def _checked(found: Any) -> Transaction:
        if found is None:
            raise NotFoundError(
                f"the connector has no transaction {transaction_id!r}",
                remedy="check the id; what was settled may be gone from its source",
            )
        if not isinstance(found, Transaction):
            raise EnvelopeError(
                f"the connector found {type(found).__name__}, which is no Transaction"
            )
        return found

    return _process(wiring, look_up, transaction_id, shutdown)


def _process(
    wiring: Wiring, get: Callable[[Any], Any], transaction_id: str, shutdown: Shutdown
) -> SingleOutcome:
    policy = wiring.policies.main(wiring.kind)
    start = _start_of(wiring)

    def work(task: Any) -> Any:
        return getattr(task, start)(get(task), policy)

    async def work_async(task: Any) -> Any:
        transaction = get(task)
        if inspect.isawaitable(transaction):
            transaction = await transaction
        return await getattr(task, start)(transaction, policy)

    try:
        answer = work_on(wiring, shutdown, work_async if wiring.kind.is_async else work)
    # An error of the task's own hooks is in the answer; what is raised here is one of the command.
    except Exception:
        raise
    except BaseException as error:  # a hook asked for the end of the process: it gets an outcome
        # One that somebody stops has no outcome; for SystemExit and the like the handler is called.
        is_stop = isinstance(error, KeyboardInterrupt | asyncio.CancelledError)
        code = shutdown.exit_code or _code_of_end(error)
        return SingleOutcome(transaction_id, "aborted" if is_stop else "failed", code, error=error)
    is_ok, value = answer or (False, None)
    return _outcome(transaction_id, is_ok, value, shutdown.exit_code)


def _outcome(transaction_id: str, is_ok: bool, value: Any, asked: ExitCode | None) -> SingleOutcome:
    if not is_ok and value is None:
        return SingleOutcome(transaction_id, "aborted", asked or ExitCode.FAILED)
    if is_ok:
        return SingleOutcome(transaction_id, "succeeded", asked or ExitCode.DONE, value)
    how = "failed"
    if isinstance(value, TransactionException) and value.category == "timeout":
        how = "timed_out"
    return SingleOutcome(transaction_id, how, asked or ExitCode.FAILED, error=value)


def _code_of_end(error: BaseException) -> ExitCode:
    """Whatever code a hook wanted to end with, the transaction did not come to a good end."""
    is_interrupt = isinstance(error, KeyboardInterrupt)
    return ExitCode.INTERRUPTED if is_interrupt else ExitCode.FAILED


def _start_of(wiring: Wiring) -> str:
    if wiring.kind.consumes:
        return "_start_processing"
    if wiring.kind.produces:
        return "_start_producing"
    raise WiringError(
        f"{wiring.task_name} neither consumes nor produces, so it cannot take a transaction",
        remedy="derive it from ConsumerTask or ProducerTask",
    )


def _look_up_method(task: Any, wiring: Wiring) -> Callable[[str], Any]:
    policy = wiring.policies.consumer
    name, connector = choose_connector(task, policy.steps.fetch.connector_name if policy else None)
    plain, coroutine = "fetch_transaction_by_id", "fetch_transaction_by_id_async"
    for wanted in (coroutine, plain) if wiring.kind.is_async else (plain,):
        method = getattr(connector, wanted, None)
        if callable(method):
            return method  # type: ignore[no-any-return]
    raise WiringError(
        f"connector {name!r} ({type(connector).__name__}) cannot look up transactions: it has no "
        f"{coroutine if wiring.kind.is_async else plain}",
        remedy="give the transaction itself with --payload",
    )


def _is_json(value: object) -> bool:
    """Whether a value can be printed as strict JSON."""
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _json(what: str, text: str) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        problem = f"{error.msg} at line {error.lineno}, column {error.colno}"
    except (ValueError, RecursionError) as error:
        problem = str(error)
    raise ConfigurationError(f"the {what} is not JSON: {problem}", remedy="quote it for the shell")
