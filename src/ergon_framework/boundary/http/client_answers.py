"""What an answer means, and whether what was sent is what was announced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ergon_framework.boundary.http.codec import AnswerReader
from ergon_framework.boundary.http.codec_errors import error_of_answer, error_of_head
from ergon_framework.boundary.model import ObjectReceipt
from ergon_framework.errors import (
    BoundaryError,
    BoundaryNotFoundError,
    FactInvalidError,
    NodeUnavailableError,
)

DIGEST_HEADER = "digest-sha256"


def answer_of(reader: AnswerReader) -> bytes:
    """The body of an answer that is a success; the error of any other."""
    body = reader.body()
    if reader.status == 200:
        return body
    raise error_of_answer(reader.status, reader.headers, body)


def counted(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The chunks, which must be as many bytes as were announced."""
    left = size
    for chunk in chunks:
        left -= len(chunk)
        if left < 0:
            break
        if chunk:
            yield chunk
    if left:
        raise FactInvalidError(
            f"the blob has {'more' if left < 0 else 'fewer'} than the {size} bytes announced",
            reason="size_mismatch",
            remedy="do not change a file while it is being sent",
        )


def no_object(reader: AnswerReader, bucket: str, key: str) -> BoundaryError:
    """The error of an answer to HEAD, which has no body to say it."""
    if reader.status == 404:
        return BoundaryNotFoundError(
            f"there is no object {bucket}/{key}",
            reason="object_not_found",
            remedy="check bucket and key, or put it first",
        )
    return error_of_head(reader.status, reader.headers)


def object_of_headers(bucket: str, key: str, headers: Mapping[str, str]) -> ObjectReceipt:
    """What the headers of an answer say about the whole object."""
    return ObjectReceipt(
        bucket=bucket, key=key, digest=_spelled(headers.get(DIGEST_HEADER, "")), size=_size(headers)
    )


def object_begun(
    reader: AnswerReader, bucket: str, key: str, start: int
) -> tuple[ObjectReceipt, int]:
    """What is about to come, and how many bytes of it come before ``start``.

    A server that knows no ranges sends everything.
    """
    if reader.status not in {200, 206}:
        raise error_of_answer(reader.status, reader.headers, reader.body())
    return object_of_headers(bucket, key, reader.headers), start - _first_byte(reader)


def _first_byte(reader: AnswerReader) -> int:
    place = reader.headers.get("content-range", "").removeprefix("bytes ").partition("-")[0]
    return int(place) if reader.status == 206 and place.isascii() and place.isdigit() else 0


def _size(headers: Mapping[str, str]) -> int:
    whole = headers.get("content-range", "").rpartition("/")[2] or headers.get("content-length", "")
    if not (whole.isascii() and whole.isdigit()):
        raise NodeUnavailableError(
            "the node did not say how long the object is",
            reason="bad_answer",
            remedy="check the URL, and the proxy if there is one between here and the node",
        )
    return int(whole)


def _spelled(digest: str) -> str:
    digest = digest.strip().lower()
    return f"sha256:{digest}" if digest and ":" not in digest else digest
