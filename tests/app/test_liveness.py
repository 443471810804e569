"""Health from notices, in a file and over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ergon_framework.app.liveness import Liveness, LivenessState, Snapshot, combined
from ergon_framework.app.liveness_outputs import Periodic, liveness_file, read_liveness
from ergon_framework.app.probe import MAX_CONNECTIONS, probe_server
from ergon_framework.errors import ConfigurationError
from ergon_framework.ports.notice import CATALOGUE, Notice
from ergon_framework.testing.clock import VirtualClock


class Process:
    """A process whose time and notices are played."""

    def __init__(self) -> None:
        self.time = 0.0
        self.is_stopping = False
        self.liveness = Liveness(
            stall_after=60.0, is_stopping=lambda: self.is_stopping, now=lambda: self.time
        )

    def notices(self, *names: str, **fields: float) -> None:
        for name in names:
            assert name in CATALOGUE
            self.liveness(Notice(name, self.time, dict(fields)))

    def state(self) -> LivenessState:
        return self.liveness.snapshot().state


def test_a_life() -> None:
    """Starting, healthy, stopping, stopped."""
    process = Process()
    assert process.state() is LivenessState.STARTING
    process.notices("call.began", "transaction.began", "transaction.began", "transaction.ended")
    assert process.liveness.snapshot() == Snapshot(LivenessState.HEALTHY, in_flight=1)
    process.is_stopping = True
    assert process.state() is LivenessState.STOPPING
    process.liveness.ended()
    assert process.state() is LivenessState.STOPPED


def test_calls_that_never_come_back_stall() -> None:
    """Until one of them returns."""
    process = Process()
    process.notices("call.began", "attempt.abandoned", "attempt.abandoned", "workers.stalled")
    stalled = process.liveness.snapshot()
    assert (stalled.state, stalled.abandoned) == (LivenessState.STALLED, 2)
    assert "never came back" in stalled.reason
    process.notices("attempt.late")
    assert process.liveness.snapshot() == Snapshot(LivenessState.HEALTHY, abandoned=1)


def test_a_silent_source_stalls() -> None:
    """A fetch that hangs is noticed; a wait that was announced is none."""
    process = Process()
    process.notices("call.began", "fetch.began")
    process.time = 60.0
    assert process.state() is LivenessState.HEALTHY
    process.time = 61.0
    assert process.state() is LivenessState.STALLED
    process.notices("queue.empty", delay=100.0)
    process.time = 220.0
    assert process.state() is LivenessState.HEALTHY
    process.time = 222.0
    assert process.state() is LivenessState.STALLED


def test_long_work_is_no_stall() -> None:
    """A hook may take as long as its timeout allows; between two calls nothing is due."""
    process = Process()
    process.notices("call.began", "transaction.began")
    process.time = 10_000.0
    assert process.state() is LivenessState.HEALTHY
    process.notices("transaction.ended", "call.ended")
    process.time = 20_000.0
    assert process.state() is LivenessState.HEALTHY


def test_an_event_loop_that_does_not_turn_stalls() -> None:
    """Also before the first call and with work in flight."""
    process = Process()
    process.liveness.loop_turned()
    process.notices("call.began", "transaction.began")
    process.time = 61.0
    assert process.liveness.snapshot().reason == "the event loop is blocked"
    process.liveness.loop_turned()
    assert process.state() is LivenessState.HEALTHY


def test_several_processes_as_one() -> None:
    """The worst counts; those that are done do not."""
    healthy, done = Snapshot(LivenessState.HEALTHY, "", 1, 2), Snapshot(LivenessState.STOPPED)
    assert combined([]) == Snapshot(LivenessState.STARTING)
    assert combined([healthy, healthy, done]) == Snapshot(LivenessState.HEALTHY, "", 2, 4)
    assert combined([healthy, Snapshot(LivenessState.STALLED, "why")]).reason == "why"
    assert combined([done, done]).state is LivenessState.STOPPED


# ---- the file -----------------------------------------------------------------------------------


def test_the_file_follows_the_process(tmp_path: Path) -> None:
    """It is there before the work begins, is replaced as a whole, and says when all is over."""
    path = tmp_path / "live.json"
    now = Snapshot(LivenessState.HEALTHY, "", 3, 1)
    with liveness_file(path, "orders", lambda: now):
        is_live, shape = read_liveness(path)
        assert is_live
        assert (shape["task"], shape["state"], shape["in_flight"]) == ("orders", "healthy", 3)
        assert [each.name for each in tmp_path.iterdir()] == ["live.json"]
    is_live, shape = read_liveness(path)
    assert not is_live
    assert (shape["state"], shape["in_flight"]) == ("stopped", 0)


def test_the_file_is_written_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    """Every few seconds of the clock; a write that fails is told once and tried again."""
    written: list[float] = []
    with VirtualClock() as clock:
        clock.join_time()

        def act() -> None:
            written.append(clock.now())
            raise OSError("full")

        with Periodic("it", 5.0, act, clock=clock):
            wait_until(clock, clock.now() + 16.0)
        clock.leave_time()
    assert len(written) == 3
    assert caplog.text.count("said once") == 1


def wait_until(clock: VirtualClock, until: float) -> None:
    """Let the clock come to an instant."""
    lock = threading.Lock()
    never = clock.signal(lock)
    with lock:
        while clock.now() < until:
            never.wait(until)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "there is no file"),
        ("", "is no liveness file"),
        ("[]", "is no liveness file"),
        ('{"state": "fine", "written_at": 1}', "is no liveness file"),
        ('{"state": "healthy"}', "is no liveness file"),
        ('{"state": "healthy", "written_at": 1}', "30 s are allowed"),
    ],
)
def test_files_that_show_no_life(tmp_path: Path, content: str | None, reason: str) -> None:
    """An absent, broken or old file is as bad as a stall."""
    path = tmp_path / "live.json"
    if content is not None:
        path.write_text(content)
    is_live, shape = read_liveness(path)
    assert not is_live
    assert reason in shape["reason"]


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """Before the work begins, with the remedy."""
    path = tmp_path / "nowhere" / "live.json"
    refused = pytest.raises(ConfigurationError, match="cannot be written")
    with refused, liveness_file(path, "orders", Snapshot):
        pass


def test_a_disk_that_fails_later_does_not_fail_the_run(tmp_path: Path) -> None:
    """The directory is gone at the end; nobody minds."""
    directory = tmp_path / "gone"
    directory.mkdir()
    with liveness_file(directory / "live.json", "orders", Snapshot):
        (directory / "live.json").unlink()
        directory.rmdir()


# ---- over HTTP ----------------------------------------------------------------------------------


class Probe:
    """A served snapshot that a test may change."""

    def __init__(self) -> None:
        self.snapshot = Snapshot(LivenessState.HEALTHY)
        self.port = 0

    def ask(self, path: str, method: str = "GET") -> tuple[int, dict[str, object]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            body = answer.read()
            assert answer.headers["Content-Type"] == "application/json"
            return answer.status, json.loads(body) if body else {}
        finally:
            connection.close()


@pytest.fixture
def probe() -> Iterator[Probe]:
    """A probe on any free port."""
    served = Probe()
    with probe_server("127.0.0.1", 0, lambda: served.snapshot) as served.port:
        yield served


@pytest.mark.parametrize(
    ("state", "live", "ready"),
    [
        (LivenessState.STARTING, 200, 503),
        (LivenessState.HEALTHY, 200, 200),
        (LivenessState.STALLED, 503, 503),
        (LivenessState.STOPPING, 200, 503),
        (LivenessState.STOPPED, 503, 503),
    ],
)
def test_probes(probe: Probe, state: LivenessState, live: int, ready: int) -> None:
    """A process that drains is alive and takes no work."""
    probe.snapshot = Snapshot(state, "because", 1, 2)
    told = {"status": state.value, "reason": "because", "in_flight": 1, "abandoned": 2}
    assert probe.ask("/live") == (live, told)
    assert probe.ask("/ready?x=1") == (ready, told)
    assert probe.ask("/live", "HEAD") == (live, {})


def test_http_errors_have_the_product_s_shape(probe: Probe) -> None:
    """Unknown paths and methods are answered with code, message and details."""
    status, shape = probe.ask("/health")
    assert (status, shape["code"], shape["details"]) == (404, "not_found", {})
    assert "/live or /ready" in str(shape["message"])
    status, shape = probe.ask("/live", "POST")
    assert (status, set(shape)) == (501, {"code", "message", "details"})


def test_a_crowd_is_turned_away() -> None:
    """Beyond the allowed number connections are closed; those being served get their answer."""
    inside, may_go = threading.Semaphore(0), threading.Event()

    def snapshot() -> Snapshot:
        inside.release()
        may_go.wait(10)
        return Snapshot(LivenessState.HEALTHY)

    with probe_server("127.0.0.1", 0, snapshot) as port:
        crowd = [connect(port) for _ in range(MAX_CONNECTIONS)]
        for _ in crowd:
            assert inside.acquire(timeout=10)
        late = connect(port)
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            late.getresponse()
        may_go.set()
        for connection in (*crowd, late):
            if connection is not late:
                assert connection.getresponse().status == 200
            connection.close()


def test_a_connection_without_a_thread_keeps_no_place(
    probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the machine has threads again, the probe answers."""
    probe.snapshot = Snapshot(LivenessState.HEALTHY)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for _ in range(MAX_CONNECTIONS + 1):
            with pytest.raises((ConnectionError, http.client.HTTPException)):
                probe.ask("/live")
    assert probe.ask("/live")[0] == 200


