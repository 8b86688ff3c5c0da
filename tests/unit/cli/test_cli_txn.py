"""`tidelog txn` against a broker in this process."""

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from tidelog.cli.main import tidelog
from tidelog.testing.broker import RunningBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with RunningBroker({"transaction.state.log.num.partitions": "2"}) as running:
        running.create_topic("orders", partitions=1)
        yield running


@pytest.fixture(scope="module")
def producer(broker: RunningBroker) -> Producer:
    """A producer with an open transaction in orders-0."""
    made = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "billing-1"})
    made.init_transactions(10)
    made.begin_transaction()
    made.produce("orders", b"x", partition=0)
    assert made.flush(10) == 0
    return made


def run(broker: RunningBroker, *words: str) -> Result:
    return CliRunner().invoke(tidelog, ["txn", *words, "--bootstrap", broker.bootstrap])


def test_list(broker: RunningBroker, producer: Producer) -> None:
    (row,) = json.loads(run(broker, "list", "--state", "Ongoing", "--json").output)
    assert (row["transactional_id"], row["state"]) == ("billing-1", "Ongoing")
    assert "billing-1" in run(broker, "list").output
    assert "no transactional ids in this state" in run(broker, "list", "--state", "PrepareAbort").output
    assert "no transaction state 'Nope'" in run(broker, "list", "--state", "Nope").output


def test_describe(broker: RunningBroker, producer: Producer) -> None:
    found = json.loads(run(broker, "describe", "billing-1", "--json").output)
    assert found["partitions"] == ["orders-0"] and found["timeout_ms"] == 60_000
    assert "Ongoing" in run(broker, "describe", "billing-1").output
    missing = run(broker, "describe", "nobody")
    assert missing.exit_code == 1 and "TRANSACTIONAL_ID_NOT_FOUND" in missing.output


def test_abort(broker: RunningBroker, producer: Producer) -> None:
    shown = run(broker, "abort", "orders", "0")
    assert "START OFFSET" in shown.output.upper()
    assert "no such transaction" in run(broker, "abort", "orders", "0", "--start-offset", "9").output
    assert "no partition orders-7" in run(broker, "abort", "orders", "7").output
    assert "add --yes" in run(broker, "abort", "orders", "0", "--start-offset", "0").output
    done = run(broker, "abort", "orders", "0", "--start-offset", "0", "--yes")
    assert done.exit_code == 0 and "Aborted" in done.output
    assert "No transaction is open" in run(broker, "abort", "orders", "0").output
