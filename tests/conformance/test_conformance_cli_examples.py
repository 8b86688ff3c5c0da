"""Every example of docs/cli.md is run against a real broker, cluster or secured broker.

`WAYS` says for each section where its examples are run and what they take for granted; what an example names
that is not on this machine (addresses, folders under /, counts that take minutes) is rewritten by
`REWRITTEN`. An example that shows output must print the same, numbers and names of places apart.

Examples that need Java run with TIDELOG_SPARK_TESTS=1; otherwise the last test prints which they are.
"""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.conformance.example_runs import Started, differences, run, run_on_terminal
from tests.conformance.example_worlds import (
    WORLDS,
    World,
    prepared_by,
    with_dead_letters,
    with_group,
    with_load,
    with_log,
    with_many_dead_letters,
    with_mistaken_topic,
    with_more_topics,
    with_pipeline,
    with_pipeline_file,
    with_plan,
    with_properties,
    with_transaction,
    with_two_replicas,
    without_topics,
)
from tests.support.cli_commands import Example, examples, leaf_commands
from tidelog.cli.main import tidelog

# One worker for all: a section's examples stand on those before them.
pytestmark = pytest.mark.xdist_group("cli-examples")

WITH_JAVA = bool(os.environ.get("TIDELOG_SPARK_TESTS"))
EXAMPLES = examples()


@dataclass(frozen=True)
class Way:
    """How an example is run."""

    world: str
    prepare: Callable[[World], None] | None = None
    #: it runs until it is told to stop, and is ready when it has printed this
    ready: str = ""
    #: typed on a terminal
    keys: str = ""
    stdin: str = ""
    java: bool = False
    #: exit codes that are right
    codes: tuple[int, ...] = (0,)


BROKER = Way("one broker")
CLUSTER = Way("several brokers")
SECURED = Way("secured")
NOWHERE = Way("nowhere")
UP = Way("nowhere", with_properties, ready=r"Ctrl-C stops")
FOLLOW = Way("one broker", ready=r"value-\d+")
QUEUE = Way("one broker", prepared_by("tidelog share reset invoices --topic orders --to-earliest --execute"))
WITH_SCHEMA = Way("registry", prepared_by("echo '\"3 apples\"' | tidelog produce orders --schema order.avsc"))
JAVA = Way("nowhere", ready="ready at", java=True)
RULES = prepared_by('printf \'[[rule]]\\nfilter = "sensors/#"\\ntopic = "sensors"\\n\' > rules.toml')
DELAYED = prepared_by(
    "tidelog topic create orders-later --config tidelog.delay.target=orders --config tidelog.delay.ms=60000",
    "echo 'alice:coat' | tidelog produce orders-later -K :",
)
LAB_PAGE = Way("nowhere", ready=r"http://\S+")
LAB_ENDED = Way("nowhere", stdin="q\n")
#: ready when the cluster of the first scenario is being started
LAB_INTERRUPTED = Way("nowhere", ready="starting the cluster", codes=(128 + signal.SIGINT,))

