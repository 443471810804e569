"""What is written about one call: a row per attempt for the store, a line each for the result."""

from __future__ import annotations

from ergon_framework.ports.providerstore import AttemptRow, Failed, LaneKey, Outcome
from ergon_framework.providers.errors import ProviderError
from ergon_framework.providers.execution import ProviderAttempt, ProviderExecutionContext
from ergon_framework.providers.pipeline.options import Manner


class CallLog:
    """The attempts of one call, as they end."""

    __slots__ = ("_context", "_key", "_manner", "_who", "attempts", "budget_ms", "rows")

    def __init__(
        self,
        manner: Manner,
        key: LaneKey,
        who: tuple[str | None, str],
        context: ProviderExecutionContext,
    ) -> None:
        self._manner = manner
        self._key = key
        self._who = who
        self._context = context
        self.budget_ms: int | None = None
        self.attempts: list[ProviderAttempt] = []
        self.rows: list[AttemptRow] = []

    def attempted(
        self,
        correlation_id: str,
        times: tuple[float, float],
        error: ProviderError | None,
        outcome: Outcome,
        delay: float | None,
    ) -> None:
        """An attempt has ended; ``times`` are its first and its last instant."""
        started_at, ended_at = times
        duration = (ended_at - started_at) * 1000
        number = self._context.attempt_offset + len(self.attempts) + 1
        if error is None:
            line = ProviderAttempt(number, started_at, duration)
        else:
            reason, status = error.reason_code, error.http_status
            retryable = self._manner.table[reason].retries
            line = ProviderAttempt(number, started_at, duration, reason, retryable, delay, status)
        self.attempts.append(line)
        self._add(correlation_id, line, outcome)

    @property
    def last_failure(self) -> Failed | None:
        """The last attempt, if it failed, as its row will tell it."""
        row = self.rows[-1] if self.rows else None
        if row is None or row.reason_code is None:
            return None
        return Failed(row.reason_code, row.created_at)

    def failed(self, correlation_id: str, error: ProviderError) -> None:
        """The call is over: nothing follows its last attempt, even if that was the plan."""
        if not self.rows:
            self._refused(correlation_id, error)
        self.given_up()

    def given_up(self) -> list[AttemptRow]:
        """The rows of a call that goes no further, whatever the plan was."""
        if self.rows and self.rows[-1].outcome == Outcome.RETRY:
            self.rows[-1] = self.rows[-1]._replace(outcome=Outcome.FAILED.value)
            self.attempts[-1].delay_seconds = None
        return self.rows

    def _refused(self, correlation_id: str, error: ProviderError) -> None:
        """A gate refused the call: that is no attempt, and its number is 0."""
        retryable = self._manner.table[error.reason_code].retries
        line = ProviderAttempt(0, 0.0, 0.0, error.reason_code, retryable)
        self._add(correlation_id, line, Outcome.FAILED)

    def _add(self, correlation_id: str, line: ProviderAttempt, outcome: Outcome) -> None:
        context, key = self._context, self._key
        campaign_id, operation = self._who
        row = AttemptRow(
            self._manner.new_id(),
            key.tenant_id,
            context.task_execution_id,
            key.provider_name,
            key.capability,
            operation,
            context.idempotency_key,
            correlation_id,
            line.number,
            self._manner.attempts_of(context),
            round(line.duration_ms),
            self.budget_ms,
            outcome.value,
            line.reason_code,
            line.retryable,
            line.http_status,
            self._manner.wall(),
            campaign_id,
        )
        self.rows.append(row)
