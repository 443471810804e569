"""``ergon dlq``: jobs and provider calls that failed for good, sent back or deleted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ergon_framework.app import dead_letters
from ergon_framework.app.dead_letters import LetterCounts, LetterFilter, LetterKind
from ergon_framework.cli import completion
from ergon_framework.cli.command_run import ConfigPath, JsonFlag, expanded, finite
from ergon_framework.cli.job_client import (
    COLUMNS,
    StoreUrl,
    job_rows,
    observed_as_operator,
    opened,
    show_job,
    show_jobs,
)
from ergon_framework.cli.job_filters import All, DryRun, Limit, OfHandler, OfQueue
from ergon_framework.cli.output import progress, show_list, show_one, waiting
from ergon_framework.errors import ConfigurationError, JobNotFoundError
from ergon_framework.storage.urls import pasteable

if TYPE_CHECKING:
    from ergon_framework.jobs.client import JobClient
    from ergon_framework.ports.jobstore import Search

FAMILY_COLUMNS = ("number", "handler", "code", "message", "last_at", "latest_id")
MAX_NAMED = 3
"""The most jobs left alone for which the reason is read."""

app = typer.Typer(
    help=("List jobs and provider calls that failed for good; send them back or delete them.")
)

Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID",
        help="Ids of dead-lettered jobs or calls; without any, give a filter or --all.",
        autocompletion=completion.dead_ids,
    ),
]
DeadId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The id of a dead-lettered job or call.",
        autocompletion=completion.dead_ids,
    ),
]
MoreIds = Annotated[
    list[str] | None,
    typer.Option(
        "--id",
        metavar="ID",
        help="Only the job or call with this id; may be repeated.",
        autocompletion=completion.dead_ids,
    ),
]
OfCode = Annotated[
    str | None,
    typer.Option("--code", metavar="CODE", help="Only jobs that failed with this error code."),
]
OlderThan = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        min=0.0,
        callback=finite,
        help="Only those that failed at least this many seconds ago.",
    ),
]

_NAMES = {LetterKind.JOB: "job", LetterKind.PROVIDER: "provider call"}

OfKind = Annotated[
    LetterKind | None, typer.Option("--kind", help="Only jobs, or only provider calls.")
]
OfProvider = Annotated[
    str | None, typer.Option("--provider", metavar="NAME", help="Only calls of this provider.")
]
OfReason = Annotated[
    str | None,
    typer.Option("--reason", metavar="CODE", help="Only calls that failed for this reason code."),
]


class _Filters(NamedTuple):
    """The filters of the command line that select dead letters."""

    kind: LetterKind | None
    of_jobs: tuple[str | None, str | None, str | None]
    of_calls: tuple[str | None, str | None]
    older_than: float | None

    @property
    def asked(self) -> LetterKind | None:
        """The kind that the options are about; None: both."""
        about = {
            each
            for each, values in (
                (LetterKind.JOB, self.of_jobs),
                (LetterKind.PROVIDER, self.of_calls),
            )
            if any(value is not None for value in values) or each is self.kind
        }
        if len(about) > 1:
            raise ConfigurationError(
                "these filters have nothing in common",
                remedy="--queue, --handler and --code are about jobs, --provider and --reason about"
                " calls of providers",
            )
        return about.pop() if about else None

    def search(self, client: JobClient, ids: tuple[str, ...] = ()) -> Search:
        """The jobs that match."""
        from ergon_framework.core.job import JobStatus
        from ergon_framework.ports.jobstore import Search

        queue, handler, code = self.of_jobs
        return Search(
            statuses=(JobStatus.FAILED,),
            queue=queue,
            handler=handler,
            code=code,
            before=None if self.older_than is None else client.store.now() - self.older_than,
            ids=ids,
        )

    def calls(self, ids: tuple[str, ...] = ()) -> LetterFilter:
        """The calls of providers that match."""
        return LetterFilter(ids, *self.of_calls, self.older_than)


def _filters(
    kind: OfKind = None,
    queue: OfQueue = None,
    handler: OfHandler = None,
    code: OfCode = None,
    provider: OfProvider = None,
    reason: OfReason = None,
    older_than: OlderThan = None,
) -> _Filters:
    return _Filters(kind, (queue, handler, code), (provider, reason), older_than)


class _Selection(NamedTuple):
    """The letters that a command applies to, as the command line selects them."""

    ids: tuple[str, ...]
    filters: _Filters
    everything: bool
    limit: int | None
    is_dry: bool


@expanded(filters=_filters)
def _selection(
    *,
    ids: Ids = None,
    more_ids: MoreIds = None,
    filters: _Filters,
    everything: All = False,
    limit: Limit = None,
    dry_run: DryRun = False,
) -> _Selection:
    """The options of the commands that change letters."""
    named = (*(ids or ()), *(more_ids or ()))
    return _Selection(named, filters, everything, limit, dry_run)


@app.command("list")
@expanded(filters=_filters)
def list_dead(
    *,
    filters: _Filters,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many.")] = 50,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """List dead-lettered jobs and provider calls, the newest first.

    Example: ergon dlq list --kind job --limit 10
    """
    where, kinds = _where(config, url, filters.asked)
    rows: list[dict[str, Any]] = []
    if LetterKind.JOB in kinds:
        with opened(config, url, reads=True) as client:
            search = filters.search(client)
            # Printed as they are read; rows of both kinds have to be sorted together first.
            if kinds == {LetterKind.JOB}:
                show_jobs(client, search, limit, as_json=as_json)
                return
            found = job_rows(client, search, limit, as_json=as_json)
            rows += [{"kind": LetterKind.JOB.value, **row} for row in found]
    for store in where.opened():
        rows += dead_letters.letter_rows(store, filters.calls(), limit, as_json=as_json)
    # Instants are in RFC 3339 and UTC, so their texts sort as they do.
    rows.sort(key=lambda row: str(row.get("created_at") or row.get("occurred_at")), reverse=True)
    show_list(rows[:limit], ["kind", *COLUMNS], as_json=as_json)


@app.command()
def families(
    *,
    queue: OfQueue = None,
    handler: OfHandler = None,
    code: OfCode = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many families.")] = 50,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """Group dead-lettered jobs by handler and error.

    The largest group comes first. Only the latest 1,000 dead-lettered jobs are grouped.

    Example: ergon dlq families --queue mail
    """
    from ergon_framework.web.console.job_look import MOST_COMPARED
    from ergon_framework.web.console.job_look import families as families_of

    filters = _Filters(LetterKind.JOB, (queue, handler, code), (None, None), None)
    with opened(config, url, reads=True) as client:
        found = client.store.search(filters.search(client), MOST_COMPARED)
        rows = families_of(islice(found, MOST_COMPARED))
    show_list(rows[:limit], FAMILY_COLUMNS, as_json=as_json)


@app.command()
def show(
    job: DeadId,
    kind: OfKind = None,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """Show one dead-lettered job or provider call.

    Example: ergon dlq show order-7
    """
    from ergon_framework.app.dead_letters import letter_document

    where, kinds = _where(config, url, kind)
    # Letters first: without --kind the id may be that of a job, so a letter that is not there is no
    # error yet.
    if LetterKind.PROVIDER in kinds:
        try:
            found = letter_document(dead_letters.find_letter(where, job), shows_payload=True)
        except JobNotFoundError:
            if kinds == {LetterKind.PROVIDER}:
                raise
        else:
            show_one(found, as_json=as_json, title=job)
            return
    with opened(config, url, reads=True) as client:
        view = client.show(job)
        if view["status"] != "failed":
            raise JobNotFoundError(
                f"the job {job} is not dead-lettered: it is {view['status']}",
                remedy=f"this shows it:  {pasteable('jobs show', job, where.options)}",
                details={"job_id": job, "status": view["status"]},
            )
        show_job(view, as_json=as_json)


@app.command()
@expanded(chosen=_selection)
def requeue(
    *,
    chosen: _Selection,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> int:
    """Send dead letters back to their queues.

    Jobs begin with fresh counters. Provider calls are sent again by the workers of their tasks, or
    by ergon dlq relay. Exit code 1 when nothing matched or nothing could be sent back.

    Example: ergon dlq requeue --handler resize --dry-run
    """
    return _carried_out(_REQUEUE, chosen, config, url, as_json=as_json)


@app.command()
@expanded(chosen=_selection)
def purge(
    *,
    chosen: _Selection,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> int:
    """Delete dead letters for good. Exit code 1 when nothing matched.

    Example: ergon dlq purge --older-than 2592000
    """
    return _carried_out(_PURGE, chosen, config, url, as_json=as_json)


@app.command()
def relay(
    application: Annotated[
        str, typer.Argument(metavar="APP", help="The Celery application, as module:name.")
    ],
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Also dead letters of tasks that this application does not have."
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Send the dead letters of a Celery application now.

    Those of its tasks are carried to its queue, and requeued calls are sent. Workers of its tasks
    do this all the time; use the command when none of them runs.

    Example: ergon dlq relay shop.celery:app
    """
    from ergon_framework.app.imports import load
    from ergon_framework.providers.celery_task import relay_app

    done = relay_app(load(application), has_all=everything, name=application)
    view = {"published": done.published, "redriven": done.redriven}
    show_one({**view, "left": done.left} if done.left else view, as_json=as_json)
    if done.left:
        text = "note: what is left is still to be sent: another relay has begun to send it, and if"
        text += " that one was stopped, it can be sent a minute after; run this again then"
        print(text, file=sys.stderr, flush=True)


