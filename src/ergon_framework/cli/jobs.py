"""``ergon jobs``: look at jobs, workers, the audit log and the archive; run or edit one job.

``jobs_bulk`` has what changes many jobs at once.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ergon_framework.cli import completion, job_filters, jobs_bulk, worker
from ergon_framework.cli.command_run import ConfigPath, JsonFlag, expanded
from ergon_framework.cli.job_client import (
    JobId,
    StoreUrl,
    earlier,
    opened,
    show_job,
    show_jobs,
)
from ergon_framework.cli.job_filters import instant_of
from ergon_framework.cli.output import note, show_list, show_one, waiting
from ergon_framework.errors import (
    ConfigurationError,
    JobNotFoundError,
    SettingsError,
    StoreUnavailableError,
    UnreadableJobError,
)

if TYPE_CHECKING:
    from ergon_framework.jobs.archive_files import ArchivedLine, JobArchive
    from ergon_framework.jobs.client import JobClient
    from ergon_framework.jobs.settings import JobsSettings
    from ergon_framework.ports.jobstore import Unreadable

app = typer.Typer(help="List and show jobs and workers; cancel, retry, reschedule or delete jobs.")
archive_app = typer.Typer(help="Read the archive of ended jobs.")
_AUDIT_COLUMNS = ["at", "actor", "action", "target", "outcome", "number", "detail"]


@app.command("list")
@expanded(wanted=job_filters.job_filters)
def list_jobs(
    *,
    wanted: job_filters.JobFilters,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many.")] = 50,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """List jobs, the newest first.

    Example: ergon jobs list --status failed --since 1h
    """
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
    """Show everything about one job, with its arguments and history.

    Example: ergon jobs show order-7
    """
    with opened(config, url, reads=True) as client:
        show_job(client.show(job), as_json=as_json)


app.command()(jobs_bulk.cancel)


@app.command()
def retry(
    job: JobId, config: ConfigPath = None, url: StoreUrl = None, as_json: JsonFlag = False
) -> None:
    """Run a job now.

    A job that waits runs without its delay. A job that failed or was cancelled begins anew.

    Example: ergon jobs retry order-7
    """
    with opened(config, url) as client:
        client.retry(job)
        show_one({"id": job, "status": str(client.status(job))}, as_json=as_json)


@app.command()
def edit(
    job: JobId,
    args: Annotated[
        str | None, typer.Option(metavar="JSON", help="The new positional arguments: a JSON array.")
    ] = None,
    kwargs: Annotated[
        str | None, typer.Option(metavar="JSON", help="The new named arguments: a JSON object.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="WHO",
            help="Who does this, for the job's history [default: your user and machine].",
        ),
    ] = None,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why you do this; it is kept in the job's history.")
    ] = "",
    new_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help=(
                "The id of the new job [default: a new one]. With it, the same command again "
                "makes no second job."
            ),
        ),
    ] = None,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """Send a dead letter back as a new job with other arguments.

    The new job has the arguments that you give and everything else of the old one. The old job is
    cancelled in the same commit.

    Example: ergon jobs edit order-7 --kwargs '{"amount": 4}'
    """
    from ergon_framework.cli.enqueue import json_list, json_table
    from ergon_framework.jobs.change_requests import requester

    if args is None and kwargs is None:
        raise ConfigurationError(
            "what is to be changed?",
            remedy="give --args or --kwargs; ergon jobs requeue sends it back as it is",
        )
    with opened(config, url) as client:
        made = client.edit_and_requeue(
            job,
            None if args is None else json_list(args),
            None if kwargs is None else json_table(kwargs),
            by=by or requester(),
            reason=reason,
            new_id=new_id,
        )
        show_one({"id": made.id, "edited_from": job, "is_new": made.is_new}, as_json=as_json)


app.command()(jobs_bulk.requeue)
app.command()(jobs_bulk.reschedule)
app.command()(jobs_bulk.delete)
app.command()(worker.workers)


@app.command()
def audit(
    actor: Annotated[
        str | None, typer.Option(metavar="WHO", help="Only what this person or token did.")
    ] = None,
    action: Annotated[
        str | None,
        typer.Option(
            metavar="ACTION",
            help="Only actions of this name, such as cancel or look.",
            autocompletion=completion.audited_actions,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "--job",
            metavar="ID",
            help="Only what was done to this job or flow.",
            autocompletion=completion.job_ids,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help=(
                "Only actions since: a duration such as 10m, or a time such as "
                "2030-01-31T12:00:00Z."
            ),
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many.")] = 50,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Read this audit log [default: the one that the settings name]."
        ),
    ] = None,
    config: ConfigPath = None,
    as_json: JsonFlag = False,
) -> None:
    """Show who did what in the console or through the API.

    The newest action comes first. The log is a file on the machine of the server, beside its
    settings. Commands of a terminal are not in it; the history of each job (ergon jobs show) has
    them.

    Example: ergon jobs audit --actor ada --since 1d
    """
    from ergon_framework.web.audit import AUDITED, AuditSearch, entry_view, read_entries

    if action is not None and action not in AUDITED:
        raise ConfigurationError(
            f"the log tells of no {action!r}", remedy=f"it tells of {', '.join(AUDITED)}"
        )
    path = _audit_log(file, config)
    search = AuditSearch(
        actor=actor,
        action=action,
        target=target,
        # By the clock of this machine, whose server writes the log.
        since=None if since is None else instant_of(since, time.time()),
    )
    try:
        found = read_entries(path, search, limit)
    except (sqlite3.Error, OSError) as error:
        raise StoreUnavailableError(
            f"the audit log {path} cannot be read: {error}",
            remedy="read it as the user whose server writes it, or name another with --file",
        ) from error
    show_list([entry_view(each) for each in found], _AUDIT_COLUMNS, as_json=as_json)
    if not path.exists():
        note(f"there is no {path} yet: a server makes it when somebody acts in the console")


def _audit_log(given: Path | None, config: Path | None) -> Path:
    from ergon_framework.app.settings import load_settings
    from ergon_framework.app.settings.stores import without
    from ergon_framework.web.audit import audit_file

    if given is not None:
        if not given.exists():
            raise StoreUnavailableError(
                f"there is no audit log {given}", remedy="name the file that the server writes"
            )
        return given
    settings = load_settings(config)
    path = audit_file(settings)
    if path is not None:
        return path
    raise SettingsError(
        f"no audit log: {without(settings, 'wants none')}, so that a server keeps it in its memory",
        remedy='write audit = "ergon-audit.db" under [server] in ergon.toml, or name a file with'
        " --file",
    )


@app.command()
def unreadable(
    restore: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Read the row of this job again and put the job back into its queue."
        ),
    ] = None,
    discard: Annotated[
        str | None, typer.Option(metavar="ID", help="Delete the row of this job for good.")
    ] = None,
    aside: Annotated[
        bool,
        typer.Option(
            "--aside",
            help=(
                "List only rows that a worker has set aside. This is fast; without it every row"
                " is read."
            ),
        ),
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many.")] = 50,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """List rows that this version cannot read as jobs.

    Those that a worker has set aside come first. A newer version may have written such a row, or
    somebody by hand. Upgrade, or correct its columns without changing stage and status. A row that
    was set aside comes back with --restore; any other one is read again without a command.

    Example: ergon jobs unreadable --aside
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


