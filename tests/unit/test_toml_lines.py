from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ergon_framework.app.settings.source import key_lines, line_of

# Each @ becomes the number of its line, so a text says by itself where its keys stand.
VALUES = [
    "@",
    "[@, @]",
    "[\n  @,  # a comment ] } with brackets\n\n  @,\n]",
    "[[@], [\n@]]",
    "{x = @, y.z = @}",
    "{p = {q = @}, r = [@, {s = @}]}",
    "[\n  {x = @},\n  {x = @, 'y' = @},\n]",
    '"a # no comment \\" ="',
    "'c:\\'",
    '"""\nfake = 1\n[not.a.table]\n\\""" still inside\n"""',
    "'''\nfake = ''1''\n'''",
    '""""two quotes"""""',
    '""',
    "2026-01-31 12:00:00 # = [",
    "-1.5e3",
]
KEYS = ["k{}", "k-{}", '"k {}"', "'k.{}'", '"\\u006b\\"{}"', "a{}.b.'c'", 'a{} . "b"']
HEADERS = ["[t{}]", '[ t{} . u . "v w" ]', "[[list]]", "[[list]]\n[list.sub]", "[[deep{}.list]]"]
pairs = st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES), st.sampled_from(["", " # x"]))
documents = st.lists(st.tuples(st.sampled_from(HEADERS), st.lists(pairs, max_size=4)), max_size=4)


def numbered(document: list[Any]) -> str:
    """The text of a generated document, with every @ replaced by its line."""
    text, n = "", 0
    for header, body in document:
        n += 1
        text += f"# [fake] = @\n{header.format(n)}\n"
        for key, value, comment in body:
            n += 1
            text += f"{key.format(n)} = {value}{comment}\n\n"
    lines = text.split("\n")
    return "\n".join(line.replace("@", str(i)) for i, line in enumerate(lines, 1))


def numbers(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[Any, int]]:
    """Each whole number of a TOML document with its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from numbers(item, (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from numbers(item, (*path, i))
    elif isinstance(value, int):
        yield path, value


@settings(max_examples=100)
@given(documents)
def test_every_key_is_found_on_its_line(document: list[Any]) -> None:
    """Whatever TOML puts between keys, each is located where it stands."""
    text = numbered(document)
    lines = key_lines(text)
    for path, line in numbers(tomllib.loads(text)):
        assert lines[path] == line, (path, text)


def test_a_key_that_is_not_there_is_at_its_table() -> None:
    """The line of the innermost table around it stands for a missing key."""
    lines = key_lines("\n[a.b]\nc = 1\n[a]\nd = 2\n")
    assert (line_of(lines, ("a", "b", "x", "y")), line_of(lines, ("a", "x"))) == (2, 4)
    assert line_of(lines, ("z",)) is None


@given(st.text("[]{}=.,\"'#\n ab\\1", max_size=30))
def test_locating_never_fails(text: str) -> None:
    """Even for text that is no TOML the locator ends, with what it found."""
    assert isinstance(key_lines(text), dict)
