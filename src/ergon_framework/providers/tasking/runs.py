"""One delivery of a task under way, and the results of those whose provider was not called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ergon_framework.core.guard import Stopped
from ergon_framework.ports.clock import Clock
from ergon_framework.ports.providerstore import Claim, DeadLetter, LaneKey
from ergon_framework.providers.errors import ERROR_OF, ProviderError, ProviderInternalError
from ergon_framework.providers.execution import ProviderExecutionContext, ProviderExecutionResult
from ergon_framework.providers.pipeline.redaction import message_of, plain_json
from ergon_framework.providers.tasking.holding import Held
from ergon_framework.providers.tasking.idempotency import KeyGuard
from ergon_framework.providers.tasking.letters import LetterNames
from ergon_framework.providers.tasking.verdicts import Verdict
from ergon_framework.providers.tasks import GivenUp, TaskCall, TaskEnd

DONE = Verdict(TaskEnd.DONE)


@dataclass(slots=True)
class TaskRun:
    """What one delivery knows of itself."""

    call: TaskCall
    lane: LaneKey
    names: LetterNames
    context: ProviderExecutionContext
    guard: KeyGuard
    clock: Clock
    began_at: float
    is_ours: bool = False
    """Whether the key was claimed, so that what comes of the call is written under it."""
    lease_ends_at: float = 0.0
    """When the key that was claimed is free for others, by the store's clock."""
    overtaken_by: Claim | None = None
    """What became of the key while this delivery stood still for longer than its lease."""
    verdict: Verdict = DONE
    held: Held | None = None
    mark: str | None = None
    """That a message which came back is being tried; taken away when it ends as it should."""
    end: GivenUp | None = None
    letter: DeadLetter | None = None

    def arguments(
        self,
    ) -> tuple[str, str | None, str, dict[str, Any], ProviderExecutionContext]:
        """What the provider is called with; the payload is its own, to do with as it likes."""
        call = self.call
        payload = plain_json(call.payload)
        return call.tenant_id, call.campaign_id, call.operation, payload, self.context

    def let_go(self) -> None:
        """Say that no call is being made any more."""
        held, self.held = self.held, None
        if held is not None:
            held.release()

    def not_called(
        self, error: ProviderError | None, data: dict[str, Any] | None = None
    ) -> ProviderExecutionResult:
        """The result of a delivery that did not call the provider."""
        result = not_called(error, self.names.correlation_id, data)
        result.idempotency_key = self.names.idempotency_key
        result.duration_ms = (self.clock.now() - self.began_at) * 1000
        return result

    def given_up(self, result: ProviderExecutionResult, now: float, *, retryable: bool) -> GivenUp:
        """What its dead letter says about the end."""
        error = result.error or ProviderInternalError("the call failed without an error")
        return GivenUp(
            reason_code=error.reason_code,
            error_type=type(error).__name__,
            message=message_of(error),
            attempts=self.call.carried.attempts + result.attempts,
            occurred_at=now,
            retryable=retryable,
            http_status=result.http_status or getattr(error, "http_status", None),
        )


def not_called(
    error: ProviderError | None, correlation_id: str, data: dict[str, Any] | None = None
) -> ProviderExecutionResult:
    """The result where there was no call: what an earlier one gave, or why there was none."""
    return ProviderExecutionResult(
        success=error is None,
        data=None if error is not None else data or {},
        error=error,
        reason_code=None if error is None else error.reason_code,
        attempts=0,
        duration_ms=0.0,
        correlation_id=correlation_id,
        retry_after_seconds=None if error is None else error.retry_after_seconds,
        stop_reason=(Stopped.SUCCEEDED if error is None else Stopped.NOT_RETRYABLE).value,
        replayed=error is None,
    )


def error_of(end: GivenUp) -> ProviderError:
    """The error of a call that was given up by an earlier delivery."""
    kind = ERROR_OF.get(end.reason_code, ProviderInternalError)
    return kind(end.message, http_status=end.http_status)
