"""Share groups with franz-go: acknowledgements, exact limits, renewed locks; on Apache Kafka alike."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.drivers.contract import new_name, require_program

PROGRAM = Path(__file__).parent / "franz_go"
BUILD_SECONDS = 300
RUN_SECONDS = 180

EXPECTED = {
    "acknowledge": [*(f"{n} {'[1 2]' if n % 5 == 0 else '[1]'}" for n in range(30)), "left 0"],
    "exact": ["sizes [7 7 7 7 2]"],
    "renew": ["held 30 others 0", "left 0"],
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, built; its modules are fetched with the first build."""
    built = tmp_path_factory.mktemp("franz-go") / "queues"
    command = [require_program("go"), "build", "-o", str(built), "."]
    environment = {**os.environ, "GOFLAGS": "-mod=readonly"}
    subprocess.run(command, cwd=PROGRAM, env=environment, check=True, timeout=BUILD_SECONDS)
    return built


@pytest.mark.parametrize("scenario", EXPECTED)
def test_franz_go_is_served_as_by_kafka(
    program: Path,
    bootstrap: str,
    make_topics: Callable[..., None],
    configure_group: Callable[[str, dict[str, str]], None],
    scenario: str,
) -> None:
    name = new_name("franz-go")
    make_topics([name], 1)
    settings = {"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": "3000"}
    configure_group(name, settings)
    command = [str(program), bootstrap, name, scenario]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == EXPECTED[scenario]
