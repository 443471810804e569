"""A bucket of S3, Google Cloud Storage or Azure: URL, credentials, requests, errors.

The one place that uses obstore. ``observe`` is what ``doctor`` asks a bucket.
"""

from __future__ import annotations

import configparser
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ergon_framework.errors import (
    ConfigurationError,
    MissingExtraError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)
from ergon_framework.storage.server import Observation, latency, skew

if TYPE_CHECKING:
    from obstore.store import AzureStore, GCSStore, S3Store


FORMS = (
    "write s3://bucket/prefix?region=eu-central-1, and for a server of your own"
    " s3://bucket/prefix?endpoint=http://127.0.0.1:9000"
)
CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
KINDS = ("s3", "gs", "az")

_OPTIONS = ("endpoint", "region")
_TIMEOUT = timedelta(seconds=60)  # of one request, which carries a few MiB
_CONNECT = timedelta(seconds=5)
_RETRY = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2)},
}
_FOUND_BY_ITSELF = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SKIP_SIGNATURE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_PROFILE = {
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
}


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket, and what comes before the names of everything in it."""

    kind: str
    name: str
    prefix: str
    endpoint: str | None = None
    region: str | None = None

    @property
    def place(self) -> str:
        """The name of the place in errors."""
        return f"{self.kind}://{self.name}/{self.prefix}".rstrip("/")


def bucket_of(url: str) -> Bucket:
    """What a URL says; nothing is opened, and no error repeats what could be a password."""
    parts = urlsplit(url)
    kind = parts.scheme.lower()
    if kind not in KINDS:
        raise ConfigurationError("this URL names no bucket", remedy=FORMS)
    # A password there would stand in every log that names the place.
    if "@" in parts.netloc:
        raise ConfigurationError(
            "the URL of a bucket holds no credentials",
            remedy=f"name only the bucket, and {CREDENTIALS}",
        )
    if not parts.netloc or ":" in parts.netloc or parts.fragment:
        raise ConfigurationError(f"the URL of a bucket begins with {kind}://bucket", remedy=FORMS)
    options = _options(kind, parts.query)
    prefix = unquote(parts.path).strip("/")
    # Such parts would lead out of the prefix, or be folded away by some servers.
    if {"", ".", ".."} & {*prefix.split("/")} and prefix:
        raise ConfigurationError(
            "the prefix in the URL of a bucket has a part that is empty, . or ..", remedy=FORMS
        )
    return Bucket(kind, parts.netloc, prefix, **options)


def check_extra() -> None:
    """Refuse to go on without the client."""
    if find_spec("obstore") is None:
        raise MissingExtraError(
            "objects in a bucket need obstore", remedy="pip install 'ergon-framework[s3]'"
        )


def connect(bucket: Bucket) -> S3Store | GCSStore | AzureStore:
    """A client of that bucket; nothing is asked yet."""
    check_extra()
    from obstore import store as stores
    from obstore.exceptions import BaseError

    is_plain = bucket.endpoint is not None and bucket.endpoint.startswith("http:")
    given: dict[str, Any] = {
        "retry_config": _RETRY,
        "client_options": {
            "allow_http": is_plain,
            "timeout": _TIMEOUT,
            "connect_timeout": _CONNECT,
        },
    }
    try:
        if bucket.kind != "s3":
            made: GCSStore | AzureStore = stores.from_url(bucket.place, **given)  # type: ignore[assignment]
            return made
        given |= {"endpoint": bucket.endpoint} if bucket.endpoint else {}
        given |= {"region": bucket.region} if bucket.region else {}
        given |= _credentials(bucket, os.environ)
        # One request for each removal: not every server knows how to remove many at once.
        return stores.S3Store(
            bucket.name, prefix=bucket.prefix or None, disable_bulk_delete=True, **given
        )
    except BaseError as error:
        raise ConfigurationError(
            f"{bucket.place} cannot be used: {str(error).splitlines()[0]}",
            remedy="set the variables that this cloud asks for in the environment",
        ) from None


def _options(kind: str, query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    known = _OPTIONS if kind == "s3" else ()
    unknown = sorted({*options} - {*known})
    if unknown:
        allowed = " and ".join(known) or "none"
        raise ConfigurationError(
            f"the URL of a bucket has an unknown option {unknown[0]!r}",
            remedy=f"those of {kind}:// are: {allowed}",
        )
    endpoint = options.get("endpoint")
    if endpoint is not None:
        parts = urlsplit(endpoint)
        if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
            raise ConfigurationError(
                "the endpoint of a bucket is the URL of a server, without credentials",
                remedy="write for example endpoint=http://127.0.0.1:9000",
            )
    return options


def _credentials(bucket: Bucket, environ: Mapping[str, str]) -> dict[str, str]:
    """The keys of a profile; none where the client itself finds something in the environment."""
    # The client looks for these itself, in an order of its own, which must not be mixed with a
    # profile.
    if any(name in environ for name in _FOUND_BY_ITSELF):
        return {}
    found = _profile(environ)
    if not found and bucket.endpoint is not None:
        # Elsewhere the machine itself may have some, which the client asks for.
        raise ConfigurationError(f"there are no credentials for {bucket.place}", remedy=CREDENTIALS)
    return found


def _profile(environ: Mapping[str, str]) -> dict[str, str]:
    name = environ.get("AWS_PROFILE", "default")
    file = Path(environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")).expanduser()
    found = configparser.RawConfigParser()
    try:
        found.read(file, encoding="utf-8")
    except (OSError, ValueError, configparser.Error):
        raise ConfigurationError(
            f"the file of credentials {file} cannot be read", remedy="correct it, or remove it"
        ) from None
    if not found.has_section(name):
        if "AWS_PROFILE" in environ:
            raise ConfigurationError(
                f"{file} has no profile {name!r}", remedy="correct AWS_PROFILE, or add the profile"
            )
        return {}
    section = found[name]
    return {ours: section[theirs] for ours, theirs in _PROFILE.items() if theirs in section}


_METADATA = "169.254.169.254"  # asked for credentials when there are none
_STATUS = re.compile(r"status code: (\d{3}[^:\n]*)")
_PATH = re.compile(r'path: ("(?:[^"\\]|\\.)*")')
_SERVER = re.compile(r"https?://[^/\s]+")


@contextmanager
def our_errors(place: str, *, is_opening: bool = False) -> Iterator[None]:
    """Turn what the client raises into errors of our own.

    A bucket that is missing or shut is a wrong setting when it is opened, and trouble later on.
    """
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, FileNotFoundError) as error:  # the latter is how it says 404
        trouble, is_setting = translated(error, place, is_opening=is_opening)
        if is_opening and is_setting:
            raise ConfigurationError(trouble.message, remedy=trouble.remedy) from None
        raise trouble from None  # its own text may go on for pages


def translated(
    error: BaseException, place: str, *, is_opening: bool = False
) -> tuple[StoreError, bool]:
    """The store's error for it, and whether an operator has to change something."""
    from obstore.exceptions import InvalidPathError, PermissionDeniedError, UnauthenticatedError

    text = str(error)
    # By their text: servers say the same with different classes of errors.
    if "NoSuchBucket" in text:
        return StoreUnavailableError(
            f"there is no bucket for {place}",
            remedy="make the bucket, or correct its name in the URL",
        ), True
    if _METADATA in text:
        return StoreUnavailableError(
            f"there are no credentials for {place}",
            remedy=CREDENTIALS,
        ), True
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or _is_status(text, "403"):
        return StoreUnavailableError(
            f"access to {place} is denied",
            remedy="check the credentials and what they permit: to list, get, put and delete",
        ), True
    if _is_status(text, "507") or "QuotaExceeded" in text or "XMinioStorageFull" in text:
        return StoreFullError(
            f"there is no room left in {place}", remedy="free some space there, then try again"
        ), False
    if isinstance(error, InvalidPathError):
        found = _PATH.search(text)
        return StoreUnavailableError(
            f"{place} cannot be listed: the name of an object in it has a part that is empty, . or"
            f" .., or a control character: {found[1][:200] if found else 'it is not known which'}",
            remedy="rename it: aws s3 mv 's3://BUCKET/OLD' 's3://BUCKET/NEW'",
        ), False
    if isinstance(error, FileNotFoundError):
        return StoreUnavailableError(
            f"something in {place} went away while it was used", remedy="try again"
        ), False
    then = ", then start again" if is_opening else "; nothing has to be restarted"
    return StoreUnavailableError(
        f"{place} {_answer(text)}",
        remedy=f"see that its server runs and can be reached from here{then}",
    ), False


