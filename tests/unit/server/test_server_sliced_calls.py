"""Long calls in slices: they pause at checkpoints, go on where they were, and hold on to nothing."""

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from tidelog.protocol import slices as checkpoints
from tidelog.protocol.slices import PIECE_BYTES, checkpoint, clock_ns, copied, each, running, whole
from tidelog.server import sliced_calls
from tidelog.server.sliced_calls import Slices, Unfinished


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slices]:
    """Slices that are over at once: every checkpoint pauses."""
    monkeypatch.setattr(sliced_calls, "SLICE_NS", 0)
    yield Slices()
    assert running.call is None


def test_a_call_without_checkpoints_is_a_call(slices: Slices) -> None:
    assert slices.run(lambda a, b: a + b, 1, 2) == 3


def test_a_call_pauses_at_every_checkpoint_and_goes_on(slices: Slices) -> None:
    done: list[int] = []

    def work() -> str:
        for number in range(3):
            done.append(number)
            checkpoint()
        return "over"

    outcome = slices.run(work)
    assert isinstance(outcome, Unfinished) and done == [0]
    assert outcome.resume() is outcome and done == [0, 1]
    assert outcome.resume() is outcome and done == [0, 1, 2]
    assert outcome.resume() == "over"


def test_many_bytes_are_copied_in_slices(slices: Slices) -> None:
    data = memoryview(bytes(range(256)) * (PIECE_BYTES >> 8) * 3 + b"end")
    outcome = slices.run(copied, data)
    assert isinstance(outcome, Unfinished)
    resumed = 0
    while isinstance(outcome, Unfinished):
        outcome, resumed = outcome.resume(), resumed + 1
    assert type(outcome) is bytes and outcome == data and resumed == 4
    assert copied(data) == data  # outside of a call in slices
    assert copied(data[:PIECE_BYTES]) == data[:PIECE_BYTES]


def test_calls_take_turns_without_touching_each_other(slices: Slices) -> None:
    def work(name: str) -> list[str]:
        seen = []
        for number in range(5):
            seen.append(f"{name}{number}")
            checkpoint()
        return seen

    under_way = [slices.run(work, name) for name in "abc"]
    results: dict[int, object] = {}
    while len(results) < 3:
        for index, unfinished in enumerate(under_way):
            if index not in results:
                outcome = unfinished.resume()
                if outcome is not unfinished:
                    results[index] = outcome
    assert results == {i: [f"{name}{number}" for number in range(5)] for i, name in enumerate("abc")}


def test_what_a_call_raises_comes_out_at_once_or_later(slices: Slices) -> None:
    def work(pauses: int) -> None:
        for _ in range(pauses):
            checkpoint()
        raise ValueError("trouble")

    with pytest.raises(ValueError, match="trouble"):
        slices.run(work, 0)
    unfinished = slices.run(work, 1)
    with pytest.raises(ValueError, match="trouble"):
        unfinished.resume()
    unfinished.abandon()  # it is over: nothing happens
    assert slices.run(lambda: "the stack serves on") == "the stack serves on"


def test_an_abandoned_call_ends_where_it_is(slices: Slices) -> None:
    steps: list[str] = []

    def work() -> None:
        try:
            steps.append("begun")
            checkpoint()
            steps.append("went on")
        finally:
            steps.append("cleaned up")

    slices.run(work).abandon()
    assert steps == ["begun", "cleaned up"]


def test_nothing_pauses_inside_of_whole_or_outside_of_a_call(slices: Slices) -> None:
    checkpoint()
    assert list(each(range(1_000))) == list(range(1_000))

    def work() -> str:
        whole(checkpoint)
        return whole(lambda: "".join(each("x" * 1_000)))

    assert slices.run(work) == "x" * 1_000


def test_other_threads_do_not_pause(slices: Slices) -> None:
    """They decode messages too; only the call that runs in slices may pause, in its own thread."""
    ended = threading.Event()

    def elsewhere() -> None:
        checkpoint()
        ended.set()

    def work() -> bool:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(10)
        return ended.is_set()

    assert slices.run(work) is True


def test_time_spent_waiting_is_not_the_calls(slices: Slices, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000]
    for module in (sliced_calls, checkpoints):
        monkeypatch.setattr(module, "perf_counter_ns", lambda: now[0])

    def work() -> int:
        began = clock_ns()
        now[0] += 5
        checkpoint()
        now[0] += 7
        return clock_ns() - began

    unfinished = slices.run(work)
    now[0] += 1_000_000
    assert unfinished.resume() == 12


class Large:
    """Something that is to be let go of."""


def test_a_stack_that_waits_for_work_holds_on_to_nothing(slices: Slices) -> None:
    """What a request was read into, and its answer, go with it: no collection is needed for that."""
    gc.disable()
    try:
        argument, result = Large(), Large()
        kept = [weakref.ref(argument), weakref.ref(result)]
        outcome = slices.run(lambda one, two: two, argument, result)
        assert outcome is result
        del argument, result, outcome

        def fail(thing: Large) -> None:
            checkpoint()
            raise ValueError("trouble")

        failing = Large()
        kept.append(weakref.ref(failing))
        unfinished = slices.run(fail, failing)
        del failing
        with pytest.raises(ValueError):
            unfinished.resume()
        abandoned = Large()
        kept.append(weakref.ref(abandoned))
        unfinished = slices.run(fail, abandoned)
        del abandoned
        unfinished.abandon()
        del unfinished
        assert [one() for one in kept] == [None] * 4
    finally:
        gc.enable()


def test_a_request_is_read_and_an_answer_written_in_slices(slices: Slices) -> None:
    from tidelog.protocol import messages
    from tidelog.protocol.apis import APIS

    api = APIS[3]
    fields = {"topics": [{"name": f"t{number}"} for number in range(1_000)]}
    body = messages.encode_request(api, 12, fields)

    def both() -> int:
        request = messages.decode_request(api, 12, memoryview(body), 0, elements_max=1_000)
        return len(messages.encode_request(api, 12, {"topics": [{"name": t.name} for t in request.topics]}))

    # Two at once, each with its own count of elements.
    first, second = slices.run(both), slices.run(both)
    pauses = 0
    outcomes = []
    for unfinished in (first, second):
        outcome = unfinished
        while isinstance(outcome, Unfinished):
            outcome = unfinished.resume()
            pauses += 1
        outcomes.append(outcome)
    assert outcomes == [len(body)] * 2 and pauses > 20
