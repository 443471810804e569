"""Writes docs/reference/notices.md from the catalogue of notices.

python tools/notice_docs.py            write the page
python tools/notice_docs.py --check    fail when the page is stale
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # to find the tool beside this one

from ergon_framework.ports.notice import CATALOGUE, NoticeSpec, Routine
from tools.state_docs import keep_page, table

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/reference/notices.md"
INTRO = """\
# Notices

Every state change that any part of Ergon tells, written by `make docs` from the catalogue in the
code; `make check` fails when this page is stale. Do not edit. `ergon notices` prints the same list.

Spans, metrics, logs, liveness, `ergon tail` and `ergon why` are readers of notices, and
`ergon_framework.telemetry.add_listener` lets your own code be one more: see
[telemetry](telemetry.md). No notice carries a payload.

A **routine** notice belongs to the happy path. Listeners hear it like any other; the journal that
`ergon tail` follows leaves it out, unless `journal_all` under `[telemetry]` says otherwise: see
[see what happens](../howto/see-what-happens.md). "When it went well" means that the same notice
is kept when it tells of a failure.

In the journal the objects among the fields become plain values: `call` is the name of its task,
`run` the id of the transaction, `failure` its kind, code and message; results and exceptions are
left out."""


def part(name: str, catalogue: Mapping[str, NoticeSpec]) -> str:
    """One part's heading and table."""
    told = {notice: known for notice, known in catalogue.items() if known.part == name}
    rows = (row(notice, known) for notice, known in told.items())
    heading = name[0].upper() + name[1:]
    return f"## {heading}\n\n" + table(["notice", "meaning", "fields", "routine"], rows)


def row(notice: str, known: NoticeSpec) -> list[str]:
    """One notice."""
    fields = ", ".join(f"`{one}`" for one in known.fields)
    routine = "" if known.routine is Routine.NEVER else known.routine.value
    return [f"`{notice}`", known.text, fields, routine]


def render(catalogue: Mapping[str, NoticeSpec] = CATALOGUE) -> str:
    """The whole page."""
    parts = dict.fromkeys(known.part for known in catalogue.values())
    return "\n\n".join([INTRO, *(part(each, catalogue) for each in parts)]) + "\n"


def main(root: Path = ROOT, catalogue: Mapping[str, NoticeSpec] = CATALOGUE) -> int:
    """Write or check the page; 1 when it is stale."""
    return keep_page(root, PAGE, render(catalogue), "tools/notice_docs.py")


if __name__ == "__main__":
    sys.exit(main())