class _LetterAction(NamedTuple):
    """An action on dead letters: its function for calls, and that for jobs."""

    name: str
    done: str
    to_call: dead_letters.Deal
    to_jobs: Callable[[JobClient], Callable[..., int]]


_REQUEUE = _LetterAction(
    "requeue", "requeued", dead_letters.redrive, lambda client: client.requeue_many
)
_PURGE = _LetterAction("purge", "purged", dead_letters.delete, lambda client: client.purge_many)


def _carried_out(
    deed: _LetterAction, chosen: _Selection, config: Path | None, url: str | None, *, as_json: bool
) -> int:
    """Calls first, then jobs, as far as the limit goes; the exit code."""
    ids, filters, is_dry = chosen.ids, chosen.filters, chosen.is_dry
    given = (*filters.of_jobs, *filters.of_calls, filters.older_than, ids)
    _check_use(deed.name, chosen.everything, given)
    tally = LetterCounts()
    where, kinds = _where(config, url, filters.asked)
    if LetterKind.PROVIDER in kinds:
        calls = filters.calls(ids)
        with observed_as_operator(config), waiting(deed.done):
            tally = dead_letters.apply_to_letters(
                where, deed.to_call, calls, chosen.limit, is_dry=is_dry
            )
    if LetterKind.JOB in kinds:
        with opened(config, url) as client:
            search = filters.search(client, ids)
            deal = deed.to_jobs(client)
            _deal(client, search, chosen.limit, deal, deed.done, tally, is_dry=is_dry)
            if not is_dry:
                _tell_of_steps(deed, client, search, tally, where.options)
    # Better than "there is none": the letter was named, and is there in a state that cannot be
    # sent.
    if deed is _REQUEUE and ids and tally.matched == 0 and LetterKind.PROVIDER in kinds:
        dead_letters.refuse_settled(where, ids)
    return _tell(deed.done, tally, ids, where, kinds, is_dry=is_dry, as_json=as_json)


