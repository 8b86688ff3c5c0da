"""A replica's log moves to another data folder while it is appended to; crashes at every step."""

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.broker.node import NodeUnderTest, batch, fetch_frame, joined, produce_frame
from tidelog.broker.replication import log_copies
from tidelog.broker.requests.handlers import alter_replica_log_dirs, describe_log_dirs
from tidelog.controller.commands import DeleteTopics, TopicReference
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition
from tidelog.storage.future_log import MOVED_HERE

T0 = TopicPartition("t", 0)


@pytest.fixture
def node() -> NodeUnderTest:
    node = NodeUnderTest(log_dirs="/one,/two")
    node.create_topic("t", segment_bytes="2000", file_delete_delay_ms="1000")
    return node


def produce(node: NodeUnderTest, *values: bytes, **fields: Any) -> int:
    answer = joined(node.handle(produce_frame(7, batch(*values, **fields))))
    error = int.from_bytes(answer[8 + 4 + 3 + 4 + 4 : 8 + 4 + 3 + 4 + 6], "big", signed=True)
    assert error == 0
    return int.from_bytes(answer[8 + 4 + 3 + 4 + 6 : 8 + 4 + 3 + 4 + 14], "big", signed=True)


def where(node: NodeUnderTest) -> str:
    log = node.broker.replicas.led["t", 0].log
    assert node.broker.log_directories.logs[T0] is log
    directory = node.broker.log_directories.directory_of(T0).path
    assert log.directory == f"{directory}/t-0"
    return directory


def target(node: NodeUnderTest) -> str:
    return "/two" if where(node) == "/one" else "/one"


def move(node: NodeUnderTest, path: str, topic: str = "t", index: int = 0) -> ErrorCode:
    topics = [SimpleNamespace(name=topic, partitions=[index])]
    body = SimpleNamespace(dirs=[SimpleNamespace(path=path, topics=topics)])
    request: Any = SimpleNamespace(body=body)
    answer: Any = alter_replica_log_dirs.Handler(node.broker.log_moves).handle(request)
    return answer["results"][0]["partitions"][0]["error_code"]


def shown(node: NodeUnderTest) -> dict[tuple[str, bool], int]:
    request: Any = SimpleNamespace(body=SimpleNamespace(topics=None))
    answer: Any = describe_log_dirs.Handler(node.broker.log_directories, node.broker.log_moves).handle(
        request
    )
    return {
        (directory["log_dir"], row["is_future_key"]): row["offset_lag"]
        for directory in answer["results"]
        for topic in directory["topics"]
        for row in topic["partitions"]
    }


def content(node: NodeUnderTest) -> bytes:
    log = node.broker.replicas.led["t", 0].log
    data, offset = b"", log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.read(offset, 1 << 20, log.log_end_offset)
        assert piece is not None
        data += piece.file.read(piece.position, piece.size_bytes)
        offset = piece.next_offset
    return data


def finish(node: NodeUnderTest) -> None:
    for _ in range(1_000):
        if not node.broker.log_moves.futures:
            return
        node.advance(1)
    raise AssertionError("the move does not end")


def test_a_log_moves_while_it_is_appended_to(node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_copies, "PIECE_BYTES", 500)
    for number in range(30):
        produce(node, b"%d" % number * 50)
    start, goal = where(node), target(node)
    assert move(node, goal) is ErrorCode.NONE
    assert shown(node) == {(start, False): 0, (goal, True): 30}
    offsets = []
    for number in range(10):
        offsets.append(produce(node, b"late %d" % number))
        node.advance(1)
    assert offsets == list(range(30, 40))
    before = content(node)
    finish(node)
    assert where(node) == goal
    assert shown(node) == {(goal, False): 0}
    assert content(node) == before
    assert produce(node, b"after") == 40
    assert b"after" in joined(node.handle(fetch_frame("t", 40)))
    assert not node.disk.exists(f"{goal}/t-0/{MOVED_HERE}")
    node.advance(2_000)
    assert not [name for name in node.disk.list(start) if name.startswith("t-0")]
    assert move(node, start) is ErrorCode.NONE
    finish(node)
    assert where(node) == start and content(node).startswith(before)


