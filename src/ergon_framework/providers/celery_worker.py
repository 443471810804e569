"""What each process that runs Celery provider tasks does beside them.

One thread carries dead letters from the stores of its tasks to the broker. It begins when a worker
process does, so that what an earlier one left behind is not forgotten, or with the first dead
letter. Nothing is opened before a fork; what every child would import, the parent does.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from celery import Celery, signals
from celery.concurrency import ALIASES
from kombu import entity
from kombu.exceptions import OperationalError

from ergon_framework.errors import ConfigurationError
from ergon_framework.ports.providerstore import DeadLetter
from ergon_framework.providers.delivery.dead_letters import (
    DeadLetterRelay,
    RelayCounts,
    RelayThread,
    sent_id,
)
from ergon_framework.providers.recorder import close_recorders
from ergon_framework.providers.redaction import describe_safely
from ergon_framework.providers.runner import ProviderTaskRunner
from ergon_framework.providers.store_urls import preload
from ergon_framework.providers.tasks import CallProgress
from ergon_framework.providers.telemetry import emit

_PUBLISH_RETRIES = {
    "max_retries": 3,
    "interval_start": 0.1,
    "interval_step": 0.4,
    "interval_max": 1.0,
}
_CLOSE_TIMEOUT = 5.0
_PREFORK = "celery.concurrency.prefork"

_Relays = dict[tuple[int, int, str], DeadLetterRelay]


class RelayedTask(Protocol):
    """What a worker process asks of a Celery task: its store, its queue, and to end cleanly."""

    app: Any
    _app: Any
    name: Any
    relays: bool
    dead_letter_queue: str

    def runner(self) -> ProviderTaskRunner:
        """The runner of the task's calls, whose provider has the store."""

    def begin_anew(self) -> None:
        """Forget what belongs to the parent of this process."""

    def close(self) -> None:
        """Write what is on its way."""


_tasks: weakref.WeakSet[RelayedTask] = weakref.WeakSet()
_lock = threading.Lock()
_thread: RelayThread | None = None


class CeleryQueueSession:
    """The broker of a Celery app, open for a while."""

    def __init__(self, app: Any, connection: Any, queue: str) -> None:
        self._app = app
        self._producer = connection.Producer()
        kombu: Any = entity  # it has types for some of its parts only
        self._queue = kombu.Queue(queue, kombu.Exchange(""), routing_key=queue, durable=True)

    def publish(self, message: dict[str, Any]) -> None:
        """Publish a dead letter on the queue, which is declared first if it does not exist."""
        with _broker_errors():
            self._producer.publish(
                message,
                exchange="",
                routing_key=self._queue.name,
                declare=[self._queue],
                serializer="json",
                delivery_mode="persistent",
                message_id=message["dead_letter_id"],
                retry=True,
                retry_policy=_PUBLISH_RETRIES,
            )

    def knows(self, letter: DeadLetter) -> bool:
        """Whether the app has a task of that name."""
        return letter.task_name in self._app.tasks

    def send(self, letter: DeadLetter) -> None:
        """Send a call again under the key it had, with fresh counters."""
        task = self._app.tasks[letter.task_name]
        carried = CallProgress(redrive_count=letter.redrive_count + 1)
        kwargs = {
            "tenant_id": letter.tenant_id,
            "campaign_id": letter.campaign_id,
            "operation": letter.operation,
            "payload": letter.payload,
            "idempotency_key": letter.idempotency_key,
            "correlation_id": letter.correlation_id,
            "_ergon": carried.to_dict(),
        }
        headers = {} if letter.traceparent is None else {"traceparent": letter.traceparent}
        again = sent_id(letter.dead_letter_id, carried.redrive_count)
        with _broker_errors():
            task.apply_async(kwargs=kwargs, headers=headers, producer=self._producer, task_id=again)


@contextmanager
def _broker_errors() -> Iterator[None]:
    """Distinguish a broker that is down from a message that it refuses."""
    try:
        yield
    except OperationalError as error:
        raise ConnectionError(describe_safely(error)) from error


@contextmanager
def open_celery_queue(app: Any, queue: str) -> Iterator[CeleryQueueSession]:
    """Open an app's broker for a dead-letter queue, with publisher confirms where it has them."""
    with app.connection_for_write() as connection:
        # Without confirms AMQP publishes into the dark, and the letter is marked as published all
        # the same.
        if connection.transport.driver_type == "amqp":
            connection.transport_options = {
                **(connection.transport_options or {}),
                "confirm_publish": True,
            }
        connection.ensure_connection(max_retries=1, interval_start=0.1)
        yield CeleryQueueSession(app, connection, queue)


def relay_of(task: RelayedTask, *, has_all: bool = False) -> DeadLetterRelay:
    """The relay from a task's store to its queue. Builds the provider if that was not done yet.

    It carries the letters of all tasks of the app that name this queue; with ``has_all``, those of
    any task.
    """
    app, queue = task.app, task.dead_letter_queue
    names = None if has_all else partial(_names, app, queue)
    return DeadLetterRelay(
        task.runner().provider.store, lambda: open_celery_queue(app, queue), tasks=names
    )


