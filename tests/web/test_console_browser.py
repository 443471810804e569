"""The console in a real browser: what a person sees, with and without scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route

from ergon_framework.jobs import JobClient
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.jobstore import WorkerRecord
from tests.web.chromium import browser, heard
from tests.web.content import fill_calls, fill_flow, fill_jobs, settings_in
from tests.web.serving import started

pytestmark = [pytest.mark.slow, pytest.mark.req("ONE:serve")]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for all tests of this file."""
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[str]:
    """A server over five jobs that wait and two that gave up."""
    place: Path = tmp_path_factory.mktemp("console")
    settings_in(place, "[server]\nport = 0")
    fill_jobs(place, waiting=5, dead=2)
    fill_flow(place)
    fill_calls(f"sqlite:///{place}/work.db", ["l1"])
    with started(place) as (_, line):
        yield line.split()[-1]


def test_by_keyboard_from_the_overview_to_a_job(chromium: Browser, url: str) -> None:
    """The slash goes to the search, Enter opens the job, and no page complains."""
    with chromium.new_context() as context:
        page = context.new_page()
        complaints = heard(page)
        page.goto(f"{url}/")
        assert "have given up" in page.inner_text("main")
        page.keyboard.press("/")
        page.keyboard.type("d0")
        page.keyboard.press("Enter")
        page.wait_for_url("**/console/jobs/d0")
        assert "It is dead-lettered" in page.inner_text("main")
        assert complaints == []


def test_without_scripts(chromium: Browser, url: str) -> None:
    """A filter is a form, and a list is a list of links."""
    with chromium.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{url}/console/jobs")
        page.get_by_label("gave up").check()
        page.get_by_role("button", name="Filter").click()
        assert page.locator("tbody tr").count() == 2
        page.locator("tbody th a").first.click()
        assert page.url.endswith("/console/jobs/d1")
        page.goto(f"{url}/console/flows")
        page.get_by_role("link", name="album").click()
        page.get_by_role("link", name="fetch: waiting").click()
        assert page.url.endswith("/console/jobs/album.1")


def test_a_name_that_is_written_from_right_to_left(chromium: Browser, tmp_path: Path) -> None:
    """It keeps to itself: the number behind it stays behind it, and does not become its first."""
    settings_in(tmp_path, "[server]\nport = 0")
    fill_jobs(tmp_path, waiting=0)
    name = "\u05d0\u05d1\u05d2"
    with closing(open_store(f"sqlite:///{tmp_path}/work.db")) as store:
        started_at, busy = store.now(), {name: {"in_flight": 7}}
        worker = WorkerRecord(
            id="w2", host="here", pid=2, version="1", started_at=started_at, executors=busy
        )
        store.heartbeat(worker)
    with started(tmp_path) as (_, line), chromium.new_context() as context:
        page = context.new_page()
        page.goto(f"{line.split()[-1]}/console/workers")
        places = page.get_by_text(name).evaluate(
            """element => {
                const behind = document.createRange();
                behind.selectNodeContents(element.nextSibling);
                const digits = [...behind.getClientRects()].filter(each => each.width > 1);
                return [element.getBoundingClientRect().right, digits[0].left];
            }"""
        )
    assert places[0] <= places[1] + 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_and_a_phone(chromium: Browser, url: str, scheme: str) -> None:
    """The page follows the system until the button says otherwise; nothing hangs over its edge."""
    with chromium.new_context(
        color_scheme=scheme,  # type: ignore[arg-type]  # one of the two words
        viewport={"width": 390, "height": 800},
    ) as context:
        page = context.new_page()
        for path in ("", "/jobs", "/queues", "/jobs/d0", "/flows/album"):
            page.goto(f"{url}/console{path}")
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
        background = "getComputedStyle(document.body).backgroundColor"
        before = page.evaluate(background)
        assert (before == "rgb(14, 17, 22)") == (scheme == "dark")
        page.get_by_role("button", name="Theme").click()
        page.get_by_role("button", name="Theme").click()
        page.reload()
        assert page.evaluate(background) == "rgb(14, 17, 22)"


