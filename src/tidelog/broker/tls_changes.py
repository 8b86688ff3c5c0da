"""Certificates that are to change by request (IncrementalAlterConfigs, AlterConfigs): tried before that.

Only the broker that is to use a key can say whether it can: the file is on its disk. So it looks itself,
before the controller decides, and refuses what no listener could be set up with; the old certificate stays.
Another broker's are refused, as in Kafka (clients ask the broker that they name). What cannot be read once
the change was made, because the file was changed since, is told in the log and passed over (`security.tls`).
"""

from typing import TYPE_CHECKING

from tidelog.controller.commands import ConfigChanges, ConfigOperation, ConfigResourceType
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.metadata import ALL_BROKERS
from tidelog.model.security_settings import plain_name

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_PREFIX = "ssl."


def refused_certificates(broker: "Broker", changes: ConfigChanges) -> Refused | None:
    """Why TLS could not be set up after these changes; None where it could, or where they leave it alone."""
    if changes.type is not ConfigResourceType.BROKER or changes.name == ALL_BROKERS:
        return None
    own = dict(broker.image.broker_configs.get(changes.name, {}))
    named = {change.name for change in changes.changes} | (own.keys() if changes.replace_all else set())
    if not any((plain_name(name) or name).startswith(_PREFIX) for name in named):
        return None
    if changes.name != str(broker.node_id):
        message = f"only broker {changes.name} itself can tell whether it can use these certificates"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    if changes.replace_all:
        own = {}
    for change in changes.changes:
        own.pop(change.name, None)
        if change.operation is not ConfigOperation.DELETE and change.value is not None:
            own[change.name] = change.value
    return _tried(broker, own)


def _tried(broker: "Broker", own: dict[str, str]) -> Refused | None:
    """Set TLS up for every listener as if these were the broker's settings."""
    from tidelog.security.tls import TlsSettings, TlsUnusable, client_context, server_context

    cluster = broker.image.broker_configs.get(ALL_BROKERS, {})
    settings = broker.static_settings.with_dynamic(cluster, own)
    for listener in settings.listeners:
        name = listener.name
        if not settings.security_protocols[name].endswith("SSL"):
            continue
        tls = TlsSettings.of_listener(settings, name)
        try:
            server_context(tls)
            if name == settings.inter_broker_listener_name:
                client_context(tls)
        except TlsUnusable as fault:
            return Refused(ErrorCode.INVALID_CONFIG, f"the listener {name} could not be set up: {fault}")
    return None