#: section of the page: how its examples are run; where they differ, a part of the command decides
WAYS: dict[str, Way | dict[str, Way]] = {
    "": UP,
    "Connection options": Way("TLS"),
    "A cluster on one machine": UP,
    "Shell completion": NOWHERE,
    "tidelog up": UP,
    "tidelog broker": {
        "--zookeeper": Way("ZooKeeper", ready="ready", java=True),
        "": Way("nowhere", with_properties, ready="ready"),
    },
    "tidelog topic alter": BROKER,
    "tidelog topic create": Way("one broker", without_topics),
    "tidelog topic delete": {"--yes": BROKER, "": Way("one broker", keys="y\n")},
    "tidelog topic describe": {"payments": BROKER, "": Way("one broker", with_log)},
    "tidelog topic list": BROKER,
    "tidelog produce": {"--schema": Way("registry"), "": Way("one broker", with_more_topics)},
    "tidelog consume": {"--schema": WITH_SCHEMA, "--exit-at-end": BROKER, "-n 10": BROKER, "": FOLLOW},
    "tidelog offsets": BROKER,
    "tidelog sql": BROKER,
    "tidelog delay list": Way("one broker", DELAYED),
    "tidelog delay show": Way("one broker", DELAYED),
    "tidelog delay cancel": Way("one broker", DELAYED),
    "tidelog gateway amqp": Way("one broker", ready=r"AMQP gateway of .*\n"),
    "tidelog gateway mqtt": Way("one broker", RULES, ready=r"MQTT gateway of .*\n"),
    "tidelog mqtt map": Way("nowhere", RULES),
    "tidelog group delete": Way("one broker", with_group),
    "tidelog group delete-offsets": {
        "--yes": Way("one broker", with_group),
        "": Way("one broker", with_group, keys="y\n"),
    },
    "tidelog group describe": Way("one broker", with_group),
    "tidelog group lag": Way("one broker", with_group),
    "tidelog group list": Way("one broker", with_group),
    "tidelog group reset-offsets": Way("one broker", with_group),
    "tidelog share delete": QUEUE,
    "tidelog share describe": QUEUE,
    "tidelog share lag": QUEUE,
    "tidelog share list": QUEUE,
    "tidelog share reset": QUEUE,
    "tidelog txn abort": {
        "--start-offset": Way("one broker", with_transaction, keys="y\n"),
        "": Way("one broker", with_transaction),
    },
    "tidelog txn describe": Way("one broker", with_transaction),
    "tidelog txn list": Way("one broker", with_transaction),
    "tidelog config describe": BROKER,
    "tidelog config set": BROKER,
    "tidelog config unset": BROKER,
    "tidelog cluster brokers": CLUSTER,
    "tidelog cluster decommission": CLUSTER,
    "tidelog cluster elect": {"--unclean": Way("several brokers", keys="y\n"), "": CLUSTER},
    "tidelog cluster move": {
        "--leader": Way(
            "several brokers", prepared_by("tidelog cluster move orders 0 --replicas 2,3,4 --execute")
        ),
        "": CLUSTER,
    },
    "tidelog cluster reassign": {
        "--plan": Way("several brokers", with_plan),
        "": Way("several brokers", with_two_replicas),
    },
    "tidelog cluster roll": Way("supervised"),
    "tidelog cluster status": CLUSTER,
    "tidelog doctor": Way("several brokers", with_mistaken_topic),
    "tidelog user create": {"create alice": Way("secured", stdin="correct horse\n"), "": SECURED},
    "tidelog user delete": {
        "--yes": SECURED,
        "": Way("secured", prepared_by("tidelog user create alice --generate"), keys="y\n"),
    },
    "tidelog user describe": Way(
        "secured",
        prepared_by(
            *(
                f"tidelog user password {name} --generate || tidelog user create {name} --generate"
                for name in ("alice", "bob")
            )
        ),
    ),
    "tidelog user list": SECURED,
    "tidelog user password": {"alice": Way("secured", stdin="battery staple\n"), "": SECURED},
    "tidelog acl allow": SECURED,
    "tidelog acl delete": {
        "--yes": Way("secured", prepared_by("tidelog acl deny mallory read --topic orders")),
        "": Way("secured", prepared_by("tidelog acl allow '*' read --topic public. --prefix"), keys="y\n"),
    },
    "tidelog acl deny": SECURED,
    "tidelog acl list": SECURED,
    "tidelog quota list": BROKER,
    "tidelog quota set": BROKER,
    "tidelog quota unset": Way(
        "one broker", prepared_by("tidelog quota set producer_byte_rate=1MB --user alice")
    ),
    "tidelog schema list": Way("registry"),
    "tidelog schema describe": Way("registry"),
    "tidelog schema register": Way("registry"),
    "tidelog schema check": Way("registry"),
    "tidelog schema delete": Way("registry"),
    "tidelog registry": Way("one broker", ready=r"Schema registry of .*\n"),
    "tidelog console": Way("one broker", ready=r"Console of .*\n"),
    "tidelog pipeline run": Way("one broker", with_pipeline_file, java=True),
    "tidelog pipeline plan": BROKER,
    "tidelog pipeline list": Way("nowhere", with_pipeline),
    "tidelog pipeline status": Way("nowhere", with_pipeline),
    "tidelog pipeline stop": Way("nowhere", with_pipeline),
    "tidelog dlq list": Way("one broker", with_dead_letters),
    "tidelog dlq show": Way("one broker", with_many_dead_letters),
    "tidelog dlq redrive": Way("one broker", with_dead_letters),
    "tidelog log dump": Way("one broker", with_log),
    "tidelog lab all": LAB_INTERRUPTED,
    "tidelog lab list": NOWHERE,
    "tidelog lab page": LAB_PAGE,
    "tidelog lab run": {
        "--page": LAB_PAGE,
        "--auto": LAB_INTERRUPTED,
        "": LAB_ENDED,
    },
    "tidelog lab tour": {"--page": LAB_PAGE, "": LAB_ENDED},
    "tidelog bench consume": Way("one broker", with_load),
    "tidelog bench produce": Way("one broker", with_load),
    "tidelog metrics export": NOWHERE,
    "tidelog zookeeper start": JAVA,
    "tidelog version": NOWHERE,
}