PAGES = (
    "",
    "/jobs",
    "/jobs/d0",
    "/flows",
    "/flows/album",
    "/queues",
    "/dead-letters",
    "/schedules",
    "/workers",
    "/zones",
    "/audit",
    "/providers",
    "/providers/rank/snapshot",
    "/sign-in",
    "/nowhere",
)


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.campaign)])
def test_nothing_bars_anybody(chromium: Browser, url: str, scheme: str) -> None:
    """axe-core finds nothing serious on any page: names, contrast, order, tables, forms.

    A page differs between the schemes in its colours alone.
    """
    options = None if scheme == "light" else {"runOnly": ["color-contrast"]}
    with chromium.new_context(
        color_scheme=scheme,  # type: ignore[arg-type]  # one of the two words
        bypass_csp=True,  # axe-core is put into the page
    ) as context:
        page = context.new_page()
        for path in PAGES:
            page.goto(f"{url}/console{path}")
            found = Axe().run(page, options=options).response["violations"]
            bad = [
                (each["id"], each["nodes"][0]["html"])
                for each in found
                if each["impact"] in ("serious", "critical")
            ]
            assert bad == [], path


def test_an_open_page_follows_what_happens(chromium: Browser, tmp_path: Path) -> None:
    """A job that comes is counted without a reload, and a stop does not wait for open pages."""
    settings_in(tmp_path, "[server]\nport = 0")
    fill_jobs(tmp_path, waiting=2)
    with started(tmp_path) as (process, line), chromium.new_context() as context:
        page = context.new_page()
        page.goto(f"{line.split()[-1]}/console/queues")
        page.get_by_text("live", exact=True).wait_for()
        with JobClient(f"sqlite:///{tmp_path}/work.db") as jobs:
            jobs.enqueue("h", queue="parcels")
        page.get_by_role("link", name="parcels").wait_for()
        process.terminate()
        page.get_by_text("not connected").wait_for()
        assert process.wait(timeout=60) == 0


def test_signing_in_to_send_a_job_back(chromium: Browser, tmp_path: Path) -> None:
    """The link that the server prints, a click, and the job waits again."""
    settings_in(tmp_path, "[server]\nport = 0")
    fill_jobs(tmp_path, waiting=0, dead=1)
    with started(tmp_path) as (process, line), chromium.new_context() as context:
        assert process.stderr is not None
        link = next(said for said in process.stderr if "sign in" in said).split()[-1]
        page = context.new_page()
        complaints = heard(page)
        page.goto(link)
        page.get_by_role("button", name="Sign in").click()
        page.goto(f"{line.split()[-1]}/console/jobs/d0")
        page.get_by_role("button", name="Requeue").click()
        assert "The job was sent back." in page.inner_text("main")
        page.get_by_role("button", name="Cancel").click()
        padding = "element => getComputedStyle(element).paddingLeft"
        leave = page.get_by_role("link", name="Leave it")
        # As wide as the button beside it.
        assert leave.evaluate(padding) == page.locator("button.danger").evaluate(padding)
        page.get_by_label("Reason").fill("a duplicate")
        page.get_by_role("button", name="Cancel 1 job").click()
        assert "a duplicate" in page.inner_text("main")
        assert complaints == []


