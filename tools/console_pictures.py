"""Takes the pictures of the console in docs/images, from a real server over real jobs.

python tools/console_pictures.py [FOLDER]
python tools/console_pictures.py --every FOLDER   # every page in both themes, to look at

A small shop (console_scene.py) works for a while, and some of it goes wrong. Then a Chromium that
is on the path looks at the pages, in both themes and as narrow as a phone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, sync_playwright

from tools.console_scene import PATIENCE, Scene

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
MOST_HEIGHT = 1500
"""Pixels of a page that is taken whole; the rest of a long list looks the same."""
MOST_BYTES = 125_000
"""A picture that is larger is cut lower, as pages load it."""


class Picture(NamedTuple):
    """One page as a picture."""

    name: str
    path: str
    theme: str = "light"
    width: int = 1200
    height: int = 800
    """Of what is taken; 0: of the whole page."""
    top: str = ""
    """The heading with which the picture begins, if not with the top of the page."""


PICTURES = (
    Picture("console-overview-light", "", height=896),
    Picture("console-overview-dark", "", "dark", height=896),
    Picture("console-job-light", "/jobs/{dead}", height=720),
    Picture("console-job-dark", "/jobs/{dead}", "dark", height=720),
    Picture("console-dead-letters", "/dead-letters", height=480),
    Picture("console-edit", "/edit/{dead}?payloads=true", "dark", height=760),
    Picture(
        "console-flow",
        "/flows/{flow}",
        width=1340,
        height=560,
        top="Steps, in the order in which they may run",
    ),
    Picture("console-jobs", "/jobs", height=560),
    Picture("console-phone", "", "dark", width=390, height=844),
    Picture("console-provider", "/providers/rates/exchange", "dark", height=740),
    Picture("console-queues", "/queues", height=480),
    Picture("console-trace", "/traces/{trace}", height=760),
    Picture("console-zone", "/zones/plant", height=900),
)
PAGES = {
    "overview": "",
    "queues": "/queues",
    "jobs": "/jobs",
    "jobs-failed": "/jobs?status=failed",
    "job": "/jobs/{dead}",
    "payloads": "/jobs/{dead}?payloads=true",
    "edit": "/edit/{dead}?payloads=true",
    "flows": "/flows",
    "flow": "/flows/{flow}",
    "dead-letters": "/dead-letters",
    "schedules": "/schedules",
    "workers": "/workers",
    "zones": "/zones",
    "zone": "/zones/plant",
    "set-aside": "/zones/plant/quarantine/1?payloads=true",
    "providers": "/providers",
    "provider": "/providers/rates/exchange",
    "tasks": "/tasks",
    "traces": "/traces",
    "trace": "/traces/{trace}",
    "journal": "/journal",
    "audit": "/audit",
    "settings": "/settings",
    "missing": "/jobs/nowhere",
}


def main() -> None:
    """Take all of them."""
    parser = argparse.ArgumentParser(description="Take the pictures of the console.")
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--every", action="store_true", help="every page in both themes")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    wanted = tuple(every()) if asked.every else PICTURES
    with tempfile.TemporaryDirectory() as scratch:
        scene = Scene(Path(scratch))
        serve = ("-m", "ergon_framework.cli", "serve")
        with scene.working("shop.py"), scene.working(*serve, tells=True) as server:
            scene.trace()
            scene.fill()
            take(scene, server, wanted, asked.folder)


def every() -> Iterator[Picture]:
    """Every page whole in both themes, and as on a phone."""
    for name, path in PAGES.items():
        yield Picture(f"{name}-light", path, "light", height=0)
        yield Picture(f"{name}-dark", path, "dark", height=0)
        yield Picture(f"{name}-phone", path, "light", width=390, height=0)


def take(
    scene: Scene, server: subprocess.Popen[str], wanted: Sequence[Picture], folder: Path
) -> None:
    """Sign in, wait until there is something to see, and look at each page."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise SystemExit("no Chromium is on the path.\nInstall one:  apt-get install chromium")
    url = first_line(server).split()[-1]
    link = next(line for line in server.stderr or () if "sign in" in line).split()[-1]
    options = ["--no-sandbox"] if os.getuid() == 0 else []
    with sync_playwright() as kit:
        browser = kit.chromium.launch(executable_path=program, args=options)
        # Left open, so that the server knows rates when the pictures are taken.
        browser.new_page().goto(f"{url}/console")
        places = scene.places()
        look(browser, link, f"{url}/console", places, wanted, folder)
        browser.close()


def first_line(process: subprocess.Popen[str]) -> str:
    """What it says when it is ready."""
    line = "" if process.stdout is None else process.stdout.readline()
    if not line:
        raise SystemExit(process.communicate()[1])
    return line


def look(
    browser: Browser,
    link: str,
    url: str,
    places: Mapping[str, str],
    wanted: Sequence[Picture],
    folder: Path,
) -> None:
    """Take each picture as somebody sees it who may act."""
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(link)
        page.get_by_role("button", name="Sign in").click()
        page.goto(url)
        page.locator(".chart").nth(4).wait_for(timeout=1000 * PATIENCE)  # rates are known
        for each in wanted:
            page.emulate_media(color_scheme="dark" if each.theme == "dark" else "light")
            page.set_viewport_size({"width": each.width, "height": each.height or 800})
            page.goto(url + each.path.format(**places))
            page.locator("#live").or_(page.locator("#theme")).first.wait_for()
            file = folder / f"{each.name}.png"
            tall = page.evaluate("document.documentElement.scrollHeight")
            page.set_viewport_size(
                {"width": each.width, "height": each.height or min(int(tall), MOST_HEIGHT)}
            )
            if each.top:
                heading = page.get_by_role("heading", name=each.top)
                heading.evaluate("each => scrollBy(0, each.getBoundingClientRect().top - 100)")
            page.screenshot(path=file)
            told = "" if file.stat().st_size <= MOST_BYTES else "  larger than it should be"
            print(f"{file}  {file.stat().st_size // 1000} kB{told}")


if __name__ == "__main__":
    begun = time.monotonic()
    main()
    print(f"taken in {time.monotonic() - begun:.0f} s")
