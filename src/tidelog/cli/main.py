"""The entry point of the `tidelog` command: the table of commands, and nothing that costs start-up time."""

import signal

import click

from tidelog.cli.lazy_group import CommandEntry, LazyGroup

COMMANDS = {
    "up": CommandEntry("tidelog.cli.up:up", "Run a broker, or a cluster of them, in the foreground."),
    "broker": CommandEntry("tidelog.cli.broker:broker", "Run one broker of a cluster over several machines."),
    "topic": CommandEntry("tidelog.cli.topic:topic", "Create, list, describe, alter and delete topics."),
    "produce": CommandEntry("tidelog.cli.produce:produce", "Send records to a topic, from lines or JSON."),
    "consume": CommandEntry("tidelog.cli.consume:consume", "Print the records of a topic."),
    "offsets": CommandEntry("tidelog.cli.offsets:offsets", "Show where each partition starts and ends."),
    "group": CommandEntry(
        "tidelog.cli.group:group", "Look at consumer groups, their lag, and move their offsets."
    ),
    "share": CommandEntry(
        "tidelog.cli.share:share", "Look at share groups (queues), their lag, and have them begin elsewhere."
    ),
    "txn": CommandEntry("tidelog.cli.txn:txn", "Look at transactions, and abort one that hangs."),
    "config": CommandEntry("tidelog.cli.config:config", "Read and change settings of topics and brokers."),
    "cluster": CommandEntry("tidelog.cli.cluster:cluster", "See how a cluster is, and move what it holds."),
    "doctor": CommandEntry("tidelog.cli.doctor:doctor", "Say in words what is wrong with a cluster."),
    "user": CommandEntry("tidelog.cli.user:user", "Create, list and delete users, and change passwords."),
    "console": CommandEntry("tidelog.cli.console:console", "Run the web console for a cluster."),
    "registry": CommandEntry("tidelog.cli.registry:registry", "Run a schema registry over a cluster."),
    "schema": CommandEntry("tidelog.cli.schema:schema", "List, check and register schemas in a registry."),
    "gateway": CommandEntry(
        "tidelog.cli.gateway:gateway", "Serve topics to clients of other protocols: MQTT, AMQP."
    ),
    "mqtt": CommandEntry("tidelog.cli.mqtt:mqtt", "Look at what an MQTT gateway does with topics."),
    "acl": CommandEntry("tidelog.cli.acl:acl", "Say who may, or may not, do what."),
    "quota": CommandEntry("tidelog.cli.quota:quota", "Limit how much clients may send, read and ask."),
    "pipeline": CommandEntry("tidelog.cli.pipeline:pipeline", "Run data pipelines, on Spark or here."),
    "sql": CommandEntry("tidelog.cli.sql:sql", "Query topics and Iceberg tables with SQL."),
    "dlq": CommandEntry("tidelog.cli.dlq:dlq", "Look at dead letters, and send them back."),
    "delay": CommandEntry("tidelog.cli.delay:delay", "See what waits in delay topics, and cancel it."),
    "log": CommandEntry("tidelog.cli.log:log", "Explain the files a broker keeps on disk."),
    "lab": CommandEntry("tidelog.cli.lab:lab", "Learn on a real cluster that is shown, broken and checked."),
    "bench": CommandEntry("tidelog.cli.bench:bench", "Measure throughput and latency of a cluster."),
    "metrics": CommandEntry("tidelog.cli.metrics:metrics", "Write configuration for Prometheus and Grafana."),
    "zookeeper": CommandEntry("tidelog.cli.zookeeper:zookeeper", "Run a real ZooKeeper for development."),
    "version": CommandEntry("tidelog.cli.version:version", "Print the versions of Tidelog and its client."),
}


@click.command(
    cls=LazyGroup,
    entries=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with 'tidelog up', then 'tidelog topic create orders' in another terminal.",
)
def tidelog() -> None:
    """An event-streaming broker that speaks the Kafka protocol, and tools for any Kafka cluster.

    The client commands find their cluster through --bootstrap or the variable TIDELOG_BOOTSTRAP
    (localhost:9092 when neither is given).
    """


def heed_interrupts() -> None:
    """Stop on SIGINT however the command was started, as `tidelog up` does.

    A shell without job control starts what runs in the background with SIGINT ignored, and Python keeps it:
    whoever supervises it could not stop it as Ctrl-C does. What this command starts gets the default too.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def main() -> None:
    """Run the command line."""
    heed_interrupts()
    tidelog(prog_name="tidelog")


if __name__ == "__main__":
    main()
