"""``ergon dlq``: the jobs that failed for good, sent back or deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ergon_framework.cli.desk import JobId, StoreUrl, opened, progress, show_jobs
from ergon_framework.cli.jobs import show_job
from ergon_framework.cli.output import show_one
from ergon_framework.cli.session import ConfigPath, JsonFlag
from ergon_framework.errors import ConfigurationError, JobNotFoundError

if TYPE_CHECKING:
    from ergon_framework.jobs.client import JobClient
    from ergon_framework.ports.jobstore import Search

app = typer.Typer(help="Look at dead-lettered jobs, send them back or delete them.")

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of jobs.")]
MoreIds = Annotated[
    list[str] | None, typer.Option("--id", metavar="ID", help="Only this job; may be repeated.")
]
OfQueue = Annotated[str | None, typer.Option("--queue", metavar="Q", help="Only of this queue.")]
OfHandler = Annotated[
    str | None, typer.Option("--handler", metavar="NAME", help="Only for this handler.")
]
OfCode = Annotated[
    str | None, typer.Option("--code", metavar="CODE", help="Only those that failed with it.")
]
OlderThan = Annotated[
    float | None,
    typer.Option(metavar="S", min=0.0, help="Only those that failed so many seconds ago."),
]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
Limit = Annotated[int | None, typer.Option(min=1, help="At most so many, the newest.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say how many it would be.")]


@app.command("list")
def list_dead(
    queue: OfQueue = None,
    handler: OfHandler = None,
    code: OfCode = None,
    older_than: OlderThan = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """List dead-lettered jobs, the newest first."""
    with opened(config, url, reads=True) as client:
        search = _search(client, queue, handler, code, older_than, ())
        show_jobs(client, search, limit, as_json=as_json)


@app.command()
def show(
    job: JobId, config: ConfigPath = None, url: StoreUrl = None, as_json: JsonFlag = False
) -> None:
    """Show one dead-lettered job."""
    with opened(config, url, reads=True) as client:
        shape = client.show(job)
        if shape["status"] != "failed":
            raise JobNotFoundError(
                f"the job {job} is not dead-lettered: it is {shape['status']}",
                remedy=f"see ergon jobs show {job}",
                details={"job_id": job, "status": shape["status"]},
            )
        show_job(shape, as_json=as_json)


@app.command()
def requeue(
    ids: Ids = None,
    more_ids: MoreIds = None,
    queue: OfQueue = None,
    handler: OfHandler = None,
    code: OfCode = None,
    older_than: OlderThan = None,
    everything: All = False,
    limit: Limit = None,
    dry_run: DryRun = False,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> int:
    """Send dead-lettered jobs back to their queues with fresh counters.

    Exit code 1 when none matched, or none could be sent back.
    """
    named = (*(ids or ()), *(more_ids or ()))
    _check_use("requeue", everything, (queue, handler, code, older_than, named))
    with opened(config, url) as client:
        search = _search(client, queue, handler, code, older_than, named)
        total = _total(client, search, limit)
        done = total
        if not dry_run:
            with progress("requeued", total) as move:
                done = client.requeue_many(search, limit, move)
    return _tell("requeued", total, done, named, is_dry=dry_run, as_json=as_json)


@app.command()
def purge(
    ids: Ids = None,
    more_ids: MoreIds = None,
    queue: OfQueue = None,
    handler: OfHandler = None,
    code: OfCode = None,
    older_than: OlderThan = None,
    everything: All = False,
    limit: Limit = None,
    dry_run: DryRun = False,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> int:
    """Delete dead-lettered jobs for good. Exit code 1 when none matched."""
    named = (*(ids or ()), *(more_ids or ()))
    _check_use("purge", everything, (queue, handler, code, older_than, named))
    with opened(config, url) as client:
        search = _search(client, queue, handler, code, older_than, named)
        total = _total(client, search, limit)
        done = total
        if not dry_run:
            with progress("purged", total) as move:
                done = client.purge_many(search, limit, move)
    return _tell("purged", total, done, named, is_dry=dry_run, as_json=as_json)


def _check_use(what: str, everything: bool, filters: tuple[Any, ...]) -> None:
    is_filtered = any(each not in (None, ()) for each in filters)
    if not is_filtered and not everything:
        raise ConfigurationError(
            f"which jobs to {what}?", remedy="name ids, give a filter such as --queue, or --all"
        )
    if is_filtered and everything:
        raise ConfigurationError("--all contradicts the filters", remedy="give one of the two")


def _search(
    client: JobClient,
    queue: str | None,
    handler: str | None,
    code: str | None,
    older_than: float | None,
    ids: tuple[str, ...],
) -> Search:
    from ergon_framework.core.job import JobStatus
    from ergon_framework.ports.jobstore import Search

    return Search(
        statuses=(JobStatus.FAILED,),
        queue=queue,
        handler=handler,
        code=code,
        before=None if older_than is None else client.store.now() - older_than,
        ids=ids,
    )


def _total(client: JobClient, search: Search, limit: int | None) -> int:
    found = client.store.count(search)
    return found if limit is None else min(found, limit)


def _tell(
    what: str, total: int, done: int, named: tuple[str, ...], *, is_dry: bool, as_json: bool
) -> int:
    if total == 0:
        told = f"no dead-lettered job {named[0]!r}" if len(named) == 1 else "no such job"
        raise JobNotFoundError(
            f"nothing was {what}: there is {told}", remedy="ergon dlq list shows what is there"
        )
    show_one({"matched": total, what: 0 if is_dry else done, "dry_run": is_dry}, as_json=as_json)
    return 0 if done else 1
