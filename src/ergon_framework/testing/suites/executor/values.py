"""Checks of arguments and results: what goes into ``echo`` comes out of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ergon_framework.testing.suites.executor.lines import request, same, shown
from ergon_framework.testing.suites.executor.subject import Subject
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[Subject]] = []
check = partial(register(CHECKS), colours=("stdio",))
echo = partial(check, "echo")

LARGEST_EXACT = 2**53  # the largest number up to which every reader of JSON is exact


@echo()
def keeps_positional_arguments(s: Subject) -> None:
    """args arrive all, and in order."""
    _expect_echo(s, [3, "two", 1, "two"])


@echo()
def keeps_keyword_arguments(s: Subject) -> None:
    """kwargs arrive under their names."""
    _expect_echo(s, (), {"name": "n", "width": 3, "flag": False})


@echo()
def keeps_no_arguments(s: Subject) -> None:
    """No arguments are an empty list and an empty object."""
    _expect_echo(s, (), {})


@echo()
def keeps_words_of_json(s: Subject) -> None:
    """null, true and false stay what they are, and stay apart from 0 and 1."""
    _expect_echo(s, [None, True, False, 0, 1, "null", "true", "0"])


@echo()
def keeps_empty_values(s: Subject) -> None:
    """Empty text, lists and objects stay what they are."""
    _expect_echo(s, ["", [], {}, [[]], [{}], {"": ""}], {"empty": "", "list": []})


@echo()
def keeps_unicode(s: Subject) -> None:
    """Text in any script arrives, combining marks and right-to-left text included."""
    _expect_echo(s, ["größe", "заказ", "注文書", "e\u0301", "שלום"], {"größe": "注文"})


@echo()
def keeps_emoji(s: Subject) -> None:
    """Characters beyond the first 65,536 arrive, plain or as escaped pairs."""
    _expect_echo(s, ["🎉", "👩\u200d👩\u200d👧", "𐐷"], {"🎉": "𐍈"})
    asked = request("echo", ["🎉 𐍈"])
    reply = s.ask(asked, line=json.dumps(asked).encode() + b"\n")
    _compare(["🎉 𐍈"], {}, reply.result)


@echo()
def keeps_line_separators(s: Subject) -> None:
    """U+2028, U+2029, U+0085, vertical tab and form feed end no line."""
    _expect_echo(s, ["a\u2028b\u2029c\u0085d", "e\x0bf\x0cg", "\x1c\x1d\x1e"])


@echo()
def keeps_line_breaks_in_text(s: Subject) -> None:
    """Line breaks and tabs inside text arrive."""
    _expect_echo(s, ["a\nb\r\nc\rd\te", "\n", " \n "])


@echo()
def keeps_quotes_and_backslashes(s: Subject) -> None:
    """Quotes, backslashes and what looks like an escape arrive as they are."""
    _expect_echo(s, ['"', "\\", '\\"', "\\n", "\\u0041", "'", "</x>", "a/b"])


@echo()
def keeps_text_that_looks_like_code(s: Subject) -> None:
    """Text that a shell or a format string would take for code is text."""
    _expect_echo(s, ["%s %d %n %%", "$HOME ${HOME} $(id) `id`", "*", "-n", "-e", "{0} {x}", "&&;|"])


@echo()
def keeps_text_that_looks_like_json(s: Subject) -> None:
    """Text that holds JSON stays text."""
    _expect_echo(s, ['{"a": 1}', "[1, 2]", '"job_id":"x"', "}{", "]["])


@echo()
def keeps_blanks_in_text(s: Subject) -> None:
    """Blanks at the ends and in the middle of text stay."""
    _expect_echo(s, ["  a  b  ", " ", "\t"])


@echo()
def keeps_control_characters(s: Subject) -> None:
    """Control characters, which JSON escapes, arrive."""
    _expect_echo(s, ["\x01\x02\x07\x08\x1b\x1f\x7f"])


@echo(required=False)
def keeps_the_null_character(s: Subject) -> None:
    """U+0000 does not end a text."""
    _expect_echo(s, ["a\0b", "\0"])


@echo()
def keeps_whole_numbers(s: Subject) -> None:
    """Whole numbers up to 2 to the power of 53 arrive exactly."""
    _expect_echo(s, [0, -1, 2**31, -(2**31), 2**32, LARGEST_EXACT - 1, 1 - LARGEST_EXACT])


@echo(required=False)
def keeps_large_whole_numbers(s: Subject) -> None:
    """Whole numbers beyond 2 to the power of 53 arrive exactly."""
    _expect_echo(s, [LARGEST_EXACT + 1, 2**63, -(2**64), 10**30 + 1])


@echo()
def keeps_decimal_numbers(s: Subject) -> None:
    """Decimal numbers arrive with all the digits of a double."""
    _expect_echo(s, [0.1, -2.5, 1e-7, 3.141592653589793, 1e21, 5e-324, 1.7976931348623157e308])


@echo()
def keeps_nested_values(s: Subject) -> None:
    """Lists and objects inside each other arrive with their structure."""
    value = {"a": [1, {"b": [[], [None, {"c": {"d": [1.5, "x"]}}]]}], "e": {"f": {"g": {}}}}
    _expect_echo(s, [value, [value]], {"value": value})


@echo()
def keeps_long_text(s: Subject) -> None:
    """A text of 1 MiB goes in and comes out whole."""
    _expect_echo(s, ["0123456789abcdef" * 65536])


@echo()
def keeps_many_arguments(s: Subject) -> None:
    """A thousand arguments arrive in order."""
    _expect_echo(s, list(range(1000)), {f"k{n}": n for n in range(200)})


@echo(required=False)
def keeps_odd_names(s: Subject) -> None:
    """Keyword arguments may have any name, those with a meaning in some language included."""
    names = ("self", "args", "kwargs", "context", "job_id", "__proto__", "constructor", "class", "")
    _expect_echo(s, (), {name: f"value of {name}" for name in names})


@echo()
def arguments_do_not_linger(s: Subject) -> None:
    """A request without arguments does not see those of the one before."""
    _expect_echo(s, ["first", {"only": "there"}], {"only": "there"})
    _expect_echo(s, (), {})


def _expect_echo(s: Subject, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> None:
    reply = s.ask(request("echo", args, kwargs))
    expect(reply.status == "success", f"the outcome is {reply}")
    _compare(list(args), dict(kwargs or {}), reply.result)


def _compare(args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
    given = result if isinstance(result, dict) else {}
    for name, sent in (("args", args), ("kwargs", kwargs)):
        came = given.get(name)
        expect(same(sent, came), f"{name} {_difference(sent, came)}")


def _difference(sent: Any, came: Any) -> str:
    """The first place where two values differ, as short as possible."""
    if isinstance(sent, list) and isinstance(came, list) and len(sent) == len(came):
        for left, right in zip(sent, came, strict=True):
            if not same(left, right):
                return f"held {shown(left)}, and it returned {shown(right)}"
    if isinstance(sent, dict) and isinstance(came, dict) and sent.keys() == came.keys():
        for name, value in sent.items():
            if not same(value, came[name]):
                where = f"under {shown(name)} held {shown(value)}"
                return f"{where}, and it returned {shown(came[name])}"
    return f"were {shown(sent)}, and it returned {shown(came)}"
