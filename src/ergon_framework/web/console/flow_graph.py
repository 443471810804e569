"""Draws a flow: where its steps are on the page, and what leads from one to the next.

Pure: the caller has read how many steps are in which state. A chain goes from left to right, the
members of a group are below each other. Steps of one handler side by side are one box, however many
they are, so that a drawing stays small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ergon_framework.core.job import JobStatus
from ergon_framework.ports.flow import step_id
from ergon_framework.web.console.formatting import number, status_chip

WIDTH, HEIGHT = 176, 50
"""The size of a box, in the units of the drawing, which are pixels if there is room."""
ACROSS, DOWN = 40, 14
"""The gaps between two boxes."""
MARGIN = 4
MOST_IN_CHAIN, LAST_OF_CHAIN = 16, 3
"""How many parts of a chain are drawn, and how many of these are its last ones."""
MOST_IN_GROUP = 10
LETTERS = 17
"""How many letters of a name fit into a box."""


@dataclass(frozen=True)
class Steps:
    """The steps of one box: ``count`` steps from number ``first`` on, or those with the
    given ids.
    """

    title: str
    first: int = 0
    count: int = 0
    ids: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        """How many steps."""
        return len(self.ids) or self.count

    def all_ids(self, flow_id: str) -> Iterator[str]:
        """The id of each."""
        yield from self.ids
        if not self.ids and self.first:
            yield from (step_id(flow_id, self.first + n) for n in range(self.count))


@dataclass
class Box:
    """The steps of a box, and its place."""

    steps: Steps
    x: float = 0.0
    y: float = 0.0


@dataclass
class _Part:
    """A piece of the drawing, with the boxes at which connections to and from it end."""

    width: float = 0.0
    height: float = 0.0
    boxes: list[Box] = field(default_factory=list)
    links: list[tuple[Sequence[Box], Sequence[Box]]] = field(default_factory=list)
    entries: Sequence[Box] = ()
    exits: Sequence[Box] = ()

    def take(self, other: _Part, x: float, y: float) -> None:
        """Add another piece to this one."""
        for box in other.boxes:
            box.x += x
            box.y += y
        self.boxes += other.boxes
        self.links += other.links


@dataclass(frozen=True)
class Layout:
    """Boxes in their places, and which of them lead to which."""

    width: float
    height: float
    boxes: Sequence[Box]
    links: Sequence[tuple[Sequence[Box], Sequence[Box]]]


def layout_of(tree: Mapping[str, Any]) -> Layout:
    """The layout of a flow; ``tree`` is the flow as it was written."""
    part = _placed(tree)
    for box in part.boxes:
        box.x += MARGIN
        box.y += MARGIN
    return Layout(part.width + 2 * MARGIN, part.height + 2 * MARGIN, part.boxes, part.links)


def with_others(tree: Mapping[str, Any], flow_id: str, ids: Sequence[str]) -> Mapping[str, Any]:
    """The same layout with the steps that it does not name, as one box below the rest."""
    named = {each for box in layout_of(tree).boxes for each in box.steps.all_ids(flow_id)}
    others = [] if _leaves_out(tree) else [each for each in ids if each not in named]
    return {"group": [tree, {"others": others}]} if others else tree


def _leaves_out(tree: Any) -> bool:
    """Whether the plan itself leaves parts out; their steps are then not drawn as others."""
    if isinstance(tree, Mapping):
        return "more" in tree or any(map(_leaves_out, tree.values()))
    return isinstance(tree, list) and any(map(_leaves_out, tree))


def _placed(tree: Mapping[str, Any]) -> _Part:
    if "chain" in tree:
        return _chain([_placed(each) for each in _folded_chain(tree["chain"])])
    if "group" in tree:
        group = _group([_placed(each) for each in _folded_group(tree["group"])])
        return _chain([group, _placed(tree["then"])]) if "then" in tree else group
    if "after" in tree:
        then = tree["then"]
        before = _placed_steps(_jobs_before(tree["after"]))
        return _chain([before, _placed_steps(Steps(str(then["handler"]), ids=(str(then["id"]),)))])
    if "others" in tree:
        return _placed_steps(Steps("added later", ids=tuple(tree["others"])))
    if "more" in tree:
        return _placed_steps(Steps("more parts", count=int(tree["more"])))
    if "step" in tree:
        count = int(tree.get("count", 1))
        return _placed_steps(Steps(str(tree["handler"]), int(tree["step"]), count))
    return _Part()


def _jobs_before(ids: Sequence[Any]) -> Steps:
    title = "the job before it" if len(ids) == 1 else "jobs before it"
    return Steps(title, ids=tuple(map(str, ids)))


def _placed_steps(steps: Steps) -> _Part:
    box = Box(steps)
    return _Part(WIDTH, HEIGHT, [box], [], [box], [box])


def _chain(parts: Sequence[_Part]) -> _Part:
    """Pieces one after the other, from left to right."""
    parts = [each for each in parts if each.boxes]
    whole = _Part(height=max((each.height for each in parts), default=0.0))
    x = 0.0
    for each in parts:
        whole.take(each, x, (whole.height - each.height) / 2)
        if whole.exits:
            whole.links.append((whole.exits, each.entries))
        whole.entries = whole.entries or each.entries
        whole.exits = each.exits
        whole.width = x + each.width
        x = whole.width + ACROSS
    return whole


def _group(parts: Sequence[_Part]) -> _Part:
    """Pieces that run at the same time, below each other."""
    parts = [each for each in parts if each.boxes]
    whole = _Part(width=max((each.width for each in parts), default=0.0))
    y = 0.0
    for each in parts:
        whole.take(each, 0.0, y)
        whole.entries = [*whole.entries, *each.entries]
        whole.exits = [*whole.exits, *each.exits]
        whole.height = y + each.height
        y = whole.height + DOWN
    return whole


def _folded_chain(parts: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The first and the last parts, with the parts between them as one box."""
    if len(parts) <= MOST_IN_CHAIN:
        return parts
    first = parts[: MOST_IN_CHAIN - LAST_OF_CHAIN]
    return [*first, _fold(parts[len(first) : -LAST_OF_CHAIN]), *parts[-LAST_OF_CHAIN:]]


