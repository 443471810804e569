"""Lua scripts, read from files beside the modules that use them, and how they are called."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib import resources

from ergon_framework.errors import WiringError

_WORD = re.compile(r'"[^"\n]*"|\b[A-Z][A-Z_]+\b')  # texts are left as they are


class Script:
    """One script, put together from pieces that follow each other.

    ``names`` are the words in capitals that stand for something else in it: Lua pays for each name
    that a function takes from outside, whenever the script is called.
    """

    def __init__(self, package: str, *files: str, keys: int, names: Mapping[str, str]) -> None:
        pieces = "\n".join(_read(package, file) for file in files)
        text = _WORD.sub(lambda word: names.get(word[0], word[0]), pieces).encode()
        self._keys = keys
        self._head = self._words(b"EVALSHA", hashlib.sha1(text).hexdigest().encode())  # noqa: S324
        self._full_head = self._words(b"EVAL", text)

    def call(self, keys: bytes, args: Sequence[bytes]) -> bytes:
        """The call as the protocol wants it, for a server that knows the script."""
        return _call(self._head, self._keys, keys, args)

    def full_call(self, keys: bytes, args: Sequence[bytes]) -> bytes:
        """The same for a server that may not know it."""
        return _call(self._full_head, self._keys, keys, args)

    def _words(self, command: bytes, what: bytes) -> bytes:
        return packed((command, what, b"%d" % self._keys))


def packed(words: Sequence[bytes]) -> bytes:
    """Words as the protocol wants them."""
    return b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def _call(head: bytes, count: int, keys: bytes, args: Sequence[bytes]) -> bytes:
    words = [b"*%d\r\n" % (3 + count + len(args)), head, keys]
    for each in args:
        words += (b"$%d\r\n" % len(each), each, b"\r\n")
    return b"".join(words)  # in one piece: the driver sends each piece by itself


def _read(package: str, file: str) -> str:
    try:
        return (resources.files(package) / file).read_text(encoding="utf-8")
    except (ModuleNotFoundError, OSError) as error:
        raise WiringError(
            f"there is no file {package}/{file} with a Lua script",
            remedy="it belongs to the installed package; install it again",
        ) from error
