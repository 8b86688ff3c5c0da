"""Certificates that are to change by request (IncrementalAlterConfigs, AlterConfigs): tried before that.

Only the broker that is to use a key can say whether it can: the file is on its disk. So it looks itself,
before the controller decides, and refuses what no listener could be set up with; the old certificate stays.
Another broker's are refused, as in Kafka (clients ask the broker that they name). What cannot be read once
the change was made, because the file was changed since, is told in the log and passed over (`security.tls`).
"""

from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.controller.commands import ConfigChanges, ConfigOperation, ConfigResourceType
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.image import ClusterImage
from tidelog.model.metadata import ALL_BROKERS
from tidelog.model.security_settings import plain_name
from tidelog.model.settings import BrokerSettings

_PREFIX = "ssl."


def refused_certificates(
    image: ClusterImage, settings: LiveSettings, node_id: int, changes: ConfigChanges
) -> Refused | None:
    """Why TLS could not be set up after these changes; None where it could, or where they leave it alone."""
    if changes.type is not ConfigResourceType.BROKER or changes.name == ALL_BROKERS:
        return None
    own = dict(image.broker_configs.get(changes.name, {}))
    named = {change.name for change in changes.changes} | (own.keys() if changes.replace_all else set())
    if not any((plain_name(name) or name).startswith(_PREFIX) for name in named):
        return None
    if changes.name != str(node_id):
        message = f"only broker {changes.name} itself can tell whether it can use these certificates"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    if changes.replace_all:
        own = {}
    for change in changes.changes:
        own.pop(change.name, None)
        if change.operation is not ConfigOperation.DELETE and change.value is not None:
            own[change.name] = change.value
    cluster = image.broker_configs.get(ALL_BROKERS, {})
    return _tried(settings.static.with_dynamic(cluster, own))


def _tried(settings: BrokerSettings) -> Refused | None:
    """Set TLS up for every listener as if these were the broker's settings."""
    from tidelog.security.tls import TlsSettings, TlsUnusable, client_context, server_context

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