@pytest.mark.parametrize(
    ("half", "every"), [(b"GET /live HT", 2), (b"GET /live HTTP/1.1\r\nHost: loc", 1)]
)
def test_clients_who_say_nothing_keep_nobody_out(probe: Probe, half: bytes, every: int) -> None:
    """Twice as many connections as there may be, silent or with half a head: it answers at once."""
    probe.snapshot = Snapshot(LivenessState.HEALTHY)
    silent = [
        socket.create_connection(("127.0.0.1", probe.port)) for _ in range(2 * MAX_CONNECTIONS)
    ]
    try:
        for each in silent[::every]:
            with contextlib.suppress(OSError):  # some are sent away already
                each.sendall(half)
        for _ in range(3):
            assert probe.ask("/live")[0] == 200
    finally:
        for each in silent:
            each.close()


@pytest.mark.parametrize("head", [b"", b"GET /live HTTP/1.0\r\n"])
def test_a_request_that_comes_slowly_is_ended(head: bytes) -> None:
    """A byte now and then does not keep a connection: the whole request has a limit."""
    snapshot = Snapshot(LivenessState.HEALTHY)
    with (
        probe_server("127.0.0.1", 0, lambda: snapshot, request_timeout=0.2) as port,
        socket.create_connection(("127.0.0.1", port), timeout=10) as slow,
    ):
        ended = False
        slow.sendall(head)
        for byte in b"GET /live HTTP/1.0" * 1000:
            try:
                slow.sendall(bytes([byte]))
                slow.settimeout(0.05)
                ended = slow.recv(100) == b""
            except TimeoutError:
                continue
            except OSError:
                ended = True
            if ended:
                break
        assert ended


