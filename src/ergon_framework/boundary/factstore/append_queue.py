"""The queue of appends: those that arrive together are served as one group, by one transaction.

A caller that finds no other request under way serves its own one, in its own thread. Requests that
arrive meanwhile, and those of callers that do not want to wait, are queued for one background
thread, which serves all of them as one group, and then the next group, until the queue stays empty.
One thread serves groups faster than callers that take turns would: its data stays in the cache of
one processor, and no caller has to be woken before the next group can begin.

A ``KeyboardInterrupt`` may be raised in the main thread between any two steps, and everything here
is written for that: do not reorder it. Callbacks that watch a store are called during an append,
and what they raise is logged and does not reach it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from queue import Empty, SimpleQueue
from threading import get_ident
from typing import Any, Generic, TypeAlias, TypeVar

from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import BoundaryError, StoreError, StoreUnavailableError
from ergon_framework.ports.factstore import Appended, AppendOutcome
from ergon_framework.storage.sqlite.group_commit import CommitQueue, PendingWrite, nested

logger = logging.getLogger("ergon_framework.boundary")


def tell_head(
    seen: Callable[[str, int], None], log: str, outcomes: Sequence[AppendOutcome]
) -> None:
    """Call ``seen`` with the head of a log, if these outcomes say that it has grown."""
    new = [each.offset for each in outcomes if isinstance(each, Appended) and not each.is_duplicate]
    if new:
        seen(log, new[-1])


class GuardedCallback:
    """A callback whose errors are logged instead of raised.

    Only the first error is logged: a callback that fails once usually fails each time.
    """

    def __init__(self, seen: Callable[..., object], what: str) -> None:
        self._seen = seen
        self._what = what
        self._was_logged = False

    def __call__(self, *told: Any) -> None:
        """Call the callback; never raises an ``Exception``."""
        try:
            self._seen(*told)
        except Exception:
            if not self._was_logged:
                self._was_logged = True
                text = "%r, which watches the %s of a store, failed; this is logged once"
                logger.exception(text, self._seen, self._what)


Request = TypeVar("Request")
Answer = TypeVar("Answer")


class QueuedRequest(Generic[Request, Answer]):
    """A queued request whose caller sleeps until ``wake`` is released."""

    __slots__ = ("answer", "error", "is_gone", "request", "wake")

    answer: Answer

    def __init__(self, request: Request) -> None:
        self.request = request
        self.error: BaseException | None = None
        self.is_gone = False
        self.wake = wake = threading.Lock()
        wake.acquire()

    def tell(self, answer: Answer) -> None:
        """Set what ``call`` will return."""
        self.answer = answer

    def fail(self, error: BaseException) -> None:
        """Set what ``call`` will raise."""
        self.error = error


class Callback(Generic[Request, Answer]):
    """A queued request whose caller has gone on; ``done`` is called with its outcome."""

    __slots__ = ("done", "group_done", "outcome", "request")

    is_gone = False  # no caller waits for it in a way that can be interrupted

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
        """Set what ``done`` will be called with."""
        self.outcome = answer

    fail = tell


PendingEntry: TypeAlias = QueuedRequest[Request, Answer] | Callback[Request, Answer]


MAX_GROUP = 512
"""The most callers in one group."""
MAX_WEIGHT = 4096
"""The weight at which no more requests are taken into a group."""
LINGER_TIME = 0.005
"""Seconds for which the thread waits for more requests before callers serve themselves again."""
IDLE_TIMEOUT = 10.0
"""Seconds after which an idle thread ends; it would keep the store that it serves alive."""
CLOSE_TIMEOUT = 1.0
"""Seconds for which closing waits for the thread to end."""
MAX_EMPTY_POLLS = 8
"""How often the queue may be found empty during one wait of the store. After that no caller is
expected before the end of the wait, and polling would only keep a processor busy.
"""


class AnsweredCallers:
    """Callers that have their answer, and sleep until they are woken."""

    __slots__ = ("_callers",)

    def __init__(self) -> None:
        self._callers: deque[QueuedRequest[Any, Any]] = deque()

    def __len__(self) -> int:
        return len(self._callers)

    def add(self, callers: Sequence[QueuedRequest[Any, Any]]) -> None:
        """Add callers that have their answer."""
        self._callers.extend(callers)

    def wake(self) -> None:
        """Wake all of them. Any thread may call this, several at once.

        Each is woken before it is removed: after an interrupt between the two it is woken again,
        which does no harm. The other way round it would sleep for ever.
        """
        callers = self._callers
        while callers:
            try:
                first = callers[0]
            except IndexError:  # another thread was faster
                return
            try:  # noqa: SIM105 - suppress() would take longer than all the rest
                first.wake.release()
            except RuntimeError:  # woken before, and not up yet
                pass
            try:  # noqa: SIM105
                callers.remove(first)
            except ValueError:  # another thread has removed it
                pass


class AppendQueue(Generic[Request, Answer]):
    """Joins requests of many threads into groups. ``serve`` answers all of a group, or raises.

    With ``lets_go``, ``serve`` promises to call ``meanwhile`` before it waits for anything, and the
    callers of the group before are woken then. Woken earlier, they would compete with ``serve`` for
    the interpreter, which runs one thread at a time. ``look`` is the part of serving a request that
    needs no transaction; requests that arrive during such a wait are looked at before it ends.
    """

    def __init__(
        self,
        serve: Callable[[Sequence[Request]], Sequence[Answer]],
        *,
        weigh: Callable[[Request], int] = lambda _: 1,
        look: Callable[[Request], None] | None = None,
        name: str = "ergon-appends",
        lets_go: bool = False,
        max_group: int = MAX_GROUP,
        idle_timeout: float = IDLE_TIMEOUT,
        close_timeout: float = CLOSE_TIMEOUT,
    ) -> None:
        self._serve = serve
        self._weigh = weigh
        self._look = look
        self._name = name
        self.lets_go = lets_go
        """Whether callers that were served sleep on until the next group waits for its store."""
        self._max_group = max_group
        self._idle_timeout = idle_timeout
        self._close_timeout = close_timeout
        self._is_closed = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Start afresh in a forked process: the thread and the queue belong to the parent."""
        self._turns = CommitQueue()
        self._lock = threading.RLock()  # a signal's handler may close at any step of its thread
        self._changed = threading.Condition(self._lock)
        self._line: SimpleQueue[PendingEntry[Request, Answer] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._left = 0
        """Callbacks that have not been called yet."""
        self._served = AnsweredCallers()
        self._seen: deque[PendingEntry[Request, Answer]] = deque()
        """Requests taken from the queue ahead of their turn, to look at; served before it."""
        self._server: int | None = None
        """The id of the background thread, while it serves a group."""

    @property
    def pending(self) -> int:
        """Requests that are not served yet: in the queue, and one that the thread has taken."""
        return self._line.qsize() + len(self._seen) + self._turns.waiting

    @property
    def is_serving(self) -> bool:
        """Whether some thread serves a group, or has the turn to do so."""
        return self._turns.leader is not None

    @property
    def has_thread(self) -> bool:
        """Whether the thread that serves groups is running."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def call(self, request: Request, before_waiting: Callable[[], None] | None = None) -> Answer:
        """Answer one request, in one group with other requests if there are any. ``before_waiting``
        is called if the request has to be queued.
        """
        turns, me = self._turns, get_ident()
        # Once into a variable: it changes under us, and the questions below have to be about one
        # value.
        leader = turns.leader
        if leader == me:
            raise nested()
        if leader is None:  # read without the lock first: most callers find a leader at work
            try:
                if turns.try_lead(me):
                    return self._serve((request,))[0]
            finally:
                try:
                    # Read again, not remembered: an interrupt may come before an assignment.
                    if turns.leader == me:
                        turns.leave()
                except BaseException:  # an interrupt at the first step of leaving
                    if turns.leader == me:
                        turns.leave()
                    raise
        if before_waiting is not None:
            before_waiting()
        waiting: QueuedRequest[Request, Answer] = QueuedRequest(request)
        # Closed, or no thread can be had. A caller that waits can still serve itself; one with a
        # callback cannot, and ``call_soon`` raises.
        if not self._stands_in_line(waiting):
            return self._alone(request)
        try:
            waiting.wake.acquire()
        except BaseException:  # an interrupt: the caller does not wait for the answer any more
            waiting.is_gone = True
            raise
        if waiting.error is not None:
            raise waiting.error
        return waiting.answer

    def call_soon(
        self,
        request: Request,
        done: Callable[[Answer | BaseException], None],
        group_done: Callable[[], None] | None = None,
    ) -> None:
        """Leave a request to the thread, which calls ``done`` with the answer or the error.

        After all callbacks of a group, each ``group_done`` among them is called once.
        """
        if not self._stands_in_line(Callback(request, done, group_done)):
            if self._is_closed:
                raise StoreUnavailableError("the store is closed", remedy="open it again")
            raise StoreUnavailableError(
                "no thread can be begun to write to the store",
                remedy="let the process have more threads, or fewer of its own, and try again",
            )

    def let_go(self) -> None:
        """Wake the callers that were answered. Called by ``serve``, or any thread on its behalf."""
        self._served.wake()

    def meanwhile(self, is_over: Callable[[], bool] | None = None) -> None:
        """Wake the callers that were answered; ``serve`` calls this before it waits.

        ``is_over`` lets other threads run, and says whether the wait has ended. Until it has, or no
        request arrives any more, requests are taken from the queue and looked at.
        """
        self._served.wake()
        look = self._look
        if is_over is None or look is None or self._server != get_ident():
            return
        in_vain = 0
        while in_vain < MAX_EMPTY_POLLS and len(self._seen) < self._max_group and not is_over():
            try:
                asked = self._kept(self._line.get_nowait())
            except Empty:
                in_vain += 1
                continue
            # The end mark of ``close``: a caller that takes it puts it back, so the thread sees it
            # after the last request.
            if asked is None:
                return
            in_vain = 0
            self._seen.append(asked)
            with suppress(BaseException):  # serving the request meets the same error again
                look(asked.request)

    def close(self) -> None:
        """Take no more requests, and return when all callbacks have been called.

        Callers that wait for an answer get it, but are not waited for. Closing twice is fine.
        """
        with self._lock:
            thread = self._thread
            if not self._is_closed:
                self._is_closed = True
                # Queued behind every request that was accepted, so those are served before the
                # thread ends.
                self._line.put(None)
            if self._turns.leader == get_ident() or thread is threading.current_thread():
                return  # called from within ``serve``, which would wait for itself
            # Callbacks only: their callers have gone on and would never learn what became of their
            # facts. A caller that waits is awake already or will be woken.
            self._changed.wait_for(lambda: self._left <= 0)
        if thread is not None:
            thread.join(self._close_timeout)

    def _stands_in_line(self, asked: PendingEntry[Request, Answer]) -> bool:
        is_left = isinstance(asked, Callback)
        with self._lock:
            has_thread = self._thread is not None or self._begin()
            if self._is_closed or not has_thread:
                return False
            # In the lock: a signal handler in this thread may close at any other step, and a
            # request that is queued behind the end would never be answered.
            self._left += is_left
            self._line.put(asked)
        return True

    def _begin(self) -> bool:
        """Start the thread; returns whether it runs."""
        if self._is_closed:
            return False
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there are too many, or the interpreter is on its way out
            return False
        self._thread = thread  # after an interrupt before this line, the thread does it itself
        return True

    def _alone(self, request: Request) -> Answer:
        """Serve a request in this thread, in turn with others, where no thread can be started."""
        turns, me = self._turns, get_ident()
        try:
            turns.wait(PendingWrite(None, 0.0), 1)
            return self._serve((request,))[0]
        finally:
            try:
                if turns.leader == me:
                    turns.leave()
            except BaseException:  # an interrupt at the first step of leaving
                if turns.leader == me:
                    turns.leave()
                raise

    # ---- in the thread ----

    def _run(self) -> None:
        # The caller that started this thread holds the lock until it has noted the thread, or was
        # interrupted before it could; then the thread notes itself.
        with self._lock:
            me = threading.current_thread()
            # Possible after an interrupt between ``start`` and the assignment in ``_begin``: the
            # next caller started a second thread.
            if self._thread not in {None, me}:
                return  # another thread was started meanwhile: two would take from one queue
            self._thread = me
        while (first := self._awaited()) is not None:
            try:
                self._serve_waiting(first)
            except BaseException:  # a bug here must not keep later requests from being served
                logger.exception("the thread %s stumbled", self._name)
            del first  # an idle thread must not keep a request and its zone alive

    def _awaited(self) -> PendingEntry[Request, Answer] | None:
        """Wait for a request; None after ``close``, or when none has come for a while."""
        while True:
            with suppress(Empty):
                if self._seen:
                    return self._taken()
                return self._kept(self._line.get(timeout=self._idle_timeout))
            with self._lock:
                # Requests are queued under this lock: none can come between this look and the end.
                if self._line.empty() and not self._seen:
                    if self._thread is threading.current_thread():
                        self._thread = None
                    return None

    def _serve_waiting(self, first: PendingEntry[Request, Answer]) -> None:
        """Serve group after group until the queue stays empty."""
        turns, me = self._turns, get_ident()
        asked: PendingEntry[Request, Answer] | None = first
        try:
            while asked is not None:
                if turns.leader != me:
                    turns.wait(PendingWrite(None, 0.0), 1)  # until no caller serves itself
                # Set anew for each group: a callback may have let another thread lead in between.
                self._server = me
                group = self._gathered(asked)
                self._serve_group(group)
                self._call_back([each for each in group if isinstance(each, Callback)])
                asked = self._next(is_crowded=len(group) > 1)
        finally:
            self._server = None
            self.let_go()
            if turns.leader == me:
                turns.leave()

    def _gathered(
        self, first: PendingEntry[Request, Answer]
    ) -> list[PendingEntry[Request, Answer]]:
        """The first request and all behind it that fit into one group."""
        group, weigh, max_group = [first], self._weigh, self._max_group
        # Requests are weighed because one may carry thousands of facts: a group is bounded by work,
        # not by callers.
        weight = weigh(first.request)
        with suppress(Empty):
            while len(group) < max_group and weight < MAX_WEIGHT:
                asked = self._taken()
                if asked is None:
                    break
                group.append(asked)
                weight += weigh(asked.request)
        # An interrupted caller has raised already. Its facts must not appear in the log after it
        # said that they did not.
        return [each for each in group if not each.is_gone]

    def _next(self, *, is_crowded: bool) -> PendingEntry[Request, Answer] | None:
        """The next request; None when callers may serve themselves again."""
        with suppress(Empty):
            return self._taken()
        self.let_go()
        with suppress(Empty):
            # Several callers came together, so they will probably come back together: waiting a
            # moment for them is cheaper than handing the turn to the first of them.
            if is_crowded:
                return self._kept(self._line.get(timeout=LINGER_TIME))
        return None

    def _taken(self) -> PendingEntry[Request, Answer] | None:
        """The next request without waiting; raises ``Empty``."""
        if self._seen:
            with suppress(IndexError):  # another thread was faster
                return self._seen.popleft()
        return self._kept(self._line.get_nowait())

    def _kept(
        self, asked: PendingEntry[Request, Answer] | None
    ) -> PendingEntry[Request, Answer] | None:
        """Return an entry taken from the queue. The end mark is put back, for the thread to find
        later.
        """
        if asked is None:
            self._line.put(None)
        return asked

    def _serve_group(self, group: Sequence[PendingEntry[Request, Answer]]) -> None:
        waiting = [each for each in group if isinstance(each, QueuedRequest)]
        try:
            answers = self._serve([each.request for each in group]) if group else ()
            pairs = list(zip(group, answers, strict=True))
        except BaseException as error:
            # Every caller gets a copy: one exception raised in many threads would grow one
            # traceback.
            for each in group:
                each.fail(_copy_of(error))
        else:
            for each, answer in pairs:
                each.tell(answer)
        self._served.wake()  # the group before, if ``serve`` did not wait for anything
        # Woken when the next group waits for its disk: until then this thread needs the interpreter
        # more than they do.
        self._served.add(waiting)
        if not self.lets_go:
            self.let_go()

    def _call_back(self, left: Sequence[Callback[Request, Answer]]) -> None:
        """Call callbacks without leading: a callback may make a request of its own."""
        if not left:
            return
        # A callback that calls the store would otherwise find its own thread leading, and be
        # refused.
        self._turns.leave()
        try:
            for each in left:
                _tell(each.done, each.outcome)
            for group_done in {each.group_done: None for each in left if each.group_done}:
                _tell(group_done)
        finally:
            with self._lock:
                self._left -= len(left)
                self._changed.notify_all()


def nothing(_is_over: Callable[[], bool] | None = None, /) -> None:
    """The ``before_wait`` of stores without a listener."""


def _tell(tell: Callable[..., None], *answer: object) -> None:
    try:
        tell(*answer)
    except BaseException:  # a callback's error must not end the thread
        logger.exception("a callback that was told about a commit failed")


def _copy_of(error: BaseException) -> BaseException:
    """A copy of the error for one of several callers: raising changes its traceback."""
    copied: Exception
    if isinstance(error, StoreError | BoundaryError):
        with suppress(Exception):  # an error that cannot be copied is replaced below
            copied = copy(error)
            copied.__cause__ = error.__cause__
            return copied
    copied = StoreUnavailableError(
        "a commit was given up, and whether it was made is not known",
        remedy="do the same again: nothing is stored twice",
    )
    copied.__cause__ = error
    return copied
