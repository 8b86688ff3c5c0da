"""`tidelog version`: which Tidelog, Python and client library this is."""

import platform

import click

from tidelog import __version__
from tidelog.cli.output import json_option, print_fields, print_json


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Print the versions of Tidelog, Python and the Kafka client library.

    \b
    Examples:
      tidelog version
      tidelog version --json
    """
    import confluent_kafka

    versions = {
        "tidelog": __version__,
        "python": platform.python_version(),
        "confluent-kafka": str(confluent_kafka.version()),
        "librdkafka": confluent_kafka.libversion()[0],
    }
    if as_json:
        print_json(versions)
    else:
        print_fields(versions.items())
