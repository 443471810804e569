"""Provider calls as Celery tasks.

Name the task, say how its provider is built, and register it; nothing else of your Celery changes::

    class RankTask(CeleryProviderTask):
        name = "rank.snapshot"
        provider_factory = staticmethod(lambda: Rank(store="sqlite:///work.db"))


    app.register_task(RankTask())
"""

from __future__ import annotations

import inspect
import os
import threading
import traceback
from collections.abc import Callable, Collection
from dataclasses import fields, replace
from typing import Any, ClassVar, NoReturn

import msgspec

from ergon_framework.core.call_redelivery import MIN_DEFERRAL
from ergon_framework.core.json_names import repeated_name
from ergon_framework.errors import MissingExtraError, WiringError
from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.errors import (
    ERROR_OF,
    ProviderBadRequestError,
    ProviderDependencyError,
    ProviderError,
    ProviderInternalError,
)
from ergon_framework.providers.execution import RENAMED, refuse_renamed
from ergon_framework.providers.redaction import describe_safely, safe_message
from ergon_framework.providers.runner import ProviderTaskRunner
from ergon_framework.providers.tasks import (
    MAX_RESULT_BYTES,
    CallProgress,
    ComputedKeys,
    KeepResults,
    ResultCipher,
    TaskCall,
    TaskGate,
    TaskOptions,
)
from ergon_framework.providers.telemetry import emit

try:
    from celery import Task
    from celery.exceptions import Reject, Retry, SoftTimeLimitExceeded
except ImportError as error:
    raise MissingExtraError(
        "provider tasks for Celery need the package celery",
        remedy='pip install "ergon-framework[celery]"',
    ) from error

from ergon_framework.providers.celery_worker import relay_app, relay_letter, remember_task

__all__ = ["CeleryProviderTask", "relay_app"]

SOFT_MARGIN = 10.0
HARD_MARGIN = 20.0
"""Seconds beyond the budget after which Celery ends a call that does not keep to it."""

VISIBILITY_TIMEOUT = 3600.0
"""Seconds after which brokers without acknowledgements of their own deliver a message again."""

CARRIED = "_ergon"
"""The keyword under which a message carries what was counted before."""

_VISIBILITY_MARGIN = 30.0  # seconds to spare before a broker delivers a message again

_RETRIES = ("autoretry_for", "retry_backoff", "retry_kwargs")
"""What would have Celery try again as well; a subclass sets none of them."""


