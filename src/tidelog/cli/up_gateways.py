"""The gateways that `tidelog up` brings along: --mqtt-port and --amqp-port.

They listen where the brokers do (--host), for devices and workers are clients like others. On a cluster made
with --secure they speak TLS with the brokers' certificate and ask for the password of a user of the cluster.
"""

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.errors import CommandError
from tidelog.cli.up_children import UpChild, keep_child, kept_child, start_child

if TYPE_CHECKING:
    from tidelog.cli.secure_setup import SecureSetup

DEFAULT_HOST = "127.0.0.1"
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
#: the packages that each needs and the first installation does not have
_NEEDED: dict[str, tuple[str, ...]] = {"mqtt": (), "amqp": ("pamqp",)}


def _key(protocol: str) -> str:
    return f"tidelog.gateway.{protocol}"


def prepare_gateway(context: click.Context, parameter: click.Parameter, port: int | None) -> None:
    """The callback of --mqtt-port and --amqp-port."""
    if port is None or port == 0 or context.resilient_parsing:
        return
    protocol = str(parameter.name).removesuffix("_port")
    if not all(importlib.util.find_spec(name) is not None for name in _NEEDED[protocol]):
        raise CommandError(
            f"the {protocol.upper()} gateway is not installed", f"pip install 'tidelog[{protocol}]'"
        )
    keep_child(context, _key(protocol), UpChild(protocol, port, ("gateway", protocol)))


def start_gateways(bootstrap: str, security: "SecureSetup | None", *, as_json: bool) -> None:
    """Brokers are ready: start the gateways that this command wants, and say where they are."""
    properties = None
    more: list[str] = []
    if security is not None:
        properties = security.folder / "client.properties"
        certificate = str(security.folder / "broker.pem")
        more = ["--tls-certificate", certificate, "--tls-key", certificate]
    for protocol in _NEEDED:
        child = kept_child(_key(protocol))
        if child is None:
            continue
        host = click.get_current_context().params.get("host")
        child.host = str(host).strip("[]") if host else DEFAULT_HOST
        child.scheme = protocol if security is None else f"{protocol}s"
        start_child(
            _key(protocol), bootstrap, properties, as_json=as_json, option=f"--{protocol}-port", more=more
        )


def stop_gateways() -> None:
    """Brokers are about to stop: let the gateways write what they have to."""
    for protocol in _NEEDED:
        child = kept_child(_key(protocol))
        if child is not None:
            child.stop_cleanly()


def _option(protocol: str, clients: str) -> Decorator:
    return click.option(
        f"--{protocol}-port",
        type=click.IntRange(0, 65535),
        metavar="PORT",
        callback=prepare_gateway,
        expose_value=False,
        help=f"Serve {clients} on this port of --host (not without it).",
    )


mqtt_option = _option("mqtt", "devices that speak MQTT")
amqp_option = _option("amqp", "AMQP 0-9-1 (pika, Celery)")
