"""Options whose value stands elsewhere: ``env:NAME``, ``file:PATH``, and ``text:`` to escape both.

What they resolve to is held in a ``SecretStr`` until the connector or service is built, so that no
repr, dump or log of the settings shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

from ergon_framework.app.settings.source import KeyPath, SettingsSource
from ergon_framework.errors import name_of, whole_text_of
from ergon_framework.redaction import is_secret, redacted_text
from ergon_framework.storage.urls import holds_secret, placeholder

WITHHELD = "ERGON_WITHHELD"
"""Set by workers for their executors; see ``pass_secrets``."""
MAX_SECRET = 64 * 1024
"""Bytes. A secret file above this is surely another file."""


@dataclass(frozen=True, slots=True)
class Resolver:
    """Replaces references to secrets in raw tables by the secrets."""

    source: SettingsSource
    environ: Mapping[str, str]
    closes_variables: bool = False  # text that a variable gave may be the secret itself

    def resolve(self, value: Any, path: KeyPath) -> Any:
        """``value`` with each reference in it resolved; a missing secret is noted as a mistake."""
        if isinstance(value, dict):
            return {key: self.resolve(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self.resolve(item, (*path, i)) for i, item in enumerate(value)]
        if not isinstance(value, str):
            return value
        kind, colon, rest = value.partition(":")
        if colon and kind == "text":
            return rest
        if colon and kind == "env":
            return self._held(path, self._variable(rest, path))
        if colon and kind == "file":
            return self._held(path, self._content(rest, path))
        is_closed = self.closes_variables and self.source.is_from_variable(path)
        return SecretStr(value) if is_closed else value

    def _held(self, path: KeyPath, secret: str | None) -> SecretStr:
        if secret == "":
            self.source.add_problem(path, "refers to an empty secret", "give it a value")
        return SecretStr(secret or "")

    def _variable(self, name: str, path: KeyPath) -> str | None:
        self.source.referred.add(name)
        if name not in self.environ and name in withheld(self.environ):
            # Whoever uses it is refused, and not the settings: a handler that needs no secret can
            # run.
            return placeholder(name)
        if name not in self.environ:
            problem = f"the environment variable {name!r} is not set"
            self.source.add_problem(path, problem, "set it, or write text: before a plain value")
        return self.environ.get(name)

    def _content(self, name: str, path: KeyPath) -> str | None:
        base = self.source.file.parent if self.source.file else Path()
        remedy = "make it a readable file of text, or write text: before a plain value"
        try:
            with (base / name).open("rb") as file:
                content = file.read(MAX_SECRET + 1)
            if len(content) > MAX_SECRET:
                self.source.add_problem(path, f"the file {name!r} is too long for a secret", remedy)
                return None
            # Editors end a file with a newline, which is no part of the secret.
            return content.decode().rstrip("\r\n")
        except OSError as error:
            self.source.add_problem(path, f"cannot read {name!r}: {error.strerror}", remedy)
        except ValueError:  # not UTF-8, or a name with a null byte
            self.source.add_problem(path, f"cannot read {name!r} as text", remedy)
        return None


def withheld(environ: Mapping[str, str]) -> frozenset[str]:
    """Variables that the worker which started this process has and did not hand down."""
    return frozenset(filter(None, environ.get(WITHHELD, "").split(",")))


def sounds_secret(name: str) -> bool:
    """Whether an option of that name holds a secret, or the URL of a store."""
    return name in {"url", "store", "dsn", "key"} or is_secret(name)


def masked(text: str, options: object) -> str:
    """``text`` without what the options keep secret, and without what looks like a secret."""
    # The longest first: a secret that contains a shorter one would otherwise be masked in part.
    for secret in sorted(_secrets(options), key=len, reverse=True):
        text = text.replace(secret, "***")
    return redacted_text(text)


def described(error: BaseException, options: object) -> str:
    """An exception in one line, without what the options keep secret or what looks like it."""
    name, text = name_of(error), whole_text_of(error)
    return masked(f"{name}: {text}" if text else name, options)


def _secrets(value: object, name: str = "") -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield from _with_password(value.get_secret_value())
    elif isinstance(value, str):
        if value and is_secret(name):
            yield value  # nobody marked it, but it is called a password
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _secrets(item, str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secrets(item, name)


_STORES = frozenset({"sqlite", "postgresql", "postgres", "redis", "rediss", "memory"})
"""Kinds of stores with no other secret in their URL than a password; NATS also takes a token."""
_UNHIDABLE = frozenset({"ergon"})
"""Words that cannot be hidden: every command in a hint would tell which word is left out."""


def _with_password(secret: str) -> Iterator[str]:
    """A secret, and the password or token in it if it is a URL: an error may repeat that alone.

    The URL of a store without a password is none: hints name the store by it.
    """
    is_store = secret.partition("://")[0].partition("+")[0].lower() in _STORES
    if not secret or (is_store and not holds_secret(secret)):
        return
    yield secret
    with suppress(ValueError):
        url = urlsplit(secret)
        password = url.password or (None if is_store else url.username)
        if password:
            yield from {password, unquote(password)} - _UNHIDABLE


def revealed(value: Any) -> Any:
    """A plain, changeable copy with its secrets open, to be handed to what is being built."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, dict):
        return {key: revealed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [revealed(item) for item in value]
    return value
