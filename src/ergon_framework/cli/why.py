"""``ergon why``: in plain words why something waits, was retried, died, or is not there yet."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from ergon_framework.cli import completion
from ergon_framework.cli.command_run import ConfigPath, JsonFlag
from ergon_framework.cli.job_client import StoreUrl, earlier
from ergon_framework.cli.output import note, printable, show_one, waiting
from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    JobNotFoundError,
    StoreUnavailableError,
)

UnitId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The id of a job, flow, transaction, fact or provider call.",
        autocompletion=completion.job_ids,
    ),
]
NodeUrl = Annotated[
    str | None,
    typer.Option(
        "--node", metavar="URL", help="Also ask the node of a zone, at this URL, about a fact."
    ),
]


class UnitKind(StrEnum):
    """What can be explained."""

    JOB = "job"
    FLOW = "flow"
    TRANSACTION = "transaction"
    FACT = "fact"
    CALL = "call"


OfKind = Annotated[
    UnitKind | None, typer.Option("--kind", help="Look for an id of this kind only.")
]


def why(
    unit: UnitId,
    kind: OfKind = None,
    node: NodeUrl = None,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """Explain the state of a job, flow, transaction, fact or provider call.

    The answer comes from the stores and the journal. A provider call is found by its correlation
    id, its idempotency key, the id of the job or transaction that made it, or the id of its dead
    letter. Exit code 1 when nothing is found.

    Example: ergon why order-7
    """
    from ergon_framework.app.explain import Question, explain
    from ergon_framework.app.settings import load_settings

    if not unit.strip():
        raise ConfigurationError("an id is empty", remedy="name what is to be explained")
    asked = Question(unit, load_settings(config), url, node, config)
    with waiting("looking"):
        found = explain(asked, None if kind is None else kind.value)
    # Each once: several kinds of units may be looked for in the same store.
    for trouble in dict.fromkeys(asked.troubles):
        print(printable(f"note: {trouble}"), file=sys.stderr, flush=True)
    if not found:
        other = earlier(config) if url is None else None
        if other is not None:
            note(f"{other.found}; {other.remedy()}")
        raise not_found(unit, asked.looked, asked.troubles)
    if as_json:
        views = [each.view() for each in found]
        show_one(views[0] if len(views) == 1 else {"id": unit, "found": views}, as_json=True)
        return
    for number, each in enumerate(found):
        if number:
            print()
        print(printable(each.lead))
        for sentence in each.why:
            print(printable(sentence))


def not_found(unit: str, looked: list[str], troubles: Sequence[str] = ()) -> ErgonError:
    """Says where was looked, and what may be missing there.

    What could not be looked at may know the unit: that it is nowhere is not claimed then.
    """
    where = "; ".join(dict.fromkeys(looked)) or "nowhere: the settings name no store and no journal"
    if troubles:
        return StoreUnavailableError(
            f"{unit!r} was not found, but not every place could be looked at; looked at {where}",
            remedy="fix what the notes above name, then ask again",
            details={"id": unit, "looked": looked, "troubles": list(dict.fromkeys(troubles))},
        )
    return JobNotFoundError(
        f"nothing is known about {unit!r}; looked at {where}",
        remedy="name the store with --store, or the settings with --config; what went well is in"
        " the journal only with journal_all = true under [telemetry]",
        details={"id": unit, "looked": looked},
    )
