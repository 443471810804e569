"""How artifacts are named: a bucket and a key. A name never becomes a path on a disk."""

from __future__ import annotations

import re
from urllib.parse import unquote

from ergon_framework.errors import FactInvalidError

PREFIX = "/v1/objects/"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def object_name(path: str) -> tuple[str, str]:
    """Bucket and key in a path; the key is everything behind the bucket."""
    bucket, _, rest = path.removeprefix(PREFIX).partition("/")
    try:
        return checked_name(unquote(bucket, errors="strict"), unquote(rest, errors="strict"))
    except UnicodeDecodeError:
        raise FactInvalidError(
            "the key is not UTF-8",
            reason="encoding",
            remedy="encode it as UTF-8, then its bytes with percent signs",
            details={"field": "key"},
        ) from None


def checked_name(bucket: str, key: str) -> tuple[str, str]:
    """A bucket and a key that may be used."""
    if not _BUCKET.fullmatch(bucket):
        raise FactInvalidError(
            "a bucket is named with 1 to 63 letters, digits, dots, hyphens and underscores",
            reason="pattern",
            remedy="begin with a letter or a digit, and leave everything else out",
            details={"field": "bucket"},
        )
    if not 0 < _size(key) <= 1024 or any(char < " " or char == "\x7f" for char in key):
        raise FactInvalidError(
            "a key has 1 to 1024 bytes of UTF-8 without control characters",
            reason="pattern",
            remedy="shorten it, or leave these characters out",
            details={"field": "key"},
        )
    return bucket, key


def _size(key: str) -> int:
    """Bytes; none of what cannot be said in UTF-8."""
    try:
        return len(key.encode())
    except UnicodeEncodeError:
        return 0
