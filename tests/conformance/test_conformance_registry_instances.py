"""Two instances of the schema registry over TLS: changes go to the one that writes, and it hands over."""

import os
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.conformance.drivers.contract import DEADLINE_SECONDS, new_name
from tests.support.registry_process import RegistryProcess
from tidelog.security.certificates import Authority

#: several seconds for starting and handing over: `make registry-kills` runs it, `make test` does not
pytestmark = pytest.mark.skipif(
    os.environ.get("TIDELOG_REGISTRY_TESTS") != "1", reason="TIDELOG_REGISTRY_TESTS=1 runs it"
)


@pytest.fixture
def instances(bootstrap: str, tmp_path: Path) -> Iterator[list[RegistryProcess]]:
    authority = Authority.create()
    issued = authority.issue("registry", ["127.0.0.1"])
    for name, text in (("ca", authority.certificate), ("own", issued.certificate), ("key", issued.key)):
        (tmp_path / f"{name}.pem").write_text(text)
    topic = new_name("schemas")
    options = ["--topic", topic, "--group", f"{topic}-group"]
    for option, name in (("--tls-ca", "ca"), ("--tls-certificate", "own"), ("--tls-key", "key")):
        options += [option, str(tmp_path / f"{name}.pem")]
    found = [RegistryProcess(bootstrap, options=options) for _ in range(2)]
    try:
        for instance in found:
            instance.launch()
        for instance in found:
            instance.await_ready()
        yield found
    finally:
        for instance in found:
            instance.close()


def test_either_takes_changes_and_one_hands_over_to_the_other(
    instances: list[RegistryProcess], tmp_path: Path
) -> None:
    trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    with httpx2.Client(verify=trusted, timeout=DEADLINE_SECONDS) as http:

        def register(instance: RegistryProcess, subject: str, schema: str) -> int:
            answer = http.post(f"{instance.url}/subjects/{subject}/versions", json={"schema": schema})
            assert answer.status_code == 200, answer.text
            return int(answer.json()["id"])

        def metric(instance: RegistryProcess, name: str) -> float:
            lines = http.get(f"{instance.url}/metrics").text.splitlines()
            return float(
                next(line for line in lines if line.startswith(f"tidelog_registry_{name} ")).split()[1]
            )

        one, other = instances
        assert one.url.startswith("https://")
        assert [register(one, "a", '"int"'), register(other, "a", '"long"')] == [1, 2]
        assert register(one, "b", '"long"') == 2
        for instance in instances:
            for number, text in ((1, '"int"'), (2, '"long"')):
                found = http.get(f"{instance.url}/schemas/ids/{number}").json()
                assert found["schema"] == text, "what was acknowledged anywhere is found everywhere"
        assert metric(one, "primary") + metric(other, "primary") == 1
        assert metric(one, "forwarded_total") + metric(other, "forwarded_total") > 0
        writing, waiting = (one, other) if metric(one, "primary") else (other, one)
        began = time.monotonic()
        writing.stop()
        assert register(waiting, "c", '"string"') == 3
        assert time.monotonic() - began < DEADLINE_SECONDS
        assert metric(waiting, "primary") == 1
