"""Where files are, as a URL says it: a folder of this machine, or a bucket."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlencode

from ergon_framework.connector.files.folder import LocalFolder
from ergon_framework.connector.files.reader import FilePlace
from ergon_framework.errors import ConfigurationError, ErgonError
from ergon_framework.storage.objectstore.s3_client import Bucket, bucket_of, check_extra
from ergon_framework.storage.secure_files import Folder
from ergon_framework.storage.server import Observation

FORMS = "write files:///folder, files://./folder for one beside, or s3://bucket/prefix"
STATE = ".ergon"


@dataclass(frozen=True, slots=True)
class FolderAddress:
    """A folder; where it stopped is kept in it by default."""

    path: Path
    settle = 5.0
    """Seconds after its last change until a file counts as complete."""

    @property
    def title(self) -> str:
        """As errors, logs and health name it."""
        return f"files://{self.path}"

    def open(self) -> FilePlace:
        """Open it."""
        try:
            return LocalFolder(self.path)
        except NotADirectoryError:
            raise ConfigurationError(
                f"{self.path} is no folder", remedy="name a folder with files in it"
            ) from None

    def state(self, consumer: str) -> Path:
        """Where positions are kept by default."""
        return self.path / STATE / f"files-{consumer}"

    def state_folder(self, consumer: str) -> Folder:
        """The same, made and private."""
        with Folder.ensure_private(self.path / STATE):
            return Folder.ensure_private(self.state(consumer))

    def unreadable(self, names: list[str]) -> str | None:
        """A file that this user may not read."""
        return next((each for each in names if not os.access(self.path / each, os.R_OK)), None)


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """A bucket. What is in it was complete when it came there."""

    bucket: Bucket
    settle = 0.0

    @property
    def title(self) -> str:
        """As errors, logs and health name it."""
        return self.bucket.place

    def open(self) -> FilePlace:
        """Open it."""
        from ergon_framework.connector.files.bucket import BucketFiles

        return BucketFiles(self.bucket)

    def unreadable(self, names: list[str]) -> str | None:
        """None: a bucket may be read as a whole."""


Address = FolderAddress | BucketAddress


def address_of(url: object, endpoint: str | None, region: str | None) -> Address:
    """The place that a URL or a path means."""
    wrong = ConfigurationError("the URL of the files cannot be read", remedy=FORMS)
    if not isinstance(url, str) or not url:
        raise wrong
    scheme, mark, rest = url.partition("://")
    if "?" in rest:
        raise ConfigurationError(
            "FilesConnector takes its options as arguments",
            remedy="write from ergon_framework.connector import from_url, and from_url(URL)",
        )
    if scheme.lower() == "s3" and mark:
        check_extra()
        given = {"endpoint": endpoint, "region": region}
        query = urlencode({name: value for name, value in given.items() if value is not None})
        return BucketAddress(bucket_of(f"{url}?{query}" if query else url))
    if endpoint is not None or region is not None:
        raise ConfigurationError("endpoint and region are for buckets", remedy=FORMS)
    if not mark:
        return FolderAddress(Path(url).absolute())
    is_path = rest.startswith("/") or rest.split("/")[0] in (".", "..")
    if scheme.lower() != "files" or not is_path or "#" in rest or "\0" in unquote(rest):
        raise wrong
    return FolderAddress(Path(unquote(rest)).absolute())


def observed(address: Address, takes: Callable[[str], bool], state: Path) -> Iterator[Observation]:
    """What ``ergon doctor`` says: which files there are, and whether positions can be kept."""
    try:
        with contextlib.closing(address.open()) as place:
            names, _ = place.names(takes)
    except OSError as error:
        found = f"{error.filename or address.title}: {error.strerror}"
        remedy = "make the folder, and let this user read it"
        yield Observation("files", found, remedy, is_grave=True)
        return
    except ErgonError as error:
        yield Observation("files", error.message, error.remedy or FORMS, is_grave=True)
        return
    yield Observation("files", f"{address.title} has {len(names)} files to read")
    unreadable = address.unreadable(names)
    if unreadable is not None:
        found = f"{unreadable!a} cannot be read"
        yield Observation("file", found, "let this user read it", is_grave=True)
    parent = next(each for each in (state, *state.parents) if each.exists())
    letters = state / "dead_letters.jsonl"
    if not os.access(parent, os.W_OK):
        found = f"where it stopped cannot be kept in {state}"
        remedy = "let this user write there, or name another folder with state="
        yield Observation("state", found, remedy, is_grave=True)
    elif letters.exists() and letters.stat().st_size:
        remedy = "read it, and put what you mend into a new file"
        yield Observation("dead letters", f"some are in {letters}", remedy)