def connect(port: int) -> http.client.HTTPConnection:
    """A connection that has asked and not yet listened."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/live")
    return connection


def test_a_port_in_use_is_refused(probe: Probe) -> None:
    """With the remedy to choose another."""
    refused = pytest.raises(ConfigurationError, match="the probe cannot listen on")
    with refused, probe_server("127.0.0.1", probe.port, Snapshot):
        pass


def test_probes_are_not_logged(probe: Probe, capfd: pytest.CaptureFixture[str]) -> None:
    """A request every few seconds would fill the log with nothing."""
    logging.getLogger("ergon.app").debug("quiet")
    probe.ask("/live")
    assert capfd.readouterr().err == ""


def test_the_file_is_private_and_writes_through_no_link(tmp_path: Path) -> None:
    """Neither the file nor its draft, whose name others could guess, leads to another file."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = tmp_path / "live"
    path.symlink_to(victim)
    (tmp_path / f".live.{os.getpid()}").symlink_to(victim)
    assert read_liveness(path)[0] is False, "a link is not read either"
    with liveness_file(path, "orders", lambda: Snapshot(LivenessState.HEALTHY)):
        assert path.lstat().st_mode & 0o7777 == 0o600
        assert stat.S_ISREG(path.lstat().st_mode)
    assert victim.read_text() == "precious"
    assert sorted(each.name for each in tmp_path.iterdir() if not each.is_symlink()) == [
        "live",
        "victim",
    ]
