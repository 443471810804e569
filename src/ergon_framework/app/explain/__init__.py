"""``ergon why``: what became of a job, a transaction, a fact or a provider call, in sentences.

Stores, journals and nodes are only read. A store that is not there is a place where nothing was
found.

Where to look first: ``explain`` asks everything that may know an id. ``execution`` explains jobs
and transactions, ``fact`` facts in zones and ``call`` provider calls; ``explanation`` is what they
answer, and how journal entries become sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ergon_framework.app.explain.call import explain_call
from ergon_framework.app.explain.execution import (
    explain_flow_id,
    explain_job_id,
    explain_transaction,
)
from ergon_framework.app.explain.explanation import Explanation, Question
from ergon_framework.app.explain.fact import explain_fact
from ergon_framework.errors import ErgonError

__all__ = ["KINDS", "Explanation", "Question", "explain"]


KINDS: dict[str, Callable[[Question], Iterator[Explanation]]] = {
    "job": explain_job_id,
    "flow": explain_flow_id,
    "transaction": explain_transaction,
    "fact": explain_fact,
    "call": explain_call,
}
"""What ``ergon why`` can explain, in the order in which it is told."""


def explain(asked: Question, kind: str | None = None) -> list[Explanation]:
    """Everything that is known about the unit; only of one kind when that is given.

    Where several kinds are looked for, a store in trouble is noted in ``asked.troubles``.
    """
    if kind is not None:
        return list(KINDS[kind](asked))
    found: list[Explanation] = []
    for explainer in KINDS.values():
        try:
            found += explainer(asked)
        except ErgonError as error:  # one store that is away must not hide what the others know
            asked.troubles.append(str(error))
    return found