def _tell_of_steps(
    deed: _LetterAction, client: JobClient, search: Search, tally: LetterCounts, options: str
) -> None:
    """Say why jobs were found and left alone: a step is kept, and comes back, with its flow."""
    if tally.done == tally.matched:
        return
    what, word = ("deletes", "purge") if deed is _PURGE else ("tries", "retry")
    # The search is asked again: what still matches after the change is what was left alone.
    left = list(client.store.search(search, MAX_NAMED))
    for flow in dict.fromkeys(each.step.flow_id for each in left if each.step is not None):
        command = pasteable(f"flows {word}", flow, options)
        text = f"note: steps of the flow {flow} were left, since they stay with it; this {what} the"
        print(f"{text} flow:  {command}", file=sys.stderr, flush=True)


def _where(
    config: Path | None, url: str | None, asked: LetterKind | None
) -> tuple[dead_letters.LetterStores, frozenset[LetterKind]]:
    where = dead_letters.letter_stores(config, url)
    kinds = where.kinds() if asked is None else frozenset({asked})
    where.check(kinds)
    return where, kinds


def _deal(
    client: JobClient,
    search: Search,
    limit: int | None,
    deal: Callable[..., int],
    text: str,
    tally: LetterCounts,
    *,
    is_dry: bool,
) -> None:
    """Do with jobs what was asked for, and count it with the letters."""
    left = None if limit is None else limit - tally.matched
    if left is not None and left <= 0:
        return
    found = client.store.count(search)
    total = found if left is None else min(found, left)
    tally.matched += total
    if not is_dry:
        with progress(text, total) as move:
            tally.done += deal(search, left, move)


def _check_use(what: str, everything: bool, filters: tuple[Any, ...]) -> None:
    is_filtered = any(each not in (None, ()) for each in filters)
    if not is_filtered and not everything:
        raise ConfigurationError(
            f"what to {what}?",
            remedy="name ids, give a filter such as --queue or --provider, or --all",
        )
    if is_filtered and everything:
        raise ConfigurationError("--all contradicts the filters", remedy="give one of the two")


def _tell(
    what: str,
    tally: LetterCounts,
    named: tuple[str, ...],
    where: dead_letters.LetterStores,
    kinds: frozenset[LetterKind],
    *,
    is_dry: bool,
    as_json: bool,
) -> int:
    if tally.matched == 0:
        thing = " or ".join(name for kind, name in _NAMES.items() if kind in kinds)
        missing = (
            f"no dead-lettered {thing} {named[0]!r}" if len(named) == 1 else f"no such {thing}"
        )
        raise JobNotFoundError(
            f"nothing was {what}: there is {missing}",
            remedy=f"this shows what is there:  ergon dlq list{where.options}",
        )
    view = {"matched": tally.matched, what: tally.done, "dry_run": is_dry}
    show_one({**view, "refused": tally.refused} if tally.refused else view, as_json=as_json)
    return 0 if tally.done or is_dry else 1
