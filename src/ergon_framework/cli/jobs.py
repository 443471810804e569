"""``ergon jobs``: look at jobs and workers, let one run now; see ``jobs_bulk`` for many."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ergon_framework.cli import (
    conform,
    job_filters,
    jobs_archive,
    jobs_bulk,
    worker,
)
from ergon_framework.cli.job_client import (
    JobId,
    StoreUrl,
    earlier,
    opened,
    show_job,
    show_jobs,
)
from ergon_framework.cli.option_groups import expanded
from ergon_framework.cli.output import note, show_list, show_one, waiting
from ergon_framework.cli.session import ConfigPath, JsonFlag
from ergon_framework.errors import ConfigurationError, JobNotFoundError, UnreadableJobError

if TYPE_CHECKING:
    from ergon_framework.jobs.client import JobClient
    from ergon_framework.ports.jobstore import Unreadable

app = typer.Typer(help="Look at jobs and workers; cancel, retry, reschedule or delete jobs.")


@app.command("list")
@expanded(wanted=job_filters.job_filters)
def list_jobs(
    *,
    wanted: job_filters.JobFilters,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """List jobs, the newest first."""
    for word in wanted.status or ():
        job_filters.status_of(word)  # before the store is opened
    with opened(config, url, reads=True) as client:
        show_jobs(client, wanted.search(client), limit, as_json=as_json)
    found = earlier(config) if url is None else None
    if found is not None:
        note(f"{found.found}; {found.remedy()}")


@app.command()
def show(
    job: JobId, config: ConfigPath = None, url: StoreUrl = None, as_json: JsonFlag = False
) -> None:
    """Show everything about one job."""
    with opened(config, url, reads=True) as client:
        show_job(client.show(job), as_json=as_json)


app.command()(jobs_bulk.cancel)


@app.command()
def retry(
    job: JobId, config: ConfigPath = None, url: StoreUrl = None, as_json: JsonFlag = False
) -> None:
    """Let a job run now.

    One that waits runs without its delay; one that failed or was cancelled begins anew.
    """
    with opened(config, url) as client:
        client.retry(job)
        show_one({"id": job, "status": str(client.status(job))}, as_json=as_json)


app.command()(jobs_bulk.requeue)
app.command()(jobs_bulk.reschedule)
app.command()(jobs_bulk.delete)
app.command()(worker.workers)


@app.command()
def unreadable(
    restore: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Read this row again and put its job back."),
    ] = None,
    discard: Annotated[
        str | None, typer.Option(metavar="ID", help="Delete this row for good.")
    ] = None,
    aside: Annotated[
        bool,
        typer.Option(
            "--aside", help="Only those that were set aside: not every row has to be read."
        ),
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """List rows that cannot be read, those set aside first.

    A row may come from a newer version, or from somebody who wrote to the store by hand. Upgrade,
    or put its columns right without changing stage and status. One that a worker has set aside is
    restored then; any other is read again by itself.
    """
    if restore is not None and discard is not None:
        raise ConfigurationError(
            "--restore and --discard contradict each other", remedy="give one of the two"
        )
    wanted = restore or discard
    with opened(config, url, reads=wanted is None) as client:
        if wanted is None:
            rows = [_unreadable_shape(each, True) for each in client.store.unreadable(limit)]
            if not aside and len(rows) < limit:
                with waiting("reading every row"):
                    others = islice(client.store.left_out(), limit - len(rows))
                    rows += [_unreadable_shape(each, False) for each in others]
            columns = ["id", "queue", "status", "aside", "since", "problem"]
            show_list(rows, columns, as_json=as_json)
            return
        key = _aside(client, wanted)
        if restore is not None:
            client.store.restore_unreadable(key)
        else:
            client.store.discard_unreadable(key)
        done = "restored" if restore is not None else "discarded"
        show_one({"id": wanted, "became": done}, as_json=as_json)


app.add_typer(jobs_archive.app, name="archive")
app.command()(worker.executor)
app.command()(conform.conform)


def _aside(client: JobClient, job_id: str) -> Any:
    """The key of the row that was set aside under an id."""
    for each in client.store.unreadable():
        if each.id == job_id:
            return each.key
    try:
        client.store.find(job_id)
    except UnreadableJobError as error:
        raise UnreadableJobError(
            f"{error.message}; it was not set aside, so there is nothing to restore or to discard",
            remedy="put its columns right, and it is read again by itself",
        ) from error
    raise JobNotFoundError(
        f"no row of a job {job_id} was set aside",
        remedy="ergon jobs unreadable lists those that were",
    )


def _unreadable_shape(found: Unreadable, is_aside: bool) -> dict[str, Any]:
    from ergon_framework.jobs.views import moment

    return {
        "id": found.id,
        "queue": found.queue,
        "status": found.status,
        "aside": is_aside,
        "since": moment(found.since),
        "problem": found.problem,
    }
