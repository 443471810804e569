"""What connectors share: deliveries that are settled once, asyncio methods that run in threads,
JSON checks.

An event loop has one small thread pool for all its users. Hooks that hang in it, each in a call of
``asyncio.to_thread`` that was given up long ago, would leave no thread for settling their
transactions. So a connector that blocks has threads of its own (``OwnThreads``).
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import queue
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import ChannelLostError, ConfigurationError, ConnectorError
from ergon_framework.ports.transaction import Transaction, setter_of

T = TypeVar("T")

MAX_THREADS = 32
"""How many threads one connector has, and so how many transactions it settles at once."""
IDLE_TIMEOUT = 10.0
"""Seconds without work after which a thread ends."""
DROPPED_FOR = 60.0
"""Seconds after which something is delivered again whose delivery was dropped without being
settled.
"""

_Item = tuple["Future[Any] | _Answer", Callable[[], Any]]


class _Answer:
    """Carries a thread's result to an event loop. Two chained futures would wake the loop no
    sooner.
    """

    __slots__ = ("_loop", "future")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()

    def set_running_or_notify_cancel(self) -> bool:
        """Whether somebody still waits; the name is that of the futures of ``concurrent``."""
        return not self.future.cancelled()

    def set_result(self, result: object) -> None:
        """Pass on what was returned. Called in the thread."""
        self._tell(self.future.set_result, result)

    def set_exception(self, error: BaseException) -> None:
        """Pass on what was raised. Called in the thread."""
        self._tell(self.future.set_exception, error)

    def _tell(self, how: Callable[[Any], None], what: object) -> None:
        with suppress(RuntimeError):  # The event loop was closed meanwhile.
            self._loop.call_soon_threadsafe(self._end, how, what)

    def _end(self, how: Callable[[Any], None], what: object) -> None:
        if not self.future.done():  # It may have been cancelled.
            how(what)


class OwnThreads(Executor):
    """A bounded number of daemon threads, started when they are needed and ended when they are not.

    A thread that hangs delays neither the others nor the end of the process.
    """

    def __init__(
        self,
        name: str = "ergon-connector",
        most: int = MAX_THREADS,
        *,
        idle_timeout: float = IDLE_TIMEOUT,
    ) -> None:
        self._name = name
        self._idle_timeout = idle_timeout
        self._most = most
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the threads in a forked child, because they are the parent's."""
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._left = 0  # how many items no thread has taken
        self._idle = 0
        self._threads = 0

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Call a function in one of the threads."""
        future: Future[T] = Future()
        self._put(future, functools.partial(fn, *args, **kwargs))
        return future

    def _put(self, future: Future[Any] | _Answer, call: Callable[[], Any]) -> None:
        with self._lock:
            # Idle threads may be on their way to items that were submitted before.
            if self._left >= self._idle and self._threads < self._most:
                self._add_thread()
            self._left += 1
            self._waiting.put((future, call))

    async def run(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Await the call on an event loop, as :func:`asyncio.to_thread` does."""
        context = contextvars.copy_context()
        answer = _Answer(asyncio.get_running_loop())
        self._put(answer, functools.partial(context.run, fn, *args, **kwargs))
        found: T = await answer.future
        return found

    def end_idle(self) -> None:
        """End the idle threads, and from now on each thread when it becomes idle."""
        with self._lock:
            self._idle_timeout = 0.0
            for _ in range(self._idle):
                self._waiting.put(None)

    def _serve(self) -> None:
        while (item := self._next()) is not None:
            future, call = item
            if future.set_running_or_notify_cancel():
                _call(future, call)
            del future, call, item  # The result is not referenced any longer.

    def _add_thread(self) -> None:
        try:
            SYSTEM_CLOCK.spawn(self._name, self._serve)
        except RuntimeError:  # No thread can be started: those that exist must do the work.
            if not self._threads:
                raise
        else:
            self._threads += 1

    def _next(self) -> _Item | None:
        with self._lock:
            self._idle += 1
        while True:
            item = self._wait()
            with self._lock:
                if item is None and self._left:
                    continue  # The last submit may have counted on this thread.
                self._idle -= 1
                if item is None:
                    self._threads -= 1
                else:
                    self._left -= 1
                return item

    def _wait(self) -> _Item | None:
        try:
            return self._waiting.get(timeout=self._idle_timeout)
        except queue.Empty:
            return None


def _call(future: Future[Any] | _Answer, call: Callable[[], Any]) -> None:
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


_set = object.__setattr__  # Transactions are frozen for everybody but their connector.
_turn = threading.Lock()  # Held for the moment in which a delivery gets its verb.


