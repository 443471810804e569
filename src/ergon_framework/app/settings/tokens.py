"""What the tokens of a server may be, as a file, a variable or the settings have them.

No error here shows what was given: it may be a token.
"""

from __future__ import annotations

import logging
import re

from ergon_framework.errors import ConfigurationError

logger = logging.getLogger("ergon.web")

MIN_TOKEN, MAX_TOKEN = 16, 4096
"""Characters of one token."""
MAX_TOKENS = 100
"""Tokens in one file."""
UNNAMED = "token"
"""What a caller is called whose token has no name."""

# A token has no space in it: so what stands before ": " is a name, and a token that has a colon of
# its own is taken whole.
_NAMED = re.compile(r"([A-Za-z0-9_.-]{1,64}):\s+(\S.*)", re.DOTALL)
HASHED = re.compile(r"sha256:([0-9a-f]{64})")
"""A token given as its hash only, so that reading the file does not let anybody in."""
_LIKE_NAMED = re.compile(r"[A-Za-z0-9_.-]{1,64}:\S+")


def parsed(text: str, where: str) -> dict[str, str]:
    """Tokens by name: a line for each, ``name: token`` or a token alone; ``#`` begins a remark.

    In place of a token there may be its hash, ``sha256:`` and 64 digits.

    The space is what makes it a name: a token may have colons itself, and is taken whole.
    """
    given = token_lines(text)
    if not given:
        raise wrong_token(where, "is empty")
    if len(given) > MAX_TOKENS:
        raise wrong_token(where, f"has more than {MAX_TOKENS} lines")
    tokens: dict[str, str] = {}
    for number, line in enumerate(given):
        named = _NAMED.fullmatch(line)
        name = named[1] if named else f"{UNNAMED}-{number + 1}" if number else UNNAMED
        if name in tokens:
            raise wrong_token(where, f"has the name {name!r} twice")
        tokens[name] = _checked(named[2] if named else line, where)
        is_hashed = HASHED.fullmatch(line) is not None
        if named is None and not is_hashed and _LIKE_NAMED.fullmatch(line):
            logger.warning(
                "line %d of the tokens in %s has a colon and is a token as a whole; if a name"
                " stands before the colon, put a space behind it: `name: token`",
                number + 1,
                where,
            )
    return tokens


def token_lines(text: str) -> list[str]:
    """What is neither empty nor a remark."""
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def _checked(token: str, where: str) -> str:
    if not token:
        raise wrong_token(where, "is empty")
    if len(token) < MIN_TOKEN:
        raise wrong_token(where, f"is shorter than {MIN_TOKEN} characters, and can be guessed")
    if len(token) > MAX_TOKEN:
        raise wrong_token(where, f"is longer than {MAX_TOKEN} characters")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise wrong_token(where, "has spaces or characters that no header can hold")
    return token


def wrong_token(where: str, problem: str) -> ConfigurationError:
    """The error of a token that will not do."""
    return ConfigurationError(
        f"the token in {where} {problem}",
        remedy="make one with python -c 'import secrets; print(secrets.token_urlsafe(32))'",
    )
