"""Draws the picture of the README: the four kinds of work, what Ergon does, where work is kept.

python tools/overview_picture.py            write docs/images/overview-light.svg and -dark.svg
python tools/overview_picture.py --check    fail when they are stale
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "images"
WIDTH, HEIGHT = 960, 430
FONT = "-apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"


@dataclass(frozen=True)
class Theme:
    """The colours of one picture."""

    text: str
    muted: str
    line: str
    box: str
    core: str
    core_text: str
    kinds: tuple[str, str, str, str]


THEMES = {
    "light": Theme(
        text="#1f2328",
        muted="#59636e",
        line="#8c959f",
        box="#f6f8fa",
        core="#3538cd",
        core_text="#ffffff",
        kinds=("#0b6e4f", "#3538cd", "#a15c07", "#b42318"),
    ),
    "dark": Theme(
        text="#e6edf3",
        muted="#9198a1",
        line="#656c76",
        box="#161b22",
        core="#4f52e0",
        core_text="#ffffff",
        kinds=("#3fb68b", "#8b8dff", "#e0a04a", "#ff8a80"),
    ),
}

KINDS = (
    ("messages", "@app.consumer", "from a queue, a file, an API"),
    ("jobs", "@app.job", "calls of your own, for later"),
    ("facts", "app.zone(…).publish", "what another site must learn"),
    ("provider calls", "@provider.call", "services that have bad days"),
)
PROMISES = (
    "acknowledged means on disk",
    "every attempt has a time limit",
    "one rule decides on retries",
    "one recorded outcome per unit",
)
STORES = (
    ("one machine", "SQLite: a file, no server"),
    ("many machines", "PostgreSQL, Redis, NATS"),
)
LOOKING = "ergon why ID: the story of a unit"


def picture(theme: Theme) -> str:
    """The whole picture in one theme."""
    body = "\n".join(_parts(theme))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="{FONT}" role="img" aria-labelledby="title">\n'
        '<title id="title">Four kinds of work go through Ergon into one store</title>\n'
        f"{_arrowhead(theme)}\n{body}\n</svg>\n"
    )


def _parts(theme: Theme) -> Iterator[str]:
    for number, (name, code, what) in enumerate(KINDS):
        top = 20 + 84 * number
        yield _box(20, top, 270, 68, theme, theme.kinds[number])
        yield _text(40, top + 25, name, theme.kinds[number], size=16, weight=600)
        yield _code(270, top + 25, code, theme)
        yield _text(40, top + 50, what, theme.muted, size=13)
        yield _arrow(294, top + 34, 358, theme)
    yield f'<rect x="364" y="20" width="260" height="320" rx="14" fill="{theme.core}"/>'
    yield _text(494, 66, "Ergon", theme.core_text, size=28, weight=700, anchor="middle")
    yield _text(494, 92, "work that must not get lost", theme.core_text, anchor="middle")
    for number, promise in enumerate(PROMISES):
        top = 146 + 48 * number
        yield f'<circle cx="390" cy="{top - 5}" r="4" fill="{theme.core_text}"/>'
        yield _text(404, top, promise, theme.core_text, size=13)
    for number, (name, what) in enumerate(STORES):
        top = 62 + 130 * number
        yield _box(690, top, 250, 90, theme, theme.line)
        yield _text(710, top + 34, name, theme.text, size=16, weight=600)
        yield _text(710, top + 62, what, theme.muted, size=12.5)
        yield _arrow(628, top + 45, 684, theme)
    yield _text(815, 176, "only the URL changes", theme.muted, size=12, anchor="middle")
    yield _box(364, 366, 260, 46, theme, theme.line)
    yield _text(494, 394, LOOKING, theme.text, size=12, anchor="middle")
    yield _line(494, 340, 494, 366, theme)


def _box(x: int, y: int, width: int, height: int, theme: Theme, stroke: str) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="10" '
        f'fill="{theme.box}" stroke="{stroke}" stroke-width="1.5"/>'
    )


def _text(
    x: int,
    y: int,
    text: str,
    fill: str,
    *,
    size: float = 14,
    weight: int = 400,
    anchor: str = "start",
) -> str:
    return (
        f'<text x="{x}" y="{y}" fill="{fill}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


def _code(x: int, y: int, text: str, theme: Theme) -> str:
    return (
        f'<text x="{x}" y="{y}" fill="{theme.text}" font-size="11.5" text-anchor="end" '
        f'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace">'
        f"{escape(text)}</text>"
    )


def _line(x: int, y: int, to_x: int, to_y: int, theme: Theme) -> str:
    ends = f'x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}"'
    return f'<line {ends} stroke="{theme.line}" stroke-width="1.5"/>'


def _arrow(x: int, y: int, to_x: int, theme: Theme) -> str:
    return (
        f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{y}" stroke="{theme.line}" '
        'stroke-width="1.5" marker-end="url(#head)"/>'
    )


def _arrowhead(theme: Theme) -> str:
    return (
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0 L10 5 L0 10 z" fill="{theme.line}"/>'
        "</marker></defs>"
    )


def main(arguments: list[str]) -> int:
    """Write the pictures, or say which are stale."""
    stale = []
    for name, theme in THEMES.items():
        path = FOLDER / f"overview-{name}.svg"
        drawn = picture(theme)
        if "--check" in arguments:
            if not path.is_file() or path.read_text() != drawn:
                stale.append(str(path.relative_to(ROOT)))
            continue
        path.parent.mkdir(exist_ok=True)
        path.write_text(drawn)
    for each in stale:
        print(f"{each} is stale: run make docs, or python tools/overview_picture.py")
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
