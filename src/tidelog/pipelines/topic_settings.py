"""The settings of a topic, copied to the topic that its records are copied to, and kept in step.

What is copied says how long and in which form records are kept; what belongs to the place (replicas,
throttles, disks) is not. Records keep their timestamps, so a copy has `message.timestamp.type=CreateTime`.

    <checkpoint>/copied-settings.json      {"eu.orders": {"retention.ms": "-1", …}}

is what a pipeline has set. A topic that was there before, and that would lose records which the source keeps
(compaction, retention), is left alone and refused: whoever made it so may have meant it. A difference to what
the pipeline itself has set comes from the source, and is followed.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.admin.configs import ConfigResource, ConfigSource, ConfigView, alter_configs, describe_configs
from tidelog.client.faults import BadOption, ClientFault, Refusal
from tidelog.model.errors import ErrorCode
from tidelog.pipelines.file_store import FileStore
from tidelog.pipelines.problems import Findings, Problem, Where
from tidelog.pipelines.target_topics import client_settings

POLICY, RETENTION_MS, RETENTION_BYTES = "cleanup.policy", "retention.ms", "retention.bytes"
TIMESTAMP_TYPE = "message.timestamp.type"
#: copied with the value that holds in the source, whoever has set it: a default of the other cluster may lose
KEEPING = (POLICY, RETENTION_MS, RETENTION_BYTES)
#: copied where the source topic sets them
COPIED = (
    *KEEPING,
    "delete.retention.ms",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
    "min.cleanable.dirty.ratio",
    "max.message.bytes",
    "compression.type",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.zstd.level",
    "segment.bytes",
    "segment.ms",
    "segment.jitter.ms",
)
COPY, LEAVE, OVERWRITE = "copy", "leave", "overwrite"
CHOICES = (COPY, LEAVE, OVERWRITE)
WORDS = f"settings of the source are copied and kept in step: {', '.join(COPIED)}"
_FILE = "copied-settings.json"

Views = Mapping[str, ConfigView]
#: what a pipeline has set, by topic
Memory = dict[str, dict[str, str]]


class OtherSettings(BadOption):
    """The topic is there, and would lose what the source keeps."""


@dataclass(frozen=True, slots=True)
class SettingsCopy:
    """From one topic to another."""

    topic: str
    to: str
    source: Mapping[str, str] = field(repr=False)
    target: Mapping[str, str] = field(repr=False)
    where: Where = ("options", "to")
    #: one of CHOICES
    mode: str = COPY


@dataclass(frozen=True, slots=True)
class Change:
    """What a topic needs to have the settings of its source."""

    values: Mapping[str, str]
    removed: tuple[str, ...] = ()
    #: why the topic as it is loses records, one sentence each
    losses: tuple[str, ...] = ()

    def words(self) -> str:
        parts = [f"{name}={value}" for name, value in sorted(self.values.items())]
        return ", ".join([*parts, *(f"{name} unset" for name in self.removed)])


def views_of(kafka: Mapping[str, str], topic: str) -> dict[str, ConfigView] | None:
    """The settings of a topic by name; None when it is not there. Raises Refusal, LinkFault."""
    with ClusterAdmin(lambda: client_settings(kafka)) as admin:
        try:
            return {view.name: view for view in describe_configs(admin, ConfigResource.TOPIC, topic)}
        except Refusal as refusal:
            if refusal.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return None
            raise


def wanted(source: Views) -> dict[str, str]:
    """What the copy of a topic is to have."""
    found = {
        name: str(source[name].value)
        for name in COPIED
        if name in source
        and source[name].value is not None
        and (name in KEEPING or source[name].source is ConfigSource.TOPIC)
    }
    return {**found, TIMESTAMP_TYPE: "CreateTime"}


def change(source: Views, target: Views, set_before: Mapping[str, str] | None) -> Change:
    """What is to be set in a topic that is there; `set_before` is what this pipeline has set in it."""
    goal, before = wanted(source), set_before or {}
    values = {
        name: value
        for name, value in goal.items()
        if name in target and _plain(name, target[name].value) != _plain(name, value)
    }
    removed = tuple(
        name
        for name in before
        if name not in goal and name in target and target[name].source is ConfigSource.TOPIC
    )
    by_others = [name for name in values if target[name].value != before.get(name)]
    losses = tuple(losses_of(source, target)) if {*KEEPING, TIMESTAMP_TYPE} & set(by_others) else ()
    return Change(values, removed, losses)


def losses_of(source: Views, target: Views) -> Iterable[str]:
    """Why a copy with these settings would lose what its source keeps."""
    ours, theirs = _policies(source), _policies(target)
    if "compact" in theirs and "compact" not in ours:
        yield "compaction would remove all but the last record of a key"
    if "delete" in theirs and "delete" not in ours:
        yield "retention would remove records, which the source only compacts"
    elif "delete" in theirs:
        for name in (RETENTION_MS, RETENTION_BYTES):
            here, there = _limit(source, name), _limit(target, name)
            if there < here:
                yield f"{name} is {target[name].value}, and {source[name].value} in the source"
    if TIMESTAMP_TYPE in target and target[TIMESTAMP_TYPE].value == "LogAppendTime":
        yield "with message.timestamp.type=LogAppendTime records would lose their timestamps"


def _policies(views: Views) -> set[str]:
    return set(_plain(POLICY, views[POLICY].value).split(",")) if POLICY in views else {"delete"}


def _limit(views: Views, name: str) -> float:
    value = int(views[name].value or -1) if name in views else -1
    return float("inf") if value < 0 else value


def _plain(name: str, value: str | None) -> str:
    """A value in one spelling: `compact, delete` is `compact,delete`."""
    if name == POLICY:
        return ",".join(sorted(part.strip() for part in str(value).split(",")))
    return str(value)


# ---------------------------------------------------------------- what was set


def read_memory(store: FileStore, checkpoint: str) -> Memory:
    found: Memory = json.loads(store.read(_path(checkpoint)) or "{}")
    return found


def write_memory(store: FileStore, checkpoint: str, memory: Memory) -> None:
    store.write(_path(checkpoint), json.dumps(memory, sort_keys=True))


def _path(checkpoint: str) -> str:
    return f"{checkpoint.rstrip('/')}/{_FILE}"


# ---------------------------------------------------------------- carrying out


def settings_for_missing(copy: SettingsCopy) -> dict[str, str]:
    """What a topic that is to be made gets; raises BadOption when the source does not tell."""
    return wanted(_source_views(copy))


def _source_views(copy: SettingsCopy) -> dict[str, ConfigView]:
    try:
        views = views_of(copy.source, copy.topic)
    except Refusal as refusal:
        raise BadOption(
            f"the settings of topic {copy.topic} cannot be copied ({refusal}): it needs DESCRIBE_CONFIGS "
            f"on it; or set settings: {LEAVE}"
        ) from refusal
    if views is None:
        raise BadOption(f"topic {copy.topic} is not there, so its settings cannot be copied")
    return views


def needed(copy: SettingsCopy, set_before: Mapping[str, str] | None) -> Change | None:
    """What a topic that is there needs; None when it is missing. Raises OtherSettings where it would lose."""
    target = views_of(copy.target, copy.to)
    if target is None:
        return None
    found = change(_source_views(copy), target, set_before)
    if found.losses and copy.mode != OVERWRITE:
        raise OtherSettings(
            f"topic {copy.to} is there with other settings than {copy.topic}, and would lose records: "
            f"{'; '.join(found.losses)}. To make it like the source: tidelog topic alter {copy.to} "
            f"{' '.join(f'--set {name}={value}' for name, value in sorted(found.values.items()))}; "
            f"or set settings: {OVERWRITE}, which does the same, or settings: {LEAVE} to copy all the same"
        )
    return found


def bring_in_step(copy: SettingsCopy, memory: Memory) -> Change | None:
    """Give a topic the settings of its source; returns what was set. Raises OtherSettings, ClientFault."""
    found = needed(copy, memory.get(copy.to))
    if found is None:
        return None
    if found.values or found.removed:
        with ClusterAdmin(lambda: client_settings(copy.target)) as admin:
            alter_configs(admin, ConfigResource.TOPIC, copy.to, found.values, found.removed)
    memory[copy.to] = settings_for_missing(copy)
    return found


# ---------------------------------------------------------------- before the start


def check_copies(copies: Iterable[SettingsCopy], checkpoint: str) -> Findings:
    """What a plan says of the settings of topics; changes nothing. Other checks find what cannot be asked."""
    found = Findings()
    for copy in copies:
        if copy.mode != LEAVE:
            try:
                found += Findings((), tuple(_words(copy, _local_memory(checkpoint))))
            except BadOption as fault:
                found += Findings((Problem(copy.where, str(fault)),))
            except ClientFault:
                continue
    return found


def _words(copy: SettingsCopy, memory: Memory) -> Iterable[str]:
    needs = needed(copy, memory.get(copy.to))
    if needs is None:
        made = Change(settings_for_missing(copy))
        yield f"topic {copy.to} is made with the settings of {copy.topic}: {made.words()}"
    elif needs.values or needs.removed:
        yield f"topic {copy.to} gets the settings of {copy.topic}: {needs.words()}"


def _local_memory(checkpoint: str) -> Memory:
    """What was set, where the checkpoint is a folder of this machine."""
    path = Path(_path(checkpoint).removeprefix("file://"))
    if "://" in str(path) or not path.is_file():
        return {}
    found: Memory = json.loads(path.read_text())
    return found