class CeleryProviderTask(Task):  # type: ignore[misc]  # celery has no types
    """A task whose work is one provider call. Set ``name`` and ``provider_factory``.

    It returns the call's data. A failure is raised as its canonical error, after the dead letter is
    in the store if there is one to write. The message is acknowledged afterwards.

    While the provider cannot be built, there is no store to write a dead letter to: the call goes
    back to the queue, after a second at first and every minute in the end.
    """

    abstract = True
    provider_factory: ClassVar[Callable[[], ProviderBase]]
    """Builds the provider; called once in each worker process, when it is first needed."""

    # What TaskOptions has, with the same meaning.
    timeout_budget_seconds: float | None = 60.0
    idempotent: bool = True
    keep_key_seconds: float = 86_400.0
    computed_keys: str = ComputedKeys.MESSAGE
    keep_computed_key_seconds: float | None = None
    lease_grace_seconds: float = 30.0
    max_deferrals: int = 25
    defer_on: Collection[str] = frozenset(TaskGate)
    longest_deferral_seconds: float = 900.0
    max_requeues: int = 0
    requeue_on: Collection[str] = frozenset()
    bury_on: Collection[str] = frozenset()
    max_redeliveries: int = 5
    keep_results: str = KeepResults.WHOLE
    max_result_bytes: int = MAX_RESULT_BYTES
    result_cipher: ResultCipher | None = None
    max_payload_bytes: int = 262_144
    secret_names: Collection[str] = frozenset()
    volatile_names: Collection[str] = frozenset()

    dead_letter_queue: str = "queue.deadletter"
    relays: bool = True
    """Whether its worker processes carry dead letters from the store to the queue."""

    # What Celery has. A message is gone only when its call has ended, whatever ends the worker.
    acks_late = True
    reject_on_worker_lost = True
    acks_on_failure_or_timeout = False  # of older versions; the two below take its place
    acks_on_failure = True
    acks_on_timeout = False
    soft_time_limit: float | None = None  # by default a little beyond the budget
    time_limit: float | None = None
    ignore_result = False
    resultrepr_maxsize = 1  # Celery would write what the call returned into its log
    max_retries = None  # deferrals and attempts are counted by us
    throws = (ProviderError,)

    def __init__(self) -> None:
        super().__init__()
        if getattr(self, "_decorated", False):  # Celery puts a function in the place of run()
            raise WiringError(
                f"{self.name} is a function, and would take the place of the provider call",
                remedy="write a class below CeleryProviderTask with a provider_factory, and"
                " app.register_task(…) it; code of your own belongs into the provider",
            )
        refuse_renamed([name for name in RENAMED if hasattr(self, name)])
        # Two counts of retries would multiply: what is counted here travels with the message.
        for option in _RETRIES:
            if getattr(self, option, None):
                raise self._retries_twice(option)
        self._lock = threading.Lock()
        self._runner: ProviderTaskRunner | None = None
        self._pid = 0
        self._told_unbuilt = ""
        self._options = self._read_options()
        budget = self.timeout_budget_seconds
        if budget is not None and self.soft_time_limit is None and self.time_limit is None:
            self.soft_time_limit = budget + SOFT_MARGIN
            self.time_limit = budget + HARD_MARGIN
        remember_task(self)

    def run(
        self,
        tenant_id: str,
        campaign_id: str | None,
        operation: str,
        payload: dict[str, Any],
        idempotency_key: str | None = None,
        correlation_id: str | None = None,
        **carried: Any,
    ) -> dict[str, Any]:
        """Make the call of one message. ``carried`` is what an earlier message of it counted."""
        call = TaskCall(
            tenant_id=tenant_id,
            campaign_id=campaign_id,
            operation=operation,
            payload=payload,
            idempotency_key=idempotency_key,
            correlation_id=correlation_id,
            carried=_carried(carried),
            **self._delivery(),
        )
        try:
            runner = self.runner()
        except Exception as error:
            self._tell_unbuilt(error)
            if not call.may_wait:
                raise
            self._wait_for_provider(call, error)
        try:
            ending = runner.run(call)
        except SoftTimeLimitExceeded as error:
            # It struck outside the provider. Nothing is decided yet, and the message must not be
            # gone: it comes back, and is counted as one whose worker was lost.
            if not call.may_wait:
                raise
            raise Reject(error, requeue=True) from error
        if ending.letter is not None and self.relays:
            relay_letter(self, is_now=not call.may_wait)
        if not ending.is_final and call.may_wait:
            self._send_again(call, ending.carried, ending.seconds, _told(ending.result.error))
        if ending.result.success:
            return _plain(ending.result.data or {})
        raise _told(ending.result.error) from None

    def runner(self) -> ProviderTaskRunner:
        """The runner of this process, with its provider: built when it is first needed."""
        # A worker that forks has the parent's runner, whose threads and sockets do not exist here.
        if self._runner is None or self._pid != os.getpid():
            with self._lock:
                if self._runner is None or self._pid != os.getpid():
                    self._runner = self._build()
                    self._pid = os.getpid()
        return self._runner

    def begin_anew(self) -> None:
        """Called in a forked child: a thread of the parent may hold the lock."""
        self._lock = threading.Lock()

    def close(self) -> None:
        """Write what is on its way and give back what was taken ahead, when the process ends."""
        if self._runner is not None and self._pid == os.getpid():
            self._runner.provider.close()

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """As for any task, except that what Celery logs about the message does not show its
        payload.
        """
        options.setdefault("argsrepr", "(...)")
        options.setdefault("kwargsrepr", "{...}")
        return super().apply_async(args, kwargs, **options)

    # -- parts ---------------------------------------------------------------------------------

    @property
    def _orig_run(self) -> NoReturn:
        """Celery looks for this before it wraps run() in retries of its own, and only then."""
        raise self._retries_twice("autoretry_for")

    def _retries_twice(self, option: str) -> WiringError:
        return WiringError(
            f"{self.name} has {option}: each of Celery's retries would be a whole call, with all"
            " the attempts of its retry policy",
            remedy="leave it out; the provider's RetryPolicy says how often a call is attempted,"
            " and max_requeues how often it may go back to the queue",
        )

    def _build(self) -> ProviderTaskRunner:
        provider = _factory_of(type(self))()
        if not isinstance(provider, ProviderBase):
            raise WiringError(
                f"{type(self).__name__}.provider_factory made {type(provider).__name__}",
                remedy="it must return a ProviderBase",
            )
        return ProviderTaskRunner(
            provider,
            task_name=self.name,
            options=self._options,
            longest_wait=self.longest_wait,
        )

    def _read_options(self) -> TaskOptions:
        _factory_of(type(self))
        values = {each.name: getattr(self, each.name) for each in fields(TaskOptions)}
        options = _within(TaskOptions(**values), self.soft_time_limit or self.time_limit)
        if self.time_limit is None or options.timeout_budget_seconds is None:
            return options
        # Celery may let a call run on until its hard limit: before that, no other delivery may take
        # the key.
        beyond = self.time_limit - options.timeout_budget_seconds + _VISIBILITY_MARGIN
        return replace(options, lease_grace_seconds=max(options.lease_grace_seconds, beyond))

    def _delivery(self) -> dict[str, Any]:
        request = self.request
        info = request.delivery_info or {}
        trace = (request.headers or {}).get("traceparent")
        return {
            "call_id": request.id or "",
            "is_redelivered": bool(info.get("redelivered")),
            "may_wait": not (request.called_directly or request.is_eager),
            "traceparent": trace if isinstance(trace, str) else None,
        }

    def longest_wait(self) -> float:
        """Seconds for which a message may be held back; the broker delivers it again after more."""
        options = self.app.conf.broker_transport_options or {}
        visible = float(options.get("visibility_timeout") or VISIBILITY_TIMEOUT)
        # Never less than half: with a long time limit nothing would be left, and each wait would be
        # cut to nothing.
        return max(visible - (self.time_limit or 0.0) - _VISIBILITY_MARGIN, visible / 2)

    def _tell_unbuilt(self, error: Exception) -> None:
        """Once for each mistake: every message meets the same one."""
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text, where = describe_safely(error), f"{frame.filename}:{frame.lineno}"
        if text != self._told_unbuilt:
            self._told_unbuilt = text
            emit("task.unbuilt", task_name=self.name, error=text, where=where)

    def _wait_for_provider(self, call: TaskCall, error: Exception) -> NoReturn:
        times = call.carried.unbuilt
        longest = min(self._options.longest_deferral_seconds, self.longest_wait())
        seconds = min(MIN_DEFERRAL.delay(times), longest)
        carried = msgspec.structs.replace(
            call.carried, unbuilt=times + 1, is_repeated=call.is_repeated
        )
        error_to_raise = ProviderDependencyError(
            f"the provider could not be built: {describe_safely(error)}", never_sent=True
        )
        self._send_again(call, carried, seconds, error_to_raise)

    def _send_again(
        self, call: TaskCall, carried: CallProgress, seconds: float, why: ProviderError
    ) -> NoReturn:
        kwargs = {
            "tenant_id": call.tenant_id,
            "campaign_id": call.campaign_id,
            "operation": call.operation,
            "payload": call.payload,
            "idempotency_key": call.idempotency_key,
            "correlation_id": call.correlation_id,
            CARRIED: carried.to_dict(),
        }
        again = self.signature_from_request(
            self.request,
            (),
            kwargs,
            countdown=seconds,
            # Celery's own number grows, so that its events and its log show which try it is.
            retries=(self.request.retries or 0) + 1,
        )
        try:
            again.apply_async()
        except Exception as error:
            # Celery's own retry would drop the message here.
            raise Reject(error, requeue=True) from error
        raise Retry(exc=why, when=seconds, is_eager=False, sig=again) from None


