"""`tidelog sql` over a topic and an Iceberg table."""

import json
from pathlib import Path

from confluent_kafka import Producer

from tests.conformance.drivers.contract import DEADLINE_SECONDS, TopicMaker
from tests.conformance.test_conformance_cli import Cli, cli
from tests.unit.pipelines import lake_tables

__all__ = ["cli"]


def test_a_topic_joined_with_a_table(
    cli: Cli, bootstrap: str, make_topic: TopicMaker, tmp_path: Path
) -> None:
    topic = make_topic(3)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(300):
        producer.produce(topic, json.dumps({"id": number, "amount": number / 2}), str(number))
    assert producer.flush(DEADLINE_SECONDS) == 0
    lake_tables.commit(lake_tables.make(tmp_path), 2, 7, 8, 1_000)
    rows = f"""SELECT id, sum((value->>'$.amount')::DOUBLE) AS amount, min(key) AS key
        FROM "{topic}" JOIN lake.orders ON id = (value->>'$.id')::BIGINT GROUP BY id ORDER BY id"""
    found = json.loads(cli("sql", rows, "--warehouse", str(tmp_path), "--catalog", "test", "--json").stdout)
    assert found == [{"id": 7, "amount": 3.5, "key": "7"}, {"id": 8, "amount": 4.0, "key": "8"}]
    count = cli("sql", f'SELECT count(*) AS n FROM "{topic}"', "--last", "30")
    head, shown = count.stdout.split()
    assert head == "N" and 30 <= int(shown) < 33 and "the newest 30 records" in count.stderr
    refused = cli("sql", "SELECT * FROM nowhere", code=1)
    assert "has no topic nowhere" in refused.stderr
