"""Who stands in line to be served with others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Waiting(Generic[Request, Answer]):
    """A caller that waits in line."""

    __slots__ = ("answer", "error", "is_gone", "request", "wake")

    answer: Answer

    def __init__(self, request: Request) -> None:
        self.request = request
        self.error: BaseException | None = None
        self.is_gone = False
        self.wake = wake = threading.Lock()
        wake.acquire()

    def tell(self, answer: Answer) -> None:
        """What it will find when it is woken."""
        self.answer = answer

    def fail(self, error: BaseException) -> None:
        """What it will raise."""
        self.error = error


class Left(Generic[Request, Answer]):
    """A request whose caller has gone on, and wants to be called back."""

    __slots__ = ("done", "group_done", "outcome", "request")

    is_gone = False

    def __init__(
        self,
        request: Request,
        done: Callable[[Answer | BaseException], None],
        group_done: Callable[[], None] | None,
    ) -> None:
        self.request = request
        self.done = done
        self.group_done = group_done
        self.outcome: Answer | BaseException | None = None

    def tell(self, answer: Answer | BaseException) -> None:
        """What it will be told."""
        self.outcome = answer

    fail = tell


InLine: TypeAlias = Waiting[Request, Answer] | Left[Request, Answer]
