"""The worker's event loop, whatever happens to its descriptors and from whichever thread."""

from __future__ import annotations

import os
import threading
from collections import Counter
from contextlib import ExitStack
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from ergon_framework.jobs.event_loop import READ, EventLoop

PIPES = 3
_steps = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "forget", "watch", "post", "post_elsewhere", "turn"]),
        st.integers(0, PIPES - 1),
    ),
    max_size=40,
)


class PipesOnLoop:
    """A loop, three pipes, and what was done and heard."""

    def __init__(self, stack: ExitStack) -> None:
        self.loop = EventLoop()
        stack.callback(self.loop.close)
        self.pipes = [os.pipe() for _ in range(PIPES)]
        for end in (end for pipe in self.pipes for end in pipe):
            stack.callback(os.close, end)
        self.written: Counter[int] = Counter()
        self.heard: Counter[int] = Counter()
        self.posted = 0
        self.called: list[int] = []
        self.watched: set[int] = set()
        for number in range(PIPES):
            self.watch(number)

    def watch(self, number: int) -> None:
        reading = self.pipes[number][0]

        def hear(_events: int) -> None:
            assert number in self.watched
            self.heard[number] += len(os.read(reading, 1))

        self.watched.add(number)
        self.loop.watch(reading, READ, hear)

    def forget(self, number: int) -> None:
        self.watched.discard(number)
        self.loop.forget(self.pipes[number][0])

    def write(self, number: int) -> None:
        os.write(self.pipes[number][1], b"x")
        self.written[number] += 1

    def post(self, _number: int) -> None:
        turn, self.posted = self.posted, self.posted + 1
        self.loop.post(lambda: self.called.append(turn))

    def post_elsewhere(self, number: int) -> None:
        thread = threading.Thread(target=self.post, args=(number,))
        thread.start()
        thread.join()

    def turn(self, _number: int = 0) -> None:
        self.loop.turn(self.loop.now())


@given(_steps)
@settings(max_examples=100, deadline=None)
def test_everything_is_heard_once_and_posts_are_called_in_order(
    steps: list[tuple[str, int]],
) -> None:
    """A byte is read once while it is watched for; what is posted is called once, in its order."""
    with ExitStack() as stack:
        case = PipesOnLoop(stack)
        for name, number in steps:
            getattr(case, name)(number)
        for number in range(PIPES):
            case.watch(number)
        for _ in range(len(steps) + 1):
            case.turn()
        assert case.heard == case.written
        assert case.called == list(range(case.posted))


@given(st.integers(1, 4), st.integers(1, 30))
@settings(max_examples=20, deadline=None)
def test_a_post_wakes_a_loop_that_waits(threads: int, posts: int) -> None:
    """No post is lost between the look for posts and the wait for descriptors."""
    with ExitStack() as stack:
        case = PipesOnLoop(stack)
        called: list[int] = []

        def work() -> None:
            for number in range(posts):
                case.loop.post(partial(called.append, number))

        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        until = case.loop.now() + 30.0
        while len(called) < threads * posts:
            assert case.loop.now() < until
            case.loop.turn(until)
        for worker in workers:
            worker.join()
        assert Counter(called) == Counter(dict.fromkeys(range(posts), threads))
