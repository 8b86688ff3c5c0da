"""`tidelog gateway`: doors for clients that speak other protocols than Kafka's."""

import click

from tidelog.cli.lazy_group import CommandEntry, LazyGroup

COMMANDS: dict[str, CommandEntry] = {
    "amqp": CommandEntry("tidelog.cli.gateway_amqp:amqp", "Serve AMQP 0-9-1: RabbitMQ's clients and Celery."),
    "mqtt": CommandEntry("tidelog.cli.gateway_mqtt:mqtt", "Serve MQTT 3.1.1 and 5: devices."),
}


@click.command(cls=LazyGroup, entries=COMMANDS)
def gateway() -> None:
    """Serve the topics of any Kafka cluster to clients of other protocols."""