def _folded_group(parts: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    if len(parts) <= MOST_IN_GROUP:
        return parts
    rest = parts[MOST_IN_GROUP - 1 :]
    more = sum(int(each.get("more", 0)) for each in rest)
    if more:  # The numbers of steps that the plan leaves out are unknown.
        return [*parts[: MOST_IN_GROUP - 1], {"more": len(rest) - 1 + more}]
    return [*parts[: MOST_IN_GROUP - 1], _fold(rest)]


def _fold(parts: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Parts as one box. The numbers of their steps follow each other."""
    ranges = [each for part in parts for each in _ranges(part)]
    if not ranges:
        return {}
    first = min(start for start, _ in ranges)
    end = max(start + count for start, count in ranges)
    return {"step": first, "count": end - first, "handler": f"{number(end - first)} more steps"}


def _ranges(tree: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    if "step" in tree:
        yield int(tree["step"]), int(tree.get("count", 1))
    for name in ("chain", "group"):
        for each in tree.get(name, ()):
            yield from _ranges(each)
    if "then" in tree:
        yield from _ranges(tree["then"])


# ---- with how everything stands -----------------------------------------------------------------

Counts = Mapping[str, int]
_BAR = (
    (JobStatus.COMPLETED, "ok"),
    (JobStatus.FAILED, "bad"),
    (JobStatus.CANCELLED, "hold"),
    (JobStatus.ACTIVE, "run"),
    (JobStatus.RETRYING, "warn"),
)
"""The order of the shares in a box's bar; the rest of the bar is waiting steps."""


def drawing(
    layout: Layout, counts_of: Callable[[Steps], Counts], link_of: Callable[[Steps], str | None]
) -> dict[str, Any]:
    """The drawing as plain values."""
    counted = {id(box): counts_of(box.steps) for box in layout.boxes}
    done = {
        id(box)
        for box in layout.boxes
        if counted[id(box)].get(JobStatus.COMPLETED, 0) == box.steps.number
    }
    return {
        "width": round(layout.width),
        "height": round(layout.height),
        "nodes": [_node(box, counted[id(box)], link_of(box.steps)) for box in layout.boxes],
        "edges": [
            {"path": path, "is_done": is_done}
            for exits, entries in layout.links
            for path, is_done in _lines(exits, entries, done)
        ],
        "arrows": [
            f"M{_n(box.x - 6)} {_n(box.y + HEIGHT / 2 - 4)}l6 4l-6 4z"
            for _, entries in layout.links
            for box in entries
        ],
    }


def _node(box: Box, counts: Counts, link: str | None) -> dict[str, Any]:
    steps = box.steps
    # A part that was left out may be several steps.
    number_of = max(steps.number, sum(counts.values()))
    level, text = _standing(number_of, counts)
    title = steps.title
    name = title.partition("#")[2] or title  # The box has no room for the executor.
    return {
        "title": title,
        "short": name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…",
        "number": number_of,
        "level": level,
        "text": text,
        "counts": dict(counts),
        "link": link,
        "x": round(box.x, 1),
        "y": round(box.y, 1),
        "bar": _bar(number_of, counts) if number_of > 1 else [],
    }


def _standing(number_of: int, counts: Counts) -> tuple[str, str]:
    """A level and a few words."""
    known = {status: count for status, count in counts.items() if count}
    if not known:
        return "wait", "not looked up"
    if number_of == 1:
        [status] = list(known)[:1]
        return status_chip(status)
    completed = known.get(JobStatus.COMPLETED, 0)
    failed = known.get(JobStatus.FAILED, 0)
    text = f"{number(completed)} of {number(number_of)}"
    if failed:
        return "bad", f"{text}, {number(failed)} gave up"
    if completed == number_of:
        return "ok", f"{number(number_of)} completed"
    if known.get(JobStatus.RETRYING):
        return "warn", f"{text}, retrying"
    is_running = bool(known.get(JobStatus.ACTIVE))
    return ("run" if is_running else "wait"), text


def _bar(number_of: int, counts: Counts) -> list[dict[str, Any]]:
    """The shares in percent, from left to right."""
    found, at = [], 0.0
    for status, kind in _BAR:
        if share := 100 * counts.get(status, 0) / number_of:
            width = max(share, 1.5)  # One dead-lettered step of 100,000 must be visible.
            found.append({"kind": kind, "left": round(min(at, 98.5), 2), "width": round(width, 2)})
            at += width
    return found


def _lines(
    exits: Sequence[Box], entries: Sequence[Box], done: set[int]
) -> Iterator[tuple[str, bool]]:
    """Curves from each box to each. Between many and many, they meet in one point."""
    if len(exits) == 1 or len(entries) == 1:
        for left in exits:
            for right in entries:
                yield _curve(*_out(left), *_in(right)), id(left) in done
        return
    is_over = all(id(each) in done for each in exits)
    x = max(each.x for each in exits) + WIDTH + ACROSS / 2
    ys = [each.y for each in (*exits, *entries)]
    y = (min(ys) + max(ys) + HEIGHT) / 2
    for left in exits:
        yield _curve(*_out(left), x, y), id(left) in done
    for right in entries:
        yield _curve(x, y, *_in(right)), is_over


def _out(box: Box) -> tuple[float, float]:
    return box.x + WIDTH, box.y + HEIGHT / 2


def _in(box: Box) -> tuple[float, float]:
    return box.x - 5, box.y + HEIGHT / 2


def _curve(x1: float, y1: float, x2: float, y2: float) -> str:
    if abs(y1 - y2) < 0.5:
        return f"M{_n(x1)} {_n(y1)}H{_n(x2)}"
    # Bent close to its end: a line past a wide part runs straight along its row.
    straight = max(x1, x2 - ACROSS / 2)
    middle = (straight + x2) / 2
    bend = f"C{_n(middle)} {_n(y1)} {_n(middle)} {_n(y2)} {_n(x2)} {_n(y2)}"
    return f"M{_n(x1)} {_n(y1)}H{_n(straight)}{bend}"


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
