"""Draw what the benchmarks found, and write the table of races into the page about them.

python benchmarks/plots.py                                  draw the results that are kept
python benchmarks/plots.py --check                          fail when pictures or table are stale
python benchmarks/plots.py --measure providers              measure a part anew first, and keep it
python benchmarks/plots.py --measure boundary --case put    only these cases; the others stay

All results are read, and all pictures drawn, before the first file is written: when something is
missing or damaged, nothing changes. Results keep the day they were measured on and the machine, but
no paths.
"""

from __future__ import annotations

import argparse
import datetime as dt
import subprocess
import sys
from pathlib import Path

from plot_parts.charts import THEMES, PlotGroup, PlotSeries, Theme, bar_chart, line_chart, told
from plot_parts.races import PICTURES, ROWS, TIMES, UNITS, Bars, Lines, Row
from plot_parts.results import (
    MACHINE,
    Record,
    Results,
    ResultsError,
    merged,
    parse,
    read_results,
    to_text,
    value,
)

ROOT = Path(__file__).resolve().parent.parent
PARTS = {
    "providers": ("success", "success-async", "retries", "rejection", "persisted", "quota"),
    "boundary": ("in-process", "socket", "client", "batch", "put", "idle-polls", "ledger"),
    "engine": ("c8",),
    "cold": (),
    "jobs": ("queued", "drain", "enqueue", "latency"),
    "scale": ("drain", "queue"),
}
"""Of each part the cases that are measured for the page; none: all of them."""
SCRIPTS = {"cold": "cold_starts.py"}
MORE_ARGUMENTS = {"scale": ["--engine", "postgres", "--lengths", "1000"]}
PAGE, IMAGES = "benchmarks.md", "images/benchmarks"
BEGIN, END = "<!-- table of races: make bench-plots -->", "<!-- end of the table -->"
LONGEST = 3600.0
"""Seconds after which measuring a part is given up."""


def main() -> int:
    """Measure if asked, draw, and write; 1 when something is stale, 2 when it cannot be drawn."""
    options = _options()
    try:
        for part in options.measure:
            _measure(part, options)
        files = _drawn(options.results, options.docs)
    except ResultsError as error:
        print(f"nothing was drawn: {error}", file=sys.stderr)
        return 2
    stale = [path for path, text in files.items() if not _holds(path, text)]
    if options.check:
        for path in stale:
            print(f"{path.relative_to(options.docs.parent)} is stale: run make bench-plots")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, files[path])
    print(f"{len(files)} files, {len(stale)} of them new or changed", file=sys.stderr)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing, say what is stale")
    parser.add_argument(
        "--measure", action="append", default=[], choices=PARTS, help="this part first; repeatable"
    )
    parser.add_argument("--case", action="append", default=[], help="only this one; repeatable")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contestant (5)")
    parser.add_argument("--quick", action="store_true", help="shorter turns")
    parser.add_argument("--folder", type=Path, help="where to keep the files; a real disk")
    parser.add_argument(
        "--results", type=Path, default=ROOT / "benchmarks" / "results", help=argparse.SUPPRESS
    )
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.check and options.measure:
        parser.error("--check measures nothing")
    if options.case and len(options.measure) != 1:
        parser.error("--case belongs to one --measure")
    return options


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def _replace(path: Path, text: str) -> None:
    """Whole or not at all: whoever stops us leaves no half of a file."""
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


# ---- measuring ----


def _measure(part: str, options: argparse.Namespace) -> None:
    """Run a benchmark case by case, and keep what each says in place of its earlier results."""
    for case in options.case or PARTS[part] or [None]:
        words = [] if case is None else ["--case", case]
        path: Path = options.results / f"{part}.jsonl"
        new = parse(_printed(part, words, options), f"what {part} printed")
        # Read anew each time: other parts, or another case of this one, may be measured meanwhile.
        kept = parse(path.read_text(encoding="utf-8"), path.name) if path.exists() else []
        path.parent.mkdir(parents=True, exist_ok=True)
        today = dt.datetime.now(dt.UTC).date().isoformat()
        _replace(path, to_text(merged(kept, new, today)))


def _printed(part: str, words: list[str], options: argparse.Namespace) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / SCRIPTS.get(part, f"{part}.py"))]
    command += MORE_ARGUMENTS.get(part, [])
    command += ["--rounds", str(options.rounds), *(["--quick"] if options.quick else []), *words]
    if options.folder is not None and part not in {"engine", "cold"}:
        command += ["--folder", str(options.folder)]
    try:
        done = subprocess.run(  # noqa: S603 - a benchmark of this repository
            command, stdout=subprocess.PIPE, text=True, timeout=LONGEST, check=False
        )
    except subprocess.TimeoutExpired:
        raise ResultsError(f"measuring {part} took longer than {LONGEST:g} seconds") from None
    if done.returncode != 0:
        raise ResultsError(f"measuring {part} ended with exit code {done.returncode}")
    return done.stdout


# ---- drawing ----