def _answer(text: str) -> str:
    """What the server said instead of an answer, and which one: the text may go on for pages."""
    status, server = _STATUS.search(text), _SERVER.search(text)
    said = "does not answer" if status is None else f"answers {status[1].strip()}"
    return said if server is None else f"{said} at {server[0]}"


def _is_status(text: str, *statuses: str) -> bool:
    found = _STATUS.search(text)
    return found is not None and found[1].startswith(statuses)


READ_AHEAD = 4 << 20
"""Bytes asked for at once: a request costs more than they do."""


class S3Download:
    """A download of one blob, read from the bucket a window at a time."""

    def __init__(
        self, size: int, fetch: Callable[[int, int], bytes], *, ahead: int = READ_AHEAD
    ) -> None:
        self.size = size
        self._ahead = ahead
        self._fetch = fetch
        self._at = 0
        self._window = b""
        self._start = 0
        self._is_closed = False

    def read(self, most: int) -> bytes:
        """The next bytes; none at the end."""
        if self._is_closed:
            raise StoreError("this download has ended", remedy="begin another one")
        if most <= 0 or self._at >= self.size:
            return b""
        if not self._start <= self._at < self._start + len(self._window):
            end = min(self.size, self._at + max(most, self._ahead))
            self._start, self._window = self._at, self._fetch(self._at, end)
        skipped = self._at - self._start
        data = self._window[skipped : skipped + most]
        # Fewer bytes than were announced would look like the end of a whole object.
        if not data:
            raise StoreUnavailableError(
                f"an object ended at byte {self._at} of {self.size}", remedy="verify the zone"
            )
        self._at += len(data)
        return data

    def seek(self, offset: int) -> None:
        """Read on from an offset."""
        if offset < 0:
            raise ValueError(f"there is no byte {offset}")
        self._at = offset

    def close(self) -> None:
        """Close the download."""
        self._is_closed = True
        self._window = b""


