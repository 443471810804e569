"""The executor under test, as the checks see it: what it offers, and processes to talk to."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ergon_framework.testing.suites.executor.harness import (
    GRACE,
    HANDLER_NOT_FOUND,
    NO_SUCH_HANDLER,
    AnswerTimeout,
    Conversation,
    OutputLine,
    Process,
    Program,
    Request,
    request,
    shown,
)
from ergon_framework.testing.suites.framework import CheckFailed

QUIET = 0.2  # seconds in which something that should not come would have come


@dataclass(frozen=True, slots=True)
class HandlerCall:
    """A handler of the executor under test, and arguments it takes."""

    handler: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def request(self, **changes: Any) -> dict[str, Any]:
        """A request for it."""
        return request(self.handler, self.args, self.kwargs, **changes)


_SAMPLES = (
    HandlerCall("echo", [1, "two"], {"flag": True}),
    HandlerCall("fail"),
    HandlerCall("retry"),
    HandlerCall("sleep", [0]),
    HandlerCall("print", ["a line of text"]),
    HandlerCall("unserialisable"),
)
SAMPLES = {call.handler: call for call in _SAMPLES}
"""The conventional handlers the checks use, where the executor has them."""


@dataclass(frozen=True, slots=True)
class FirstExchange:
    """The bytes of the first conversation: one request, then the end of input."""

    output: bytes  # while the input was open
    rest: bytes  # what came once it had ended
    seconds: float  # until the answer
    is_answered: bool
    has_died: bool  # before its input ended
    why_not: str


class NotTried(Exception):
    """The check found nothing to judge. The text says why."""


class ExecutorSubject:
    """The executor under test. Checks share a process until one of them makes it unusable."""

    def __init__(self, program: Program, patience: AnswerTimeout, call: HandlerCall | None) -> None:
        self.program = program
        self.patience = patience
        self.call = call
        self._absences: dict[str, str] = {}
        self._shared: Conversation | None = None

    # ---- processes ------------------------------------------------------------------------------

    @property
    def shared(self) -> Conversation:
        """The exchange of this check: with the process of the check before, if that is usable."""
        if self._shared is None:
            self._shared = self.fresh()
        return self._shared

    def fresh(
        self, env: Mapping[str, str] | None = None, pass_fds: Iterable[int] = ()
    ) -> Conversation:
        """An exchange with a process of its own, which the caller closes."""
        return Conversation(Process(self.program, env=env, pass_fds=pass_fds), self.patience)

    def drop_shared(self) -> None:
        """The next check gets a new process."""
        if self._shared is not None:
            self._shared.process.close()
            self._shared = None

    @contextlib.contextmanager
    def check(self) -> Iterator[None]:
        """Wrap each check: a process that failed, died or was sent malformed lines does not serve
        the next.
        """
        if self._shared is not None and self._shared.process.is_over():
            self.drop_shared()
        try:
            yield
        except BaseException:
            self.drop_shared()
            raise
        if self._shared is not None and (self._shared.has_junk or self._shared.strays()):
            self.drop_shared()

    # ---- asking the shared one ------------------------------------------------------------------

    def ask(self, asked: Request, *, line: bytes | None = None) -> OutputLine:
        """Send a request and wait for its answer."""
        return self.shared.ask(asked, line=line)

    def simple(self, **changes: Any) -> dict[str, Any]:
        """A request that any executor can answer: for echo, or for an unknown handler if there is
        none.
        """
        name = "echo" if self.has("echo") else NO_SUCH_HANDLER
        return request(name, **{"args": [1], "kwargs": {"k": "v"}, **changes})

    def successful(self, **changes: Any) -> dict[str, Any]:
        """A request that succeeds; only for checks that need ``a handler``."""
        if self.call is not None:
            return self.call.request(**changes)
        return self.simple(**changes)

    # ---- what it offers -------------------------------------------------------------------------

    def has(self, need: str) -> bool:
        """Whether it has a sample handler, or any handler at all."""
        if need == "a handler":
            return self.call is not None or self.has("echo")
        return not self._absence(need)

    def why_missing(self, needs: Iterable[str]) -> str:
        """Why a check cannot be run; empty when it can."""
        lacking = sorted(need for need in needs if not self.has(need))
        if not lacking:
            return ""
        if lacking[0] == "a handler":
            return "needs a handler: it has no 'echo', and none was named with --handler"
        return f"needs a handler {lacking[0]!r}: {self._absence(lacking[0])}"

    @cached_property
    def usual(self) -> tuple[Any, Any]:
        """The status and the error_type that a simple request is answered with."""
        with self.fresh() as talk:
            reply = talk.ask(self.simple())
        return reply.status, reply.error_type

    def _absence(self, handler: str) -> str:
        """Why a sample handler cannot be used, found out once; empty when it can."""
        if handler not in self._absences:
            self._absences[handler] = ""
            # In a process of its own: a handler that kills it must not spoil anything else. One
            # that does not answer is there, and what is wrong with it is for the checks to say.
            with self.fresh() as talk, contextlib.suppress(CheckFailed):
                self._absences[handler] = _absence(handler, talk.ask(SAMPLES[handler].request()))
        return self._absences[handler]

    # ---- the first exchange ---------------------------------------------------------------------

    @cached_property
    def first(self) -> FirstExchange:
        """The answer to a request for an unknown handler; or for a known one, if the first kills
        the process.
        """
        first = self._exchange(request(NO_SUCH_HANDLER))
        if first.output or not first.has_died:
            return first
        again = self._exchange((self.call or SAMPLES["echo"]).request())
        return again if again.output else first

    def _exchange(self, asked: Request) -> FirstExchange:
        with self.fresh() as talk:
            started = time.monotonic()
            talk.send(asked)
            is_answered = talk.process.wait(
                lambda: talk.process.output, self.patience.seconds * GRACE
            ) and talk.process.wait(
                lambda: any(one.fields is not None for one in talk.known()), self.patience.seconds
            )
            seconds = time.monotonic() - started
            why_not = "" if is_answered else talk.why_not(seconds)
            has_died = talk.process.is_over()
            talk.process.rest(QUIET)
            output = bytes(talk.process.output)
            talk.end()
            rest = bytes(talk.process.output[len(output) :])
        return FirstExchange(output, rest, seconds, is_answered, has_died, why_not)


def _absence(handler: str, reply: OutputLine) -> str:
    """Why a sample handler cannot be used; empty when it does what its name says."""
    if reply.error_type == HANDLER_NOT_FOUND:
        return "the executor has none"
    expected = {"fail": "error", "retry": "retry", "echo": "success", "sleep": "success"}
    if handler in expected and reply.status != expected[handler]:
        return f"its {handler!r} answers with the status {shown(reply.status)}"
    result = reply.result
    if handler == "echo" and not (isinstance(result, dict) and {"args", "kwargs"} & set(result)):
        return "its 'echo' does not return an object with args and kwargs"
    return ""
