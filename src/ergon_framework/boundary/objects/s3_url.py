"""Which bucket a URL names, and how it is reached.

``s3://BUCKET/PREFIX?endpoint=http://HOST:PORT&region=NAME``; ``gs://`` and ``az://`` name buckets
of the other two clouds in the same way. Credentials are never part of the URL: they come from the
environment of the process, or from a profile.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ergon_framework.errors import ConfigurationError, MissingExtraError

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
        """As errors call it."""
        return f"{self.kind}://{self.name}/{self.prefix}".rstrip("/")


def bucket_of(url: str) -> Bucket:
    """What a URL says; nothing is opened, and no error repeats what could be a password."""
    parts = urlsplit(url)
    kind = parts.scheme.lower()
    if kind not in KINDS:
        raise ConfigurationError("this URL names no bucket", remedy=FORMS)
    if "@" in parts.netloc:
        raise ConfigurationError(
            "the URL of a bucket holds no credentials",
            remedy=f"name only the bucket, and {CREDENTIALS}",
        )
    if not parts.netloc or ":" in parts.netloc or parts.fragment:
        raise ConfigurationError(f"the URL of a bucket begins with {kind}://bucket", remedy=FORMS)
    options = _options(kind, parts.query)
    prefix = unquote(parts.path).strip("/")
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
