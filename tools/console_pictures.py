"""Takes the pictures of the console in docs/images, from a real server over real jobs.

python tools/console_pictures.py [FOLDER]

A worker runs the jobs of a small shop for a while; some fail, and one queue has nobody to run it.
Then a Chromium that is on the path looks at the pages, in both themes and as narrow as a phone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HANDLERS = """\
import time

from ergon_framework.executor import Registry

registry = Registry()


@registry.handler("invoices.render", attempts=3, backoff=0.5)
def render(order: int) -> dict:
    time.sleep(0.2)
    if order % 5 == 0:
        raise KeyError("vat_id")
    return {"pages": order}


@registry.handler("mail.send")
def send(to: str) -> str:
    time.sleep(0.05)
    return to
"""
SETTINGS = f"""\
[store]
url = "sqlite:///work.db"

[executors.python]
command = ["{sys.executable}", "-m", "ergon_framework.executor", "--app", "handlers:registry"]
pool_size = 2

[schedules.nightly-report]
cron = "0 3 * * *"
handler = "mail.send"
args = ["ops@example.com"]

[schedules.hourly-import]
cron = "15 * * * *"
handler = "mail.send"
queue = "imports"
args = ["imports@example.com"]

[server]
port = 0
"""
ORDERS, MAILS = 40, 900
PATIENCE = 240.0
"""Seconds for the jobs to have been tried, on a machine that is busy."""


class Picture(NamedTuple):
    """One page as a picture."""

    name: str
    path: str
    theme: str
    width: int = 1200
    height: int = 800


PICTURES = (
    Picture("console-overview-light", "", "light", height=900),
    Picture("console-overview-dark", "", "dark", height=900),
    Picture("console-job-light", "/jobs/{dead}", "light", height=860),
    Picture("console-job-dark", "/jobs/{dead}", "dark", height=860),
    Picture("console-dead-letters", "/dead-letters", "light", height=480),
    Picture("console-jobs", "/jobs", "light"),
    Picture("console-phone", "", "dark", width=390, height=844),
)


def main(folder: Path) -> None:
    """Take all of them."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise SystemExit("no Chromium is on the path.\nInstall one:  apt-get install chromium")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        (place / "handlers.py").write_text(HANDLERS)
        (place / "ergon.toml").write_text(SETTINGS)
        fill(place)
        with running(place, "worker"), running(place, "serve") as server, sync_playwright() as kit:
            url = first_line(server).split()[-1]
            link = next(line for line in server.stderr or () if "sign in" in line).split()[-1]
            options = ["--no-sandbox"] if os.getuid() == 0 else []
            browser = kit.chromium.launch(executable_path=program, args=options)
            watch(browser, f"{url}/console")
            dead = when_tried(place)
            take(browser, link, f"{url}/console", dead, folder)
            browser.close()


def fill(place: Path) -> None:
    """The jobs of a small shop."""
    sys.path.insert(0, str(place))
    from handlers import registry  # type: ignore[import-not-found]  # it was written just now

    from ergon_framework.jobs import JobClient

    with JobClient(f"sqlite:///{place}/work.db", registry=registry) as client:
        for order in range(1, ORDERS + 1):
            tags = [f"customer:{order % 9}"]
            client.enqueue("invoices.render", [order], queue="invoices", tags=tags)
        client.enqueue_many([("mail.send", [f"user{n}@example.com"]) for n in range(MAILS)])
        client.enqueue_many([("node#thumbs.make", [f"{n}.png"]) for n in range(12)], queue="thumbs")
        client.store.set_queue("imports", is_paused=True)
        client.enqueue("mail.send", ["imports@example.com"], queue="imports")


@contextmanager
def running(place: Path, command: str) -> Iterator[subprocess.Popen[str]]:
    """One command of ours, until the pictures are taken."""
    process = subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-m", "ergon_framework.cli", command],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def first_line(process: subprocess.Popen[str]) -> str:
    """What it says when it is ready."""
    line = "" if process.stdout is None else process.stdout.readline()
    if not line:
        raise SystemExit(process.communicate()[1])
    return line


def watch(browser: Browser, url: str) -> None:
    """Leave a page open, so that the server knows rates when the pictures are taken."""
    browser.new_page().goto(url)


def when_tried(place: Path) -> str:
    """Wait until most jobs have been tried; the id of one that gave up."""
    from ergon_framework.jobs import JobClient

    end = time.monotonic() + PATIENCE
    with JobClient(f"sqlite:///{place}/work.db") as client:
        while time.monotonic() < end:
            dead = [job.id for job in client.jobs(status="failed")]
            if len(dead) == ORDERS // 5 and client.count(status="completed") > MAILS / 4:
                return dead[0]
            time.sleep(0.5)
    raise SystemExit("the jobs were not tried in time: is this machine very busy?")


def take(browser: Browser, link: str, url: str, dead: str, folder: Path) -> None:
    """Sign in, and look at every page."""
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(link)
        page.get_by_role("button", name="Sign in").click()
        page.goto(url)
        page.locator(".chart").wait_for(timeout=1000 * PATIENCE)  # rates are known
        for each in PICTURES:
            page.emulate_media(color_scheme="dark" if each.theme == "dark" else "light")
            page.set_viewport_size({"width": each.width, "height": each.height})
            page.goto(url + each.path.format(dead=dead))
            page.locator("#live").or_(page.locator("#theme")).first.wait_for()
            page.screenshot(path=folder / f"{each.name}.png")
            print(folder / f"{each.name}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
