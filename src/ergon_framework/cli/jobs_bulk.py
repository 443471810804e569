"""``ergon jobs cancel|requeue|reschedule|delete``: one job by its id, or many by a filter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ergon_framework.cli import completion, job_filters
from ergon_framework.cli.command_run import ConfigPath, JsonFlag, expanded, finite
from ergon_framework.cli.job_client import StoreUrl, opened
from ergon_framework.cli.output import can_ask, progress, show_one
from ergon_framework.errors import ConfigurationError

if TYPE_CHECKING:
    from ergon_framework.jobs.client import JobClient
    from ergon_framework.ports.jobstore import Search

MaybeId = Annotated[
    str | None,
    typer.Argument(
        metavar="[ID]",
        help="The id of the job. Without it, give a filter or --all.",
        show_default=False,
        autocompletion=completion.job_ids,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]

Change = Callable[["JobClient", "Search", "int | None", Callable[[int], Any]], int]
"""Changes the jobs of a search; how many were changed."""
Check = Callable[["JobClient"], object]
"""Refuses what the change would refuse, before anything is counted or asked."""


class Selection(NamedTuple):
    """Which jobs, and how sure: what all these commands ask alike."""

    filters: job_filters.JobFilters
    everything: bool
    limit: int | None
    is_dry: bool
    is_sure: bool


@expanded(filters=job_filters.job_filters)
def selection(
    *,
    filters: job_filters.JobFilters,
    everything: job_filters.All = False,
    limit: job_filters.Limit = None,
    dry_run: job_filters.DryRun = False,
    yes: Yes = False,
) -> Selection:
    """The options of all these commands."""
    return Selection(filters, everything, limit, dry_run, yes)


@expanded(chosen=selection)
def cancel(
    job: MaybeId = None,
    *,
    running: Annotated[
        bool,
        typer.Option(
            "--running", help="Also cancel a job that runs: its worker is asked to end it."
        ),
    ] = False,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="WHO",
            help="Who cancels, for the job's history [default: your user and machine].",
        ),
    ] = None,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why you do this; it is kept in the job's history.")
    ] = "",
    chosen: Selection,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> int:
    """Cancel a job that waits, or all that match.

    Without an id, a filter says which waiting jobs are meant; they are cancelled in slices, between
    which workers go on. A job that runs goes on, and the exit code is 1. With --running its worker
    is asked to end it. The command does not wait for that: until then the job is active, and ergon
    jobs show says who asked.

    Example: ergon jobs cancel --queue mail --dry-run
    """
    if job is None:
        states = "pending retrying active" if running else "pending retrying"

        def change(client: JobClient, search: Search, most: int | None, report: Any) -> int:
            return client.cancel_many(
                search, running=running, by=by, reason=reason, limit=most, progress=report
            )

        def check(_client: JobClient) -> object:
            from ergon_framework.jobs.change_requests import cancellation

            return cancellation(by, reason)

        what = ("cancel", "cancelled", states)
        return _many(*what, change, chosen, config, url, as_json=as_json, check=check)
    _refuse_both(job, chosen)
    with opened(config, url) as client:
        is_now = client.cancel(job, running=running, by=by, reason=reason)
        found = client.find(job)
        view = {
            "id": job,
            "status": str(found.status),
            "was_cancelled_before": not is_now,
            "is_requested": found.cancel_request is not None,
        }
        show_one(view, as_json=as_json)
    return 0


@expanded(leaves_out=("status",), chosen=selection)
def requeue(
    job: MaybeId = None,
    *,
    chosen: Selection,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> int:
    """Send a dead-lettered job back, or all that match.

    It begins with fresh counters. Without an id, a filter says which jobs are meant.

    Example: ergon jobs requeue --handler resize --since 2h
    """
    if job is None:

        def change(client: JobClient, search: Search, most: int | None, report: Any) -> int:
            return client.requeue_many(search, most, report)

        return _many("requeue", "requeued", "failed", change, chosen, config, url, as_json=as_json)
    _refuse_both(job, chosen)
    with opened(config, url) as client:
        client.requeue(job)
        show_one({"id": job, "status": str(client.status(job))}, as_json=as_json)
    return 0


@expanded(chosen=selection)
def reschedule(
    job: MaybeId = None,
    *,
    delay: Annotated[
        float | None,
        typer.Option(
            "--in", metavar="S", min=0.0, callback=finite, help="Run in this many seconds."
        ),
    ] = None,
    run_at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="Run at this time: 2030-01-31T12:00:00Z."),
    ] = None,
    chosen: Selection,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> int:
    """Run a waiting job at another time, or all that match.

    Without an id, a filter says which jobs are meant.

    Example: ergon jobs reschedule order-7 --in 3600
    """
    if (delay is None) == (run_at is None):
        raise ConfigurationError("when is it to run?", remedy="give --in SECONDS or --at TIME")
    if job is None:
        states = "pending retrying"

        def change(client: JobClient, search: Search, most: int | None, report: Any) -> int:
            when: dict[str, Any] = {"run_at": run_at, "delay": delay}
            return client.reschedule_many(search, **when, limit=most, progress=report)

        def check(client: JobClient) -> object:
            from ergon_framework.jobs.change_requests import due_instant

            return due_instant(run_at, delay, client.store.now())

        what = ("reschedule", "rescheduled", states)
        return _many(*what, change, chosen, config, url, as_json=as_json, check=check)
    _refuse_both(job, chosen)
    with opened(config, url) as client:
        client.reschedule(job, run_at=run_at, delay=delay)
        shown = client.show(job)
        show_one({name: shown[name] for name in ("id", "status", "run_at")}, as_json=as_json)
    return 0


@expanded(chosen=selection)
def delete(
    job: MaybeId = None,
    *,
    chosen: Selection,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> int:
    """Delete a job that has ended for good, or all that match.

    Without an id, a filter says which jobs are meant. Steps of a flow are left out: ergon flows
    purge deletes them with their flow.

    Example: ergon jobs delete --status completed --until 30d
    """
    if job is None:
        states = "completed failed cancelled"

        def change(client: JobClient, search: Search, most: int | None, report: Any) -> int:
            return client.delete_many(search, limit=most, progress=report)

        return _many("delete", "deleted", states, change, chosen, config, url, as_json=as_json)
    _refuse_both(job, chosen)
    with opened(config, url) as client:
        client.delete(job)
        show_one({"id": job, "became": "deleted"}, as_json=as_json)
    return 0


def _many(
    verb: str,
    done: str,
    states: str,
    change: Change,
    chosen: Selection,
    config: Path | None,
    url: str | None,
    *,
    as_json: bool,
    check: Check = lambda _client: None,
) -> int:
    """Change all jobs that match, once somebody has said so; the exit code is 1 if there is none.

    ``states`` are those in which a job can be changed so.
    """
    from ergon_framework.jobs.bulk import narrowed

    is_filtered = any(chosen.filters)
    if not is_filtered and not chosen.everything:
        raise ConfigurationError(
            f"what to {verb}?",
            remedy="name an id, give a filter such as --tag or --queue, or --all",
        )
    if is_filtered and chosen.everything:
        raise ConfigurationError("--all contradicts the filters", remedy="give one of the two")
    with opened(config, url, is_trial=chosen.is_dry) as client:
        check(client)
        wanted = chosen.filters.search(client)
        able = tuple(map(job_filters.status_of, states.split()))
        search = narrowed(wanted, able, done)
        # Counted first: the question shows how many jobs would be changed.
        found = client.store.count(search)
        matched = found if chosen.limit is None else min(found, chosen.limit)
        changed = 0
        if matched and not chosen.is_dry:
            _confirm(verb, matched, chosen)
            with progress(done, matched) as move:
                changed = change(client, search, chosen.limit, move)
        view = {"matched": matched, done: changed, "dry_run": chosen.is_dry}
        show_one(view, as_json=as_json)
    return 0 if matched else 1


def _confirm(verb: str, matched: int, chosen: Selection) -> None:
    """Ask whether they are to be changed; without a terminal only --yes says so."""
    if chosen.is_sure:
        return
    what = f"{matched:,} job{'' if matched == 1 else 's'}"
    if not can_ask():
        raise ConfigurationError(
            f"nobody was asked whether to {verb} {what}",
            remedy="give --yes if that is what you want, or --dry-run to see how many there are",
        )
    if not typer.confirm(f"{verb} {what}?", err=True):
        raise ConfigurationError("nothing was changed", remedy="--dry-run only counts")


def _refuse_both(job: str, chosen: Selection) -> None:
    """An id says which job is meant; filters and the rest are for many."""
    # Not --yes, the last field: it does no harm beside an id.
    if any(chosen.filters) or any(chosen[1:4]):
        raise ConfigurationError(
            f"{job!r} names one job, and the other options are for many",
            remedy="give either the id or a filter",
        )
