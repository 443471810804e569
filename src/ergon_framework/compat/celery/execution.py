"""Runs a task as a job: its request, its hooks, and what its end means for the job.

The same code runs tasks of Celery and those that were declared without it. It calls the task in
the order in which Celery's worker does: ``before_start``, the task, ``on_success``, ``on_retry`` or
``on_failure``, and ``after_return`` unless it is tried again. How a task ended decides what becomes
of the job:

- it returned: the job completes with its result; it raised ``Ignore``: the job is discarded;
- it raised ``Retry`` (``self.retry()``, ``autoretry_for``): another attempt, when the task says;
- it raised ``Reject(requeue=True)``: the job is delivered again, and no attempt is charged;
- it raised anything else: the job is dead-lettered with that error.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Protocol

from ergon_framework.compat.celery.arguments import decode as decode_result
from ergon_framework.compat.celery.arguments import encode_result
from ergon_framework.compat.celery.exceptions import UnsupportedOptionError, is_celery
from ergon_framework.compat.celery.options import UNBOUNDED_ATTEMPTS, instant, seconds_of
from ergon_framework.errors import Discard, NonRetryableException, describe
from ergon_framework.executor import Held, JobContext, RetryLater, current_job

REQUEUE_DELAY = 1.0
"""Seconds until a message that a task rejected with ``requeue=True`` is delivered again."""


class CeleryDelivery:
    """The job that a task runs in, and the retry it has asked for."""

    def __init__(
        self, job: JobContext, task: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self.job_id = job.job_id
        self.attempt = job.attempt
        self.task = task
        self.queue = job.queue_name
        self.args = list(args)
        self.kwargs = dict(kwargs)
        self.retry_delay: float | None = None
        self.is_redelivered = False

    @property
    def retries(self) -> int:
        """How often the task was tried before, counted as Celery does."""
        return self.attempt - 1

    def ask_for_retry(
        self,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        *,
        countdown: float | None,
        eta: datetime | str | None,
        max_attempts: int,
    ) -> None:
        """Record that the task wants another attempt. Refuses what an attempt cannot change."""
        is_other = (args is not None and list(args) != self.args) or (
            kwargs is not None and dict(kwargs) != self.kwargs
        )
        if is_other:
            raise UnsupportedOptionError(
                f"the task {self.task!r} asks for a retry with other arguments, and all attempts"
                " of a job have the same",
                remedy="call apply_async with the new arguments, and return",
                details={"task": self.task},
            )
        # The worker would dead-letter the job as exhausted. Here the task's author can be told what
        # to change.
        if self.attempt >= max_attempts:
            remedy = f"declare it: max_retries={self.attempt} in the decorator of the task"
            if self.attempt >= UNBOUNDED_ATTEMPTS:
                remedy = "no job has more; call apply_async for one that goes on, and return"
            raise UnsupportedOptionError(
                f"the task {self.task!r} asks for retry {self.attempt}, and its job was enqueued"
                f" for {max_attempts} attempts",
                remedy=remedy,
                details={"task": self.task},
            )
        self.retry_delay = delay_until(countdown, eta)


RUNNING_DELIVERY: ContextVar[CeleryDelivery | None] = ContextVar(
    "ergon_celery_delivery", default=None
)


class RunnableTask(Protocol):
    """What is needed of a task, whether it is Celery's or this package's."""

    name: str
    ignore_result: bool
    acks_late: bool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the task's function, within the request that was pushed."""

    def push_request(self, **fields: Any) -> None:
        """Make these the fields of ``self.request``."""

    def pop_request(self) -> None:
        """Forget the request that was pushed last."""

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Run before the task."""

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        """Run after the task has returned."""

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Run after the task has asked for another attempt."""

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Run after the task has failed."""

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        """Run last."""


class RunListener:
    """Told what happens to a task. The bridge to Celery sends its signals from here."""

    def started(self, task: Any, task_id: str, args: Any, kwargs: Any) -> None:
        """The task is about to run."""

    def ended(self, task: Any, task_id: str, state: str, value: Any, einfo: Any) -> None:
        """The task has ended with SUCCESS, RETRY or FAILURE."""

    def returned(self, task: Any, task_id: str, state: str, value: Any) -> None:
        """The same, after all hooks have run."""

    def error_info(self, error: BaseException) -> Any:
        """The value that hooks get as ``einfo``, beside the error itself."""
        return error


class TaskHandler:
    """Runs the jobs of one task."""

    def __init__(
        self,
        task: RunnableTask,
        *,
        listener: RunListener | None = None,
        encode: Callable[[Any], Any] = encode_result,
        decode: Callable[[Any], Any] = decode_result,
        soft_limit: float | None = None,
        soft_error: type[BaseException] | None = None,
    ) -> None:
        self._task = task
        self._listener = listener or RunListener()
        self._encode = encode
        self._decode = decode
        self._soft_limit = soft_limit
        self._soft_error = soft_error
        self.__name__ = task.name
        self.__doc__ = task.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task in the job of this handler."""
        job = current_job() or JobContext(job_id="")
        given, named = self._decode(list(args)), self._decode(kwargs)
        delivery = CeleryDelivery(job, self._task.name, given, named)
        # Without acks_late a lost job is not delivered again, so this delivery is a retry.
        delivery.is_redelivered = self._task.acks_late and job.attempt > 1
        token = RUNNING_DELIVERY.set(delivery)
        self._task.push_request(**request_fields(job, delivery))
        try:
            with django_connections():
                return self._run(delivery)
        finally:
            self._task.pop_request()
            RUNNING_DELIVERY.reset(token)

    def _run(self, delivery: CeleryDelivery) -> Any:
        task, task_id = self._task, delivery.job_id
        args, kwargs = delivery.args, delivery.kwargs
        try:
            self._listener.started(task, task_id, args, kwargs)
            with soft_time_limit(self._soft_limit, self._soft_error):
                task.before_start(task_id, args, kwargs)
                value = task(*args, **kwargs)
        except Exception as error:
            self._tell_end(delivery, error)
            raise  # Here and not in _tell_end, which would add a frame to the traceback.
        # Before on_success: a task that asked for a retry and returned has not succeeded.
        self._try_again(delivery)
        task.on_success(value, task_id, args, kwargs)
        self._end(delivery, "SUCCESS", value, None)
        return None if task.ignore_result else self._encode(value)

    def _tell_end(self, delivery: CeleryDelivery, error: Exception) -> None:
        """Call the hooks for how the task ended. Raises what the worker is to see, if not the error
        itself.
        """
        task, task_id = self._task, delivery.job_id
        args, kwargs = delivery.args, delivery.kwargs
        if is_celery(error, "Ignore"):
            self._listener.returned(task, task_id, "IGNORED", None)
            self._try_again(delivery, error)
            raise Discard(str(error) or "the task asks to be ignored") from error
        if is_celery(error, "Reject"):
            self._listener.returned(task, task_id, "REJECTED", error)
            raise _rejection(error) from error
        if is_celery(error, "Retry"):
            cause = getattr(error, "exc", None) or error
            info = self._listener.error_info(error)
            task.on_retry(cause, task_id, args, kwargs, info)
            self._listener.ended(task, task_id, "RETRY", error, info)
            self._listener.returned(task, task_id, "RETRY", error)
            delay = delivery.retry_delay
            delay = _delay_of(error) if delay is None else delay
            # The cause is the task's own error, which the job's history is to show.
            raise RetryLater(_retry_text(error), delay) from cause
        info = self._listener.error_info(error)
        task.on_failure(error, task_id, args, kwargs, info)
        self._end(delivery, "FAILURE", error, info)
        self._try_again(delivery, error)

    def _try_again(self, delivery: CeleryDelivery, error: Exception | None = None) -> None:
        """Keep a retry that the task asked for with ``throw=False``, however it ended afterwards.

        With Celery the message of the retry has been sent by then.
        """
        if delivery.retry_delay is not None:
            text = f"the task {delivery.task!r} asked for a retry"
            raise RetryLater(text, delivery.retry_delay) from error

    def _end(self, delivery: CeleryDelivery, state: str, value: Any, info: Any) -> None:
        task_id, args, kwargs = delivery.job_id, delivery.args, delivery.kwargs
        self._listener.ended(self._task, task_id, state, value, info)
        self._task.after_return(state, value, task_id, args, kwargs, info)
        self._listener.returned(self._task, task_id, state, value)


