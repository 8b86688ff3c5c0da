"""The parts of a flow: sources, steps and sinks, each a frozen value read from what a file says.

A source is a topic, decoded; its name is a table for the steps. A step is SQL over the tables before it, or a
Python function: of a data frame (`python`), or of one record (`each`, with the `schema` of what it returns).
A sink takes one table and writes it to a topic or to files.

A function is `file.py:name`, the file beside the pipeline's; in a Python pipeline it can be the function.
"""

import difflib
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidelog.client.faults import BadOption
from tidelog.pipelines.problems import Misplaced, at
from tidelog.pipelines.python_files import load_module

DECODINGS = ("none", "text", "json")
#: what Spark can write besides topics
FILE_FORMATS = ("parquet", "json", "csv", "orc")
OTHER_FORMATS = ("console", "noop")
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: SQL that needs more than the record at hand, for `stateful` where a file does not say
_STATEFUL = re.compile(
    r"\bgroup\s+by\b|\bjoin\b|\bdistinct\b|\bsession_window\b|\b(count|sum|max|min|avg)\s*\(",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Function:
    """A Python function, and how the file names it."""

    words: str
    #: where it is from, None when the file has it as it is
    path: Path | None
    call: Callable[..., Any] | None = None

    def load(self) -> Callable[..., Any]:
        """The function; raises BadOption."""
        if self.call is not None:
            return self.call
        assert self.path is not None
        name = self.words.rpartition(":")[2]
        found = getattr(load_module(self.path), name, None)
        if not callable(found):
            raise BadOption(f"{self.path.name} has no function {name}")
        called: Callable[..., Any] = found
        return called


@dataclass(frozen=True, slots=True)
class Source:
    """A topic as a table."""

    name: str
    topic: str
    decode: str = "none"
    schema: str | None = None
    #: the column with the event time, and how late a record may be
    watermark: tuple[str, str] | None = None
    #: rules that a record must pass: a name, and a condition in SQL
    expect: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def words(self) -> str:
        decoded = {
            "none": "",
            "text": ", key and value as text",
            "json": f", values are JSON: {self.schema}",
        }
        return f"topic {self.topic} as {self.name}{decoded[self.decode]}"


@dataclass(frozen=True, slots=True)
class Step:
    """A table made of others: exactly one of `sql`, `python` and `each`."""

    name: str
    sql: str | None = None
    python: Function | None = None
    each: Function | None = None
    #: what `each` returns
    schema: str | None = None
    #: the table that a function is given
    reads: str | None = None
    stateful: bool = False

    @property
    def words(self) -> str:
        if self.sql is not None:
            what = " ".join(self.sql.split())
        elif self.python is not None:
            what = f"{self.python.words}({self.reads})"
        else:
            assert self.each is not None
            what = f"{self.each.words} on each record of {self.reads}"
        return f"{self.name}: {what}" + (", with state" if self.stateful else "")


@dataclass(frozen=True, slots=True)
class Sink:
    """A table's way out."""

    name: str
    reads: str
    topic: str | None = None
    format: str = "tidelog"
    #: may be an address with a password in it
    path: str | None = field(default=None, repr=False)
    #: SQL for the columns of a record; without `value` the row goes as JSON
    key: str | None = None
    value: str | None = None
    headers: str | None = None
    timestamp: str | None = None
    partition_by: tuple[str, ...] = ()
    output_mode: str = "append"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def words(self) -> str:
        if self.topic is not None:
            return f"topic {self.topic} from {self.reads}"
        where = "" if self.path is None else f" in {self.path}"
        return f"{self.format}{where} from {self.reads}"


def _check_names(what: str, given: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise BadOption(f"{what} is a mapping of names to values, not {given!r}")
    read = {str(name).replace("-", "_"): value for name, value in given.items()}
    for name, value in read.items():
        if name not in names and value is None:
            # {sql: SELECT a, b FROM t} is what YAML reads as two names.
            sentence = f"{what} has no {name}; a text with a comma between braces needs quotes"
            raise Misplaced(sentence, (name,))
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            meant = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(names)}"
            raise Misplaced(f"{what} has no {name}{meant}", (name,))
    return {name: value for name, value in read.items() if value is not None}


def _texts(what: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise BadOption(f"{what} is a mapping of names to values, not {value!r}")
    return {
        str(name): str(text).lower() if isinstance(text, bool) else str(text) for name, text in value.items()
    }


def _table_name(what: str, name: Any) -> str:
    if not isinstance(name, str) or not _TABLE.fullmatch(name):
        raise BadOption(f"{what} is a name for SQL (letters, digits, '_'), not {name!r}")
    return name


def read_sources(given: Mapping[str, Any], base: Path) -> tuple[Source, ...]:
    """The sources of a file; raises BadOption."""
    if not given:
        raise BadOption("sources is empty: name at least one topic")
    return tuple(_source(name, part) for name, part in given.items())


def _source(name: Any, part: Any) -> Source:
    with at(str(name)):
        return _read_source(_table_name("a source", name), part)


def _read_source(name: str, part: Any) -> Source:
    what = f"source {name}"
    read = _check_names(what, part, ("topic", "decode", "schema", "watermark", "expect", "options"))
    options = _texts(f"{what}: options", read.get("options", {}))
    topic = read.get("topic")
    if topic is None and not {"subscribePattern", "assign"} & set(options):
        raise BadOption(f"{what} needs a topic")
    decode = str(read.get("decode", "none"))
    if decode not in DECODINGS:
        raise Misplaced(f"{what}: decode is one of {', '.join(DECODINGS)}, not {decode!r}", ("decode",))
    if (decode == "json") != ("schema" in read):
        sentence = f"{what}: decode: json and a schema ('customer STRING, amount DOUBLE') go together"
        raise Misplaced(sentence, ("decode",))
    watermark = read.get("watermark")
    if watermark is not None:
        words = str(watermark).split(None, 1)
        if len(words) != 2:
            sentence = f"{what}: watermark is a column and a time, 'at 10 minutes', not {watermark!r}"
            raise Misplaced(sentence, ("watermark",))
        watermark = (words[0], words[1])
    return Source(
        name,
        str(topic or options.get("subscribePattern") or options.get("assign")),
        decode,
        read.get("schema"),
        watermark,
        _texts(f"{what}: expect", read.get("expect", {})),
        options,
    )


def read_steps(given: Any, base: Path, sources: Sequence[str]) -> tuple[Step, ...]:
    """The steps of a file, in their order; raises BadOption."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise BadOption("steps is a list")
    known = list(sources)
    steps: list[Step] = []
    for number, part in enumerate(given):
        with at(number):
            step = _step(part, base, known)
        steps.append(step)
        known.append(step.name)
    return tuple(steps)


def _step(part: Any, base: Path, known: Sequence[str]) -> Step:
    names = ("name", "sql", "python", "each", "schema", "from", "stateful")
    read = _check_names("a step", part, names)
    name = _table_name("the name of a step", read.get("name"))
    what = f"step {name}"
    if name in known:
        raise BadOption(f"{what}: there is already a table {name}")
    kinds = [kind for kind in ("sql", "python", "each") if kind in read]
    if len(kinds) != 1:
        raise BadOption(f"{what} has exactly one of sql, python and each")
    if (kinds[0] == "each") != ("schema" in read):
        raise BadOption(f"{what}: each and a schema of what it returns go together")
    reads = None
    if kinds[0] != "sql":
        reads = str(read.get("from", known[-1]))
        if reads not in known:
            sentence = f"{what} reads {reads}, which is not a table before it ({', '.join(known)})"
            raise Misplaced(sentence, ("from",))
    elif "from" in read:
        raise BadOption(f"{what}: SQL names its tables itself; leave out from")
    sql = read.get("sql")
    stateful = read.get("stateful", sql is not None and _STATEFUL.search(str(sql)) is not None)
    if not isinstance(stateful, bool):
        raise Misplaced(f"{what}: stateful is true or false, not {stateful!r}", ("stateful",))
    return Step(
        name,
        None if sql is None else str(sql).strip().rstrip(";"),
        _function(what, read["python"], base) if kinds[0] == "python" else None,
        _function(what, read["each"], base) if kinds[0] == "each" else None,
        read.get("schema"),
        reads,
        stateful,
    )


def _function(what: str, given: Any, base: Path) -> Function:
    if callable(given):
        return Function(getattr(given, "__name__", repr(given)), None, given)
    file_name, separator, name = str(given).rpartition(":")
    if not separator or not name.isidentifier():
        raise BadOption(f"{what}: a function is 'file.py:name', not {given!r}")
    path = base / file_name
    if not path.is_file():
        raise BadOption(f"{what}: there is no file {path}")
    return Function(str(given), path)


def read_sinks(given: Any, known: Sequence[str]) -> tuple[Sink, ...]:
    """The sinks of a file; raises BadOption."""
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise BadOption("sinks is a list of at least one sink")
    sinks = tuple(_sink(number, part, known) for number, part in enumerate(given))
    names = [sink.name for sink in sinks]
    for name in names:
        if names.count(name) > 1:
            raise BadOption(f"two sinks are called {name}: give them names of their own")
    folders: dict[str, Sink] = {}
    for sink in sinks:
        if sink.path is not None and (other := folders.setdefault(_folder(sink.path), sink)) is not sink:
            # What says which batches are there is in the folder: the second sink would find its batch done.
            raise BadOption(
                f"the sinks {other.name} and {sink.name} write to one folder, {sink.path}:"
                " give each its own, or put their tables together in a step (UNION ALL)"
            )
    return sinks


def _folder(path: str) -> str:
    """A path in the one way that all ways of writing it have in common."""
    scheme, separator, rest = path.partition(":")
    if separator and scheme != "file":
        place, slashes, names = rest.partition("//")
        return f"{scheme}:{place}{slashes}{posixpath.normpath(names)}"
    return str(Path(rest if separator else path).resolve())


def _sink(number: int, part: Any, known: Sequence[str]) -> Sink:
    with at(number):
        return _read_sink(part, known)


def _read_sink(part: Any, known: Sequence[str]) -> Sink:
    names = (
        "name",
        "from",
        "topic",
        "format",
        "path",
        "key",
        "value",
        "headers",
        "timestamp",
        "partition_by",
        "output_mode",
        "options",
    )
    read = _check_names("a sink", part, names)
    reads = str(read.get("from", known[-1]))
    if reads not in known:
        raise Misplaced(f"a sink writes {reads}, which is not a table ({', '.join(known)})", ("from",))
    kind = str(read.get("format", "tidelog"))
    if kind not in ("tidelog", *FILE_FORMATS, *OTHER_FORMATS):
        sentence = f"the sink of {reads}: format is tidelog or one of {', '.join(FILE_FORMATS)}"
        raise Misplaced(sentence, ("format",))
    if (kind == "tidelog") != ("topic" in read) or (kind in FILE_FORMATS) != ("path" in read):
        raise BadOption(f"the sink of {reads} has a topic, or a format of files and a path")
    partition_by = read.get("partition_by", ())
    if isinstance(partition_by, str):
        partition_by = [partition_by]
    return Sink(
        name=str(read.get("name", read.get("topic") or f"{reads}-{kind}")),
        reads=reads,
        topic=None if "topic" not in read else str(read["topic"]),
        format=kind,
        path=None if "path" not in read else str(read["path"]),
        **{name: None if name not in read else str(read[name]) for name in _EXPRESSIONS},
        partition_by=tuple(str(column) for column in partition_by),
        output_mode=str(read.get("output_mode", "append")),
        options=_texts("a sink: options", read.get("options", {})),
    )


_EXPRESSIONS = ("key", "value", "headers", "timestamp")
