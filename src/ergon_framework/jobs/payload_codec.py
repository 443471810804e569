"""How arguments and results of jobs are kept: as they are, compressed, encrypted, or elsewhere.

``PayloadCodec`` is made from ``[jobs.codec]``. Clients encode arguments, workers decode them and
encode results. An encoded payload is JSON of the same type as the plain one, so stores, moves and
exports keep it without knowing of it. What is only compressed can be read without any setting. What
is encrypted needs the key that the payload names. What is still large then may be in an object
store, and the row has its name. ``inlined_arguments`` and ``inlined_result`` bring it back into the
row, for archives, exports and moves.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import zlib
from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Any

import msgspec

from ergon_framework.errors import (
    ConfigurationError,
    JobError,
    PayloadKeyError,
    PayloadObjectError,
    StoreError,
    UnreadableJobError,
)
from ergon_framework.jobs.payload_objects import ObjectName, PayloadObjects
from ergon_framework.storage.urls import is_withheld, refuse_withheld

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

logger = logging.getLogger("ergon.jobs")

MARK = "ergon.codec"
"""The field by which an encoded payload is known. Users cannot write it: see ``refuse_mark``, and
``settle_claim`` for results."""
VERSION = 1
ENCODED_ARGS = b'[{"' + MARK.encode() + b'":'
"""How encoded arguments begin. One prefix, because every claim compares it with each job."""
ENCODED_RESULT = ENCODED_ARGS[1:]

DEFLATE = "deflate"
AES_GCM = "aes-gcm"
OBJECT = "object"
_OBJECT_STEP = b'"' + OBJECT.encode() + b'"],'
_MAX_STEPS = len(ENCODED_ARGS) + 60
"""How many bytes at the start of an encoded payload name all of its steps."""
KEY_BYTES = 32
_NONCE_BYTES = 12
MAX_DECODED = 64 * 1024 * 1024
"""How many bytes a payload may have when it is decompressed: a damaged row must not fill the
memory.
"""
_WORTH_IT = 0.9
"""Compressed payloads of more than this part of the original are not kept: they would cost every
reader time for little space.
"""


class _Encoded(msgspec.Struct, frozen=True, omit_defaults=True):
    """An encoded payload. ``steps`` names what was done to it, in order."""

    version: int = msgspec.field(name=MARK)
    steps: tuple[str, ...]
    data: str  # the digest of the object that holds it
    key: str = ""
    size: int = 0  # of an object
    job: str = ""  # the owner of the object


_encode = msgspec.json.Encoder().encode
_result = msgspec.json.Decoder(_Encoded).decode
_args = msgspec.json.Decoder(tuple[_Encoded]).decode
_pair = msgspec.json.Decoder(tuple[msgspec.Raw, msgspec.Raw]).decode


class PayloadCodec:
    """Encodes payloads as the settings say, and decodes whatever was encoded.

    ``compress_above`` is in bytes of JSON; None: nothing is compressed. ``keys`` are keys by name,
    each 32 bytes in base64. ``active_key`` names the one that new payloads are encrypted with; the
    others only decrypt, for payloads of the time before a rotation. ``objects`` keeps what is still
    large then, for jobs whose ids are given.
    """

    def __init__(
        self,
        *,
        compress_above: int | None = None,
        active_key: str = "",
        keys: Mapping[str, str] | None = None,
        objects: PayloadObjects | None = None,
    ) -> None:
        self.objects = objects
        self._compress_above = compress_above
        self._active_key = active_key
        self._keys: dict[str, bytes] = {}
        self._withheld: dict[str, str] = {}
        for name, text in (keys or {}).items():
            # Executors get no secrets unless they are told to. An executor that needs no key must
            # start all the same, and one that enqueues must never write plain text instead.
            if is_withheld(text):
                self._withheld[name] = text
            else:
                self._keys[name] = key_bytes(name, text)
        self._ciphers: dict[str, AESGCM] = {}
        if active_key and active_key not in {**self._keys, **self._withheld}:
            raise JobError(
                f"active_key is {active_key!r}, and keys has no key of that name",
                remedy="add it to keys of [jobs.codec], or name one that is there",
                details={"field": "active_key", "keys": sorted(self._keys)},
            )

    @property
    def encodes(self) -> bool:
        """Whether new payloads may be encoded."""
        is_set = self._compress_above is not None or self.objects is not None
        return bool(self._active_key) or is_set

    def of_store(self, store: object) -> PayloadCodec:
        """The same codec for jobs of the given store."""
        if self.objects is None:
            return self
        made = copy(self)
        made.objects = self.objects.of_store(store)
        return made

    def encode_arguments(self, args: bytes, kwargs: bytes, job_id: str = "") -> tuple[bytes, bytes]:
        """Args and kwargs as the store keeps them: both in one encoded payload, or plain.

        Given the id of their job, large arguments may go to the object store. Raises StoreError if
        that does not take them.
        """
        if args == b"[]" and kwargs == b"{}":
            return args, kwargs  # Nothing to hide, and nothing worth compressing.
        encoded = self._encoded(b"[" + args + b"," + kwargs + b"]", b"args", job_id)
        return (args, kwargs) if encoded is None else (b"[" + encoded + b"]", b"{}")

    def decode_arguments(self, args: bytes, kwargs: bytes) -> tuple[bytes, bytes]:
        """Plain args and kwargs of what ``encode_arguments`` gave, or of any version's plain ones.

        Raises PayloadKeyError where the key is missing, UnreadableJobError for a damaged payload.
        """
        if not args.startswith(ENCODED_ARGS):
            return args, kwargs
        try:
            (encoded,) = _args(args)
            plain_args, plain_kwargs = _pair(self._decoded(encoded, b"args"))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _damaged(error) from None
        return bytes(plain_args), bytes(plain_kwargs)

    def encode_result(self, result: bytes, job_id: str = "") -> bytes:
        """A result as the store keeps it.

        Given the id of its job, a large result may go to the object store. If that does not take
        it, it stays in the row: work that is done must not be repeated because there was no place
        for its result.
        """
        if result in (b"null", b"true", b"false"):
            return result
        try:
            return self._encoded(result, b"result", job_id) or result
        except Exception as error:
            is_expected = isinstance(error, StoreError | ConfigurationError)
            trace = None if is_expected else error
            logger.warning("job %s: its result stays in its row: %s", job_id, error, exc_info=trace)
            return self._encoded(result, b"result", "") or result

    def decode_result(self, result: bytes) -> bytes:
        """The plain result. Raises the same errors as ``decode_arguments``."""
        if not result.startswith(ENCODED_RESULT):
            return result
        try:
            return self._decoded(_result(result), b"result")
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _damaged(error) from None

    def inlined_arguments(self, args: bytes, kwargs: bytes) -> tuple[bytes, bytes]:
        """The arguments moved from their object back into the row, still encoded; no key is needed.

        Raises PayloadObjectError when the object cannot be read, UnreadableJobError when it is
        damaged.
        """
        if not names_object(args):
            return args, kwargs
        try:
            (encoded,) = _args(args)
            if encoded.steps == (OBJECT,):
                plain_args, plain_kwargs = _pair(self._object(encoded))
                return bytes(plain_args), bytes(plain_kwargs)
            return b"[" + self._inlined(encoded) + b"]", kwargs
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _damaged(error) from None

    def inlined_result(self, result: bytes) -> bytes:
        """The result moved from its object back into the row, like ``inlined_arguments``."""
        if not names_object(result):
            return result
        try:
            encoded = _result(result)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _damaged(error) from None
        return self._object(encoded) if encoded.steps == (OBJECT,) else self._inlined(encoded)

    # ---- inside ----

    def _inlined(self, encoded: _Encoded) -> bytes:
        text = base64.b64encode(self._object(encoded)).decode()
        return _encode(_Encoded(encoded.version, encoded.steps[:-1], text, encoded.key))

    def _encoded(self, plain: bytes, purpose: bytes, job_id: str) -> bytes | None:
        data, steps = plain, []
        above, objects = self._compress_above, self.objects
        # A larger one could not be read again: see ``_inflated``.
        if above is not None and above < len(plain) <= MAX_DECODED:
            smaller = zlib.compress(plain, 6)
            # What is encrypted is base64 in any case, and an object never is. Otherwise compression
            # has to pay for that.
            is_free = self._active_key or (objects is not None and len(smaller) > objects.above)
            size = len(smaller) if is_free else 4 * len(smaller) / 3
            if size < _WORTH_IT * len(plain):
                data, steps = smaller, [DEFLATE]
        if self._active_key:
            # A random nonce for each payload: 2**32 of them under one key is the bound of GCM,
            # after which the key has to be rotated.
            nonce = os.urandom(_NONCE_BYTES)
            data = nonce + self._cipher(self._active_key).encrypt(nonce, data, purpose)
            steps.append(AES_GCM)
        if objects is not None and job_id and len(data) > objects.above:
            name = objects.put(job_id, purpose.decode(), data)
            done = (*steps, OBJECT)
            return _encode(_Encoded(VERSION, done, name.text, self._active_key, name.size, job_id))
        if not steps:
            return None
        text = base64.b64encode(data).decode()
        return _encode(_Encoded(VERSION, tuple(steps), text, self._active_key))

    def _decoded(self, encoded: _Encoded, purpose: bytes) -> bytes:
        if encoded.version != VERSION or not {*encoded.steps} <= {DEFLATE, AES_GCM, OBJECT}:
            raise UnreadableJobError(
                "a payload was encoded by a later version of Ergon, or by another program",
                remedy="let a worker of that version run the job",
                details={"version": encoded.version, "steps": list(encoded.steps)},
            )
        try:
            if OBJECT in encoded.steps:
                data = self._object(encoded)
            else:
                data = base64.b64decode(encoded.data, validate=True)
            for step in reversed(encoded.steps):
                if step == OBJECT:
                    continue
                if step == AES_GCM:
                    data = self._decrypted(encoded.key, data, purpose)
                else:
                    data = _inflated(data)
        except (binascii.Error, zlib.error) as error:
            raise _damaged(error) from None
        return data

    def _object(self, encoded: _Encoded) -> bytes:
        name = _name_in(encoded)
        if self.objects is None:
            raise PayloadObjectError(
                f"a payload is in an object store ({name.text}, {name.size:,} bytes), and none is"
                " set here",
                remedy="set objects in [jobs.codec] as whoever wrote it has",
                details={"object": name.text},
            )
        return self.objects.get(name)

    def _decrypted(self, key: str, data: bytes, purpose: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        if key not in self._keys:
            raise PayloadKeyError(
                f"a payload is encrypted with the key {key!r}, which is not at hand",
                remedy=f"add {key} to keys of [jobs.codec]; keep a key until no job needs it",
                details={"key": key},
            )
        try:
            return self._cipher(key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], purpose)
        except (InvalidTag, ValueError):
            raise PayloadKeyError(
                f"a payload does not open with the key {key!r}: it was encrypted with another one"
                " of that name, or damaged",
                remedy=f"give {key} in keys of [jobs.codec] the value it had then",
                details={"key": key},
            ) from None

    def _cipher(self, key: str) -> AESGCM:
        found = self._ciphers.get(key)
        if found is None:
            refuse_withheld(self._withheld.get(key))
            # Late: OpenSSL takes 20 ms to load, and most processes encrypt nothing.
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            found = self._ciphers[key] = AESGCM(self._keys[key])
        return found


PLAIN = PayloadCodec()
"""A codec that encodes nothing, and decodes what is not encrypted."""


def key_bytes(name: str, text: str) -> bytes:
    """The key of that name, decoded from base64. Its errors never show the key."""
    try:
        key = base64.b64decode(text.strip(), altchars=b"-_" if {*"-_"} & {*text} else None)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise JobError(
            f"the key {name!r} is not {KEY_BYTES} bytes in base64",
            remedy="make one:  python -c 'import base64, os;"
            " print(base64.b64encode(os.urandom(32)).decode())'",
            details={"field": f"keys.{name}"},
        )
    return key


def refuse_mark(args: bytes) -> None:
    """Raise JobError for plain arguments that look like encoded ones; readers could not tell them
    apart.
    """
    if args.startswith(ENCODED_ARGS):
        raise _reserved("args")


def refuse_marked_value(value: bytes) -> None:
    """Raise JobError for the value of a signal that looks encoded; it becomes the
    result of a step.
    """
    if value.startswith(ENCODED_RESULT):
        raise _reserved("value")


def _reserved(field: str) -> JobError:
    return JobError(
        f"the field {MARK!r} marks payloads that Ergon has encoded",
        remedy="give that field another name",
        details={"field": field},
    )


def encoding_of(payload: bytes) -> dict[str, Any] | None:
    """The steps of an encoded payload and the name of its key, read without the key.

    None for a plain payload. For listings, whose readers may not see the content.
    """
    if not payload.startswith((ENCODED_ARGS, ENCODED_RESULT)):
        return None
    try:
        found = _args(payload)[0] if payload.startswith(b"[") else _result(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {"steps": ["unknown"]}
    shown: dict[str, Any] = {"steps": list(found.steps)}
    if found.key:
        shown["key"] = found.key
    if OBJECT in found.steps:
        shown |= {"object": found.data, "size": found.size}
    return shown


def names_object(payload: bytes) -> bool:
    """Whether a payload is in an object store. This is fast, however large the payload is."""
    if not payload.startswith((ENCODED_ARGS, ENCODED_RESULT)):
        return False
    return _OBJECT_STEP in payload[:_MAX_STEPS]


def object_of(payload: bytes | None) -> ObjectName | None:
    """The object that a payload names. None if it names none or cannot be read."""
    if payload is None or not names_object(payload):
        return None
    try:
        return _name_in(_args(payload)[0] if payload.startswith(b"[") else _result(payload))
    except (msgspec.MsgspecError, UnicodeDecodeError, UnreadableJobError):
        return None


def _name_in(encoded: _Encoded) -> ObjectName:
    try:
        return ObjectName.of(encoded.data, encoded.size)
    except ValueError as error:
        raise _damaged(error) from None


def _inflated(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    plain = inflater.decompress(data, MAX_DECODED)
    if inflater.unconsumed_tail:
        raise UnreadableJobError(
            f"a compressed payload has more than {MAX_DECODED:,} bytes",
            remedy="it was not written by Ergon; delete the job",
        )
    if not inflater.eof:
        raise zlib.error("it ends too early")
    return plain


def _damaged(error: Exception) -> UnreadableJobError:
    return UnreadableJobError(
        f"an encoded payload cannot be read: {error}",
        remedy="the row was changed by hand or damaged; enqueue the work again",
    )