def request_fields(job: JobContext, delivery: CeleryDelivery) -> dict[str, Any]:
    """``self.request`` of a task that runs in a job."""
    return {
        "id": delivery.job_id,
        "task": delivery.task,
        "args": delivery.args,
        "kwargs": delivery.kwargs,
        "retries": delivery.retries,
        "called_directly": False,
        "is_eager": False,
        "hostname": job.worker_id,
        "root_id": job.correlation or delivery.job_id,
        "parent_id": None,
        "correlation_id": delivery.job_id,
        "delivery_info": {
            "exchange": "",
            "routing_key": job.queue_name,
            "redelivered": delivery.is_redelivered,
            "priority": None,
        },
    }


def delay_until(countdown: float | None, eta: datetime | str | None) -> float:
    """Seconds until a retry."""
    if eta is not None and not countdown:  # Given both, Celery takes the countdown.
        return max(0.0, (instant("eta", eta) - datetime.now(UTC)).total_seconds())
    return seconds_of(countdown or 0.0)


def _delay_of(error: Any) -> float:
    """The delay of a ``Retry`` that the task raised itself."""
    when = getattr(error, "when", None)
    is_instant = isinstance(when, datetime | str)
    return delay_until(None if is_instant else when, when if is_instant else None)


def _retry_text(error: Any) -> str:
    """The text that is kept of a retry: the failure behind it, if there is one."""
    cause = getattr(error, "exc", None)
    return describe(cause) if isinstance(cause, BaseException) else str(error)


def _rejection(error: Any) -> Exception:
    reason = getattr(error, "reason", None)
    text = describe(reason) if isinstance(reason, BaseException) else str(reason or "rejected")
    if getattr(error, "requeue", False):
        return Held(f"the task gave its message back: {text}", REQUEUE_DELAY)
    return NonRetryableException(f"the task rejected its message: {text}")


@contextmanager
def django_connections() -> Iterator[None]:
    """Close connections of Django that are too old, as Celery's worker does."""
    database: Any = sys.modules.get("django.db")
    if database is None:  # Nothing in this process has used Django.
        yield
        return
    database.close_old_connections()
    try:
        yield
    finally:
        database.close_old_connections()


@contextmanager
def soft_time_limit(seconds: float | None, error: type[BaseException] | None) -> Iterator[None]:
    """Raise ``error`` in this thread after so many seconds.

    It is raised between two instructions of Python code, so a call that blocks in C notices it when
    it returns. The hard limit, which ends the process, does not wait for that.
    """
    if seconds is None or error is None:
        yield
        return
    lock = threading.Lock()
    # Not with a signal: signals interrupt only the main thread, and handlers run in any thread.
    thread = ctypes.c_ulong(threading.get_ident())
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    is_over = False

    def interrupt() -> None:
        with lock:
            if not is_over:
                raise_in(thread, ctypes.py_object(error))

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        # interrupt() takes the same lock, so that nothing is raised in this thread after the task.
        with lock:
            is_over = True
            raise_in(thread, None)  # An error that was asked for and has not been raised yet.
        timer.cancel()
