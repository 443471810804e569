"""The pages of the console: what they show, in which formats, and what keeps them safe."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from ergon_framework.app.settings import load_settings
from ergon_framework.core.claim import ClaimRequest
from ergon_framework.jobs import JobClient
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.jobstore import NewJob, WorkerRecord
from ergon_framework.web.application import create_app
from tests.web.console_client import ConsoleClient
from tests.web.content import TENANT, fill_calls, fill_jobs, fill_zone, settings_in

pytestmark = pytest.mark.req("ONE:serve")

Opened = Callable[..., ConsoleClient]


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """A client on this machine, of a server over the store of the place."""

    def opening(more: str = "", **known: Any) -> ConsoleClient:
        return ConsoleClient(create_app(settings=settings_in(tmp_path, more), **known))

    return opening


@pytest.fixture
def client(opened: Opened, tmp_path: Path) -> ConsoleClient:
    """The same, with five jobs that wait and two that gave up."""
    fill_jobs(tmp_path, waiting=5, dead=2)
    return opened()


def page(client: ConsoleClient, path: str, code: int = 200) -> str:
    """The text of a page, which is safe and small whatever it shows."""
    answer = client.get(path)
    assert answer.status_code == code, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert len(answer.content) < 100_000
    assert "<style" not in answer.text
    assert " style=" not in answer.text
    assert "http://" not in answer.text.replace("http://localhost", "")
    return answer.text


def rows(answer: httpx.Response) -> list[dict[str, str]]:
    """Those of a CSV."""
    assert answer.headers["content-type"].startswith("text/csv")
    return list(csv.DictReader(io.StringIO(answer.text)))


@pytest.mark.parametrize("path", ["/", "/console/"])
def test_other_ways_in(client: ConsoleClient, path: str) -> None:
    """They lead to the overview."""
    assert client.get(path).url.path == "/console"


def test_the_overview_says_first_what_needs_a_person(client: ConsoleClient) -> None:
    """Jobs that gave up, with what they share, before the figures; each with a link onward."""
    text = page(client, "/console")
    assert "2 jobs" in text
    assert "have given up" in text
    assert text.index("have given up") < text.index("Backlog")
    assert 'href="/console/dead-letters"' in text
    assert "handle.mail" in text


def test_the_overview_as_json(client: ConsoleClient) -> None:
    """The same figures under the same path."""
    found = client.get("/console", headers={"Accept": "application/json"}).json()
    assert found["jobs"]["counts"]["pending"] == 5
    assert found["jobs"]["counts"]["failed"] == 2
    assert found["attention"][0]["level"] == "bad"
    assert [queue["name"] for queue in found["jobs"]["queues"]] == ["mail", "pics"]


def test_among_many_queues_those_with_due_jobs_are_found(tmp_path: Path) -> None:
    """Also behind the first ones by name; the pages of queues have all of them, by their names."""
    file = tmp_path / "ergon.toml"
    file.write_text('[store]\nurl = "sqlite:///work.db"\n')
    names = [f"q{n:04}" for n in range(1_001)]
    with closing(open_store(f"sqlite:///{tmp_path}/work.db")) as store:
        store.add([NewJob(id=name, handler="h", queue=name, delay=60.0) for name in names])
        store.add([NewJob(id="late", handler="h", queue="z", run_at=store.now() - 5.0)])
    client = ConsoleClient(create_app(settings=load_settings(file, {})))
    found = client.get("/console?format=json").json()
    assert [each["subject"] for each in found["attention"]] == ["Queue z"]
    jobs = found["jobs"]
    assert jobs["counts"]["pending"] == 1_002
    assert (jobs["queues_in_all"], jobs["are_more_queues"], jobs["more"]) == (1_000, True, [])
    assert jobs["queues"][0]["name"] in {"z", "q0000"}
    assert "All 1,000+ queues" in page(client, "/console")
    text = page(client, "/console/queues?name=q09&after=q0950")
    assert ">q0951</a>" in text
    assert ">q0950</a>" not in text
    assert "100 queues whose names begin with" in text


def test_many_queues_that_nobody_runs_hide_nothing_else(tmp_path: Path) -> None:
    """The page stays small, shows some of each kind, and leads to all of them."""
    with closing(open_store(f"sqlite:///{tmp_path}/work.db")) as store:
        late = store.now() - 1  # they give up, as nobody has run them in time
        store.add([NewJob(id=f"d{n}", handler="h", queue="d", expires_at=late) for n in range(2)])
        store.prune(1000)
        names = [f"{'x' * 40}-{n:04}" for n in range(300)]
        store.add([NewJob(id=name, handler="h", queue=name) for name in names])
    client = ConsoleClient(create_app(settings=settings_in(tmp_path)))
    text = page(client, "/console")  # which is below 100 kB
    assert text.count("has nobody to run it") == 10
    assert "2 jobs</b> have given up" in text
    found = client.get("/console?format=json").json()["attention"]
    shown = text.count('class="said"')
    assert f"{len(found) - shown} more of these kinds" in text


def test_an_empty_store_teaches(tmp_path: Path) -> None:
    """Where nothing is, the page shows what makes the first one."""
    file = tmp_path / "ergon.toml"
    file.write_text('[store]\nurl = "sqlite:///work.db"\n')
    open_store(f"sqlite:///{tmp_path}/work.db").close()
    client = ConsoleClient(create_app(settings=load_settings(file, {})))
    for path in ("/console", "/console/jobs", "/console/queues"):
        text = page(client, path)
        assert "client.enqueue(" in text
    assert "There is no queue yet" in page(client, "/console/queues")


def test_jobs_are_filtered_by_a_plain_form(client: ConsoleClient) -> None:
    """Fields that were left empty do not count, as browsers send all of them."""
    found = client.get(
        "/console/jobs?format=json&status=failed&status=pending&queue=mail&handler=&tag=&error="
    ).json()
    assert [job["id"] for job in found["items"]] == ["w4", "w2", "w0", "d1", "d0"]
    assert found["filter"] == {"status": ["failed", "pending"], "queue": "mail"}
    text = page(client, "/console/jobs?queue=pics&handler=")
    assert ">w3<" in text
    assert ">w4<" not in text
    assert 'value="pics"' in text


def test_pages_of_jobs(client: ConsoleClient) -> None:
    """Each links the next one, and the last links none."""
    text = page(client, "/console/jobs?limit=4")
    link = text.split('rel="next" href="')[1].split('"')[0].replace("&amp;", "&")
    second = page(client, link)
    assert ">w4<" in text
    assert ">d0<" not in text
    assert ">d0<" in second
    assert ">w4<" not in second
    assert 'rel="next"' not in second


def test_a_page_of_many_jobs_stays_small(opened: Opened, tmp_path: Path) -> None:
    """Whatever limit is asked for; JSON has up to a thousand."""
    with closing(open_store(f"sqlite:///{tmp_path}/work.db")) as store:
        store.add([NewJob(id=f"{n:0>64}", handler="a" * 60, queue="b" * 60) for n in range(300)])
    client = opened()
    assert page(client, "/console/jobs?limit=1000").count("<tr>") == 101
    assert len(client.get("/console/jobs?format=json").json()["items"]) == 300


def test_lists_as_csv(client: ConsoleClient) -> None:
    """Every list, with a name for the file."""
    answer = client.get("/console/jobs?format=csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="jobs.csv"'
    found = rows(answer)
    assert [row["id"] for row in found] == ["w4", "w3", "w2", "w1", "w0", "d1", "d0"]
    assert found[-1]["last_error.code"] == "expired"
    queues = rows(client.get("/console/queues", headers={"Accept": "text/csv"}))
    assert [(row["name"], row["counts.pending"]) for row in queues] == [
        ("mail", "3"),
        ("pics", "2"),
    ]


def test_a_spreadsheet_runs_no_job(opened: Opened, tmp_path: Path) -> None:
    """A text that it would take for a formula is told as text."""
    with closing(open_store(f"sqlite:///{tmp_path}/work.db")) as store:
        store.add(
            [NewJob(id="x", handler="=HYPERLINK(1)", queue="@A1", priority=-5, tags=("+1", "a"))]
        )
    [row] = rows(opened().get("/console/jobs?format=csv"))
    assert row["handler"] == "'=HYPERLINK(1)"
    assert row["queue"] == "'@A1"
    assert row["tags"] == "'+1 a"
    assert row["priority"] == "-5"


def test_one_job(client: ConsoleClient) -> None:
    """Why it is where it is, its attempts, and its arguments only as a size."""
    text = page(client, "/console/jobs/d0")
    assert "It is dead-lettered since" in text
    assert "it was not started before its expiry" in text
    assert '<svg class="track"' in text
    assert "12 bytes, hidden" in text
    assert "&#34;hidden&#34;" not in text
    found = client.get("/console/jobs/d0?format=json").json()
    assert found["timeline"]["rows"][-1]["event"] == "expired"
    assert "args" not in found
    assert found["hidden_bytes"] == len('["hidden"]{}')


def test_arguments_on_request(
    opened: Opened, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only where the settings allow it, and the log says who has looked."""
    fill_jobs(tmp_path)
    client = opened("[server]\npayloads = true")
    assert "&#34;hidden&#34;" not in page(client, "/console/jobs/w0")
    with caplog.at_level("INFO", "ergon.web.audit"):
        assert "&#34;hidden&#34;" in page(client, "/console/jobs/w0?payloads=true")
    assert "local looked at the arguments of the job 'w0'" in caplog.text


