"""The command lines of the docs for YARN and Kubernetes, as far as they can be checked on one machine.

YARN: a resource manager and a node manager of Apache Hadoop (`hadoop-client-minicluster`), whose containers
are real processes with a Python that has no packages. Kubernetes: Spark submits to the API server that the
makers of its client test with, which keeps what it is given and runs no pods; what it was given is looked at.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.spark.java_helpers import SPARK_JARS, JavaHelper
from tests.spark.ready_runs import received
from tests.support.maven_jars import maven_jars
from tidelog.pipelines.executor_archive import build

COUNT = 300
RUN_SECONDS_MAX = 500.0
HADOOP, CLIENT = "3.5.0", "7.6.1"
SPARK_HOME = Path(pyspark.__file__).parent
PAGES = Path(__file__).parents[2] / "docs"

pytestmark = pytest.mark.timeout(900)

PROGRAM = """
import sys
from pyspark.sql import SparkSession

bootstrap, topic, out = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
given = {"kafka.bootstrap.servers": bootstrap}


def with_python(batches):
    import pyarrow

    for batch in batches:
        pythons = pyarrow.array([sys.executable] * batch.num_rows)
        yield pyarrow.RecordBatch.from_arrays([batch["key"], pythons], ["key", "value"])


frame = spark.read.format("tidelog").options(**given, subscribe=topic).load().select("key")
frame.mapInArrow(with_python, "key BINARY, value STRING").write.format("tidelog").options(
    **given, topic=out
).mode("append").save()
spark.stop()
"""


def documented(page: str, words: str) -> list[str]:
    """The words of the one command of a page that has these words in it."""
    blocks = re.findall(r"^\$ (.*?[^\\])$", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL)
    (found,) = [one for one in blocks if words in one]
    return shlex.split(found.replace("\\\n", " "))


def documented_yaml(page: str) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)


def spark_submit(settings: dict[str, str]) -> list[str]:
    """spark-submit with settings of the test, before those of a page."""
    given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    return [str(SPARK_HOME / "bin" / "spark-submit"), *given]


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the configuration of a YARN cluster, as HADOOP_CONF_DIR."""
    folder = tmp_path_factory.mktemp("yarn")
    artifacts = [
        f"org.apache.hadoop:hadoop-client-minicluster:{HADOOP}",
        "org.junit.jupiter:junit-jupiter-api:5.13.4",
        "ch.qos.reload4j:reload4j:1.2.26",
        "org.bouncycastle:bcpkix-jdk18on:1.82",
    ]
    jars = sorted(maven_jars(f"minicluster-{HADOOP}", artifacts).glob("*.jar"))
    with JavaHelper("MiniYarn", jars, folder, str(folder)):
        yield folder


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python of this version with no packages: what a machine of a cluster has."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


def environment(**more: object) -> dict[str, str]:
    ours = ("PYTHONPATH", "PYSPARK_PYTHON", "SPARK_LOCAL_IP", "HADOOP_CONF_DIR")
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    return {**kept, **{name: str(value) for name, value in more.items()}}


def small_yarn(folder: Path) -> dict[str, str]:
    """Settings for a small machine; the jars of Spark are there already and need not be copied."""
    return {
        "spark.yarn.jars": f"local:{SPARK_JARS}/*",
        "spark.yarn.stagingDir": f"file://{folder}/staging",
        "spark.yarn.am.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.instances": "1",
        "spark.driver.memory": "512m",
    }


