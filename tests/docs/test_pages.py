from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, PageError, all_pages, blocks, has_code, needs_server, run_page
from tests.docs.programs import run_python

_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_WITH_SERVER = [
    name for name in all_pages() if needs_server((ROOT / name).read_text(encoding="utf-8"))
]
_WITH_REDIS = "docs/howto/consume-from-redis-streams.md"
_MUST_HAVE_CODE = {
    "README.md",
    "docs/quickstart.md",
    "docs/quickstart-boundary.md",
    "docs/quickstart-jobs.md",
    "docs/quickstart-providers.md",
    "docs/howto/cancel-jobs.md",
    "docs/howto/connect-two-zones.md",
    "docs/howto/consume-effectively-once.md",
    "docs/howto/encrypt-and-compress-payloads.md",
    "docs/howto/enqueue-in-your-transaction.md",
    "docs/howto/flows.md",
    "docs/howto/limit-and-prioritise-jobs.md",
    "docs/howto/keep-and-forget-jobs.md",
    "docs/howto/limit-provider-calls.md",
    "docs/howto/migrate-from-apscheduler.md",
    "docs/howto/migrate-from-celery.md",
    "docs/howto/mount-the-health-api.md",
    "docs/howto/roll-out-a-new-version.md",
    "docs/howto/provider-celery.md",
    "docs/howto/publish-facts.md",
    "docs/howto/quarantine-and-release.md",
    "docs/howto/redrive-provider-calls.md",
    "docs/howto/settle-with-your-broker.md",
    "docs/howto/share-circuits.md",
    "docs/howto/stop-gracefully.md",
    "docs/howto/survive-a-node-outage.md",
    "docs/howto/test-a-pipeline.md",
    "docs/howto/test-providers.md",
    "docs/howto/test-your-task.md",
    "docs/howto/time-out.md",
    "docs/howto/use-with-django.md",
    "docs/howto/wrap-an-http-api.md",
    "docs/howto/write-handlers.md",
    "docs/reference/engines.md",
    "docs/reference/jobs.md",
    "docs/howto/unique-jobs.md",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in all_pages() if name not in (*_WITH_SERVER, _WITH_REDIS)]
)
def test_every_python_block_of_the_documentation_runs(name: str, tmp_path: Path) -> None:
    """Whoever copies a page's code gets a program that works and prints what the page says."""
    if not has_code((ROOT / name).read_text(encoding="utf-8")):
        assert name not in _MUST_HAVE_CODE
        return
    assert _run(name, tmp_path) > 0 or name not in _MUST_HAVE_CODE


@pytest.mark.slow
@pytest.mark.parametrize("name", _WITH_SERVER)
def test_pages_that_need_a_server_run_with_one(
    name: str, tmp_path: Path, postgres_url: str
) -> None:
    """The addresses on the page stand for a real database."""
    assert _run(name, tmp_path, postgres_url) > 0


@pytest.mark.slow
def test_the_page_about_redis_streams_runs_with_a_server(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it consumes and sets aside, and what it prints."""
    monkeypatch.setenv("REDIS_URL", redis_url)
    assert _run(_WITH_REDIS, tmp_path) > 0


def _run(name: str, folder: Path, *words: str) -> int:
    """Run a page in a process and a folder of its own; the number of blocks that were run."""
    runner = ROOT / "tests" / "docs" / "pages.py"
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = run_python(str(runner), str(ROOT / name), *words, cwd=folder, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


@pytest.mark.parametrize("name", all_pages())
def test_every_relative_link_leads_somewhere(name: str) -> None:
    """A link to a page or a heading that does not exist is an error, and so is an invented URL."""
    page = ROOT / name
    for match in _LINK.finditer(_prose(page.read_text(encoding="utf-8"))):
        path, _, anchor = match["target"].partition("#")
        assert "://" not in path, f"{name} links to {path}"
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name} links to {match['target']}"
        if anchor:
            assert anchor in _anchors(target), f"{name} links to {match['target']}"


def _prose(source: str) -> str:
    for block in blocks(source):
        source = source.replace(block.text, "") if block.text else source
    return source


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in headings}


# ---- the runner itself --------------------------------------------------------------------------


def test_blocks_continue_each_other() -> None:
    """A name of the first block is known in the second."""
    assert run_page("```python\nx = 1\n```\ntext\n```python\nassert x == 1\n```\n", "page") == 2


def test_a_block_that_fails_is_reported_with_the_line_of_the_page() -> None:
    """The traceback of a broken example leads to the page."""
    with pytest.raises(ZeroDivisionError) as caught:
        run_page("# Title\n\n```python\nx = 1\nx / 0\n```\n", "page.md")
    assert caught.traceback[-1].lineno == 4  # 0-based: the fifth line of the page


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("# Title\n\n```toml\nx = 1\n```\n", False),
        ("<!-- not run: needs a server -->\n```python\n1 / 0\n```\n", False),
        ("```python\nx = 1\n```\n", True),
        ("<!-- run -->\n```sh\nergon --version\n```\n", True),
        ("<!-- file: ergon.toml -->\n```toml\nx = 1\n```\n", True),
    ],
)
def test_a_page_without_code_is_not_run(page: str, expected: bool) -> None:
    """Everything that would run, and nothing else, makes a page worth a process."""
    assert has_code(page) is expected


def test_a_page_writes_nothing_beside_itself() -> None:
    """An App keeps its store beside its program: in the working folder, not among the pages."""
    block = "from pathlib import Path\nassert Path(__file__).parent == Path.cwd()"
    assert run_page(f"```python\n{block}\n```\n", "docs/page.md") == 1


def test_output_that_differs_is_an_error() -> None:
    """What a page says is printed is compared."""
    page = '```python\nprint("b")\n```\n<!-- prints -->\n```text\na\n```\n'
    with pytest.raises(AssertionError, match="it prints 'b'"):
        run_page(page, "page")


def test_a_block_marked_as_not_run_is_left_out() -> None:
    """Its reason stands in the page's source."""
    assert run_page("<!-- not run: needs a server -->\n```python\n1 / 0\n```\n", "page") == 0


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("<!-- not run: -->\n```python\n1 / 0\n```\n", "needs a reason"),
        ("```python\nx = 1\n", "never closed"),
    ],
)
def test_a_page_that_hides_code_is_refused(page: str, problem: str) -> None:
    """A block cannot be skipped silently: not without a reason, not by a missing fence."""
    with pytest.raises(PageError, match=problem):
        run_page(page, "page")