def _names(app: Any, queue: str) -> set[str]:
    """The tasks of an app whose letters go to a queue."""
    return {
        task.name
        for task in list(_tasks)
        if task.dead_letter_queue == queue and app.tasks.get(task.name) is task
    }


def remember_task(task: RelayedTask) -> None:
    """A task was made; whether its app ever uses it is another matter."""
    _tasks.add(task)


def relay_letter(task: RelayedTask, *, is_now: bool = False) -> None:
    """Have a letter carried soon; with ``is_now`` at once, where no thread would do it later."""
    if not is_now:
        relay_thread().wake()
        return
    try:
        relay_of(task).pump()
    except Exception as error:
        emit("relay.failed", error=describe_safely(error), failures=1)


def relay_app(app: Any, *, has_all: bool = False, name: str = "") -> RelayCounts:
    """Carry what waits of an app's provider tasks in their stores, until nothing does.

    ``has_all``: also the letters of tasks that the app does not have, to a queue of one it has.
    ``name`` is what an error calls the app.
    """
    _import_tasks(app, name or repr(app))
    published = redriven = left = 0
    for relay in _relays(app, has_all=has_all):
        done = relay.drain()
        published += done.published
        redriven += done.redriven
        left += done.left
    return RelayCounts(published, redriven, left=left)


def _import_tasks(app: Any, name: str) -> None:
    """Import the modules that the app finds its tasks in, as a worker does when it starts."""
    if not isinstance(app, Celery):
        raise ConfigurationError(
            f"{name} is no Celery app, but {type(app).__name__}",
            remedy="name the app as module:name, as for celery -A",
        )
    app.loader.import_default_modules()
    if not any(app.tasks.get(task.name) is task for task in list(_tasks)):
        raise ConfigurationError(
            f"{name} has no provider tasks, so no dead letters either",
            remedy="name the app that registers them, and let it import their modules (include=…)",
        )


def _relays(
    app: Any = None, known: _Relays | None = None, *, has_all: bool = False
) -> Iterator[DeadLetterRelay]:
    """One relay for each store and queue of the tasks that are registered here.

    ``known`` are those of an earlier look, which know what they cannot carry. With ``has_all``
    there are more behind them, for the letters of all other tasks. A provider that cannot be built
    does not hold up the letters of other tasks: its error is raised at the end.
    """
    known = {} if known is None else known
    seen, rest = set(), list[DeadLetterRelay]()
    failure: Exception | None = None
    for task in list(_tasks):
        own = task._app  # noqa: SLF001 - the property would make one
        is_asked = app is None or app is own
        if not task.relays or own is None or not is_asked or own.tasks.get(task.name) is not task:
            continue
        try:
            key = (id(own), id(task.runner().provider.store), task.dead_letter_queue)
            relay = known.get(key) or known.setdefault(key, relay_of(task))
        except Exception as error:
            failure = error
            continue
        if key not in seen:
            seen.add(key)
            rest += [relay_of(task, has_all=True)] if has_all else []
            yield relay
    yield from rest
    if failure is not None:
        raise failure


def relay_thread() -> RelayThread:
    """The thread of this process that carries letters; started by the first call."""
    global _thread  # noqa: PLW0603 - one for the process
    with _lock:
        if _thread is None:
            _thread = RelayThread(partial(_relays, known={}))
            _thread.start()
        return _thread


def _preload(sender: Any = None, **_: Any) -> None:
    """In the parent of a prefork pool: its children inherit modules, and import nothing again."""
    pool = getattr(sender, "pool_cls", None)
    module = getattr(pool, "__module__", ALIASES.get(str(pool), str(pool)).partition(":")[0])
    if module == _PREFORK and len(_tasks):
        preload()


def _begin(sender: Any = None, **_: Any) -> None:
    """A process that makes calls begins: a child, or a worker whose pool has threads alone."""
    pool = type(getattr(sender, "pool", None))
    if pool.__module__ == _PREFORK:
        return  # the parent: its children do this, and nothing may be open when they are forked
    if any(task.relays for task in _tasks):
        relay_thread()


def _end(**_: Any) -> None:
    """Celery's children end without exit hooks: what is on its way is written here."""
    for task in list(_tasks):
        task.close()
    close_recorders(_CLOSE_TIMEOUT)
    with _lock:
        thread = _thread
    if thread is not None:
        thread.stop(_CLOSE_TIMEOUT)


def _after_fork_in_child() -> None:
    global _lock, _thread  # noqa: PLW0603 - the thread is the parent's, and may hold the lock
    _lock = threading.Lock()
    _thread = None
    for task in list(_tasks):
        task.begin_anew()


os.register_at_fork(after_in_child=_after_fork_in_child)
signals.worker_init.connect(_preload, weak=False)
signals.worker_process_init.connect(_begin, weak=False)
signals.worker_process_shutdown.connect(_end, weak=False)
signals.worker_ready.connect(_begin, weak=False)  # of pools without processes
signals.worker_shutdown.connect(_end, weak=False)
