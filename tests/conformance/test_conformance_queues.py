"""Share groups with real clients: what `java/Queues.java` says here is what it says on Apache Kafka 4.3.1.

`TIDELOG_TEST_BOOTSTRAP=$(tests/conformance/oracle start) pytest tests/conformance/test_conformance_queues.py`
holds the same expectations against Apache Kafka.
"""

import subprocess

import pytest

from tests.conformance.drivers.contract import new_name, require_program
from tests.conformance.drivers.java import SOURCE, java_command, tool_jars

PROGRAM = SOURCE.with_name("Queues.java")
RUN_SECONDS = 240

#: what each scenario says
EXPECTED = {
    "implicit": ["records 60 deliveries 60", "left 0"],
    "explicit": [
        *(f"{n:03} {[1, 2] if n % 5 == 0 else [1]}" for n in range(30)),
        "left 0",
    ],
    "limit": [f"{n:03} [1, 2, 3]" for n in range(4)],
    "renew": ["held 3 timeout 3000", "accepted true", "others got 0", "left 0"],
    "expiry": ["held 2", "again 000 2", "again 001 2", "late accepted"],
    "exact": ["sizes [4, 4, 2]"],
    "batches": ["sizes [10]"],
    "members": ["members 6", "records 600 deliveries 600"],
    "committed": ["records [0-0, 0-1, 0-2, 2-0, 2-1, 2-2]"],
    "offsets": [
        "first 20",
        "listed Share share Empty",
        "described Empty members 0",
        "lags {0=0, 1=0}",
        "altered {0=6, 1=0}",
        "again 6",
        "deleted {}",
        "from the start 20",
        "listed nowhere",
    ],
    "errors": [
        "no group GroupIdNotFoundException",
        "delete none GroupIdNotFoundException",
        "delete with members GroupNotEmptyException",
        "alter with members GroupNotEmptyException",
        "as a consumer group GroupIdNotFoundException",
        "bad setting InvalidConfigurationException",
        "unknown topic UnknownTopicOrPartitionException",
    ],
}


@pytest.mark.parametrize("scenario", EXPECTED)
def test_a_java_share_consumer_is_served_as_by_kafka(bootstrap: str, scenario: str) -> None:
    command = java_command(PROGRAM, bootstrap, new_name("queues"), scenario)
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    said = [line.removeprefix(f"{scenario} ") for line in done.stdout.splitlines()]
    assert said == EXPECTED[scenario]


def test_kafkas_own_command_shows_and_changes_share_groups(bootstrap: str) -> None:
    prefix = new_name("queues")
    group, topic = f"{prefix}-implicit-group", f"{prefix}-implicit"
    made = java_command(PROGRAM, bootstrap, prefix, "implicit")
    subprocess.run(made, check=True, capture_output=True, timeout=RUN_SECONDS)

    def said(*arguments: str) -> list[list[str]]:
        """The words of each line."""
        tool = [require_program("java"), "-XX:TieredStopAtLevel=1", "-cp", f"{tool_jars()}/*"]
        name = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
        command = [*tool, name, "--bootstrap-server", bootstrap, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
        return [line.split() for line in done.stdout.splitlines()]

    def lags() -> dict[str, str]:
        lines = said("--describe", "--group", group, "--offsets")
        return {line[2]: line[4] for line in lines if line[:2] == [group, topic]}

    assert [group, "Empty"] in said("--list", "--state")
    assert lags() == {"0": "0", "1": "0", "2": "0"}
    said("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
    assert lags() == {"0": "20", "1": "20", "2": "20"}
    assert [topic, "Successful"] in said("--delete-offsets", "--group", group, "--topic", topic)
    said("--delete", "--group", group)
    assert not [line for line in said("--list") if group in line]
