"""Executors that are good but for one case, named like the check that must notice it.

Started as ``python -m tests.conform.bad_tables name_of_the_check``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from tests.conform.good import Good, Refused

Request = dict[str, Any]

# A request is refused when this holds for its line and itself.
REFUSES: dict[str, Callable[[bytes, Request], object]] = {
    "unknown_context_fields_are_ignored": lambda _, r: "later" in r["context"],
    "trace_context_is_accepted": lambda _, r: r["context"].get("trace_context") == {},
    "broken_trace_context_is_harmless": lambda _, r: (
        len((r["context"].get("trace_context") or {}).get("traceparent", "x" * 55)) != 55
    ),
    "enqueue_time_may_be_long_ago": lambda _, r: r["context"]["enqueue_time"] < "2000",
    "times_may_be_in_small_letters": lambda _, r: "t" in r["context"]["enqueue_time"],
    "leap_second_is_read": lambda _, r: ":60" in r["context"]["enqueue_time"],
    "later_attempts_are_served": lambda _, r: r["context"]["attempt"] > 10,
    "queue_and_worker_may_have_any_name": lambda _, r: not r["context"]["queue_name"].isalpha(),
    "fields_may_come_in_any_order": lambda line, _: not line.startswith(b'{"protocol'),
    "blanks_between_tokens_are_allowed": lambda line, _: b" :" in line or b"\t :" in line,
    "escapes_and_plain_text_are_the_same": lambda line, _: b"\\u" in line,
    "very_large_request_is_served": lambda line, _: len(line) > 4_000_000,
    "many_arguments_are_served": lambda _, r: len(r["args"]) > 255,
    "nested_arguments_are_served": lambda line, _: b'[{"down":[' in line,
    "missing_arguments_are_none": lambda line, _: b'"args"' not in line,
    "missing_protocol_version_is_one": lambda line, _: b"protocol_version" not in line,
    "deadline_ahead_lets_it_run": lambda _, r: r["deadline"] > 86400,
    "success_is_a_success": lambda _, r: r["kwargs"] == {"k": "v"},
}

# The process dies of a line of which this holds.
DIES: dict[str, Callable[[bytes], object]] = {
    "job_id_keeps_backslashes": lambda line: b"\\\\u0041" in line,
    "empty_handler_name_is_an_error": lambda line: b'"function_name":""' in line,
    "survives_an_empty_object": lambda line: line == b"{}",
    "survives_half_a_request": lambda line: line.startswith(b'{"proto') and line[-1:] != b"}",
    "survives_wrong_types": lambda line: b'"kwargs":[' in line,
    "survives_broken_times": lambda line: b"yesterday" in line,
    "survives_broken_utf8": lambda line: b"\xff" in line,
    "survives_null_bytes": lambda line: b"\0" in line,
    "survives_lone_surrogates": lambda line: b"\\ud800" in line,
    "survives_a_long_line_of_nothing": lambda line: len(line) > 1_000_000,
    "large_requests_at_once": lambda line: len(line) > 60_000,
    "bad_arguments_do_not_end_the_process": lambda line: b"no_such_argument" in line,
}

# What echo returns of its arguments, given as JSON text.
CHANGES: dict[str, Callable[[str], str]] = {
    "keeps_no_arguments": lambda text: "null" if text == "[]" else text,
    "keeps_empty_values": lambda text: text.replace('""', "null"),
    "keeps_unicode": lambda text: text.encode("ascii", "replace").decode(),
    "keeps_emoji": lambda text: "".join(each for each in text if each <= "\uffff"),
    "keeps_line_separators": lambda text: text.replace("\u2028", " "),
    "keeps_line_breaks_in_text": lambda text: text.replace("\\r\\n", "\\n"),
    "keeps_quotes_and_backslashes": lambda text: text.replace("\\\\u", "\\u"),
    "keeps_text_that_looks_like_json": lambda text: text.replace("}{", "{}"),
    "keeps_blanks_in_text": lambda text: text.replace("  ", " "),
    "keeps_control_characters": lambda text: text.replace("\\u001b", ""),
    "keeps_the_null_character": lambda text: text.replace("\\u0000", ""),
    "keeps_large_whole_numbers": lambda text: json.dumps(json.loads(text, parse_int=float)),
    "keeps_decimal_numbers": lambda text: text.replace("3.141592653589793", "3.14159265358979"),
    "keeps_nested_values": lambda text: text.replace('"g": {}', '"g": null'),
    "keeps_long_text": lambda text: text if len(text) < 1_000_000 else '["cut"]',
    "keeps_many_arguments": lambda text: text.replace("999]", "998]"),
}


def _never(*_: object) -> bool:
    return False


class Picky(Good):
    """Good, but for the case of that name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.refuses = REFUSES.get(name, _never)
        self.dies = DIES.get(name, _never)
        self.change = CHANGES.get(name, str)

    def serve(self, line: bytes) -> None:
        if self.dies(line):
            os._exit(9)
        super().serve(line)

    def parse(self, line: bytes) -> Request:
        request = super().parse(line)
        if self.refuses(line, request):
            raise Refused("this case is not for me")
        return request

    def echo(self, args: list[Any], kwargs: dict[str, Any], left: float) -> Any:
        changed = self.change(json.dumps(args, ensure_ascii=False))
        return {"args": json.loads(changed), "kwargs": kwargs}


if __name__ == "__main__":
    sys.exit(Picky(sys.argv[1]).run())
