"""Shares between the viewers of a page one read of a store, and one rendering for each role."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import replace
from html import escape
from time import monotonic
from typing import Generic, TypeVar

from starlette.responses import Response

from ergon_framework.web.sessions import BrowserSession

T = TypeVar("T")

FRESH = 1.0
"""Seconds for which an answer is shared."""
SHARE, LONGEST = 10.0, 15.0
"""An answer that took long is kept so many times as long, up to a number of seconds, so that
reading takes about a tenth of the time.
"""


class SharedLook(Generic[T]):
    """An answer that is shared, also while it is being made. Failures are not kept.

    Counting the content of a store takes longer the more it holds. With this class, a page costs
    the store no more when many watch it, or when somebody reloads it all the time.
    """

    def __init__(
        self,
        look: Callable[[], Awaitable[T]],
        clock: Callable[[], float] = monotonic,
        longest: float = LONGEST,
    ) -> None:
        self._look = look
        self._longest = longest
        self._clock = clock
        self._task: asyncio.Task[T] | None = None
        self._until = 0.0

    async def get(self) -> T:
        """The answer; a new one if the last is too old."""
        task = self._task
        is_ours = task is not None and task.get_loop() is asyncio.get_running_loop()
        if task is None or not is_ours or (task.done() and self._is_over(task)):
            task = self._task = asyncio.ensure_future(self._timed())
        # Shielded: other callers wait for the same answer when one of them leaves.
        return await asyncio.shield(task)

    def _is_over(self, task: asyncio.Task[T]) -> bool:
        return task.cancelled() or task.exception() is not None or self._clock() >= self._until

    async def _timed(self) -> T:
        begun = self._clock()
        found = await self._look()
        now = self._clock()
        self._until = now + min(self._longest, max(FRESH, SHARE * (now - begun)))
        return found


MOST_KEPT = 100
"""How many answers to different questions are kept."""


class SharedAnswers(Generic[T]):
    """Shared answers to many questions: each is computed once in a second, however many ask."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._looks: OrderedDict[Hashable, SharedLook[T]] = OrderedDict()

    async def get(self, question: Hashable, look: Callable[[], Awaitable[T]]) -> T:
        """The answer; ``look`` is called if there is none, or an old one."""
        found = self._looks.get(question)
        if found is None:
            found = self._looks[question] = SharedLook(look, self._clock, FRESH)
            while len(self._looks) > MOST_KEPT:
                self._looks.popitem(last=False)
        return await found.get()


class ViewerPlaceholders:
    """Placeholders in a shared page for what belongs to one viewer: the name, the secret of forms.

    They are random, so that no text of a job can be taken for one.
    """

    def __init__(self) -> None:
        self._name, self._secret = (f"mark-{secrets.token_hex(16)}" for _ in range(2))

    def session(self, viewer: BrowserSession | None) -> BrowserSession | None:
        """The session that a shared page is rendered for: the viewer's role, with placeholders."""
        if viewer is None:
            return None
        return replace(viewer, name=self._name, form_secret=self._secret, token=None)

    def fill(self, page: Response, viewer: BrowserSession | None) -> Response:
        """A copy of a shared page with the name and the secret of the viewer."""
        body = bytes(page.body)
        if viewer is not None:
            body = body.replace(self._name.encode(), escape(viewer.name).encode())
            body = body.replace(self._secret.encode(), escape(viewer.form_secret).encode())
        headers = {name: value for name, value in page.headers.items() if name != "content-length"}
        return Response(body, page.status_code, headers)
