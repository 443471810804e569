"""Ids that paths cannot carry, or that mean something there: pages, links, API and client."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from ergon_framework.jobs import JobClient
from ergon_framework.web.addresses import address_of
from ergon_framework.web.client import ApiClient
from tests.web.console_client import ConsoleClient
from tests.web.content import settings_in
from tests.web.serving import started
from tests.web.test_console_acting import Place, send

pytestmark = pytest.mark.req("ONE:serve")

JSON = {"Accept": "application/json"}
OPERATORS = 'operators = ["ada"]\n'
ODD = [
    "..",
    ".",
    "a/../b",
    "./a",
    "%2e%2e",
    "a//b",
    "/a",
    "a/",
    "/",
    "-",
    "find",
    "bulk",
    "a/why",
    "a/cancel",
    "100%",
    "50%25 off",
    "what?",
    "a#b?c&d=e;f+g",
    "back\\slash",
    "<b>&amp;'\"",
    " blank ",
    "zo\u00eb/\u65e5\u672c/\U0001f600",
    "\U0001f600" * 200,
]


def resolved(link: str) -> str:
    """Where a browser goes: it takes ``..`` out of paths, also where that is written otherwise."""
    parts = urlsplit(urljoin("http://localhost/console/", link))
    segments: list[str] = []
    for each in parts.path.split("/"):
        if unquote(each) == "..":
            del segments[-1:]
        elif unquote(each) != ".":
            segments.append(each)
    path = re.sub("/+", "/", "/".join(segments))  # and a proxy before us takes slashes together
    return path + (f"?{parts.query}" if parts.query else "")


def shown(text: str) -> str:
    """The id of the job that a page is about."""
    [found] = re.findall(r'<code class="id">(.*?)</code>', text)
    return html.unescape(found)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A server over a job for each odd id."""
    found = Place(tmp_path_factory.mktemp("odd"))
    with JobClient(found.url) as jobs:
        for name in ODD:
            jobs.enqueue("work", id=name, queue="odd")
    return found


@pytest.fixture(scope="module")
def client(place: Place) -> ConsoleClient:
    """Somebody who has signed in."""
    return place.signed_in()


@pytest.mark.parametrize("name", ODD)
def test_its_links_lead_to_it(client: ConsoleClient, name: str) -> None:
    """From the page to its other forms and from the search, as a browser reads an address."""
    link = resolved(address_of("/console/jobs", name))
    text = client.get(link).text
    assert shown(text) == name
    [other] = re.findall(r'href="([^"]+format=json[^"]*)"', text)
    assert client.get(resolved(html.unescape(other))).json()["id"] == name
    assert shown(client.request("GET", "/console/find", params={"q": name}).text) == name


def test_rows_of_the_list(client: ConsoleClient) -> None:
    """Each leads to the job of that row."""
    text = client.get("/console/jobs?queue=odd").text
    links = re.findall(r'<th scope="row"><a href="([^"]+)"', text)
    ids = {client.get(resolved(html.unescape(each)), JSON).json()["id"] for each in links}
    assert ids == set(ODD)


@pytest.mark.parametrize("name", ["..", "a/../b", "a/why", "find"])
def test_its_form_changes_it(client: ConsoleClient, place: Place, name: str) -> None:
    """And leads back to its page, which says what was done."""
    text = client.get(address_of("/console/jobs", name)).text
    secret = re.findall(r'name="secret" value="([^"]+)"', text)[0]
    fields = {"secret": secret, "id": name, "sure": "yes"}
    answer = send(client, "change", None, action="cancel", **fields)
    assert "The job was cancelled." in answer.text
    assert place.statuses()[name] == "cancelled"
    assert shown(answer.text) == name


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of its own, behind a socket."""
    folder = tmp_path_factory.mktemp("api")
    settings_in(folder, '[server]\nport = 0\ntoken = "ada: correct-horse-battery"\n' + OPERATORS)
    with JobClient(f"sqlite:///{folder}/work.db") as jobs:
        for name in ODD:
            jobs.enqueue("work", id=name)
    with started(folder) as (_, line):
        yield line.split()[-1]


@pytest.mark.slow
def test_the_client_reaches_every_job(url: str) -> None:
    """To look, to ask why, and to change."""
    client = ApiClient(url, "correct-horse-battery")
    for name in ODD:
        assert client.job(name).id == name
        assert client.why(name)
        assert client.cancel(name).id == name
        assert client.job(name).status == "cancelled"
    assert {each.status for each in client.jobs()} == {"cancelled"}
