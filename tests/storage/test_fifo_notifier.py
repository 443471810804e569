"""Notifications between processes: pipes of the dead are removed, and a failure is harmless."""

from __future__ import annotations

import errno
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.storage.secure_files import Folder
from ergon_framework.storage.sqlite.notifier import FifoNotifier, FifoSubscription
from tests.storage.conftest import WAIT, until

LISTENER = """
import sys
from ergon_framework.storage.sqlite.notifier import FifoNotifier
subscription = FifoNotifier(sys.argv[1]).subscribe("work")
print("listening", flush=True)
print("rung" if subscription.wait(20) else "silence", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(path: Path) -> Path:
    """Where the pipes are."""
    return path.with_name("store.db-bells")


@pytest.fixture
def fifos(path: Path) -> Iterator[FifoNotifier]:
    """The subscriptions of a database that need not exist."""
    fifos = FifoNotifier(path)
    yield fifos
    fifos.close()


@pytest.fixture
def subscription(fifos: FifoNotifier) -> Iterator[FifoSubscription]:
    """One listener."""
    subscription = fifos.subscribe("work")
    yield subscription
    subscription.close()


@pytest.fixture
def mute(folder: Path) -> None:
    """The folder cannot be made, as when a file system has no room for it."""
    folder.write_text("in the way")


@pytest.mark.req("JOBS:store")
def test_many_rings_are_one(fifos: FifoNotifier, subscription: FifoSubscription) -> None:
    """A waiter hears that it rang, once, however often it did."""
    assert subscription.wait(0) is False
    for _ in range(100):
        fifos.notify("work")
    assert subscription.wait(None) is True
    assert subscription.wait(0) is False


def test_only_listeners_of_the_topic_hear_it(
    fifos: FifoNotifier, subscription: FifoSubscription
) -> None:
    """A topic that begins like another one is another one."""
    other = fifos.subscribe("wor")
    fifos.notify("wor")
    assert (other.wait(0), subscription.wait(0)) == (True, False)
    fifos.notify("work")
    assert (other.wait(0), subscription.wait(0)) == (False, True)
    other.close()


def test_every_listener_hears_it(
    path: Path, fifos: FifoNotifier, subscription: FifoSubscription
) -> None:
    """Those that came later, and those another notifier of the same file gave out, too."""
    fifos.notify("work")
    assert subscription.wait(0)
    later = FifoNotifier(path).subscribe("work")
    fifos.notify("work")
    assert (subscription.wait(0), later.wait(0)) == (True, True)
    later.close()
    fifos.notify("work")
    assert subscription.wait(0)


def test_ringing_oneself_wakes_a_waiting_thread(subscription: FifoSubscription) -> None:
    """As a stop does with its own waiter."""
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(subscription.wait, WAIT)
        subscription.wake()
        assert waiter.result(WAIT) is True


def test_an_event_loop_can_watch_it(fifos: FifoNotifier, subscription: FifoSubscription) -> None:
    """It is readable when it has rung and not otherwise."""
    poll = select.poll()
    poll.register(subscription.fileno(), select.POLLIN)
    assert poll.poll(0) == []
    fifos.notify("work")
    assert poll.poll(0) != []
    assert subscription.wait(0)
    assert poll.poll(0) == []


def test_a_full_pipe_has_been_rung(fifos: FifoNotifier, subscription: FifoSubscription) -> None:
    """Ringing never blocks, however long nobody listens."""
    for _ in range(70_000):
        subscription.wake()
    fifos.notify("work")
    assert subscription.wait(0)


def test_closing_removes_the_pipe_and_wakes_waiters(fifos: FifoNotifier, folder: Path) -> None:
    """A closed subscription is silent; ringing for it is not an error."""
    subscription = fifos.subscribe("work")
    assert len(list(folder.iterdir())) == 1
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(subscription.wait, WAIT)
        until(lambda: subscription.waiters)
        subscription.close()
        assert waiter.result(WAIT) is False
    subscription.close()
    subscription.wake()
    fifos.notify("work")
    assert list(folder.iterdir()) == []
    assert subscription.wait(0) is False
    assert subscription.fileno() == -1


def test_ringing_without_listeners(fifos: FifoNotifier, folder: Path) -> None:
    """Nothing is created for nobody."""
    fifos.notify("work")
    assert not folder.exists()


def test_any_topic_is_fine(fifos: FifoNotifier, folder: Path) -> None:
    """Its characters and its length do not matter to the file system."""
    topics = ["a/../b", "x" * 5000, "ü\n", ".", "\ud800"]
    heard = [fifos.subscribe(topic) for topic in topics]
    assert all(len(each.name) < 120 for each in folder.iterdir())
    for n, topic in enumerate(topics):
        fifos.notify(topic)
        assert [subscription.wait(0) for subscription in heard] == [
            n == m for m in range(len(topics))
        ]
    for subscription in heard:
        subscription.close()


@pytest.mark.slow
@pytest.mark.req("JOBS:store")
def test_heard_in_another_process(path: Path, fifos: FifoNotifier, folder: Path) -> None:
    """And its pipe is removed by the next ring when that process was killed."""
    with subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", LISTENER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"listening\n"
        fifos.notify("work")
        assert child.stdout.readline() == b"rung\n"
        child.kill()
    assert len(list(folder.iterdir())) == 1
    fifos.notify("work")
    assert list(folder.iterdir()) == []


def test_a_pipe_that_nobody_opened_is_removed(
    fifos: FifoNotifier, subscription: FifoSubscription, folder: Path
) -> None:
    """What a listener left behind before this ringer came does not stay, a live one does."""
    alive = list(folder.iterdir())
    os.mkfifo(folder / "work.1.dead")
    fifos.notify("work")
    assert subscription.wait(0)
    assert list(folder.iterdir()) == alive


def test_a_pipe_being_made_is_left_alone(fifos: FifoNotifier, folder: Path) -> None:
    """Only one that was hidden for a minute is nobody's."""
    folder.mkdir()
    fresh, old = folder / ".new-work.1.a", folder / ".new-work.1.b"
    os.mkfifo(fresh)
    os.mkfifo(old)
    os.utime(old, (0, 0))
    fifos.notify("work")
    subscription = fifos.subscribe("work")
    assert fresh.exists()
    assert not old.exists()
    subscription.close()