CHUNK = 8 << 20
"""Bytes sent in one request: more of them go as an upload of several parts."""
MAX_CONCURRENT_PARTS = 4
"""The most concurrent requests of one upload."""
MAX_SERVER_COPY = 5 << 30
"""The largest object that a server copies in one request."""
OWNER = "zone"
"""The object with the name of the zone that owns the place."""

_MAX_PARTS = 10_000  # an upload has no more


class BucketClient:
    """One prefix of one bucket. Any thread may use it."""

    def __init__(self, url: str, *, max_server_copy: int = MAX_SERVER_COPY) -> None:
        self.bucket = bucket_of(url)
        self._max_server_copy = max_server_copy
        self._client = connect(self.bucket)
        self._our_errors = partial(our_errors, self.bucket.place)

    def check(self, *, is_opening: bool = False) -> None:
        """Raise when there is no bucket, or no access to it."""
        with self._our_errors(is_opening=is_opening):
            for _ in self._client.list(OWNER, chunk_size=1):
                return

    def claim(self, zone: str, *, is_written: bool = True) -> None:
        """Write a zone's name into the place, unless there is one: that one must be the same.

        A zone removes bytes that it has no name for, so two of them cannot share a place.
        """
        is_free = self.put_new(OWNER, zone.encode()) if is_written else self.size(OWNER) is None
        if is_free:
            return
        with self._our_errors():
            owner = bytes(self._client.get(OWNER).bytes()).decode(errors="replace")
        if owner != zone:
            raise ConfigurationError(
                f"{self.bucket.place} holds the objects of zone {owner!r}",
                remedy="give each zone a prefix or a bucket of its own",
            )

    def size(self, key: str) -> int | None:
        """The size of an object; None if it is not there."""
        with self._our_errors():
            try:
                return self._client.head(key)["size"]
            except FileNotFoundError:
                self.check()  # a bucket that is gone looks the same
                return None

    def put_at(self, key: str) -> datetime:
        """When an object that is there was put, by the server's clock."""
        with self._our_errors():
            return self._client.head(key)["last_modified"]

    def read(self, key: str, start: int, end: int) -> bytes:
        """Some bytes of an object."""
        with self._our_errors():
            return bytes(self._client.get_range(key, start=start, end=end))

    def listed(self, folder: str) -> Iterator[tuple[str, datetime]]:
        """The keys that begin with a folder, and when each object was put."""
        with self._our_errors():
            for page in self._client.list(folder):
                yield from ((each["path"], each["last_modified"]) for each in page)

    def create(self, key: str, path: Path, size: int) -> bool:
        """Put a file if nothing is there; whether that was so.

        An upload in parts cannot be made to depend on that. Two who send the same blob at once may
        both succeed then, and since both have its bytes it does not matter who was last.
        """
        if size <= CHUNK:
            return self.put_new(key, path.read_bytes())
        # Asked first: parts that nobody wants would be sent in vain.
        is_new = self.size(key) is None
        if is_new:
            self.replace(key, path, size)
        return is_new

    def put_new(self, key: str, data: bytes) -> bool:
        """Write a small object unless there is one; returns whether it was written."""
        from obstore.exceptions import AlreadyExistsError

        with self._our_errors():
            try:
                self._client.put(key, data, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def replace(self, key: str, path: Path, size: int) -> None:
        """Put a file, overwriting the object that is there."""
        chunk = part_size(size)
        # Larger parts, fewer at once: the memory it takes stays the same.
        together = max(1, MAX_CONCURRENT_PARTS * CHUNK // chunk)
        with self._our_errors():
            self._client.put(
                key,
                path,
                use_multipart=size > CHUNK,
                chunk_size=chunk,
                max_concurrency=together,
            )
        self._check_size(key, size)

    def copy(self, source: str, target: str, size: int) -> None:
        """Copy an object; what the server does not copy at once goes through here."""
        with self._our_errors():
            if size <= self._max_server_copy:
                self._client.copy(source, target)
            else:
                self._carry(source, target, size)
        self._check_size(target, size)

    def _carry(self, source: str, target: str, size: int) -> None:
        from obstore import open_writer

        chunk = part_size(size)
        pieces = S3Download(size, partial(self.read, source), ahead=chunk)
        # One part at a time: with more, memory would grow with the size of the parts.
        writer = open_writer(self._client, target, buffer_size=chunk, max_concurrency=1)
        while piece := pieces.read(chunk):
            writer.write(piece)
        writer.close()  # not after an error: that would show what has come so far

    def _check_size(self, key: str, size: int) -> None:
        there = self.size(key)
        if there != size:
            raise StoreUnavailableError(
                f"{self.bucket.place} has kept {there} of {size} bytes under {key}",
                remedy="try again; if it stays so, look after the server of the bucket",
            )

    def delete(self, key: str) -> None:
        """Delete an object, if it is there."""
        with self._our_errors():
            self._client.delete(key)


def part_size(size: int) -> int:
    """The size of one part of an upload: larger for files that would have too many parts."""
    return max(CHUNK, -(-size // _MAX_PARTS))


_MIN_TEMPORARY_ROOM = 1 << 30  # bytes


def observe(url: str) -> Iterator[Observation]:
    """Yield observations of the bucket. Raises what opening raises, and deletes what it writes."""
    client = BucketClient(url)
    client.check(is_opening=True)
    probe = f"probe-{secrets.token_hex(8)}"
    try:
        asked_at = time.time()
        client.put_new(probe, b"1")
        answered_at = time.time()
        yield Observation("access", f"{client.bucket.place} can be listed, written and deleted")
        # The same key again: a server that ignores the condition puts it over.
        yield conditions(is_kept=not client.put_new(probe, b"2"))
        yield room(shutil.disk_usage(tempfile.gettempdir()).free)
        yield latency(lambda: client.size(probe))
        # Buckets tell whole seconds, so half of one is the best guess.
        yield skew(client.put_at(probe).timestamp() + 0.5, asked_at - 0.5, answered_at + 0.5)
    finally:
        client.delete(probe)


def conditions(*, is_kept: bool) -> Observation:
    """Whether a put that must find nothing is refused where something is."""
    if is_kept:
        return Observation("conditional put", "holds: what is there is not put over")
    return Observation(
        "conditional put",
        "is ignored: nodes that put the same bytes at once overwrite them with the same",
        "use a server that honours If-None-Match; nothing notices two zones in one place there",
    )


def room(free: int) -> Observation:
    """Whether uploads under way have room on this machine."""
    found = f"{free >> 20} MiB for uploads under way in {tempfile.gettempdir()}"
    if free >= _MIN_TEMPORARY_ROOM:
        return Observation("temporary files", found)
    remedy = "let TMPDIR name a folder that holds the largest objects"
    return Observation("temporary files", found, remedy)
