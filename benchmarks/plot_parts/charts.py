"""Bars and lines as SVG, in a light and a dark theme, with nothing but the standard library."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH = 840
FONT = "-apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
LABELS = 290
"""Pixels that the names of bars may take."""
BAR, GAP = 20, 8


@dataclass(frozen=True)
class Theme:
    """The colours of one picture; the first one for lines and bars is ours."""

    text: str
    muted: str
    grid: str
    back: str
    colours: tuple[str, ...]


THEMES = {
    "light": Theme(
        text="#1f2328",
        muted="#59636e",
        grid="#d1d9e0",
        back="#ffffff",
        colours=("#3538cd", "#a15c07", "#0b6e4f", "#b42318", "#59636e", "#8250df"),
    ),
    "dark": Theme(
        text="#e6edf3",
        muted="#9198a1",
        grid="#3d444d",
        back="#0d1117",
        colours=("#8b8dff", "#e0a04a", "#3fb68b", "#ff8a80", "#9198a1", "#d2a8ff"),
    ),
}


@dataclass(frozen=True)
class Value:
    """One measured figure, and the least and the most of its rounds where they are told."""

    figure: float
    spread: tuple[float, float] | None = None

    @property
    def most(self) -> float:
        """Where its mark ends."""
        return max(self.figure, self.spread[1] if self.spread else 0.0)


@dataclass(frozen=True)
class PlotGroup:
    """Contestants of one race, ours first. Each group has a scale of its own."""

    title: str
    bars: Sequence[tuple[str, Value]]


@dataclass(frozen=True)
class PlotSeries:
    """One contestant at several sizes."""

    name: str
    points: Sequence[tuple[str, Value]]


def bar_chart(title: str, note: str, groups: Sequence[PlotGroup], theme: Theme) -> str:
    """Horizontal bars, one group below the other."""
    body, top = [_heading(title, note, theme)], 74.0
    for group in groups:
        body.append(_text(20, top, group.title, theme.text, size=13, weight=600))
        top += 12
        body += _bars(group, top, theme)
        top += len(group.bars) * (BAR + GAP) + 28
    return _document(title, top - 14, "\n".join(body), theme)


def _bars(group: PlotGroup, top: float, theme: Theme) -> Iterator[str]:
    room = WIDTH - LABELS - 110
    most = max(value.most for _, value in group.bars) or 1.0
    for number, (name, value) in enumerate(group.bars):
        y = top + number * (BAR + GAP)
        is_ours = name.startswith("Ergon")
        colour = theme.colours[0] if is_ours else theme.muted
        length = max(1.0, room * value.figure / most)
        weight = 600 if is_ours else 400
        yield _text(LABELS - 10, y + 15, name, theme.text, anchor="end", weight=weight)
        yield (
            f'<rect x="{LABELS}" y="{y:g}" width="{length:.1f}" height="{BAR}" rx="3" '
            f'fill="{colour}"/>'
        )
        end = LABELS + length
        if value.spread is not None:
            low, high = (LABELS + room * each / most for each in value.spread)
            yield _line(low, y + BAR / 2, high, y + BAR / 2, theme.text, 1.5)
            yield _line(low, y + 6, low, y + BAR - 6, theme.text, 1.5)
            yield _line(high, y + 6, high, y + BAR - 6, theme.text, 1.5)
            end = max(end, high)
        yield _text(end + 8, y + 15, told(value.figure), theme.text, weight=weight)


def line_chart(
    title: str, note: str, across: str, lines: Sequence[PlotSeries], theme: Theme
) -> str:
    """Figures from zero upwards, over sizes that stand at equal distances."""
    left, right, top, bottom = 90.0, WIDTH - 30.0, 74.0 + 20 * len(lines), 0.0
    bottom = top + 230
    steps = _steps(max(value.most for line in lines for _, value in line.points))
    names = list(dict.fromkeys(name for line in lines for name, _ in line.points))
    gap = (right - left) / len(names)
    places = {name: left + gap * (number + 0.5) for number, name in enumerate(names)}
    body = [_heading(title, note, theme)]
    for each in steps:
        y = bottom - (bottom - top) * each / steps[-1]
        body.append(_line(left, y, right, y, theme.grid, 1))
        body.append(_text(left - 10, y + 4, told(each), theme.muted, size=12, anchor="end"))
    body += [
        _text(x, bottom + 20, name, theme.muted, size=12, anchor="middle")
        for name, x in places.items()
    ]
    body.append(_text((left + right) / 2, bottom + 42, across, theme.muted, anchor="middle"))
    for number, line in enumerate(lines):
        colour = theme.colours[number % len(theme.colours)]
        y = 68.0 + 20 * number
        body.append(_line(24, y - 4, 48, y - 4, colour, 3))
        body.append(_text(56, y, line.name, theme.text, weight=600 if number == 0 else 400))
        points = [
            (places[name], value, bottom - (bottom - top) * value.figure / steps[-1])
            for name, value in line.points
        ]
        way = " ".join(f"{x:.1f},{at:.1f}" for x, _, at in points)
        body.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        for x, value, at in points:
            body.append(f'<circle cx="{x:.1f}" cy="{at:.1f}" r="4" fill="{colour}"/>')
            if value.spread is not None:
                low, high = (bottom - (bottom - top) * each / steps[-1] for each in value.spread)
                body.append(_line(x, low, x, high, colour, 1.5))
    return _document(title, bottom + 58, "\n".join(body), theme)


def told(figure: float) -> str:
    """Three digits that count, and separators where there are thousands."""
    if figure >= 1000:
        digits = 2 - math.floor(math.log10(figure))
        return f"{round(figure, digits):,.0f}"
    return f"{float(f'{figure:.3g}'):g}"


def _steps(most: float) -> list[float]:
    """Round figures from nothing to the first one that no mark is above."""
    size = 10.0 ** math.floor(math.log10(most)) if most > 0 else 1.0
    step = next(each * size / 10 for each in (2, 5, 10, 20, 50) if each * size / 10 * 5 >= most)
    return [step * number for number in range(6)]


def _heading(title: str, note: str, theme: Theme) -> str:
    first = _text(20, 28, title, theme.text, size=17, weight=700)
    return f"{first}\n{_text(20, 48, note, theme.muted, size=12.5)}"


def _document(title: str, height: float, body: str, theme: Theme) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
        f'font-family="{FONT}" role="img" aria-labelledby="title">\n'
        f'<title id="title">{escape(title)}</title>\n'
        f'<rect width="{WIDTH}" height="{height:g}" rx="10" fill="{theme.back}"/>\n'
        f"{body}\n</svg>\n"
    )


def _text(
    x: float,
    y: float,
    text: str,
    fill: str,
    *,
    size: float = 13,
    weight: int = 400,
    anchor: str = "start",
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" fill="{fill}" font-size="{size:g}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


def _line(x: float, y: float, to_x: float, to_y: float, colour: str, width: float) -> str:
    ends = f'x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width:g}"/>'