def _drawn(folder: Path, docs: Path) -> dict[Path, str]:
    """Every file as it should be."""
    results = read_results(folder, PARTS)
    files = {
        docs / IMAGES / f"{picture.name}-{name}.svg": _picture(picture, results, theme)
        for picture in PICTURES
        for name, theme in THEMES.items()
    }
    page = docs / PAGE
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise ResultsError(f"the page cannot be read: {error}") from error
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ResultsError(f"{page.name} has no place for the table: {BEGIN} … {END}")
    files[page] = f"{before}{BEGIN}\n\n{_table(results)}\n{END}{after}"
    return files


def _picture(picture: Bars | Lines, results: Results, theme: Theme) -> str:
    if isinstance(picture, Bars):
        groups = [_group(picture, *each, results) for each in picture.groups]
        return bar_chart(picture.title, picture.note, groups, theme)
    lines = []
    for name, points in picture.lines:
        found = [(place, results.record(picture.part, case, who)) for place, case, who in points]
        there = [(place, value(each, picture.figure)) for place, each in found if _ran(each)]
        if there:
            lines.append(PlotSeries(name, there))
    if not lines:
        raise ResultsError(f"nobody took part in what {picture.name} shows")
    return line_chart(picture.title, picture.note, picture.across, lines, theme)


def _group(picture: Bars, title: str, case: str, who: str, results: Results) -> PlotGroup:
    ours = results.record(picture.part, case, who)
    peers = results.peers(picture.part, case, who)
    bars = [(str(each["who"]), value(each, picture.figure))
            for each in (ours, *peers) if _ran(each) and picture.figure in each]  # fmt: skip
    if not bars:
        raise ResultsError(f"nobody took part in the case {case!r} of {picture.part}.jsonl")
    return PlotGroup(title, bars)


def _ran(record: Record) -> bool:
    return "skipped" not in record


# ---- the table ----


def _table(results: Results) -> str:
    lines = [
        "| race | before | now | CPU | beside whom: figure, **ratio**, CPU | wanted | met |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(_line(row, results) for row in ROWS),
        "",
        *(_machine(part, results) for part in PARTS),
    ]
    return "\n".join(lines) + "\n"


def _line(row: Row, results: Results) -> str:
    ours = results.record(row.part, row.case, row.who)
    peers = [each for each in results.peers(row.part, row.case, row.who)
             if row.peers is None or each["who"] in row.peers]  # fmt: skip
    unit = UNITS[row.figure]
    if not _ran(ours):
        return f"| {row.title} | {_before(row)} | skipped | | | {_wanted(row)} | |"
    now = _figure(ours, row.figure)
    cpu = f"{told(ours['cpu_us'])} µs" if "cpu_us" in ours else ""
    cells = (
        row.title,
        _before(row),
        f"{now} {unit}",
        cpu,
        "<br>".join(_peer(each, row.figure, ours) for each in peers),
        _wanted(row),
        _met(row, ours, results),
    )
    return f"| {' | '.join(cells)} |"


def _before(row: Row) -> str:
    figure, ratio = row.before
    return f"{figure}, {ratio}{TIMES}" if ratio else figure


def _figure(record: Record, figure: str) -> str:
    found = value(record, figure)
    if found.spread is None:
        return told(found.figure)
    low, high = found.spread
    return f"{told(found.figure)} ({told(low)} to {told(high)})"


def _peer(record: Record, figure: str, ours: Record) -> str:
    if not _ran(record):
        return f"{record['who']}: skipped"
    # Some peers say by the clock what we say in processor time, and the other way round.
    named = figure if figure in record else next(each for each in UNITS if each in record)
    text = f"{record['who']}: {told(value(record, named).figure)}"
    if "ratio" in record and named != "p99_ms":  # of latencies the medians are compared
        low, high = record["ratio_spread"]
        text += f", **{told(record['ratio'])}{TIMES}** ({told(low)} to {told(high)})"
    if named != "cpu_us" and record.get("cpu_us") and ours.get("cpu_us"):
        text += f"; CPU {told(ours['cpu_us'] / record['cpu_us'])}{TIMES}"
    return text


def _wanted(row: Row) -> str:
    return ", ".join(
        f"{each} {each.peer}" if each.peer else f"{each} {UNITS[row.figure]}" for each in row.wanted
    )


def _met(row: Row, ours: Record, results: Results) -> str:
    """Each bound for itself; a peer that did not take part decides nothing."""
    verdicts = []
    for each in row.wanted:
        found = ours.get(row.figure)
        if each.peer is not None:
            found = results.record(row.part, row.case, each.peer).get("ratio")
        verdicts.append("?" if found is None else "yes" if each.is_met(found) else "no")
    return ", ".join(verdicts)


def _machine(part: str, results: Results) -> str:
    """What the figures of a part were measured on."""
    machine = next(
        (each for (case, _), each in results.parts[part].items() if case == MACHINE), None
    )
    days = sorted({str(each.get("on", "")) for each in results.parts[part].values()} - {""})
    on = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "an unknown day"
    if machine is None:
        return f"- {part}: measured on {on}."
    return (
        f"- {part}: measured on {on}; {machine['cores']} cores, {machine['architecture']}, "
        f"Python {machine['python']}, SQLite {machine['sqlite']}, one `fdatasync` "
        f"{machine['sync_ms']:g} ms, load {machine['load'][0]:g} when it began."
    )


if __name__ == "__main__":
    sys.exit(main())