def test_arguments_that_the_settings_keep(client: ConsoleClient) -> None:
    """Asking for them shows none."""
    assert "&#34;hidden&#34;" not in page(client, "/console/jobs/w0?payloads=true")


def test_texts_from_outside_are_text(opened: Opened, tmp_path: Path) -> None:
    """A handler may be called anything; a page shows it and runs nothing of it."""
    name = "<script>alert(1)</script>"
    with JobClient(f"sqlite:///{tmp_path}/work.db") as jobs:
        job = jobs.enqueue(name, queue="a&b=c")
    client = opened()
    for path in ("/console", "/console/jobs", "/console/queues", f"/console/jobs/{job}"):
        assert name not in page(client, path)
    assert "queue=a%26b%3Dc" in page(client, "/console/queues")


def test_ids_with_slashes(opened: Opened, tmp_path: Path) -> None:
    """Such a job has a page, and its row leads there."""
    with closing(open_store(f"sqlite:///{tmp_path}/work.db")) as store:
        store.add([NewJob(id="a/b c", handler="h", queue="mail")])
    client = opened()
    assert 'href="/console/jobs/a/b%20c"' in page(client, "/console/jobs")
    assert "a/b c" in page(client, "/console/jobs/a/b%20c")


def test_find(client: ConsoleClient) -> None:
    """An id leads to its job, anything else says where to look."""
    assert client.get("/console/find?q=%20w3%20").url.path == "/console/jobs/w3"
    assert "by queue, handler or tag" in page(client, "/console/find?q=nothing", 404)
    assert client.get("/console/find?q=").url.path == "/console/jobs"


