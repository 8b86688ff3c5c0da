"""Which Kafka topic an MQTT message goes to and with which key: a table of rules, the first that fits.

    [[rule]]
    filter = "sensors/+/temperature"   # an MQTT filter
    topic = "temperatures"             # a Kafka topic
    key = "{2}"                        # {topic}, or levels of it: {1}, {2}; one key, one order

A message that no rule fits is refused. Without a file there is one rule: everything to the topic `mqtt`, with
the whole MQTT topic as key. The name of the Kafka topic is fixed, so that what a device sends never makes
topics. Backwards, a record of another Kafka client says its MQTT topic in the header `mqtt-topic`, or by a
key from which the rule shows it (`Rule.topic_of`).
"""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from tidelog.gateways.mqtt import filters
from tidelog.gateways.mqtt.faults import BadMap
from tidelog.model.identifiers import topic_name_fault

RULES_MAX = 1_000
FILE_BYTES_MAX = 1 << 20
DEFAULT_TOPIC = "mqtt"
WHOLE_TOPIC = "{topic}"
_PLACE = re.compile(r"\{(topic|[1-9][0-9]{0,2})\}")


@dataclass(frozen=True)
class Rule:
    """One row of the table."""

    filter: str
    topic: str
    key: str = WHOLE_TOPIC

    @cached_property
    def keeps_topic(self) -> bool:
        """Whether the key alone says the whole MQTT topic."""
        return self.key == WHOLE_TOPIC

    def key_of(self, mqtt_topic: str) -> str:
        """The key of a message; a level that the topic does not have is empty."""
        if self.keeps_topic:
            return mqtt_topic
        levels = mqtt_topic.split("/")

        def fill(found: re.Match[str]) -> str:
            if found[1] == "topic":
                return mqtt_topic
            index = int(found[1]) - 1
            return levels[index] if index < len(levels) else ""

        return _PLACE.sub(fill, self.key)

    def topic_of(self, key: str | None) -> str | None:
        """The MQTT topic of a record without the header `mqtt-topic`; None where it cannot be known."""
        if "+" not in self.filter and "#" not in self.filter:
            return self.filter
        if key is None:
            return None
        if self.keeps_topic:
            found = key
        else:
            levels = self.filter.split("/")
            wild = [index for index, level in enumerate(levels) if level == "+"]
            if "#" in self.filter or len(wild) != 1 or self.key != f"{{{wild[0] + 1}}}":
                return None
            levels[wild[0]] = key
            found = "/".join(levels)
        if filters.topic_fault(found) is not None or not filters.covers(self.filter, found):
            return None
        return found if "\0" not in found and len(found.encode()) <= filters.TOPIC_BYTES_MAX else None


class TopicMap:
    """The rules of a gateway."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self.find = lru_cache(maxsize=4096)(self._find)
        self.topic_of = lru_cache(maxsize=4096)(self._topic_of)
        self._by_topic: dict[str, list[Rule]] = {}
        for rule in self.rules:
            self._by_topic.setdefault(rule.topic, []).append(rule)

    def __repr__(self) -> str:
        return f"<TopicMap rules={len(self.rules)} topics={len(self._by_topic)}>"

    @property
    def topics(self) -> tuple[str, ...]:
        """The Kafka topics, in the order of the rules."""
        return tuple(self._by_topic)

    def _find(self, mqtt_topic: str) -> Rule | None:
        for rule in self.rules:
            if filters.covers(rule.filter, mqtt_topic):
                return rule
        return None

    def topics_for(self, text: str) -> tuple[str, ...]:
        """The Kafka topics in which there can be messages that a filter covers."""
        return tuple(dict.fromkeys(rule.topic for rule in self.rules if filters.overlap(rule.filter, text)))

    def _topic_of(self, topic: str, key: bytes | None) -> str | None:
        """The MQTT topic of a record of this Kafka topic that does not say it."""
        try:
            text = None if key is None else key.decode()
        except UnicodeDecodeError:
            text = None
        for rule in self._by_topic.get(topic, ()):
            found = rule.topic_of(text)
            if found is not None:
                return found
        return None


def default_map(topic: str = DEFAULT_TOPIC) -> TopicMap:
    """Everything to one topic."""
    return TopicMap((Rule("#", topic),))


def read_map(path: Path) -> TopicMap:
    """The rules of a file; raises BadMap."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as fault:
        raise BadMap(f"{path} cannot be read: {fault.strerror}") from fault
    if len(content) > FILE_BYTES_MAX:
        raise BadMap(f"{path} has more than {FILE_BYTES_MAX} bytes")
    try:
        written = tomllib.loads(content.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as fault:
        raise BadMap(f"{path} is no TOML: {fault}") from fault
    rows = written.pop("rule", [])
    if written or not isinstance(rows, list) or not rows:
        raise BadMap(f"{path} has [[rule]] tables and nothing else")
    if len(rows) > RULES_MAX:
        raise BadMap(f"{path} has more than {RULES_MAX} rules")
    return TopicMap([_read_rule(index, row) for index, row in enumerate(rows, 1)])


def _read_rule(index: int, row: object) -> Rule:
    if not isinstance(row, dict) or not {"filter", "topic"} <= set(row) <= {"filter", "topic", "key"}:
        raise BadMap(f"rule {index} has a filter, a topic and, if it likes, a key; nothing else")
    if not all(isinstance(value, str) for value in row.values()):
        raise BadMap(f"rule {index}: filter, topic and key are strings")
    rule = Rule(**row)
    fault = filters.filter_fault(rule.filter) or topic_name_fault(rule.topic)
    if fault is not None:
        raise BadMap(f"rule {index}: {fault}")
    if rule.filter.startswith(filters.SHARE_PREFIX):
        raise BadMap(f"rule {index}: shares belong to subscriptions, not to rules")
    if "{" in _PLACE.sub("", rule.key) or "}" in _PLACE.sub("", rule.key) or not rule.key:
        raise BadMap(f"rule {index}: the key has {{topic}}, and levels as {{1}}, {{2}}")
    return rule