def test_the_folder_is_listed_only_when_it_changed(
    path: Path, subscription: FifoSubscription, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless its time stamp is so young that a change could hide behind it."""
    looks: list[str] = []
    names = Folder.names

    def counted(self: Folder) -> list[str]:
        looks.append("")
        return names(self)

    monkeypatch.setattr(Folder, "names", counted)
    fifos = FifoNotifier(path, timestamp_resolution=60.0)  # it is young for long enough
    fifos.notify("work")
    fifos.notify("work")
    assert len(looks) == 2
    os.utime(folder, (1, 1))
    for _ in range(5):
        fifos.notify("work")
    assert len(looks) == 3
    assert subscription.wait(0)
    other = fifos.subscribe("work")
    fifos.notify("work")
    assert other.wait(0)
    other.close()
    fifos.close()


def test_more_listeners_than_descriptors_to_keep(path: Path) -> None:
    """Those beyond the limit are rung as well."""
    fifos = FifoNotifier(path, max_open_pipes=2)
    heard = [fifos.subscribe("work") for _ in range(5)]
    for _ in range(2):
        fifos.notify("work")
        assert [subscription.wait(0) for subscription in heard] == [True] * 5
    for subscription in heard:
        subscription.close()
    fifos.notify("work")
    fifos.close()


def test_more_topics_than_are_kept(path: Path, folder: Path) -> None:
    """Forgotten ones are looked up again."""
    fifos = FifoNotifier(path, max_topics=2)
    heard = [fifos.subscribe(str(n)) for n in range(5)]
    os.utime(folder, (1, 1))
    before = descriptors()
    for n, subscription in enumerate(heard * 2):
        fifos.notify(str(n % 5))
        assert subscription.wait(0)
        assert descriptors() <= before + 2
    for subscription in heard:
        subscription.close()
    fifos.close()


def test_a_process_that_dies_of_sigpipe_keeps_no_pipe_open(
    fifos: FifoNotifier, subscription: FifoSubscription, folder: Path
) -> None:
    """A listener that goes away must not take its ringers along."""
    alive = list(folder.iterdir())
    os.mkfifo(folder / "work.1.killed")
    killed = os.open(folder / "work.1.killed", os.O_RDONLY | os.O_NONBLOCK)
    os.utime(folder, (1, 1))
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        fifos.notify("work")
        assert subscription.wait(0)
        assert os.read(killed, 10)
        os.close(killed)  # it goes without removing its pipe
        fifos.notify("work")
    finally:
        signal.signal(signal.SIGPIPE, before)
    assert subscription.wait(0)
    assert list(folder.iterdir()) == alive


@pytest.mark.usefixtures("mute")
def test_a_folder_that_cannot_be_written(
    path: Path, fifos: FifoNotifier, caplog: pytest.LogCaptureFixture
) -> None:
    """Bells then ring inside this process, and the log says so once."""
    with caplog.at_level(logging.WARNING, "ergon.storage"):
        first, second, other = (fifos.subscribe(topic) for topic in ("work", "work", "other"))
    assert len(caplog.records) == 1
    assert "no other process can wake this one" in caplog.text
    FifoNotifier(path).notify("work")
    assert [subscription.wait(0) for subscription in (first, second, other)] == [True, True, False]
    first.wake()
    assert first.wait(WAIT)
    for subscription in (first, second, other):
        subscription.close()
    fifos.notify("work")


def test_a_file_system_without_named_pipes(
    fifos: FifoNotifier, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, and nothing is left in the folder."""

    def refuse(*_args: object, **_options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "mkfifo", refuse)
    subscription = fifos.subscribe("work")
    fifos.notify("work")
    assert subscription.wait(0)
    subscription.close()
    assert list(folder.iterdir()) == []


def descriptors() -> int:
    """How many this process has open."""
    return sum(1 for _ in Path("/dev/fd").iterdir())


def test_a_pipe_that_cannot_be_shown_is_taken_back(
    fifos: FifoNotifier, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a name nor a descriptor is left of it."""

    def refuse(*_args: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    before = descriptors()
    monkeypatch.setattr(os, "replace", refuse)
    subscription = fifos.subscribe("work")
    assert descriptors() == before + 2
    subscription.close()
    assert list(folder.iterdir()) == []
    assert descriptors() == before


@pytest.mark.parametrize("named", [True, False])
def test_no_descriptors_are_left(
    fifos: FifoNotifier,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    named: bool,
) -> None:
    """It is said so, nothing is left behind, and the folder is as good as before."""
    folder.mkdir()
    if not named:
        folder.rmdir()
        folder.write_text("in the way")

    def refuse(*_args: object, **_options: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    before = descriptors()
    with monkeypatch.context() as patched:
        if named:
            patched.setattr(os, "open", refuse)
        patched.setattr(os, "pipe", refuse)
        with pytest.raises(StoreUnavailableError, match="Too many open files") as caught:
            fifos.subscribe("work")
    assert "ulimit" in caught.value.remedy
    assert descriptors() == before
    assert ("takes no named pipes" in caplog.text) is not named
    if named:
        subscription = fifos.subscribe("work")
        assert list(folder.iterdir())
        subscription.close()


def test_a_ringer_without_descriptors_tries_again(
    fifos: FifoNotifier,
    subscription: FifoSubscription,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pipe that could not be opened once is not forgotten, though the folder did not change."""
    os.utime(folder, (1, 1))

    def refuse(*_args: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        fifos.notify("work")
    assert not subscription.wait(0)
    fifos.notify("work")
    assert subscription.wait(0)


def test_listeners_come_and_go_while_others_ring(
    fifos: FifoNotifier, path: Path, folder: Path
) -> None:
    """No live listener's pipe is ever taken for a dead one's."""
    stop = threading.Event()

    def ring() -> None:
        mine = FifoNotifier(path)
        while not stop.is_set():
            mine.notify("work")
        mine.close()

    ringers = [threading.Thread(target=ring) for _ in range(2)]
    for ringer in ringers:
        ringer.start()
    try:
        for _ in range(150):
            subscription = fifos.subscribe("work")
            assert subscription.wait(WAIT)
            assert len(list(folder.iterdir())) == 1
            subscription.close()
    finally:
        stop.set()
        for ringer in ringers:
            ringer.join(WAIT)


@pytest.mark.slow
def test_a_forked_child_leaves_the_bell_to_its_parent(
    fifos: FifoNotifier, subscription: FifoSubscription, folder: Path
) -> None:
    """In the child it is closed; in the parent it stays, and rings from the child are heard."""
    child = os.fork()
    if child == 0:
        is_fine = subscription.wait(0) is False and subscription.fileno() == -1
        subscription.close()
        fifos.notify("work")
        os._exit(0 if is_fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert subscription.wait(WAIT)
    assert len(list(folder.iterdir())) == 1


def test_a_subscriber_removes_the_pipes_of_killed_ones(path: Path, folder: Path) -> None:
    """Nobody may ever notify this topic; pipes of live subscribers and other topics stay."""
    notifier = FifoNotifier(path)
    with closing(notifier.subscribe("cancel")) as first:
        os.mkfifo(folder / "cancel.1.killed")
        os.mkfifo(folder / "work.1.killed")
        with closing(notifier.subscribe("cancel")):
            left = sorted(each.name.split(".")[0] for each in folder.iterdir())
            assert left == ["cancel", "cancel", "work"]
            assert not (folder / "cancel.1.killed").exists()
            notifier.notify("cancel")
            assert first.wait(WAIT)