def _factory_of(kind: type[CeleryProviderTask]) -> Callable[[], Any]:
    """The factory as it was written: a function on a class would otherwise be given the task."""
    try:
        found = inspect.getattr_static(kind, "provider_factory")
    except AttributeError:
        found = None
    factory = found.__func__ if isinstance(found, staticmethod) else found
    if callable(factory):
        return factory
    raise WiringError(
        f"{kind.__name__} has no provider_factory",
        remedy="provider_factory = staticmethod(lambda: YourProvider(...))",
    )


def _within(options: TaskOptions, limit: float | None) -> TaskOptions:
    """The options with a budget that ends before Celery ends the call."""
    if limit is None:
        return options
    most, budget = max(limit - SOFT_MARGIN, limit / 2), options.timeout_budget_seconds
    capped = most if budget is None else min(budget, most)
    return replace(options, timeout_budget_seconds=capped)


def _carried(given: dict[str, Any]) -> CallProgress:
    unknown = sorted(given.keys() - {CARRIED})
    if unknown:
        raise ProviderBadRequestError(
            f"a provider task does not take {', '.join(unknown)}",
            never_sent=True,
            remedy="what the provider needs belongs into the payload",
        )
    return CallProgress.from_dict(given[CARRIED]) if CARRIED in given else CallProgress()


def _told(error: ProviderError | None) -> ProviderError:
    """The error as it leaves the worker: picklable, short, and without what caused it."""
    if error is None:
        return ProviderError("the call failed without an error")
    # Not of its own class, whose __init__ may ask for anything.
    kind = ERROR_OF.get(error.reason_code, ProviderInternalError)
    return kind(
        safe_message(error),
        http_status=getattr(error, "http_status", None),
        retry_after_seconds=getattr(error, "retry_after_seconds", None),
        never_sent=getattr(error, "never_sent", False),
        remedy=getattr(error, "remedy", ""),
    )


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    """The data as any result backend can keep it: what JSON has no word for becomes a text."""
    try:
        text = msgspec.json.encode(data, enc_hook=str)
        repeated = repeated_name(data, text)
        plain: dict[str, Any] = msgspec.json.decode(text)
    except Exception as error:  # whatever its objects do when they are to become texts
        raise _unwritable(type(error).__name__) from None
    if repeated is not None:
        raise _unwritable(f"two of its keys are {repeated[:40]!r} there")
    return plain


def _unwritable(why: str) -> ProviderInternalError:
    return ProviderInternalError(
        f"the call succeeded, but its result cannot be written as JSON ({why}) and was not kept",
        remedy="let the provider return dicts with texts as keys, lists, texts, numbers, true,"
        " false and null",
    )