class CancelledFetches:
    """Lets a cancelled fetch finish, and gives back what it brought.

    The source has handed the messages out by then. If they were lost on the way, they would be
    delivered again only after their lease.
    """

    def __init__(self) -> None:
        self._undoing: set[asyncio.Future[None]] = set()

    async def run(
        self,
        fetch: Coroutine[Any, Any, list[T]],
        *,
        end: Callable[[], object],
        give_back: Callable[[list[T]], Awaitable[None]],
    ) -> list[T]:
        """Await a fetch. If it is cancelled, ``end`` is called so that the fetch waits
        no longer.
        """
        fetching = asyncio.ensure_future(fetch)
        try:
            return await asyncio.shield(fetching)
        except asyncio.CancelledError:
            end()
            undoing = asyncio.ensure_future(self._undo(fetching, give_back))
            self._undoing.add(undoing)  # The event loop itself keeps no strong reference to it.
            undoing.add_done_callback(self._undoing.discard)
            # Shielded: if it was cancelled once more, nobody would know what came.
            await asyncio.shield(undoing)
            raise

    async def _undo(
        self, fetching: asyncio.Future[list[T]], give_back: Callable[[list[T]], Awaitable[None]]
    ) -> None:
        await asyncio.wait([fetching])
        if fetching.exception() is None:
            await give_back(fetching.result())


class Delivered(Transaction):
    """A delivered transaction that knows its connector and how it was settled."""

    __slots__ = ("owner", "verb")

    owner: object
    verb: str | None

    def belongs_to(self, owner: object, **about: Any) -> None:
        """Record whose delivery it is, and a value that the owner needs later."""
        _set_owner(self, owner)
        _set_verb(self, None)
        for name, value in about.items():
            _set(self, name, value)


_set_owner, _set_verb = (setter_of(Delivered, name) for name in ("owner", "verb"))
_D = TypeVar("_D", bound=Delivered)
_W = TypeVar("_W")


class _Settlement(Generic[_D]):
    """A delivery that is being settled. After an exception inside it may be settled again.

    A class, because every message comes through here: a generator would take three times as long.
    """

    __slots__ = ("_delivery", "_is_again")

    def __init__(self, delivery: _D, *, is_again: bool) -> None:
        self._delivery = delivery
        self._is_again = is_again

    def __enter__(self) -> _D | None:
        return None if self._is_again else self._delivery

    def __exit__(self, kind: object, *_error: object) -> None:
        if kind is not None and not self._is_again:
            _set_verb(self._delivery, None)


def settling(
    kind: type[_D], transaction: Transaction, owner: object, verb: str, error: type[ConnectorError]
) -> _Settlement[_D]:
    """The delivery to settle, or None when it was already settled with this verb.

    The same verb again is harmless, and another one is refused. After an exception inside it may be
    settled again.
    """
    is_first = is_first_settlement(kind, transaction, owner, verb, error)
    return _Settlement(cast(_D, transaction), is_again=not is_first)


def is_first_settlement(
    kind: type[Delivered],
    transaction: Transaction,
    owner: object,
    verb: str,
    error: type[ConnectorError],
) -> bool:
    """Record how a delivery is settled. False when it was already settled with this verb.

    A caller that cannot settle it after all takes that back with :func:`forget_settlement`.
    """
    if not isinstance(transaction, kind) or transaction.owner is not owner:
        raise error(
            f"cannot {verb} {transaction!r}: this connector did not deliver this object",
            remedy="settle the very object that fetch_transactions returned, not a copy",
        )
    # Two threads may settle one delivery at the same time; the first of them does it.
    with _turn:
        before = transaction.verb
        if before is None:
            _set_verb(transaction, verb)
            return True
    if before != verb:
        raise error(
            f"cannot {verb} {transaction!r}: it was settled with {before} before",
            remedy="settle each delivery once",
        )
    return False


def forget_settlement(delivery: Delivered) -> None:
    """Take back the record of a settlement that failed, so that it can be tried again."""
    _set_verb(delivery, None)


def inherited(delivery: Delivered, verb: str) -> ChannelLostError:
    """The error for a forked child that settles a delivery of its parent."""
    return ChannelLostError(
        f"cannot {verb} {delivery!r}: it was delivered to the process that this fork was made from",
        remedy="settle it in that process; what this one fetches by itself it can settle",
    )


class _Watch(weakref.ref[Delivered]):
    """A delivery that is watched. A class, because a closure for each delivery would
    take longer.
    """

    __slots__ = ("what",)

    what: Any


