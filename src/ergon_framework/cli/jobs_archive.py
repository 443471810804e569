"""``ergon jobs archive``: look into the archive of ended jobs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ergon_framework.cli.job_client import show_job
from ergon_framework.cli.output import show_list, show_one
from ergon_framework.cli.session import ConfigPath, JsonFlag
from ergon_framework.errors import ConfigurationError, JobNotFoundError

if TYPE_CHECKING:
    from ergon_framework.jobs.archive_files import ArchivedLine, JobArchive
    from ergon_framework.jobs.settings import JobsSettings

app = typer.Typer(help="Look into the archive of ended jobs.")
FolderPath = Annotated[
    Path | None,
    typer.Option(
        "--folder", metavar="FOLDER", help="The archive [default: of the settings].", exists=True
    ),
]


@app.command("list")
def list_files(
    folder: FolderPath = None, config: ConfigPath = None, as_json: JsonFlag = False
) -> None:
    """List the files of the archive, the oldest first."""
    archive, _ = opened_archive(folder, config)
    rows = [
        {"file": each.name, "day": each.day, "bytes": each.size, "folder": str(archive.path)}
        for each in archive.files()
    ]
    show_list(rows, ["file", "day", "bytes"], as_json=as_json)


@app.command()
def show(
    job: Annotated[str, typer.Argument(metavar="ID", help="The id of a job or a flow.")],
    folder: FolderPath = None,
    config: ConfigPath = None,
    as_json: JsonFlag = False,
) -> None:
    """Show one job or flow as it was archived last."""
    from ergon_framework.jobs.payload_codec_store import decoded_job
    from ergon_framework.jobs.views import job_view
    from ergon_framework.ports.transfer import JobRecord

    archive, settings = opened_archive(folder, config)
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
        if settings.codec.is_set:
            plain = decoded_job(plain, settings.codec.compiled())
        show_job(job_view(plain, settings) | origin, as_json=as_json)
    else:
        show_one({"kind": found.kind, **origin, **_record(found)}, as_json=as_json)


@app.command()
def cat(folder: FolderPath = None, config: ConfigPath = None) -> None:
    """Print every archived job and flow once, as JSON Lines, file by file.

    Of what is in the archive twice, because a worker died between archiving and deleting it, the
    last is printed.
    """
    archive, _ = opened_archive(folder, config)
    for line in archive.records():
        head = {"kind": line.kind, "key": line.key, "archived_at": line.archived_at}
        text = json.dumps(head, ensure_ascii=False)[:-1]
        # The record is written as it was archived: read and written again, numbers might change.
        sys.stdout.write(f'{text}, "record": {line.record.decode()}}}\n')
    sys.stdout.flush()


def opened_archive(folder: Path | None, config: Path | None) -> tuple[JobArchive, JobsSettings]:
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


def _record(line: ArchivedLine) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(line.record)
    return found