@pytest.mark.parametrize(
    ("path", "code", "said"),
    [
        ("/console/nowhere", 404, "the links beside this text"),
        ("/console/jobs/nothing", 404, "What to do"),
        ("/console/jobs?colour=red", 422, "known are"),
        ("/console/jobs?status=asleep", 422, "<code>query.status</code>"),
        ("/console/flows?status=asleep", 422, "<code>query.status</code>"),
        ("/console/jobs?cursor=nonsense", 422, "next_cursor"),
        ("/console/jobs?queue=a&queue=b", 422, "give it once"),
    ],
)
def test_mistakes_come_with_a_remedy(
    client: ConsoleClient, path: str, code: int, said: str
) -> None:
    """As a page to those who read pages, and in the one shape of errors to others."""
    assert said in page(client, path, code)
    told = client.get(path, headers={"Accept": "application/json"})
    assert told.status_code == code
    assert told.json().keys() == {"code", "message", "details"}


def test_headings_leave_ids_as_they_are(client: ConsoleClient) -> None:
    """Only the first letter of a sentence is made a capital; one of thousands of letters is cut."""
    assert "<h1>There is no job &#39;Order-77A&#39;</h1>" in page(
        client, "/console/jobs/Order-77A", 404
    )
    assert "<h1>Query.status: " in page(client, "/console/flows?status=asleep", 422)
    heading = page(client, f"/console/jobs/{'x' * 8000}", 404).partition("</h1>")[0]
    assert heading.endswith("x…")
    assert len(heading.rpartition("<h1>")[2]) < 250


