"""The words of a canonical error: short, on one line, and without secrets."""

from __future__ import annotations

import re

from ergon_framework.errors import describe

LONGEST_MESSAGE = 500
"""Characters of a message; the raw exception, which is kept as the cause, has the rest."""

_LONGEST_READ = 4000

_NAMES = (
    r"(?:api|access|private|signing|encryption)[ _-]?keys?|credentials?|cookies?|signature"
    r"|[\w-]{0,40}(?:token|secret|password|passwd|passphrase|pwd)s?"
)
_NAMED = rf"({_NAMES})(\d{{0,9}}(?:[_-](?:value|text|hash|\d{{1,9}}))?\\?['\"]?\s{{0,3}}"
# Quoted, the quotes of a quoted text included, it goes on to the closing one or to the end.
QUOTED = (
    r"(?:b?\"(?:\\.|[^\"\\])*(?:\"|\\?\Z)|b?'(?:\\.|[^'\\])*(?:'|\\?\Z)"
    r"|\\\"[^\"]*\"?|\\'[^']*'?)"
)
_VALUE = rf"(?:{QUOTED}|\S+)"
_HEADER = r"\b((?:proxy-)?authorization)(\\?['\"]?\s{0,3}[:=]\s{0,3})"
_REST = r"(?:b?\\?\"[^\"]*\"?|b?\\?'[^']*'?|[^\r\n]+)"

_Veil = tuple[str, re.Pattern[str], str]


def _veil(mark: str, pattern: str, replacement: str) -> _Veil:
    return mark, re.compile(pattern, re.IGNORECASE), replacement


# A password may hold a slash, unless it is the one behind a port.
_SLASHED = _veil("@", r"(\w://)[^/\s:@?#]{0,100}:(?!\d{1,5}[/?#])[^\s@]{1,300}@", r"\1***@")
_AUTHORIZATION = _veil("authorization", _HEADER + _REST, r"\1\2***")
_ODD = r"(?=\S*\d)(?=\S*[a-z])\S{6,}|[\w+/=.~-]{24,}"  # no word, and no count
_BARE: tuple[_Veil, ...] = (
    # a signed or sealed token, and a key as a file has it
    _veil("eyj", r"\beyJ[\w-]{5,}(?:\.[\w-]*){1,4}", "***"),
    _veil(
        "private key", r"(?s)-----BEGIN [\w ]{0,40}PRIVATE KEY.*?(?:-----END[^-]*-----|\Z)", "***"
    ),
    # keys that begin with the name of who gave them
    _veil("sk", r"(?<![\w-])([sr]k[-_])[\w-]{12,}", r"\1***"),
    _veil("rk", r"(?<![\w-])([sr]k[-_])[\w-]{12,}", r"\1***"),
    _veil("gh", r"\b(gh[a-z]_|github_pat_)\w{12,}", r"\1***"),
    _veil("glpat-", r"\b(glpat-)[\w-]{12,}", r"\1***"),
    _veil("xox", r"\b(xox[a-z]-)[\w-]{8,}", r"\1***"),
    _veil("akia", r"\b(AKIA)[A-Z0-9]{16}\b", r"\1***"),
    _veil("aiza", r"\b(AIza)[\w-]{30,}", r"\1***"),
    # one that is said in a sentence: token XYZ was rejected
    *(
        _veil(f"{word} ", rf"\b({word}) (?:{_ODD})", r"\1 ***")
        for word in ("token", "secret", "password", "passphrase", "api key", "access key")
    ),
)
"""What is a secret without anybody saying so."""
_VEILS: tuple[_Veil, ...] = (
    # user:password@ in a URL: up to the last @ before the path, as a password may hold one
    _veil("@", r"(\w://)[^/\s]*@", r"\1***@"),
    _SLASHED,
    # query strings and fragments, of whole URLs and of paths alone
    _veil("?", r"(?<=\S)\?\S+", "?***"),
    _veil("#", r"(?<=\S)#[^\s=#]*=\S*", "#***"),
    _AUTHORIZATION,
    _veil("bearer ", r"\b(bearer) \S+", r"\1 ***"),
    _veil("basic ", r"\b(basic) [\w+/=-]{6,}", r"\1 ***"),
    _veil("=", rf"\b{_NAMED}=\s{{0,3}}){_VALUE}", r"\1\2***"),
    _veil(":", rf"\b{_NAMED}:\s{{0,3}}){_VALUE}", r"\1\2***"),
    *_BARE,
)
"""What each secret looks like; without its mark there is none, and nothing to search for."""

_IN_TEXTS: tuple[_Veil, ...] = (
    _veil("@", r"(\w://)[^/\s:@?#]*:[^/\s]*@", r"\1***@"),
    _SLASHED,
    _AUTHORIZATION,
    _veil("bearer ", r"^(\s*bearer) \S{6,}|\b(bearer) (?=\S*\d)\S{6,}", r"\1\2 ***"),
    _veil("basic ", r"^(\s*basic) \S{6,}|\b(basic) (?=\S*\d)[\w+/=-]{6,}", r"\1\2 ***"),
)
"""What needs no name in texts that people wrote, where a word is not so soon a secret."""


def message_of(error: BaseException) -> str:
    """The name of an exception and what it says, fit for logs, rows and dead letters.

    Only the first line: what follows is detail, such as the parameters of an SQL statement.
    """
    name, _, text = describe(error).partition(": ")
    line = text.strip().partition("\n")[0]
    return veiled(line, f"{name}: ") if line else name


def veiled(text: str, title: str = "") -> str:
    """A text without what looks like a secret, and not longer than a message may be."""
    text = title + _applied(_VEILS, text[:_LONGEST_READ])
    if not text.isprintable():  # databases refuse some of these, and terminals obey others
        text = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 1] + "…"


def without_secrets(text: str) -> str:
    """A text of any length, as it is but for what looks like a secret whatever its name is."""
    return _applied(_IN_TEXTS, text)


def _applied(veils: tuple[_Veil, ...], text: str) -> str:
    lowered = text.lower()
    for mark, pattern, replacement in veils:
        if mark in lowered:
            text = pattern.sub(replacement, text)
    return text