#: what is not on this machine, in an example of any section
REWRITTEN = (
    (r"\btidelog up\b", "tidelog up --console-port 0"),
    (r"(tidelog up --console-port 0)(?!.*(--port|server\.properties))", r"\1 --port 0"),
    (r"--port (1883|5672|8080|8081|9093)\b", "--port 0"),
    (r"--(mqtt|amqp)-port \d+", r"--\1-port 0"),
    (r"--ws-port 8083", "--ws-port 0"),
    (r"(tidelog lab .*\bpage\b)(?: --page-port \d+)?", r"\1 --page-port 0"),
    (r"--metrics-port \d+", "--metrics-port 0"),
    (r"(tidelog broker .*--zookeeper .*)", r"\1 --listeners PLAINTEXT://127.0.0.1:0"),
    (r"(tidelog zookeeper start(?: --servers 3)?)(?: --port 2181)?", r"\1 --port {port}"),
    (r"PLAINTEXT://127\.0\.0\.1:9092", "PLAINTEXT://127.0.0.1:0"),
    (r"(cluster roll.*) --data \S+", r"\1 --data {folder}/tidelog-data"),
    (r"/var/lib/tidelog", "{folder}/var"),
    (r"(?<!\S)/tmp/", "{folder}/"),
    (r"path=/data/", "path={folder}/data/"),
    (r"kafka\.example\.com:9093", "{tls}"),
    (r"kafka\.example\.com:9092", "{bootstrap}"),
    (r"--bootstrap localhost:9092", "--bootstrap {bootstrap}"),
    (r"zk1:2181(,zk2:2181,zk3:2181)?", "{zookeeper}"),
    (r"--start-offset 4711", "--start-offset {start_offset}"),
    (r"--producer-id 2000", "--producer-id {producer_id}"),
    (r"systemctl restart tidelog", "true"),
    (r"--records 1000000", "--records 2000"),
    (r"--records 50000", "--records 2000"),
    # shells that may not be there: that something is printed for them is seen all the same
    (r'eval "\$\((.*zsh_source.*?)\)"', r'test -n "$(\1)"'),
    (r"fish_source tidelog \| source", "fish_source tidelog | grep -q complete"),
)


def way_of(example: Example) -> Way:
    found = WAYS.get(example.section)
    assert found is not None, f"WAYS does not say how examples of {example.section!r} are run"
    if isinstance(found, Way):
        return found
    return next(way for part, way in found.items() if part in example.command)


def rewritten(command: str, names: dict[str, str]) -> str:
    for pattern, text in REWRITTEN:
        command = re.sub(pattern, text, command)
    for name, value in names.items():
        command = command.replace("{" + name + "}", value)
    return command


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], World]]:
    """The world of a name, started when it is first asked for."""
    running: dict[str, World] = {}
    with ExitStack() as stack:

        def find(name: str) -> World:
            if name not in running:
                folder = tmp_path_factory.mktemp("world")
                running[name] = stack.enter_context(WORLDS[name](folder))
            return running[name]

        yield find


RUNNABLE = [example for example in EXAMPLES if WITH_JAVA or not way_of(example).java]


@pytest.mark.parametrize("example", RUNNABLE, ids=str)
def test_example_runs(example: Example, worlds: Callable[[str], World]) -> None:
    way = way_of(example)
    world = worlds(way.world)
    world.prepare()
    if way.prepare is not None:
        way.prepare(world)
    command = rewritten(example.command, world.names)
    if way.ready:
        shown = start_and_stop(command, world, way)
    else:
        done = (
            run_on_terminal(command, world.folder, world.variables, way.keys)
            if way.keys
            else run(command, world.folder, world.variables, way.stdin)
        )
        assert done.code in way.codes, (command, done)
        assert "Traceback" not in done.stderr, done
        shown = done.stdout
    if example.output:
        assert not differences(example.output, shown)


def start_and_stop(command: str, world: World, way: Way) -> str:
    """What it printed until it was ready."""
    process = Started(command, world.folder, world.variables)
    try:
        shown = process.wait_ready(way.ready)
        code = process.stop()
        assert code in way.codes, (command, code, process.text)
        assert "Traceback" not in process.text, process.text
    finally:
        process.close()
    return shown


def test_output_that_is_not_that_of_the_page_is_noticed() -> None:
    page = ("NAME  SIZE", "orders  108 B")
    assert not differences(page, "NAME   SIZE\norders   1.5 KiB\norders   7 B\n")
    assert "'orders SIZE'" in differences(page, "NAME   SIZE\n")
    assert "NAME" in differences(page, "orders  7 B\nNAME  SIZE\n")
    assert "'total N'" in differences(page, "NAME  SIZE\norders  7 B\ntotal 7\n")
    assert not differences((*page, "…"), "NAME  SIZE\norders  7 B\ntotal 7\n")


def test_every_command_has_an_example_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = [example for example in EXAMPLES if way_of(example).java]
    run_here = {example.section for example in EXAMPLES if not way_of(example).java}
    for name, _ in leaf_commands(tidelog, ("tidelog",)):
        assert name in run_here | {example.section for example in waiting}, f"no example of {name} is run"
    with capsys.disabled():
        if not WITH_JAVA:
            print(f"\n{len(waiting)} examples of docs/cli.md need Java (TIDELOG_SPARK_TESTS=1):")
            print("".join(f"  {example.command}\n" for example in waiting), end="")
