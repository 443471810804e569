"""The pages of flows: the list, the drawing of one, and what it waits for."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.core.flow import FlowStatus
from ergon_framework.jobs import JobClient
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.flow import NewFlow, StepPlace
from ergon_framework.ports.jobstore import NewJob
from ergon_framework.web.application import create_app
from ergon_framework.web.console.flow_graph import Steps, drawing, layout_of, with_others
from ergon_framework.web.console.reading import SHOWN
from tests.web.console_client import ConsoleClient
from tests.web.content import settings_in
from tests.web.test_console_pages import page, rows

pytestmark = pytest.mark.req("ONE:serve")


@pytest.fixture
def client(tmp_path: Path) -> ConsoleClient:
    """A server over the job store of the place."""
    with closing(open_store(f"sqlite:///{tmp_path}/work.db")):
        pass
    return ConsoleClient(create_app(settings=settings_in(tmp_path)))


def album(place: Path, pictures: int = 3, *, has_failed: bool = False) -> str:
    """A flow that fetches, makes some thumbs and publishes; its id."""
    with JobClient(f"sqlite:///{place}/work.db") as jobs:
        thumbs = jobs.group([("thumb", [n]) for n in range(pictures)])
        flow = jobs.chain(("fetch", ["hidden"]), thumbs, "publish", name="album").enqueue()
        if has_failed:
            jobs.cancel(f"{flow}.1")
        return str(flow)


def test_a_store_without_flows_teaches(client: ConsoleClient) -> None:
    """Where there is none, the page shows what makes one."""
    assert "client.chain(" in page(client, "/console/flows")


def test_a_flow_with_slashes_in_its_id(client: ConsoleClient, tmp_path: Path) -> None:
    """Its link leads to its page, as that of a job does."""
    place = StepPlace(flow_id="2026/11/a b")
    with closing(open_store(f"sqlite:///{tmp_path}/work.db")) as store:
        flow = NewFlow(
            id="2026/11/a b", name="month", joins=(), plan=b'{"tree":{"step":1,"handler":"build"}}'
        )
        store.flows.add(flow, [NewJob(id="s", handler="build", step=place)])  # type: ignore[attr-defined]  # each of ours has them
    [link] = re.findall(r'href="([^"]+)">month<', page(client, "/console/flows"))
    assert "2026/11/a b" in page(client, link)


def test_pages_of_the_list(client: ConsoleClient, tmp_path: Path) -> None:
    """Each has a link to the next one, which keeps the filter, and the same as JSON and CSV."""
    with JobClient(f"sqlite:///{tmp_path}/work.db") as jobs:
        for n in range(SHOWN + 1):
            jobs.chain("one", "two", name=f"flow-{n:02}").enqueue()
    first = page(client, "/console/flows?status=running")
    assert first.count('scope="row"') == SHOWN
    [link] = re.findall(r'rel="next" href="([^"]+)"', first)
    link = link.replace("&amp;", "&")
    assert "status=running" in link
    last = page(client, link)
    assert (last.count('scope="row"'), "flow-00" in last, 'rel="next"' in last) == (1, True, False)
    assert "data-events" not in last  # what comes anew is on the first one
    found = client.get(f"{link}&format=json").json()
    assert ([each["name"] for each in found["items"]], found["is_all"]) == (["flow-00"], True)
    assert "flow-00" in client.get(f"{link}&format=csv").text
    assert client.get("/console/flows?cursor=x").status_code == 422


def test_the_list(client: ConsoleClient, tmp_path: Path) -> None:
    """Name, state and progress of each; by state, as JSON, as CSV, and from any page."""
    flow = album(tmp_path)
    text = page(client, "/console/flows")
    assert f'href="/console/flows/{flow}">album<' in text
    assert 'href="/console/flows"' in page(client, "/console")
    [found] = client.get("/console/flows?format=json&status=running").json()["items"]
    assert (found["id"], found["steps"], found["status"]) == (flow, 5, "running")
    [row] = rows(client.get("/console/flows?format=csv"))
    assert (row["name"], row["unfinished"]) == ("album", "5")
    assert "No flow is in such a state" in page(client, "/console/flows?status=held")
    assert "known are running" in page(client, "/console/flows?status=asleep", 422)


def test_one_flow(client: ConsoleClient, tmp_path: Path) -> None:
    """What it waits for in the words of ``ergon why``, its drawing, and its steps with links."""
    flow = album(tmp_path)
    text = page(client, f"/console/flows/{flow}")
    assert "0 of 5 steps completed" in text
    assert "4 wait for steps before them" in text
    assert '<svg class="graph"' in text
    assert "hidden&#34;" not in text
    assert text.count('class="edge') == 2
    assert f'href="/console/jobs/{flow}.1" aria-label="fetch: waiting"' in text
    assert 'data-events="/console/events"' in text
    found = client.get(f"/console/flows/{flow}?format=json").json()
    nodes = [(each["title"], each["number"]) for each in found["graph"]["nodes"]]
    assert nodes == [("fetch", 1), ("thumb", 3), ("publish", 1)]
    assert [each["id"] for each in found["items"]] == [f"{flow}.{n}" for n in range(1, 6)]
    assert "args" not in found["items"][0]
    assert len(rows(client.get(f"/console/flows/{flow}?format=csv"))) == 5
    assert f'href="/console/flows/{flow}"' in page(client, f"/console/jobs/{flow}.1")
    assert client.get(f"/console/find?q={flow}").url.path == f"/console/flows/{flow}"
    assert "no flow" in page(client, "/console/flows/nothing", 404).lower()


def test_a_flow_that_failed_says_what_to_do(client: ConsoleClient, tmp_path: Path) -> None:
    """The commands that bring it back, and the steps of one state."""
    flow = album(tmp_path, has_failed=True)
    text = page(client, f"/console/flows/{flow}")
    assert f"ergon flows retry {flow}" in text
    found = client.get(f"/console/flows/{flow}?format=json&status=cancelled").json()
    assert found["filter"] == {"status": ["cancelled"]}
    assert f"{flow}.1" in [each["id"] for each in found["items"]]
    assert {each["status"] for each in found["items"]} == {"cancelled"}


def test_very_many_siblings_are_one_box(client: ConsoleClient, tmp_path: Path) -> None:
    """With their counts, on a small page, of which the steps are read page by page."""
    flow = album(tmp_path, 1500)
    text = page(client, f"/console/flows/{flow}")
    assert "thumb: 0 of 1,500" in text
    assert text.count('class="box ') == 4  # one of them stands for the others behind it
    link = text.split('rel="next" href="')[1].split('"')[0].replace("&amp;", "&")
    assert f"{flow}.1452<" in page(client, link)


LEAF = {"step": 1, "handler": "a"}


def test_two_groups_in_a_row_meet_in_one_point() -> None:
    """From two to two there are four lines, as each waits for both."""
    group = {"group": [{"step": 1, "handler": "a"}, {"step": 2, "handler": "b"}]}
    later = {"group": [{"step": 3, "handler": "c"}, {"step": 4, "handler": "d"}]}
    counts = {"a": {"completed": 1}}
    found = drawing(
        layout_of({"chain": [group, later]}),
        lambda each: counts.get(each.title, {}),
        lambda _: None,
    )
    assert [edge["is_done"] for edge in found["edges"]] == [True, False, False, False]
    assert len({node["x"] for node in found["nodes"]}) == 2
    assert len({node["y"] for node in found["nodes"]}) == 2


def test_long_chains_and_wide_groups_are_folded() -> None:
    """Their middle is one box, which says how many steps it stands for."""
    chain = {"chain": [{"step": n, "handler": f"h{n}"} for n in range(1, 1001)]}
    boxes = [box.steps for box in layout_of(chain).boxes]
    assert len(boxes) == 17
    assert boxes[13] == Steps("984 more steps", 14, 984)
    wide = {"group": [{"step": n, "handler": f"h{n}"} for n in range(1, 101)] + [{"more": 50}]}
    boxes = [box.steps for box in layout_of(wide).boxes]
    assert len(boxes) == 10
    assert boxes[-1] == Steps("more parts", count=141)


def test_steps_that_came_later_are_drawn() -> None:
    """They are no part of what was planned, and one box of their own."""
    tree = with_others(LEAF, "f", ["f.1", "x", "y"])
    assert [box.steps.ids for box in layout_of(tree).boxes] == [(), ("x", "y")]
    left_out = {"group": [LEAF, {"more": 3}]}
    assert with_others(left_out, "f", ["f.1", "f.2"]) == left_out


@pytest.mark.parametrize(
    ("counts", "level", "text"),
    [
        ({"completed": 10}, "ok", "10 completed"),
        ({"completed": 4, "failed": 1, "active": 5}, "bad", "4 of 10, 1 gave up"),
        ({"completed": 4, "active": 6}, "run", "4 of 10"),
        ({"completed": 4, "retrying": 6}, "warn", "4 of 10, retrying"),
        ({"pending": 10}, "wait", "0 of 10"),
        ({}, "wait", "not looked up"),
    ],
)
def test_how_a_box_stands(counts: dict[str, int], level: str, text: str) -> None:
    """The worst first, as a shape, a colour and a few words."""
    layout = layout_of({"step": 1, "count": 10, "handler": "a"})
    [node] = drawing(layout, lambda _: counts, lambda _: None)["nodes"]
    assert (node["level"], node["text"]) == (level, text)


def test_every_state_of_a_flow_has_words() -> None:
    """A new state cannot be forgotten."""
    from ergon_framework.web.console.flow_pages import flow_chip

    assert len({flow_chip(each) for each in FlowStatus}) == len(FlowStatus)