@pytest.mark.parametrize(
    ("path", "named"),
    [("/console/jobs/w0", "csv"), ("/console/jobs", "xml"), ("/console/settings", "HTML")],
)
def test_a_format_that_a_page_has_not(client: ConsoleClient, path: str, named: str) -> None:
    """A program that asks for it is refused, and not given a page."""
    told = client.get(f"{path}?format={named}", headers={"Accept": "*/*"})
    assert told.status_code == 422
    assert "query.format" in told.text
    assert "html or json" in told.text


def test_long_arguments_keep_the_page_small(opened: Opened, tmp_path: Path) -> None:
    """It shows their beginning, and leads to all of them."""
    with JobClient(f"sqlite:///{tmp_path}/work.db") as jobs:
        jobs.enqueue("h", ["x" * 300_000], id="long")
    client = opened("[server]\npayloads = true")
    text = page(client, "/console/jobs/long?payloads=true")
    assert "The first 20,000 of 300,0" in text
    (link,) = re.findall('href="([^"]+)">all of them as JSON', text)
    assert client.get(html.unescape(link)).json()["args"] == ["x" * 300_000]


def test_no_error_names_the_store(tmp_path: Path) -> None:
    """A command in a remedy is without the option that a terminal has: that is a file or a host."""
    place = tmp_path / "it's here"
    place.mkdir()
    fill_jobs(place)
    client = ConsoleClient(create_app(settings=settings_in(place)))
    for path in ("jobs/nothing", "flows/nothing", "jobs/nothing/why"):
        for root in ("/console", "/api/v1"):
            answer = client.get(f"{root}/{path}", {"Accept": "application/json"})
            assert answer.status_code == 404
            remedy = answer.json()["details"]["remedy"]
            assert "--store" not in remedy, path
            assert "here" not in remedy.replace("there", ""), path
            assert "ergon " in remedy


def test_a_store_that_is_away(opened: Opened, tmp_path: Path) -> None:
    """The overview says so first; other pages say what does not answer."""
    (tmp_path / "work.db").write_bytes(b"no database at all" * 1000)
    client = opened()
    text = page(client, "/console")
    assert "The job store" in text
    assert "does not answer" in text
    assert "does not answer" in page(client, "/console/jobs", 503)


def test_no_job_store(tmp_path: Path) -> None:
    """The overview shows what there is; the page of jobs says where to name a store."""
    file = tmp_path / "ergon.toml"
    file.write_text('[zones.plant-a]\ndata = "a"\nlisten = "127.0.0.1:0"\n')
    client = ConsoleClient(create_app(settings=load_settings(file, {})))
    assert "Parts that this server reads" in page(client, "/console")
    assert "under [store] or [jobs]" in page(client, "/console/jobs", 404)


def test_the_files_of_the_pages(client: ConsoleClient) -> None:
    """They are kept by browsers, under an address that changes with them."""
    text = page(client, "/console")
    for name in ("console.css", "console.js", "icon.svg"):
        address = text.split(f'"/console/static/{name}')[1].split('"')[0]
        answer = client.get(f"/console/static/{name}{address}")
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
    assert client.get("/console/static/secrets.txt").status_code == 404


