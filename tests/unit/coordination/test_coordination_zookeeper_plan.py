"""Keys as znodes, and commits as operations: no ZooKeeper is needed for these."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.coordination.store import ABSENT, Check, Conflict, Write
from tidelog.coordination.zookeeper_commit import (
    CheckVersion,
    Create,
    Delete,
    Plan,
    Seen,
    Set,
    needs_stat,
    plan,
)
from tidelog.coordination.zookeeper_paths import (
    escape,
    folder_path,
    folders_above,
    is_folder,
    is_own,
    key_path,
    unescape,
)

ME, OTHER = 11, 22


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("controller", "/t/controller"),
        ("changes/17", "/t/changes:/17"),
        ("partitions/orders/0", "/t/partitions:/orders:/0"),
        ("zookeeper", "/t/%7Aookeeper"),
        ("a/../b", "/t/a:/%2E%2E:/b"),
        ("a//b", "/t/a:/%:/b"),
        ("a:", "/t/a%3A"),
    ],
)
def test_where_keys_live(key: str, path: str) -> None:
    assert key_path("/t", key) == path


def test_the_root_of_zookeeper_itself_may_be_used() -> None:
    assert key_path("", "a") == "/a"
    assert key_path("", "a/b") == "/a:/b"
    assert folder_path("", "") == "/"
    assert folders_above("", "/a:/b:/c") == ["/a:", "/a:/b:"]
    assert folders_above("/t", "/t/a:/b:/c") == ["/t/a:", "/t/a:/b:"]
    assert folders_above("/t", "/t/c") == []


@given(st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"])))
def test_any_name_can_be_written_and_read(component: str) -> None:
    name = escape(component)
    assert unescape(name) == component
    assert name not in ("", ".", "..", "zookeeper")
    assert not is_folder(name)
    assert not is_own(name)
    assert "/" not in name
    assert name.isprintable()


def test_which_writes_need_a_look_first() -> None:
    assert needs_stat(Write("a", b""))
    assert needs_stat(Write("a", None))
    assert needs_stat(Write("a", b"", 3, ephemeral=True))
    assert not needs_stat(Write("a", b"", 3))
    assert not needs_stat(Write("a", b"", ABSENT))
    assert not needs_stat(Check("a", 3))


@pytest.mark.parametrize(
    ("write", "seen", "operations", "versions"),
    [
        (Write("a", b"v", ABSENT), None, (Create("/a", b"v"),), {"a": 1}),
        (Write("a", b"v", 4), None, (Set("/a", b"v", 3),), {"a": 5}),
        (Write("a", None, 4), None, (Delete("/a", 3),), {}),
        (Write("a", b"v"), None, (Create("/a", b"v"),), {"a": 1}),
        (Write("a", b"v"), Seen(4, 0), (Set("/a", b"v", 3),), {"a": 5}),
        (Write("a", b"v"), Seen(4, OTHER), (Set("/a", b"v", 3),), {"a": 5}),
        (Write("a", None), None, (), {}),
        (Write("a", None), Seen(4, 0), (Delete("/a", 3),), {}),
        (Write("a", b"v", ABSENT, True), None, (Create("/a", b"v", True),), {"a": 1}),
        (Write("a", b"v", 4, True), Seen(4, ME), (Set("/a", b"v", 3),), {"a": 5}),
        (Write("a", b"v", 4, True), Seen(4, OTHER), (Delete("/a", 3), Create("/a", b"v", True)), {"a": 1}),
        (Write("a", b"v", None, True), Seen(4, 0), (Delete("/a", 3), Create("/a", b"v", True)), {"a": 1}),
        (Check("a", 4), None, (CheckVersion("/a", 3),), {}),
        (Check("a", ABSENT), None, (Create("/a", b""), Delete("/a", -1)), {}),
    ],
)
def test_operations(write: Write | Check, seen: Seen | None, operations: object, versions: object) -> None:
    planned = plan("", ME, [write], {"a": seen})
    assert isinstance(planned, Plan)
    assert planned.operations == operations
    assert planned.versions == versions
    assert set(planned.writes) <= {write}


def test_what_was_seen_may_already_be_a_conflict() -> None:
    assert plan("", ME, [Write("a", b"", 3, True)], {"a": Seen(4, ME)}) == Conflict("a", 3, 4)
    assert plan("", ME, [Write("a", b"", 3, True)], {"a": None}) == Conflict("a", 3, ABSENT)
    assert plan("", ME, [Write("a", b"", ABSENT, True)], {"a": Seen(1, OTHER)}) == Conflict("a", ABSENT, 1)
