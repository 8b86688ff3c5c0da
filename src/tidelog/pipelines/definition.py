"""A pipeline as a file: what YAML or Python says, read into a frozen value and checked.

    name: big-orders                     # default: the name of the file
    bootstrap: localhost:9092            # or kafka: {bootstrap.servers: …, security.protocol: …}
    trigger: 10 seconds                  # available_now | continuous (default) | a time
    checkpoint: /data/checkpoints/big    # default: below ~/.tidelog/pipelines
    dead_letters: big-orders-dead
    engine: spark                        # local: this process, for kinds that can
    master: local[*]
    spark: {spark.sql.shuffle.partitions: 4}
    shared: true                         # the team sees, stops and takes it over from any machine

and then either a ready pipeline

    kind: archive
    options: {topic: orders, path: /data/orders}

or sources, steps and sinks (see `flow_parts`):

    sources:
      orders: {topic: orders, decode: json, schema: "customer STRING, amount DOUBLE"}
    steps:
      - {name: big, sql: SELECT customer, amount FROM orders WHERE amount > 100}
    sinks:
      - {from: big, topic: big-orders, key: customer}

A Python file has a variable `pipeline`: a mapping with the same fields, in which a step may be a function
itself.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tidelog.client.faults import BadOption
from tidelog.pipelines.flow_parts import Sink, Source, Step, read_sinks, read_sources, read_steps
from tidelog.pipelines.problems import Misplaced, Where, at, python_lines, told_with_lines, yaml_lines
from tidelog.pipelines.python_files import load_module
from tidelog.pipelines.ready import engines_of, ready_pipeline
from tidelog.pipelines.run_settings import RunSettings, Trigger, TriggerKind, kafka_options

_FLOW_NAMES = ("sources", "steps", "sinks")
_NAMES = (
    "name",
    "kind",
    "options",
    "bootstrap",
    "kafka",
    "trigger",
    "checkpoint",
    "dead_letters",
    "engine",
    "master",
    "spark",
    "shared",
    *_FLOW_NAMES,
)
YAML_ENDINGS = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Definition:
    """One pipeline: how it runs, and either a ready pipeline or a flow."""

    run: RunSettings
    #: None for a flow
    kind: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    steps: tuple[Step, ...] = ()
    sinks: tuple[Sink, ...] = ()
    #: the file it was read from
    origin: Path | None = None
    #: the line of the file in which something stands
    lines: Mapping[Where, int] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        return f"<Definition {self.run.name} {self.kind or 'flow'}>"


@dataclass(frozen=True, slots=True)
class Overrides:
    """What a command line says goes before what the file says."""

    name: str | None = None
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: the cluster, when neither the file nor the command line names one
    bootstrap_default: str | None = None
    trigger: str | None = None
    checkpoint: str | None = None
    dead_letters: str | None = None
    engine: str | None = None
    master: str | None = None
    shared: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)


def read_definition(
    content: Mapping[str, Any], overrides: Overrides | None = None, *, stem: str, origin: Path | None = None
) -> Definition:
    """Check what a file says; `stem` is the name if there is none. Raises BadOption."""
    over = overrides or Overrides()
    given = {str(name).replace("-", "_"): value for name, value in content.items() if value is not None}
    for name in given:
        if name not in _NAMES:
            near = difflib.get_close_matches(name, _NAMES, n=1)
            meant = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(_NAMES)}"
            raise Misplaced(f"a pipeline has no {name}{meant}", (name,))
    kind = given.get("kind")
    flow = [name for name in _FLOW_NAMES if name in given]
    if kind is not None and flow:
        sentence = f"a pipeline of kind {kind} has its own {flow[0]}: leave out one or the other"
        raise Misplaced(sentence, (flow[0],))
    if kind is None and ("sources" not in given or "sinks" not in given):
        raise BadOption("a pipeline has a kind (a ready pipeline), or sources, steps and sinks")
    run = _run_settings(given, over, stem)
    if kind is not None:
        options = {**_mapping(given, "options"), **over.options}
        with at("kind"):
            return Definition(run, ready_pipeline(str(kind)).name, options, origin=origin)
    if over.options or "options" in given:
        sentence = "options are for ready pipelines; sources, steps and sinks have their own"
        raise Misplaced(sentence, ("options",))
    base = Path.cwd() if origin is None else origin.parent
    with at("sources"):
        sources = read_sources(_mapping(given, "sources"), base)
    with at("steps"):
        steps = read_steps(given.get("steps", ()), base, [source.name for source in sources])
    known = [source.name for source in sources] + [step.name for step in steps]
    with at("sinks"):
        sinks = read_sinks(given["sinks"], known)
    return Definition(run, sources=sources, steps=steps, sinks=sinks, origin=origin)


def _mapping(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = given.get(name, {})
    if not isinstance(value, Mapping):
        raise Misplaced(f"{name} is a mapping of names to values, not {value!r}", (name,))
    return value


def _run_settings(given: Mapping[str, Any], over: Overrides, stem: str) -> RunSettings:
    kafka = kafka_options(_mapping(given, "kafka"))
    if "bootstrap" in given:
        kafka["kafka.bootstrap.servers"] = str(given["bootstrap"])
    kafka |= kafka_options(over.kafka)
    if any(name.lower() == "kafka.group.id" for name in kafka):
        raise Misplaced(
            "kafka has no group.id for a whole pipeline: each query has a group of its own, which shows its "
            "lag; a source takes another one with options: {group.id: …}",
            ("kafka", "group.id"),
        )
    if over.bootstrap_default is not None:
        kafka.setdefault("kafka.bootstrap.servers", over.bootstrap_default)
    trigger = over.trigger or given.get("trigger")
    checkpoint = over.checkpoint or given.get("checkpoint")
    dead_letters = over.dead_letters or given.get("dead_letters")
    return RunSettings(
        name=over.name or str(given.get("name", stem)),
        trigger=Trigger(TriggerKind.CONTINUOUS) if trigger is None else _trigger(trigger),
        kafka=kafka,
        checkpoint="" if checkpoint is None else _absolute(str(checkpoint)),
        dead_letters=None if dead_letters is None else str(dead_letters),
        engine=_engine(given, over),
        master=over.master or str(given.get("master", "local[*]")),
        shared=_flag("shared", given.get("shared", False) if over.shared is None else over.shared),
        spark={name: _spark_text(value) for name, value in _mapping(given, "spark").items()},
    )


def _engine(given: Mapping[str, Any], over: Overrides) -> str:
    kind = None if given.get("kind") is None else str(given["kind"]).replace("_", "-")
    can = engines_of(kind)
    chosen = over.engine or given.get("engine", can[0])
    if chosen not in can:
        what = "a flow" if kind is None else f"a pipeline of kind {kind}"
        raise Misplaced(f"{what} runs with engine: {' or '.join(can)}, not {chosen!r}", ("engine",))
    return str(chosen)


def _trigger(words: Any) -> Trigger:
    with at("trigger"):
        return Trigger.read(words)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise Misplaced(f"{name} is true or false, not {value!r}", (name,))
    return value


def _absolute(path: str) -> str:
    """Spark takes a relative path for one below the working directory of whoever asks."""
    return path if "://" in path else str(Path(path).absolute())


def _spark_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def load_definition(path: Path, overrides: Overrides | None = None) -> Definition:
    """Read a file; raises BadOption, with the file's name in it, and the line where there is one."""
    if not path.exists():
        raise BadOption(f"there is no file {path}")
    is_yaml = path.suffix in YAML_ENDINGS
    with told_with_lines(path, {}):
        content = _yaml(path) if is_yaml else _python(path)
    text = path.read_text(encoding="utf-8")
    lines = yaml_lines(text) if is_yaml else python_lines(text)
    with told_with_lines(path, lines):
        definition = read_definition(content, overrides, stem=path.stem, origin=path.absolute())
    return replace(definition, lines=lines)


def _yaml(path: Path) -> Mapping[str, Any]:
    """YAML 1.2: `on`, `no` and `1:30` are what is written, and a key that stands twice is a fault."""
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError, YAMLError
    except ModuleNotFoundError:
        raise BadOption("YAML needs ruamel.yaml: pip install 'tidelog[spark]'") from None
    try:
        content = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except YAMLError as fault:
        words = " ".join(str(fault).split())
        if isinstance(fault, MarkedYAMLError) and (mark := fault.problem_mark) is not None:
            words = f"{fault.problem} (line {mark.line + 1}, column {mark.column + 1})"
        raise BadOption(f"this is not YAML: {words}") from None
    if not isinstance(content, Mapping):
        raise BadOption("a pipeline is a mapping of names to values")
    return content


def _python(path: Path) -> Mapping[str, Any]:
    content = getattr(load_module(path), "pipeline", None)
    if not isinstance(content, Mapping):
        raise BadOption("a pipeline in Python is a variable 'pipeline' that is a mapping")
    return content