app.add_typer(archive_app, name="archive")
app.command()(worker.executor)
app.command()(worker.conform)


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


ArchiveFolder = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        metavar="FOLDER",
        help="The folder of the archive [default: the one in the settings].",
        exists=True,
    ),
]


@archive_app.command("list")
def list_archive_files(
    folder: ArchiveFolder = None, config: ConfigPath = None, as_json: JsonFlag = False
) -> None:
    """List the files of the archive, the oldest first.

    Example: ergon jobs archive list
    """
    archive, _ = _opened_archive(folder, config)
    rows = [
        {"file": each.name, "day": each.day, "bytes": each.size, "folder": str(archive.path)}
        for each in archive.files()
    ]
    show_list(rows, ["file", "day", "bytes"], as_json=as_json)


@archive_app.command("show")
def show_archived(
    job: Annotated[str, typer.Argument(metavar="ID", help="The id of a job or a flow.")],
    folder: ArchiveFolder = None,
    config: ConfigPath = None,
    as_json: JsonFlag = False,
) -> None:
    """Show one job or flow as it was archived last.

    Example: ergon jobs archive show order-7
    """
    from ergon_framework.jobs.payload_codec import names_object
    from ergon_framework.jobs.payload_codec_store import decoded_job
    from ergon_framework.jobs.views import job_view
    from ergon_framework.ports.transfer import JobRecord

    archive, settings = _opened_archive(folder, config)
    found = archive.find(job)
    if found is None:
        raise JobNotFoundError(
            f"nothing of the id {job} is in the archive {archive.path}",
            remedy="a job that has not been deleted yet is in the store:"
            f" ergon jobs show {job}; --folder names another archive",
        )
    origin = {"archived_at": found.archived_at, "file": found.file}
    if found.kind == JobRecord.kind:
        plain = found.job()
        lost = [part for part in ("args", "result") if names_object(getattr(plain, part) or b"")]
        if settings.codec.is_set:
            plain = decoded_job(plain, settings.codec.compiled())
        view = job_view(plain, settings) | origin
        show_job(view | {"lost_payloads": lost} if lost else view, as_json=as_json)
    else:
        show_one({"kind": found.kind, **origin, **_archived_record(found)}, as_json=as_json)


@archive_app.command("cat")
def print_archive(folder: ArchiveFolder = None, config: ConfigPath = None) -> None:
    """Print every archived job and flow once, as JSON Lines, file by file.

    A worker that dies between archiving a job and deleting it leaves the job to be archived twice.
    The later copy is printed.

    Example: ergon jobs archive cat
    """
    archive, _ = _opened_archive(folder, config)
    for line in archive.records():
        head = {"kind": line.kind, "key": line.key, "archived_at": line.archived_at}
        text = json.dumps(head, ensure_ascii=False)[:-1]
        # The record is written as it was archived: read and written again, numbers might change.
        sys.stdout.write(f'{text}, "record": {line.record.decode()}}}\n')
    sys.stdout.flush()


def _opened_archive(folder: Path | None, config: Path | None) -> tuple[JobArchive, JobsSettings]:
    """The archive that an option or the settings name."""
    from ergon_framework.app.jobs import setup_of
    from ergon_framework.app.settings import load_settings
    from ergon_framework.jobs.archive_files import JobArchive

    jobs = setup_of(load_settings(config)).jobs
    if folder is not None:
        return JobArchive(folder), jobs
    if jobs.archive is None:
        raise ConfigurationError(
            "the settings name no archive",
            remedy='write folder = "archive" under [jobs.archive], or give --folder FOLDER',
        )
    return JobArchive(Path(jobs.archive.folder)), jobs


def _archived_record(line: ArchivedLine) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(line.record)
    return found
