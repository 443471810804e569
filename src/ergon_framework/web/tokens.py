"""The token without which a server is not read: where it comes from, and what it may be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ergon_framework.errors import ConfigurationError

VARIABLE = "ERGON_SERVER_TOKEN"
LONGEST = 4096
"""Characters. A file above this is surely another file."""

# No error here shows what was given: it may be the token.


def found_token(file: Path | None, environ: Mapping[str, str]) -> str | None:
    """The token from a file, or else from the environment; None when there is none."""
    if file is not None:
        return _checked(_read(file), str(file))
    given = environ.get(VARIABLE)
    return None if given is None else _checked(given, VARIABLE)


def _read(file: Path) -> str:
    try:
        with open(file, encoding="ascii") as opened:
            return opened.read(LONGEST + 2)
    except OSError as error:
        raise ConfigurationError(
            f"the token file {file} cannot be read: {error.strerror}",
            remedy="give --token-file a file that holds the token and nothing else",
        ) from error
    except UnicodeDecodeError:
        raise _wrong(str(file), "has characters other than ASCII") from None


def _checked(text: str, where: str) -> str:
    token = text.strip()
    if not token:
        raise _wrong(where, "is empty")
    if len(token) > LONGEST:
        raise _wrong(where, f"is longer than {LONGEST} characters")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise _wrong(where, "has spaces or characters that no header can hold")
    return token


def _wrong(where: str, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"the token in {where} {problem}",
        remedy="make one with python -c 'import secrets; print(secrets.token_urlsafe(32))'",
    )
