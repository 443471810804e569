"""The whole product at work while things go wrong. Run it with ``make demo``.

Shipments are packed in a plant and told as facts; an enterprise pulls the facts, makes a job of
each, and its handlers book pick-ups at a carrier. Meanwhile an executor is killed, then the worker,
then the link between the zones is cut, then the carrier fails until its circuit opens. At the end
every shipment is accounted for, from the stores alone; the exit code is 1 when one is not.

Read on in this order:

1. ``ergon.toml``: everything that runs, in one file.
2. ``tasks.py``, ``handlers.py``, ``carrier.py``: the code one writes. ``labels.js`` is JavaScript.
3. ``troubles.py``: what goes wrong, and how one sees that it did.
4. ``sums.py``: what must add up.

The rest is stage machinery: ``site.py`` starts ``ergon run --all`` and ``ergon serve``, whose
console a browser shows meanwhile where there is a screen, ``CuttableLink`` can be cut,
``floor.py`` packs, ``gauges.py`` and ``display.py`` show how far everything is.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rich.console import Console

from ergon_framework.testing.link import CuttableLink

from . import sums, troubles
from .display import display
from .ending import show_hints, show_way
from .floor import Floor
from .shipments import FEWEST, MOST
from .site import Site
from .story import Missing, Story

PACE = 0.25
"""Seconds that the shop floor takes for a shipment."""


def play(story: Story) -> None:
    """The story. Each trouble waits until its effect was seen, and only then the next one comes."""
    story.tell("everything runs; the plant packs shipments, and tells some of them twice")

    story.pack(0.1, then=0.45)
    troubles.kill_an_executor(story)

    story.pack(0.3, then=0.45)
    troubles.kill_the_worker(story)

    story.pack(0.45, then=0.45)
    troubles.cut_the_link(story)
    story.pack(0.6, then=0.75)
    troubles.heal_the_link(story)

    story.pack(0.75, then=0.75)
    troubles.close_the_carrier(story)
    story.pack(0.9, then=1.0)
    troubles.open_the_carrier(story)

    story.pack(1.0, then=1.0)
    story.tell("no more troubles: what is left is worked off")


def show_console(story: Story, *, opens: bool) -> bool:
    """Tell where the console is, and open it in a browser; whether one was opened."""
    url = story.open_console()
    if url is None:
        story.tell("the console could not be started; console.log says why")
        return False
    story.tell(f"watch all of it in the console: {url}")
    return opens and open_browser(url)


def open_browser(url: str) -> bool:
    """Whether a browser was opened. One that runs in this terminal would be in the way."""
    try:
        browser = webbrowser.get()
        return type(browser) is not webbrowser.GenericBrowser and browser.open(url)
    except webbrowser.Error:
        return False


def has_screen() -> bool:
    """Whether a browser that is opened here is seen by whoever started the demo."""
    if not sys.stdout.isatty() or "SSH_CONNECTION" in os.environ:
        return False
    return sys.platform == "darwin" or bool({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys())


def stay(console: Console) -> None:
    """Leave the console open until somebody has seen enough."""
    console.print("\nThe console stays open until Ctrl-C.")
    with suppress(KeyboardInterrupt):
        threading.Event().wait()


def settle(story: Story, count: int) -> None:
    """Wait until every shipment has come to its end, and stop."""
    story.until(f"all {count} jobs have ended", lambda: story.gauges.read().ended >= count)
    story.tell("every job has ended; everything is stopped")
    story.end()


def main() -> int:
    """Play it, then add up what is in the stores."""
    asked = arguments()
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # let go of everything on the way out
    began_at = time.monotonic()
    console.print("The demo takes about a minute and a half. Two sites are set up …")
    with folder_of(asked.keep) as folder, Site(folder) as site, ExitStack() as stack:
        link = stack.enter_context(CuttableLink(site.plant_port))
        floor = stack.enter_context(Floor(folder / "floor", asked.facts, asked.pace))
        shown = stack.enter_context(display(console, asked.facts, is_plain=asked.plain))
        story = Story(site, link, floor, shown)
        stack.callback(story.end)
        try:
            story.tell("two zones, a worker and two tasks are started by ergon run --all")
            story.begin()
            opened = show_console(story, opens=asked.opens)
            play(story)
            settle(story, asked.facts)
        except Missing as missing:
            story.end()
            shown.tell(f"MISSING: {missing}")
            return 1
        except KeyboardInterrupt:
            shown.tell("Ctrl-C: everything is stopped")
            raise
        stack.close()
        ledger = sums.read(folder)
        show_way(console, ledger, site)
        adds_up = sums.show(console, ledger)
        if not adds_up:
            return 1
        console.print(f"The sums add up, after {time.monotonic() - began_at:.0f} seconds.")
        show_hints(console, ledger, site, asked.keep)
        if opened or asked.stay:
            stay(console)
    return 0


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="demo", description="The whole product at work.")
    parser.add_argument("--facts", type=int, default=120, help="how many shipments (120)")
    parser.add_argument("--fast", action="store_true", help="pack them in a hurry")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="run in DIR, and leave it there")
    parser.add_argument("--plain", action="store_true", help="plain lines also on a terminal")
    parser.add_argument(
        "--stay", action="store_true", help="leave the console open at the end, until Ctrl-C"
    )
    parser.add_argument("--no-browser", action="store_true", help="open no browser")
    asked = parser.parse_args()
    if not FEWEST <= asked.facts <= MOST:
        parser.error(f"--facts must be between {FEWEST} and {MOST}")
    if asked.keep is not None and asked.keep.exists() and any(asked.keep.iterdir()):
        parser.error(f"--keep {asked.keep}: the folder is not empty")
    asked.opens = has_screen() and not asked.no_browser
    asked.pace = 0.02 if asked.fast else min(PACE, 30.0 / asked.facts)
    return asked


@contextmanager
def folder_of(kept: Path | None) -> Iterator[Path]:
    """A temporary folder, or one that stays."""
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()
        return
    folder = Path(tempfile.mkdtemp(prefix="ergon-demo-")).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("stopped; no process is left", file=sys.stderr)
        sys.exit(130)