def tab_to(page: Page, selector: str) -> None:
    """Move the focus as somebody without a mouse does."""
    for _ in range(80):
        if page.evaluate("which => document.activeElement.matches(which)", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(selector)


def test_editing_a_dead_letter_by_keyboard(chromium: Browser, tmp_path: Path) -> None:
    """From its page to that of the new job and to the audit log, in both themes, with a mistake.

    axe-core finds nothing serious on the form with a mistake.
    """
    settings_in(tmp_path, "[server]\nport = 0\npayloads = true")
    fill_jobs(tmp_path, waiting=0, dead=1)
    with (
        started(tmp_path) as (process, line),
        # Without motion: a colour that fades to that of the other theme has too little contrast.
        chromium.new_context(reduced_motion="reduce", bypass_csp=True) as context,
    ):
        assert process.stderr is not None
        page, url = context.new_page(), line.split()[-1]
        complaints = heard(page)
        page.goto(next(said for said in process.stderr if "sign in" in said).split()[-1])
        page.get_by_role("button", name="Sign in").press("Enter")
        page.goto(f"{url}/console/jobs/d0")
        tab_to(page, "a[href='/console/edit/d0']")
        page.keyboard.press("Enter")
        page.wait_for_url("**/console/edit/d0")
        tab_to(page, "#args")
        page.keyboard.type('["b.png"')
        tab_to(page, "form.edit button")
        page.keyboard.press("Enter")
        page.get_by_role("alert").wait_for()
        assert "line 1, column 9" in page.inner_text("main")
        check_both_themes(page)
        tab_to(page, "#args")
        page.keyboard.press("Control+End")
        page.keyboard.type("]")
        tab_to(page, "form.edit button")
        page.keyboard.press("Enter")
        page.wait_for_url("**/console/jobs/*did=edit")
        page.goto(f"{url}/console/audit")
        assert page.locator("tbody tr").count() == 1  # the mistake never came to a job
        # The browser tells of each answer that is none of the usual ones.
        assert [each for each in complaints if "422" not in each] == []


def check_both_themes(page: Page) -> None:
    """Nothing serious for axe-core, in either theme."""
    for scheme in ("dark", "light"):  # which differ in their colours alone
        page.emulate_media(color_scheme=scheme)
        options = {"runOnly": ["color-contrast"]} if scheme == "dark" else None
        found = Axe().run(page, options=options).response["violations"]
        bad = [each["id"] for each in found if each["impact"] in ("serious", "critical")]
        assert bad == [], (page.url, scheme)


def test_a_page_that_was_refused_asks_again(chromium: Browser, url: str) -> None:
    """A proxy in front may say 502 while the server starts anew: then the page is live again."""
    with chromium.new_context() as context:
        page = context.new_page()
        page.clock.install()
        page.route("**/console/events", lambda route: route.fulfill(status=502))
        page.goto(f"{url}/console/jobs")
        page.get_by_text("not connected").wait_for()
        page.unroute("**/console/events")
        page.clock.fast_forward(16_000)
        page.get_by_text("live", exact=True).wait_for()


def test_a_page_that_cannot_be_loaded_anew(chromium: Browser, url: str) -> None:
    """It keeps what it shows, and does not call that live."""
    told = "retry: 60000\n\nevent: changed\ndata: a\n\nevent: changed\ndata: b\n\n"

    def answer(route: Route) -> None:
        if route.request.resource_type == "fetch":
            route.fulfill(status=503)
        else:
            route.continue_()

    with chromium.new_context() as context:
        page = context.new_page()
        page.route("**/console/jobs", answer)
        page.route(
            "**/console/events",
            lambda route: route.fulfill(content_type="text/event-stream", body=told),
        )
        page.goto(f"{url}/console/jobs")
        page.get_by_text("not up to date").wait_for()
        assert page.locator("tbody tr").count() > 1


def test_a_phone_of_somebody_who_has_signed_in(chromium: Browser, tmp_path: Path) -> None:
    """Buttons in a list scroll with it: the page itself is no wider than the screen."""
    settings_in(tmp_path, "[server]\nport = 0")
    fill_jobs(tmp_path, waiting=2)
    with (
        started(tmp_path) as (server, line),
        chromium.new_context(viewport={"width": 360, "height": 640}) as context,
    ):
        assert server.stderr is not None
        link = next(
            found for each in server.stderr if (found := re.search(r"http\S+once=\S+", each))
        )
        page = context.new_page()
        page.goto(link[0])
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/console")
        page.goto(f"{line.split()[-1]}/console/queues")
        assert page.get_by_role("button", name="Pause").count() == 2
        assert page.evaluate("document.documentElement.scrollWidth") == 360
