"""Rules from MQTT topics to Kafka topics and back, and messages as records."""

from pathlib import Path
from typing import Any

import pytest

from tidelog.gateways.mqtt import messages
from tidelog.gateways.mqtt.faults import BadMap
from tidelog.gateways.mqtt.mapping import Rule, TopicMap, default_map, read_map
from tidelog.gateways.mqtt.packets import Publish
from tidelog.gateways.mqtt.properties import Property

RULES = """
[[rule]]
filter = "sensors/+/temperature"
topic = "temperatures"
key = "{2}"

[[rule]]
filter = "sensors/#"
topic = "sensors"

[[rule]]
filter = "alarm"
topic = "alarms"
key = "all"
"""


@pytest.fixture
def rules(tmp_path: Path) -> TopicMap:
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    return read_map(path)


def test_the_first_rule_that_fits_counts(rules: TopicMap) -> None:
    def place(topic: str) -> tuple[str, str] | None:
        rule = rules.find(topic)
        return None if rule is None else (rule.topic, rule.key_of(topic))

    assert place("sensors/7/temperature") == ("temperatures", "7")
    assert place("sensors/7/humidity") == ("sensors", "sensors/7/humidity")
    assert place("alarm") == ("alarms", "all")
    assert place("elsewhere") is None
    assert rules.topics_for("sensors/#") == ("temperatures", "sensors")
    assert rules.topics_for("#") == ("temperatures", "sensors", "alarms")
    assert rules.topics_for("alarm/#") == ("alarms",)


def test_records_of_others_say_their_topic_by_the_key(rules: TopicMap) -> None:
    assert rules.topic_of("temperatures", b"7") == "sensors/7/temperature"
    assert rules.topic_of("temperatures", b"7/8") is None
    assert rules.topic_of("temperatures", b"+") is None
    assert rules.topic_of("sensors", b"sensors/a/b") == "sensors/a/b"
    assert rules.topic_of("sensors", b"other/a") is None
    assert rules.topic_of("sensors", None) is None
    assert rules.topic_of("alarms", None) == "alarm"
    assert default_map().topic_of("mqtt", b"a/b") == "a/b"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x = 1",
        "[[rule]]\nfilter = 'a'",
        "[[rule]]\nfilter = 'a#'\ntopic = 't'",
        "[[rule]]\nfilter = 'a'\ntopic = 't/t'",
        "[[rule]]\nfilter = 'a'\ntopic = 't'\nkey = '{0}'",
        "[[rule]]\nfilter = 'a'\ntopic = 't'\nkeys = 'x'",
        "[[rule]]\nfilter = '$share/g/a'\ntopic = 't'",
        "[[rule]]\nfilter = 1\ntopic = 't'",
        "no toml",
    ],
)
def test_a_bad_file_is_refused_with_the_reason(text: str, tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(BadMap):
        read_map(path)
    with pytest.raises(BadMap):
        read_map(tmp_path / "missing.toml")


@pytest.mark.parametrize("rule", [Rule("#", "mqtt"), Rule("#", "mqtt", "{1}")])
def test_a_message_is_the_same_after_its_record(rule: Rule) -> None:
    properties: dict[int, Any] = {
        Property.CONTENT_TYPE: "text/plain",
        Property.CORRELATION_DATA: b"\x00\xff",
        Property.PAYLOAD_FORMAT: 1,
        Property.USER_PROPERTY: [("a", "1"), ("a", "2"), ("tidelog-priority", "9")],
    }
    packet = Publish("a/b", b"x", 1, True, properties={**properties, Property.MESSAGE_EXPIRY: 5})
    message = messages.from_packet(packet, "a/b", "me", 1_000)
    record = messages.to_record(message, rule)
    again = messages.from_record(default_map().topic_of("mqtt", record.key), record.value, record.headers)
    assert again == message
    assert again is not None and again.expires_at_ms == 6_000


def test_user_properties_cannot_pose_as_the_gateways_own() -> None:
    pairs = [("mqtt-qos", "0"), ("mqtt-client", "somebody"), ("mqtt-topic", "b"), ("", "x")]
    packet = Publish("a", b"x", 1, properties={Property.USER_PROPERTY: pairs})
    record = messages.to_record(messages.from_packet(packet, "a", "me", 0), Rule("#", "mqtt"))
    assert record.headers == [("mqtt-qos", b"1"), ("mqtt-client", b"me")]


def test_headers_of_others_that_mqtt_cannot_carry_are_left_out() -> None:
    headers = [
        ("raw", b"\xff\xfe"),
        ("null", None),
        ("text", b"yes"),
        ("mqtt-qos", b"7"),
        ("mqtt-expires-at", b"x"),
    ]
    message = messages.from_record("a", None, headers)
    assert message is not None and message.payload == b"" and message.qos == 2 and message.expires_at_ms == 0
    assert message.properties == {Property.USER_PROPERTY: [("null", ""), ("text", "yes")]}
    assert messages.from_record("a", b"", [("mqtt-topic", b"a/#")]) is None