class DroppedDeliveries(Generic[_W]):
    """Finds deliveries that were dropped without being settled.

    The caller that fetched them was cancelled, or has ended without handing them back. Nobody can
    settle them now, so they belong to their connector again. Any thread may call it.
    """

    def __init__(self) -> None:
        self._watched: dict[int, _Watch] = {}
        self._found: deque[_W] = deque()
        self._resting: deque[tuple[float, _W]] = deque()

    def watch(self, delivery: Delivered, what: _W) -> None:
        """Watch a delivery. ``what`` stands for what was delivered, and is watched once
        at a time.
        """
        # By identity: two messages with equal content are still two deliveries. The reference keeps
        # the object alive, so its id is not given to anything else.
        watch = _Watch(delivery, self._gone)
        watch.what = what
        self._watched[id(what)] = watch

    def _gone(self, watch: _Watch) -> None:
        # This runs wherever the interpreter frees the delivery, so nothing here may wait.
        self._watched.pop(id(watch.what), None)
        self._found.append(watch.what)

    def forget(self, what: _W) -> None:
        """Stop watching a delivery, because it was settled."""
        self._watched.pop(id(what), None)

    def take(self) -> list[_W]:
        """The dropped deliveries that were found since the last call."""
        return [self._found.popleft() for _ in range(len(self._found))]

    def take_idle(self, now: float) -> list[_W]:
        """The dropped deliveries that were found a while ago.

        The code that dropped one may still be at work on its content. Only the fetching thread
        calls this, one at a time.
        """
        self._resting += [(now + DROPPED_FOR, each) for each in self.take()]
        rested: list[_W] = []
        while self._resting and self._resting[0][0] <= now:
            rested.append(self._resting.popleft()[1])
        return rested


class ThreadedConsuming:
    """The async methods of a connector that consumes and whose methods block; threads run these."""

    async def ack_async(self, transaction: Transaction) -> None:
        """The async version of ``ack``."""
        await self._in_thread("ack", transaction)

    async def nack_async(self, transaction: Transaction, exc: Exception) -> None:
        """The async version of ``nack``."""
        await self._in_thread("nack", transaction, exc)

    async def release_async(self, transaction: Transaction) -> None:
        """The async version of ``release``."""
        await self._in_thread("release", transaction)

    async def aclose(self) -> None:
        """The async version of ``close``."""
        await self._in_thread("close")
        self._threads.end_idle()

    async def _fetch_in_thread(
        self,
        fetch: Callable[..., list[Transaction]],
        end: Callable[[], object],
        /,
        *given: Any,
        **extra: Any,
    ) -> list[Transaction]:
        """Fetch in a thread. If that is cancelled, ``end`` is called and everything that comes is
        given back.
        """
        return await self._cancelled.run(
            self._threads.run(fetch, *given, **extra), end=end, give_back=self._release_all
        )

    async def _release_all(self, found: list[Transaction]) -> None:
        for transaction in found:
            await self.release_async(transaction)

    async def _in_thread(self, method: str, *given: Any, **extra: Any) -> Any:
        return await self._threads.run(getattr(self, method), *given, **extra)

    @cached_property
    def _threads(self) -> OwnThreads:
        return OwnThreads()

    @cached_property
    def _cancelled(self) -> CancelledFetches:
        return CancelledFetches()


class ThreadedProducing(ThreadedConsuming):
    """The same for a connector that also produces, counts what waits, and looks transactions up by
    id.
    """

    async def dispatch_transactions_async(
        self, transactions: Iterable[Transaction], **extra: Any
    ) -> None:
        """The async version of ``dispatch_transactions``."""
        await self._in_thread("dispatch_transactions", list(transactions), **extra)

    async def get_transactions_count_async(self) -> int:
        """The async version of ``get_transactions_count``."""
        count: int = await self._in_thread("get_transactions_count")
        return count

    async def fetch_transaction_by_id_async(self, transaction_id: str) -> Transaction | None:
        """The async version of ``fetch_transaction_by_id``."""
        found: Transaction | None = await self._in_thread("fetch_transaction_by_id", transaction_id)
        return found


def check_batch_size(size: object) -> None:
    """Refuse a batch size below one."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ConfigurationError(
            f"batch_size must be at least 1, not {size!r}", remedy="give a whole number above 0"
        )


def refuse_extra(connector: object, extra: Mapping[str, Any], remedy: str) -> None:
    """Refuse a setting of one call that the connector does not know."""
    if extra:
        raise ConfigurationError(
            f"{type(connector).__name__} does not know the setting {min(extra)!r}", remedy=remedy
        )


def difference(given: Any, found: Any, path: str) -> tuple[str, str] | None:
    """The first difference between what was sent and what came back, without any value. None if
    they are equal.
    """
    if given == found:
        return None
    pairs: list[tuple[str, Any, Any]] = []
    if isinstance(given, dict) and isinstance(found, dict) and given.keys() == found.keys():
        pairs = [(f"{path}[{_short(key)}]", given[key], found[key]) for key in given]
    elif isinstance(given, list) and isinstance(found, list) and len(given) == len(found):
        pairs = [(f"{path}[{n}]", *both) for n, both in enumerate(zip(given, found, strict=True))]
    inner = (difference(one, other, at) for at, one, other in pairs)
    problem = f"is of type {type(given).__name__} and would come back as {type(found).__name__}"
    return next((each for each in inner if each is not None), (path, problem))


def _short(key: object) -> str:
    text = str(key)
    return ascii(text if len(text) <= 40 else text[:40] + "…")
