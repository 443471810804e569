"""The example of provider calls, and its bad API beside the provider that wraps it."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ergon_framework.providers.execution import ProviderExecutionContext
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.testing import VirtualClock
from tests.docs.pages import ROOT
from tests.docs.programs import run_python

QUICK = RetryPolicy(max_attempts=3, base_delay_seconds=0.5, jitter_ratio=0)


@pytest.mark.slow
@pytest.mark.req("PEF:X-2", "PEF:B-6", "PEF:B-9", "PEF:Q-3", "PROVIDERS:pipeline")
def test_callers_the_api_and_the_store_agree() -> None:
    """Every call is accounted for, on both sides, and the quota is exact."""
    done = run_python("examples/providers")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "bolt: 20 success, 10 quota_exhausted" in done.stdout
    sides = re.findall(r"^\w.*?  +(\d+)  +(\d+)$", done.stdout, re.MULTILINE)
    assert len(sides) == 5
    assert all(one == other for one, other in sides)
    assert "The sums add up: 66 calls, every one accounted for." in done.stdout


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example's modules are found as the example finds them."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "providers"))


def test_sides_that_differ_are_told(example: None) -> None:
    """Each line that is off is a sentence; one that agrees is none."""
    import sides  # type: ignore[import-not-found]

    told = sides.problems([sides.Sum("calls", 3, 2), sides.Sum("attempts", 5, 5)])
    assert told == ["calls: 3 and 2"]


@pytest.mark.slow
def test_an_example_that_does_not_add_up_ends_with_exit_code_1() -> None:
    """A call that got lost is not overlooked."""
    program = (
        "import runpy, sys; sys.path.insert(0, 'examples/providers'); "
        "story = runpy.run_path('examples/providers', run_name='story'); main = story['main']; "
        "main.__globals__['play'] = lambda *_: ([], [story['Sum']('calls', 60, 59)]); "
        "sys.exit(main())"
    )
    done = run_python("-c", program)
    assert done.returncode == 1, done.stderr
    assert "does NOT add up: calls: 60 and 59" in done.stdout


# ---- one misbehaviour at a time ------------------------------------------------------------------


@pytest.fixture
def api(example: None) -> Iterator[Any]:
    """The bad API, on a thread of its own."""
    from bad_api import BadApi  # type: ignore[import-not-found]

    with BadApi() as bad:
        thread = threading.Thread(target=bad.serve_forever, args=(0.02,))
        thread.start()
        yield bad
        bad.shutdown()
        thread.join()


def ask(api: Any, operation: str, **options: Any) -> Any:
    """One call of a provider made for it."""
    from weather import Weather  # type: ignore[import-not-found]

    with Weather(api.url, retry_policy=QUICK, **options) as weather:
        return weather.execute(
            tenant_id="acme",
            campaign_id=None,
            operation=operation,
            payload={"city": "Athens"},
            context=ProviderExecutionContext(),
        )


@pytest.mark.parametrize(
    ("path", "reasons", "waited"),
    [
        ("steady", [None], 0.0),
        ("shaky", ["dependency_unavailable", "dependency_unavailable", None], 1.5),
        ("busy", ["rate_limited", None], 1.0),
        ("dropped", ["connection_error", None], 0.5),
        ("garbage", ["response_invalid"], 0.0),
        ("denied", ["auth_failed"], 0.0),
        ("down", ["dependency_unavailable"] * 3, 1.5),
        ("nowhere", ["bad_request"], 0.0),
    ],
)
@pytest.mark.req("PEF:E-13", "PEF:R-4", "PEF:R-6", "PEF:A-9")
def test_each_misbehaviour_of_an_api_is_met(
    api: Any, path: str, reasons: list[str | None], waited: float
) -> None:
    """With real sockets and a real client; only the waits between attempts are virtual."""
    with VirtualClock() as clock:
        result = ask(api, path)
        assert clock.now() == waited
    assert [attempt.reason_code for attempt in result.attempt_log] == reasons
    assert result.success is (reasons[-1] is None)
    assert api.requests[f"/{path}"] == (len(reasons) if path != "nowhere" else 0)


@pytest.mark.parametrize(
    ("path", "status"), [("down", 503), ("denied", 401), ("nowhere", 404), ("garbage", None)]
)
@pytest.mark.req("PEF:E-14", "PEF:M-4")
def test_the_status_of_a_failure_is_kept(api: Any, path: str, status: int | None) -> None:
    """Where the exception has one: a page that is no JSON came with 200, and nobody says so."""
    with VirtualClock():
        result = ask(api, path)
    assert (result.http_status, result.error.http_status) == (status, status)


@pytest.mark.req("PEF:A-7")
def test_an_answer_that_never_comes_is_given_up(api: Any) -> None:
    """The client was given what the attempt may take."""
    result = ask(api, "slow", timeout_budget_seconds=2.0)  # enough for a busy machine to begin
    assert (result.reason_code, result.stop_reason) == ("timeout", "budget_spent")
    assert result.attempts == 1


@pytest.mark.req("PEF:E-14")
def test_an_api_that_is_gone_never_saw_the_request(api: Any) -> None:
    """A refused connection is certain not to have been served."""
    api.server_close()
    with VirtualClock():
        result = ask(api, "steady")
    assert (result.reason_code, result.attempts) == ("connection_error", 3)
    assert result.error.never_sent