def test_producers_epochs_and_open_transactions_move_along(node: NodeUnderTest) -> None:
    partition = node.broker.replicas.led["t", 0]
    produce(node, b"first", producer_id=7, producer_epoch=0, base_sequence=0)
    produce(node, b"open", producer_id=8, producer_epoch=0, base_sequence=0)
    partition.log.begin_epoch(5)
    partition.leader_epoch = 5
    epochs = partition.log.leader_epochs.latest
    assert move(node, target(node)) is ErrorCode.NONE
    finish(node)
    assert partition.log.leader_epochs.latest == epochs == 5
    assert partition.log.producers.epoch_of(7) is not None
    # A retry of the same sequence is known, and the next one follows.
    assert produce(node, b"first", producer_id=7, producer_epoch=0, base_sequence=0) == 0
    assert produce(node, b"second", producer_id=7, producer_epoch=0, base_sequence=1) == 2


def test_what_cannot_be_moved(node: NodeUnderTest) -> None:
    assert move(node, "/three") is ErrorCode.LOG_DIR_NOT_FOUND
    assert move(node, target(node), "nothing") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert move(node, where(node)) is ErrorCode.NONE
    assert not node.broker.log_moves.futures


def test_the_same_goal_twice_is_one_move_and_the_own_folder_calls_it_off(node: NodeUnderTest) -> None:
    start, goal = where(node), target(node)
    produce(node, b"value")
    assert move(node, goal) is ErrorCode.NONE
    future = node.broker.log_moves.futures[T0]
    assert move(node, goal + "/") is ErrorCode.NONE
    assert node.broker.log_moves.futures[T0] is future
    assert move(node, start) is ErrorCode.NONE
    assert not node.broker.log_moves.futures
    node.advance(10)
    assert not [name for name in node.disk.list(goal) if name.startswith("t-0")]
    assert produce(node, b"value") == 1


def test_a_deleted_topic_takes_its_copy_along(node: NodeUnderTest) -> None:
    goal = target(node)
    produce(node, b"value")
    assert move(node, goal) is ErrorCode.NONE
    node.broker.metadata.submit(DeleteTopics((TopicReference("t"),)), lambda results: None)
    node.advance(10)
    assert not node.broker.log_moves.futures
    node.advance(100_000)
    for folder in ("/one", "/two"):
        assert not [name for name in node.disk.list(folder) if name.startswith("t-0")]


def test_records_deleted_meanwhile_are_not_in_the_copy(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copies, "PIECE_BYTES", 500)
    for number in range(20):
        produce(node, b"%d" % number * 50)
    assert move(node, target(node)) is ErrorCode.NONE
    node.advance(1)
    node.broker.log_maintenance.advance_log_start(node.broker.replicas.led["t", 0], 15)
    finish(node)
    log = node.broker.replicas.led["t", 0].log
    assert (log.log_start_offset, log.log_end_offset) == (15, 20)


def test_a_log_that_is_cut_meanwhile_is_copied_again(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copies, "PIECE_BYTES", 500)
    for number in range(20):
        produce(node, b"%d" % number * 50)
    assert move(node, target(node)) is ErrorCode.NONE
    node.advance(1)
    node.advance(1)
    partition = node.broker.replicas.led["t", 0]
    partition.log.truncate_to(3)
    partition.high_watermark = 3
    for number in range(20):
        produce(node, b"other %d" % number)
    before = content(node)
    finish(node)
    assert content(node) == before


class Crash(BaseException):
    """The broker ends in the middle of something."""