def test_a_program_whose_driver_is_in_a_container(
    yarn: Path,
    bare_python: Path,
    bootstrap: str,
    make_topic: Callable[..., str],
    fill: Callable[..., None],
    tmp_path: Path,
) -> None:
    topic, out = make_topic(2), make_topic(1)
    fill(topic, range(COUNT), 2)
    build(tmp_path / "tidelog-executors.zip")
    (tmp_path / "totals.py").write_text(PROGRAM)
    command = [
        str(bare_python) if word == "python3.11" else word.replace("=python3.11", f"={bare_python}")
        for word in documented("pipelines.md", "--master yarn")
    ]
    assert command[-1] == "totals.py"
    done = subprocess.run(
        [*spark_submit(small_yarn(tmp_path)), *command[1:], bootstrap, topic, out],
        env=environment(HADOOP_CONF_DIR=yarn, SPARK_HOME=SPARK_HOME),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6_000:]
    found = received(bootstrap, out)
    assert sorted(int(one.key()) for one in found) == list(range(COUNT))
    assert {one.value() for one in found} == {str(bare_python).encode()}


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an API server."""
    folder = tmp_path_factory.mktemp("kubernetes")
    mock = maven_jars(f"kubernetes-mock-{CLIENT}", [f"io.fabric8:kubernetes-server-mock:{CLIENT}"])
    with JavaHelper("MiniKubernetes", [*mock.glob("*.jar"), *SPARK_JARS.glob("*.jar")], folder) as port:
        yield f"http://127.0.0.1:{port}"


def pods(address: str, namespace: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{address}/api/v1/namespaces/{namespace}/pods", timeout=30) as answer:
        return list(json.load(answer)["items"])


def make_pod(address: str, namespace: str, name: str) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}}
    request = urllib.request.Request(
        f"{address}/api/v1/namespaces/{namespace}/pods",
        json.dumps(pod).encode(),
        {"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=30).close()


def variables(pod: dict[str, Any]) -> dict[str, str | None]:
    (container,) = pod["spec"]["containers"]
    return {one["name"]: one.get("value") for one in container["env"]}


def test_a_program_on_kubernetes(kubernetes: str, tmp_path: Path) -> None:
    """What is submitted is a driver's pod with the program; the image has all that it needs."""
    command = [
        word.replace("k8s://https://…", f"k8s://{kubernetes}")
        for word in documented("pipelines.md", "--master k8s://")
    ]
    without_waiting = {"spark.kubernetes.submission.waitAppCompletion": "false"}
    done = subprocess.run(
        [*spark_submit(without_waiting), *command[1:]],
        env=environment(SPARK_HOME=SPARK_HOME, HOME=tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6_000:]
    (pod,) = pods(kubernetes, "default")
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "registry/spark-tidelog:1"
    assert container["args"][0] == "driver" and container["args"][-1] == "local:///opt/pipelines/totals.py"
    assert pod["spec"]["serviceAccountName"] == "spark"


def test_a_pipeline_on_kubernetes(
    kubernetes: str, bootstrap: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Its driver is in a pod, and asks for executors' pods as the page says."""
    block = next(one for one in documented_yaml("pipelines-files.md") if "master: k8s://" in one)
    topic = make_topic(1)
    shown = {
        "k8s://https://kubernetes.default.svc": f"k8s://{kubernetes}",
        # the name of a service that leads to the driver's pod: here it is this machine
        "big-orders.pipelines.svc": "127.0.0.1",
        "7078": "0",
        "7079": "0",
        "s3a://bucket": str(tmp_path),
    }
    for theirs, ours in shown.items():
        assert theirs in block
        block = block.replace(theirs, ours)
    flow = f"bootstrap: {bootstrap}\nsources: {{orders: {{topic: {topic}}}}}\nsinks: [{{topic: {topic}}}]\n"
    (tmp_path / "big-orders.yaml").write_text(block + flow)
    make_pod(kubernetes, "pipelines", "big-orders")
    with (tmp_path / "output.txt").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidelog.cli", "pipeline", "run", "big-orders.yaml"],
            env=environment(TIDELOG_PIPELINES=tmp_path / "state", HOME=tmp_path),
            cwd=tmp_path,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + RUN_SECONDS_MAX
        while len(asked := pods(kubernetes, "pipelines")) < 1 + 4:
            said = (tmp_path / "output.txt").read_text()[-6_000:]
            assert process.poll() is None and time.monotonic() < deadline, said
            time.sleep(0.5)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
    executors = [pod for pod in asked if pod["metadata"]["name"] != "big-orders"]
    for pod in executors:
        (container,) = pod["spec"]["containers"]
        assert container["image"] == "registry/spark-tidelog:1"
        assert pod["spec"]["serviceAccountName"] == "spark"
        assert [one["name"] for one in pod["metadata"]["ownerReferences"]] == ["big-orders"]
        assert variables(pod)["SPARK_DRIVER_URL"] is not None
        # The image has Tidelog: nothing is shipped, and nothing takes the place of its packages.
        assert "PYTHONPATH" not in variables(pod)
