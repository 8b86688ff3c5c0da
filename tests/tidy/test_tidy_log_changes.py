"""What is in a log changes where docs/architecture.md says so ("Who may touch a log"), and nowhere else.

The table there is compared with the source of the broker, function by function. A mention counts like a call:
who hands a method on has it called. Producer state, flushes, names and indexes are not meant: they change
nothing of what can be read.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.storage.partition_log import PartitionLog

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tidelog"
BROKER = SOURCE / "broker"
PAGE = ROOT / "docs" / "architecture.md"
#: methods of a log that change which records it has, or where it begins, ends or was in which epoch
CHANGES = {
    *("append", "append_many", "append_replicated", "begin_epoch", "roll"),
    *("truncate_to", "truncate_fully_and_start_at", "lower_recovery_point"),
    *("advance_log_start", "delete_segments", "begin_replacement", "finish_replacement"),
}
#: the others, but for those that read
KEEPS = {
    *("open", "close", "set_topic_id", "reconfigure", "takes_in_one_write"),
    *("flush_plan", "flushed", "flush", "write_indexes", "retention_plan"),
}
#: `LogMaintenance` and `FollowedLogs` have methods of the same names, which call the log's or the replica's
NO_LOG = {"log_maintenance", "logs"}
_ROW = re.compile(r"\| [^|]+ \| `broker/(?P<where>[\w/.]+)` \| (?P<how>[^|]+) \|")


def last_name(node: ast.expr) -> str:
    """Of `self._partition.log`: log."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def functions(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Each function of a module with the name of its class before it; what is inside of it belongs to it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{owner}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{owner}{node.name}.")
        else:
            yield owner.rstrip(".") or "the module itself", node


def changes_in(node: ast.AST) -> set[str]:
    """The ways in which a function changes a log."""
    found: set[str] = set()
    for each in ast.walk(node):
        match each:
            case ast.Attribute(attr="log", ctx=ast.Store()):
                found.add("log")
            case ast.Attribute(value=value, attr="append"):
                if last_name(value).strip("_") == "log":
                    found.add("append")
            case ast.Attribute(value=value, attr=name) if name in CHANGES:
                if last_name(value).strip("_") not in NO_LOG:
                    found.add(name)
            case ast.Call(func=ast.Attribute(value=value, attr="append"), args=args, keywords=keywords):
                # A list takes one thing.
                several = len(args) != 1 or keywords or isinstance(args[0], ast.Starred)
                if several and last_name(value).strip("_") not in NO_LOG:
                    found.add("append")
            case ast.Call(func=ast.Attribute(attr="begin" | "apply" as name), args=args):
                # The segments of a `CleaningResult`.
                if any(last_name(argument).strip("_") == "log" for argument in args):
                    found.add(name)
    return found


def changes_in_module(module: str, text: str) -> set[tuple[str, str]]:
    return {
        (f"{module}.{name}", change)
        for name, node in functions(ast.parse(text))
        for change in changes_in(node)
    }


def table() -> set[tuple[str, str]]:
    """Where, and which attribute of the log, the result or the replica."""
    section = PAGE.read_text().partition("\n## Who may touch a log\n")[2].partition("\n## ")[0]
    return {
        (row["where"], quoted.rpartition(".")[2])
        for row in _ROW.finditer(section)
        for quoted in re.findall(r"`([^`]+)`", row["how"])
    }


def test_the_broker_changes_logs_where_the_page_says() -> None:
    found = set()
    for path in sorted(BROKER.rglob("*.py")):
        module = str(path.relative_to(BROKER).with_suffix(""))
        found |= changes_in_module(module, path.read_text())
    assert found == table()


def test_nobody_outside_of_the_broker_changes_logs() -> None:
    """The server holds a broker and its logs; others could only open one themselves."""
    for path in sorted((SOURCE / "server").rglob("*.py")):
        # A supervised process has a `log` as well: what it writes to the terminal.
        assert {each for each in changes_in(ast.parse(path.read_text())) if each != "log"} == set(), path
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).parts[0] not in ("broker", "storage"):
            assert "storage.partition_log" not in path.read_text(), path


def test_every_method_of_a_log_is_known() -> None:
    public = {
        name
        for name, value in vars(PartitionLog).items()
        if not name.startswith("_") and (callable(value) or isinstance(value, classmethod | staticmethod))
    }
    assert public == CHANGES | KEEPS


@pytest.mark.parametrize(
    ("line", "change"),
    [
        *((f"partition.log.{name}(5)", name) for name in sorted(CHANGES)),
        ("here.append(view, header, 5, 1, now_ms)", "append"),
        ("here.append(*batch)", "append"),
        ("later(self._log.append)", "append"),
        ("later(here.truncate_to)", "truncate_to"),
        ("result.begin(partition.log, disk)", "begin"),
        ("partition.log = other", "log"),
        ("run(lambda: partition.log.truncate_to(5))", "truncate_to"),
    ],
)
def test_a_planted_change_is_found(line: str, change: str) -> None:
    planted = f"class Handler:\n    def handle(self, partition):\n        {line}\n"
    found = changes_in_module("requests/handlers/planted", planted)
    assert found == {("requests/handlers/planted.Handler.handle", change)}
    assert not found & table()


def test_a_list_is_no_log() -> None:
    assert not changes_in(
        ast.parse("found.append(log)\nself.log_maintenance.advance_log_start(partition, 5)")
    )
