"""What is written under a task's key when its delivery ends, and what becomes of its marks.

A store that does not answer ends no task: the lease of the key runs out then.
"""

from __future__ import annotations

from ergon_framework.errors import StoreError
from ergon_framework.providers.decisions import Decision
from ergon_framework.providers.execution import ProviderExecutionResult
from ergon_framework.providers.pipeline.redaction import message_of
from ergon_framework.providers.tasking.idempotency import may_run_again
from ergon_framework.providers.tasking.results import ResultKeeping
from ergon_framework.providers.tasking.runs import TaskRun
from ergon_framework.providers.tasks import TaskEnd
from ergon_framework.providers.telling import tell


def settle(
    run: TaskRun,
    result: ProviderExecutionResult,
    table: dict[str, Decision],
    keeping: ResultKeeping,
) -> None:
    """Write under the key what came of the call, and its result as ``keeping`` says."""
    if not run.is_ours:
        return
    try:
        is_ours = _is_finished(run, result, table, keeping)
    except StoreError as fault:
        tell("key.left_open", key=run.lane, error=type(fault).__name__)
        return
    if not is_ours:  # the lease was over, and somebody else has it
        tell("key.lost", key=run.lane)


def _is_finished(
    run: TaskRun,
    result: ProviderExecutionResult,
    table: dict[str, Decision],
    keeping: ResultKeeping,
) -> bool:
    guard, error, end = run.guard, result.error, run.verdict.end
    if end is TaskEnd.DONE:
        return keeping.write(guard, result.data or {})
    if end is TaskEnd.FAILED and error is not None:
        reason = error.reason_code
        if not may_run_again(table[reason], reason):
            return guard.fail(reason, message_of(error))
    return guard.free(result.reason_code)


def let_go(run: TaskRun) -> None:
    """The delivery ends as it should: its worker was not lost."""
    run.let_go()
    mark, run.mark = run.mark, None
    try:
        if mark is not None:
            run.guard.unmark(mark)
    except StoreError as fault:
        tell("key.left_open", key=run.lane, error=type(fault).__name__)


def free(run: TaskRun) -> None:
    """The call was broken off: whoever comes next need not wait for the lease to end.

    It still counts as a lost worker: a call that breaks off every time must come to an end.
    """
    run.let_go()
    try:
        if run.is_ours:
            run.guard.free()
    except StoreError as fault:
        tell("key.left_open", key=run.lane, error=type(fault).__name__)