def test_a_page_can_write_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that is a file is written, not run."""
    monkeypatch.chdir(tmp_path)
    assert run_page("<!-- file: a/b.py -->\n```python\n1 / 0\n```\n", "page") == 0
    assert Path("a/b.py").read_text(encoding="utf-8") == "1 / 0\n"
    assert run_page("<!-- append: a/b.py -->\n```python\n2 / 0\n```\n", "page") == 0
    assert Path("a/b.py").read_text(encoding="utf-8") == "1 / 0\n2 / 0\n"


def test_a_page_can_have_a_file_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies beside the page, under its own name; of a folder, all files do."""
    monkeypatch.chdir(tmp_path)
    assert run_page("<!-- copy: tools/mkdocs.yml -->\n", "page") == 0
    assert Path("mkdocs.yml").exists()
    assert run_page("<!-- copy: examples/django_shop -->\n", "page") == 0
    assert Path("shop/models.py").exists()


def test_the_addresses_on_a_page_stand_for_its_server() -> None:
    """Also where a driver is named; without the mark they stay as they are."""
    shown = "postgresql+x://me@db.example.org/work"
    page = f"```python\nprint('{shown}')\n```\n<!-- prints -->\n```text\n%s\n```\n"
    assert run_page(page % shown, "page") == 1
    marked = "<!-- server: postgresql -->\n" + page % "postgresql+x:///test"
    assert run_page(marked, "page", "postgresql:///test") == 1


@pytest.mark.slow
def test_a_command_that_fails_is_an_error() -> None:
    """Commands on a page are run, and must succeed."""
    with pytest.raises(AssertionError, match="failed"):
        run_page("<!-- run -->\n```sh\nergon no-such-command\n```\n", "page")


@pytest.mark.slow
def test_a_page_can_run_a_script_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the script prints is compared like everything else."""
    monkeypatch.chdir(tmp_path)
    script = "<!-- file: a.py -->\n```python\nprint(1)\n```\n"
    run = "<!-- run -->\n```sh\npython a.py\n```\n"
    assert run_page(script + run + "<!-- prints -->\n```text\n1\n```\n", "page") == 1
    with pytest.raises(AssertionError, match="it prints"):
        run_page(script + run + "<!-- prints -->\n```text\n2\n```\n", "page")


@pytest.mark.slow
def test_a_page_can_start_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs beside the page and is ended with it; its first line counts as printed."""
    monkeypatch.chdir(tmp_path)
    lines = ["import signal", "print(9999, flush=True)", "signal.pause()"]
    script = "<!-- file: a-b.py -->\n```python\n" + "\n".join(lines) + "\n```\n"
    start = "<!-- ports: 9999 -->\n<!-- start -->\n```sh\npython \\\n  a-b.py\n```\n"
    assert run_page(script + start + "<!-- prints -->\n```text\n9999\n```\n", "page") == 0
    assert Path("a-b.py").read_text(encoding="utf-8") != "\n".join(lines) + "\n"  # a free port


@pytest.mark.slow
def test_a_program_that_does_not_start_is_an_error() -> None:
    """A page whose server ended at once would only hang later."""
    with pytest.raises(AssertionError, match="ended before it was ready"):
        run_page("<!-- start -->\n```sh\npython -c 0\n```\n", "page")


def test_tests_on_a_page_are_called() -> None:
    """With the virtual clock, where they ask for the fixture of that name."""
    with pytest.raises(AssertionError, match="called at 0"):
        run_page(
            "```python\ndef test_it(virtual_clock):\n"
            '    assert False, f"called at {virtual_clock.now():.0f}"\n```\n',
            "page",
        )
