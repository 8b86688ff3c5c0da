"""An exactly-once application of librdkafka goes on when the coordinator of its group dies (the short form).

Its clients look at the metadata five times a second here, so that most of them know that the broker left when
their next transaction begins: the case in which librdkafka by itself waits without end (see
offset_commit_watch). The long form is `make coordinator-kills`.
"""

import subprocess
from datetime import timedelta

import pytest

from tests.chaos.kafka_wire import WireClient
from tests.support.child_programs import environment, program
from tidelog.testing import RunningBroker

PROGRAM = "tests.chaos.coordinator_kills"

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("cluster")]


def test_a_producer_that_does_not_bring_the_offsets_it_announced_loses_its_connection(
    tidelog_broker: RunningBroker,
) -> None:
    with WireClient(tidelog_broker.bootstrap) as client:
        for key, key_type in (("tx", 1), ("group", 0)):
            found = client.ask("find_coordinator", 2, key=key, key_type=key_type)
            assert int(found.error_code) == 0
        minute = timedelta(minutes=1)
        producer = client.ask("init_producer_id", 1, transactional_id="tx", transaction_timeout=minute)
        assert int(producer.error_code) == 0
        owner = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
        added = client.ask("add_offsets_to_txn", 0, transactional_id="tx", group_id="group", **owner)
        assert int(added.error_code) == 0
        assert client.closed_by_peer(within_seconds=10)


@pytest.mark.slow
def test_the_application_goes_on_when_its_coordinator_is_killed() -> None:
    options = ["--kills=2", "--pause=2", "--away=25", "--patience=30"]
    done = subprocess.run(
        [*program(PROGRAM), *options, "topic.metadata.refresh.interval.ms=200"],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
