"""Callers that come together are served together.

Whoever finds nobody at work serves itself; those who come meanwhile wait in line, and the first of
them serves all of them at once. A caller that does not want to wait leaves its request to a thread,
which stands in the same line.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from threading import get_ident
from typing import Generic, TypeVar, cast

from ergon_framework.errors import BoundaryError, StoreError, StoreUnavailableError
from ergon_framework.storage.turns import Caller, Turns, nested

logger = logging.getLogger("ergon_framework.boundary")

Request = TypeVar("Request")
Answer = TypeVar("Answer")

MOST = 512
"""Callers served at once."""
HEAVY = 4096
"""The weight at which the thread takes no more requests into a group."""


class Asking(Caller, Generic[Request, Answer]):
    """A caller in line, with what it asks for."""

    __slots__ = ("answers", "requests")

    def __init__(self, requests: Sequence[Request]) -> None:
        super().__init__(_in_a_group, 0.0)
        self.requests = requests
        self.answers: Sequence[Answer] = ()


class Waiting(Generic[Request, Answer]):
    """A request that was left to the thread."""

    __slots__ = ("done", "group_done", "request")

    def __init__(
        self,
        request: Request,
        done: Callable[[Answer | BaseException], None],
        group_done: Callable[[], None] | None,
    ) -> None:
        self.request = request
        self.done = done
        self.group_done = group_done


class Grouping(Generic[Request, Answer]):
    """Gathers requests of many threads. ``serve`` answers all of a group, or raises for all."""

    def __init__(
        self,
        serve: Callable[[Sequence[Request]], Sequence[Answer]],
        *,
        weigh: Callable[[Request], int] = lambda _: 1,
        name: str = "ergon-grouping",
    ) -> None:
        self._serve = serve
        self._weigh = weigh
        self._name = name
        self._turns = Turns()
        self._left: deque[Waiting[Request, Answer]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def call(self, request: Request) -> Answer:
        """Answer one request, together with those of others when there are any."""
        return self._call((request,))[0]

    def call_soon(
        self,
        request: Request,
        done: Callable[[Answer | BaseException], None],
        group_done: Callable[[], None] | None = None,
    ) -> None:
        """Leave a request to the thread, which calls ``done`` with the answer or the error.

        When all of a group have been told, each ``group_done`` among them is called once.
        """
        with self._changed:
            if self._is_closed:
                raise StoreUnavailableError("the store is closed", remedy="open it again")
            self._left.append(Waiting(request, done, group_done))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Let the thread answer what was left to it, and end it. Closing twice is fine."""
        with self._changed:
            self._is_closed = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _call(self, requests: Sequence[Request]) -> Sequence[Answer]:
        turns, me = self._turns, get_ident()
        if turns.leader == me:
            raise nested()
        try:
            # Asked without the lock first: most who come find somebody at work.
            if turns.leader is None and turns.try_enter(me):
                return self._serve(requests)
            caller: Asking[Request, Answer] = Asking(requests)
            if turns.wait(caller, MOST):
                self._serve_group(turns.group)
        finally:
            if turns.leader == me:  # asked and not remembered: an interrupt may come anywhere
                turns.leave()
        if caller.error is not None:
            raise caller.error
        return caller.answers

    def _serve_group(self, callers: Sequence[Caller]) -> None:
        """Serve everyone at once; only an interrupt of this very thread is raised here."""
        group = cast("Sequence[Asking[Request, Answer]]", callers)  # nobody else stands in line
        try:
            answers = self._serve([each for caller in group for each in caller.requests])
            first = 0
            for caller in group:
                last = first + len(caller.requests)
                caller.answers = answers[first:last]
                caller.is_served = True
                first = last
        except BaseException as error:
            for caller in group:
                caller.error = _retold(error)
                caller.is_served = True
            if not isinstance(error, Exception):
                raise

    def _run(self) -> None:
        while group := self._take():
            result: Iterable[Answer | BaseException]
            try:
                result = self._call([each.request for each in group])
            except BaseException as error:
                result = [_retold(error) for _ in group]
            for each, answer in zip(group, result, strict=True):
                _tell(each.done, answer)
            for group_done in {each.group_done: None for each in group if each.group_done}:
                _tell(group_done)

    def _take(self) -> list[Waiting[Request, Answer]]:
        """Wait for requests; none when all is closed and done."""
        group: list[Waiting[Request, Answer]] = []
        weight = 0
        with self._changed:
            self._changed.wait_for(lambda: self._left or self._is_closed)
            while self._left and len(group) < MOST and weight < HEAVY:
                group.append(self._left.popleft())
                weight += self._weigh(group[-1].request)
        return group


def _in_a_group(_: object) -> None:
    """What a caller wants done is in its requests."""


def _tell(tell: Callable[..., None], *answer: object) -> None:
    try:
        tell(*answer)
    except Exception:
        logger.exception("a callback that was told about a commit failed")


def _retold(error: BaseException) -> BaseException:
    """The error for one of several callers: each gets an instance of its own to raise."""
    if isinstance(error, StoreError | BoundaryError):
        told: Exception = copy(error)  # with its code, its reason and what else it says
        told.__cause__ = error.__cause__
        return told
    told = StoreUnavailableError(
        "a commit was given up, and whether it was made is not known",
        remedy="do the same again: nothing is stored twice",
    )
    told.__cause__ = error
    return told