def _crash_at(disk: Any, step: int) -> None:
    """Have the operation on names with this number, counted from 1, and all later ones end the broker."""
    calls = count(1)

    def ending(operation: Any) -> Any:
        def run(*arguments: Any, **named: Any) -> Any:
            if next(calls) >= step:
                raise Crash
            return operation(*arguments, **named)

        return run

    for name in ("rename", "sync_directory", "remove", "replace_atomically"):
        setattr(disk, name, ending(getattr(disk, name)))


@pytest.mark.parametrize("step", range(1, 60))
@pytest.mark.parametrize("power_cut", [False, True])
def test_a_crash_anywhere_leaves_one_whole_log(step: int, power_cut: bool) -> None:
    """Each operation on names, from the beginning of the copy to the removal of the old log, is the last."""
    node = NodeUnderTest(log_dirs="/one,/two")
    node.create_topic("t", flush_messages="1", segment_bytes="2000")
    values = [b"value %d" % number * 20 for number in range(20)]
    for value in values:
        produce(node, value)
    goal = target(node)
    assert move(node, goal) is ErrorCode.NONE
    disk = node.disk
    _crash_at(disk, step)
    try:
        finish(node)
        crashed = False
    except Crash:
        crashed = True
    fresh = disk.crash() if power_cut else disk.kill()
    again = NodeUnderTest(fresh, node.store.reopen(), log_dirs="/one,/two")
    data = content(again)
    assert [value for value in values if value not in data] == []
    finish(again)
    assert where(again) == goal
    data = content(again)
    assert [value for value in values if value not in data] == []
    assert produce(again, b"more") == 20
    again.advance(100_000)
    folders = [
        name for folder in ("/one", "/two") for name in again.disk.list(folder) if name.startswith("t-0")
    ]
    assert folders == ["t-0"]
    assert crashed or step > 10, "the steps reach the end of the move, and no further"


@pytest.mark.parametrize("step", range(1, 32))
@pytest.mark.parametrize("lost", ["/one", "/two"])
def test_a_crash_that_takes_a_directory_with_it_leaves_no_shorter_log(step: int, lost: str) -> None:
    """Whichever directory is gone after a crash: the log leads with everything, or it waits for it."""
    node, values = _crashed_in_a_move(step)
    disk = node.disk.kill()
    taken = disk.take_out(lost)
    without = NodeUnderTest(disk, node.store.reopen(), 8, log_dirs="/one,/two")
    if ("t", 0) in without.broker.replicas.led:
        data = content(without)
        assert [value for value in values if value not in data] == []
        assert produce(without, b"more") == len(values)
        values.append(b"more")
    else:
        assert without.broker.replicas.offline.keys() == {("t", 0)}
    disk = without.disk.kill()
    disk.remove_tree(lost)
    disk.put_in(lost, taken)
    whole = NodeUnderTest(disk, without.store.reopen(), 9, log_dirs="/one,/two")
    data = content(whole)
    assert [value for value in values if value not in data] == []
    finish(whole)
    state = whole.broker.image.partition("t", 0)
    assert state is not None
    home = whole.broker.log_directories.directory_of(TopicPartition("t", 0))
    whole.advance(1_000)
    assert whole.broker.image.partition("t", 0).directory_of(1) == home.directory_id  # type: ignore[union-attr]


def _crashed_in_a_move(step: int) -> tuple[NodeUnderTest, list[bytes]]:
    """A node that ended in the middle of a move, records being appended all the time, and what it has."""
    node = NodeUnderTest(log_dirs="/one,/two")
    node.create_topic("t", flush_messages="1", segment_bytes="2000")
    values = [b"value %d" % number * 20 for number in range(20)]
    for value in values:
        produce(node, value)
    assert move(node, target(node)) is ErrorCode.NONE
    _crash_at(node.disk, step)
    try:
        for number in range(200):
            if not node.broker.log_moves.futures:
                break
            node.advance(1)
            value = b"late %d" % number * 20
            if len(values) < 40:
                produce(node, value)
                values.append(value)
    except Crash:
        pass
    return node, values