def test_a_token_is_needed_where_there_is_one(opened: Opened, tmp_path: Path) -> None:
    """The console is behind the same gate as the API."""
    fill_jobs(tmp_path)
    client = opened(token="correct-horse-battery")  # noqa: S106 - of no server
    assert client.get("/console").status_code == 401
    assert client.get("/console/jobs/w0").status_code == 401
    given = {"Authorization": "Bearer correct-horse-battery"}
    assert client.get("/console", headers=given).status_code == 200


def test_the_console_is_no_part_of_the_api(client: ConsoleClient) -> None:
    """Its pages change as pages do, and clients are made of the API's document."""
    paths = client.get("/openapi.json").json()["paths"]
    assert not [path for path in paths if "console" in path]


def test_below_another_application(tmp_path: Path) -> None:
    """Links lead to where the console is mounted."""
    fill_jobs(tmp_path)
    outer = FastAPI()
    outer.mount("/ops", create_app(settings=settings_in(tmp_path)))
    client = ConsoleClient(outer)
    text = page(client, "/ops/console")
    assert 'href="/ops/console/jobs"' in text
    assert 'href="/console' not in text


def test_below_a_prefix_that_a_proxy_takes_off(tmp_path: Path) -> None:
    """Links have the prefix, also those of a page to itself, and ``/c`` is no part of a path."""
    fill_jobs(tmp_path)
    inner = create_app(settings=settings_in(tmp_path))
    for root in ("/ops", "/c"):

        async def rooted(scope: Any, receive: Any, send: Any, root: str = root) -> None:
            await inner({**scope, "root_path": root}, receive, send)

        client = ConsoleClient(rooted)  # type: ignore[arg-type]  # an application of our own
        text = page(client, "/console/jobs")
        links = re.findall(r'(?:href|action|src)="(/[^"]*)"', text)
        assert f"{root}/console/jobs?format=csv" in links
        assert [link for link in links if not link.startswith(f"{root}/console")] == []


@pytest.mark.parametrize("path", ["queues", "jobs", "flows", "traces", "zones"])
def test_a_slash_too_many(client: ConsoleClient, path: str) -> None:
    """It leads to the page."""
    answer = client.get(f"/console/{path}/?format=json")
    assert (answer.status_code, answer.url.path) == (200, f"/console/{path}")
    assert answer.url.query == b"format=json"
    assert client.get(f"/console/{path}x/").status_code == 404


@pytest.mark.parametrize("number", ["-1", "9" * 30, "9" * 5000, "x"])
def test_no_number_of_a_fact(client: ConsoleClient, number: str) -> None:
    """There is no such fact, however long the number is."""
    page(client, f"/console/zones/plant-a/quarantine/{number}", 404)


def test_dead_letters_by_family(client: ConsoleClient) -> None:
    """Those with one handler and one error together, with a link to their jobs."""
    text = page(client, "/console/dead-letters")
    assert 'class="big">2<' in text
    assert "handler=handle.mail&amp;error=expired" in text
    [row] = rows(client.get("/console/dead-letters?format=csv"))
    assert (row["number"], row["handler"], row["code"]) == ("2", "handle.mail", "expired")


def test_schedules_with_their_next_fires(client: ConsoleClient) -> None:
    """Ten of them; the arguments of the jobs stay out."""
    [found] = client.get("/console/schedules?format=json").json()["items"]
    assert (found["name"], found["handler"]) == ("nightly", "tidy")
    assert len(found["fires"]) == 10
    assert all("T03:00:00" in at for at in found["fires"][1:])
    text = page(client, "/console/schedules")
    assert "0 3 * * *" in text
    assert "&#34;hidden" not in text


def test_workers(client: ConsoleClient) -> None:
    """With what each holds, and when it was heard of."""
    [found] = client.get("/console/workers?format=json").json()["items"]
    assert (found["id"], found["state"], found["busy"]) == ("w1", "running", 1)
    assert "<td><span>python</span> 1</td>" in page(client, "/console/workers")


def test_workers_with_the_jobs_that_each_holds(opened: Opened, tmp_path: Path) -> None:
    """The first ones of each by name, with links; jobs of a worker that is gone hide none."""
    names = [f"h{n}" for n in range(12)]
    with closing(open_store(f"sqlite:///{tmp_path}/work.db")) as store:
        store.add([NewJob(id=f"a/{name}", handler=name, queue="mail") for name in names])
        store.add([NewJob(id="other", handler="other", queue="pics")])
        for worker, queue in (("w1", "mail"), ("gone", "pics")):
            slots = {"python": 20}
            ask = ClaimRequest(
                worker=worker, lease=60.0, slots=slots, default="python", queues=(queue,)
            )
            store.settle_and_claim([], ask)
        now = store.now()
        pools = {"python": {"in_flight": 12, "pool_size": 12}}
        store.heartbeat(
            WorkerRecord(id="w1", host="h", pid=1, version="1", started_at=now, executors=pools)
        )
    client = opened()
    [found] = client.get("/console/workers?format=json").json()["items"]
    assert len(found["jobs"]) == 10
    assert {job["queue"] for job in found["jobs"]} == {"mail"}
    text = page(client, "/console/workers")
    assert all(f'href="/console/jobs/{job["id"]}"' in text for job in found["jobs"])
    assert 'href="/console/jobs?status=active">all that run' in text


def test_zones(opened: Opened, tmp_path: Path) -> None:
    """One that answers with its log and consumers, one that does not with what starts it."""
    fill_zone(tmp_path)
    text = page(opened('[zones.plant-z]\ndata = "z"\nlisten = "127.0.0.1:0"'), "/console/zones")
    assert "log outbound" in text
    assert ">reader<" in text
    assert "does not answer" in text
    assert "hidden&#34;" not in text


def test_providers(opened: Opened, tmp_path: Path) -> None:
    """Calls of the last hour by capability, without the names of tenants."""
    fill_calls(f"sqlite:///{tmp_path}/work.db", ["l1"])
    client = opened()
    text = page(client, "/console/providers")
    assert "1 call was given up" in text
    assert TENANT not in text
    [found] = client.get("/console/providers?format=json").json()["items"]
    assert (found["succeeded"], found["failed"], found["state"]["text"]) == (1, 1, "well")


@pytest.mark.parametrize(
    ("path", "taught"),
    [
        ("dead-letters", "No job has given up"),
        ("schedules", "[schedules.nightly]"),
        ("workers", "ergon worker"),
        ("zones", "[zones.plant-a]"),
        ("providers", "No provider has been called"),
    ],
)
def test_other_empty_pages_teach(tmp_path: Path, path: str, taught: str) -> None:
    """Each shows what would be there, and what brings it there."""
    file = tmp_path / "ergon.toml"
    file.write_text('[store]\nurl = "sqlite:///work.db"\n')
    open_store(f"sqlite:///{tmp_path}/work.db").close()
    client = ConsoleClient(create_app(settings=load_settings(file, {})))
    assert taught in page(client, f"/console/{path}")


@pytest.mark.parametrize("name", ["50%25 off", "a%2Fb", "order#7?x=1", '"><b>'])
def test_an_id_with_signs_that_mean_something_in_addresses(
    opened: Opened, tmp_path: Path, name: str
) -> None:
    """The links of its page lead to the same job, in the list as well as on the page."""
    with JobClient(f"sqlite:///{tmp_path}/work.db") as jobs:
        jobs.enqueue("work", id=name)
    client = opened()
    text = page(client, "/console/jobs")
    [link] = {html.unescape(each) for each in re.findall(r'href="(/console/jobs/[^"]+)"', text)}
    found = re.findall(r'href="([^"]+format=json)"', page(client, link))
    assert client.get(html.unescape(found[0])).json()["id"] == name
