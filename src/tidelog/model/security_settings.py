"""The settings of listeners, TLS, SASL and delegation tokens: rows of the one table (see settings_table).

Rows in `LISTENER_SETTINGS` also have forms for one listener, and for one mechanism of it, which win over the
plain one:

    listener.name.<listener>.<setting>
    listener.name.<listener>.<mechanism>.<setting>          (both in lower case)

Deliberate differences from Kafka: key material is PEM (Kafka's `PEM` store type), so that is the default;
GSSAPI is not there, so SCRAM is the default where Kafka has it. Users of PLAIN are those that
`sasl.jaas.config` names, and those who have SCRAM credentials.
"""

from tidelog.model.setting_rows import (
    DAY_MS,
    HOUR_MS,
    INT32_MAX,
    Importance,
    Setting,
    SettingType,
    UpdateMode,
)
from tidelog.model.setting_rows import broker_setting as _broker

_BOOLEAN, _INT, _LONG, _STRING, _LIST, _PASSWORD = (
    SettingType.BOOLEAN, SettingType.INT, SettingType.LONG, SettingType.STRING, SettingType.LIST,
    SettingType.PASSWORD,
)  # fmt: skip
_HIGH, _MEDIUM, _LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
LISTENER_PREFIX = "listener.name."

_PER_BROKER, _CLUSTER = UpdateMode.PER_BROKER, UpdateMode.CLUSTER_WIDE

#: settings that one listener may have for itself
LISTENER_SETTINGS: tuple[Setting, ...] = (
    _broker(
        "ssl.keystore.type", _STRING, "PEM", _MEDIUM, "The form of the broker's key and certificate.",
        choices=("PEM",), update_mode=_PER_BROKER,
    ),
    _broker(
        "ssl.keystore.location", _STRING, None, _HIGH,
        "A PEM file with the broker's key and its certificate, followed by those that signed it. It is read "
        "again when it changes; new connections get the new certificate.", update_mode=_PER_BROKER,
    ),
    _broker(
        "ssl.keystore.key", _PASSWORD, None, _HIGH,
        "The broker's key in PEM itself, instead of ssl.keystore.location.", update_mode=_PER_BROKER,
    ),
    _broker(
        "ssl.keystore.certificate.chain", _PASSWORD, None, _HIGH,
        "The certificates in PEM that go with ssl.keystore.key.", update_mode=_PER_BROKER,
    ),
    _broker(
        "ssl.key.password", _PASSWORD, None, _HIGH, "The password of the key, where it has one.",
        update_mode=_PER_BROKER,
    ),
    _broker(
        "ssl.truststore.type", _STRING, "PEM", _MEDIUM, "The form of the certificates that are trusted.",
        choices=("PEM",), update_mode=_PER_BROKER,
    ),
    _broker(
        "ssl.truststore.location", _STRING, None, _HIGH,
        "A PEM file of the certificates that those of clients, and of other brokers, may be signed with.",
        update_mode=_PER_BROKER,
    ),
    _broker(
        "ssl.truststore.certificates", _PASSWORD, None, _HIGH,
        "Those certificates in PEM themselves, instead of ssl.truststore.location.", update_mode=_PER_BROKER,
    ),
    _broker(
        "ssl.client.auth", _STRING, "none", _MEDIUM,
        "Whether clients must show a certificate (required), may (requested), or are not asked.",
        choices=("required", "requested", "none"),
    ),
    _broker(
        "ssl.enabled.protocols", _LIST, ("TLSv1.2", "TLSv1.3"), _MEDIUM,
        "The versions of TLS that are spoken; older ones are not there.", choices=("TLSv1.2", "TLSv1.3"),
    ),
    _broker(
        "ssl.cipher.suites", _LIST, (), _LOW,
        "The cipher suites of TLS 1.2, in OpenSSL's names or in those of the RFCs; OpenSSL's own choice when "
        "not set. TLS 1.3 has only good ones, and they are all on.",
    ),
    _broker(
        "ssl.endpoint.identification.algorithm", _STRING, "https", _LOW,
        "https: the certificate of another broker must be for the host that was connected to; empty: any "
        "that is trusted.", choices=("https", ""),
    ),
    _broker(
        "ssl.principal.mapping.rules", _STRING, "DEFAULT", _MEDIUM,
        "How the distinguished name of a client's certificate becomes a user name: rules such as "
        "`RULE:^CN=([^,]*),.*$/$1/L`, the first that fits; DEFAULT is the whole name.",
    ),
    _broker(
        "sasl.enabled.mechanisms", _LIST, ("SCRAM-SHA-256", "SCRAM-SHA-512"), _MEDIUM,
        "The SASL mechanisms that clients may authenticate with.", choices=MECHANISMS,
    ),
    _broker(
        "sasl.jaas.config", _PASSWORD, None, _MEDIUM,
        "A line of JAAS: `user_alice=\"…\"` are users of PLAIN, `username=\"…\" password=\"…\"` is who this "
        "broker is to the others.",
    ),
    _broker(
        "sasl.server.max.receive.size", _INT, 524_288, _MEDIUM,
        "The largest request that is taken from a client that has not authenticated yet.", minimum=1024,
    ),
    _broker(
        "connections.max.reauth.ms", _LONG, 0, _MEDIUM,
        "How long an authentication lasts: clients that know how authenticate again in time, others are "
        "disconnected; 0 for as long as the connection.", minimum=0,
    ),
    _broker(
        "sasl.oauthbearer.jwks.endpoint.url", _STRING, None, _MEDIUM,
        "Where the keys are that tokens of OAUTHBEARER are signed with (JWKS): https: or file:, or http: on "
        "this machine.",
    ),
    _broker(
        "tidelog.sasl.oauthbearer.jwks.plain.http", _BOOLEAN, False, _LOW,
        "Ask for the keys over plain http: on other machines too. Whoever is on the way can put other keys "
        "there, and be anybody.",
    ),
    _broker(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms", _LONG, HOUR_MS, _LOW,
        "How long those keys are used before they are read again.", minimum=1,
    ),
    _broker(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", _LONG, 100, _LOW,
        "How long to wait before the keys are asked for again because a token names one that is not there.",
        minimum=1,
    ),
    _broker(
        "sasl.oauthbearer.expected.issuer", _STRING, None, _LOW, "Who must have issued a token (`iss`).",
    ),
    _broker(
        "sasl.oauthbearer.expected.audience", _LIST, (), _LOW,
        "Whom a token must be for (`aud`), one of these.",
    ),
    _broker(
        "sasl.oauthbearer.clock.skew.seconds", _INT, 30, _LOW,
        "How far the clock of the token's issuer may be from ours.", minimum=0,
    ),
    _broker(
        "sasl.oauthbearer.scope.claim.name", _STRING, "scope", _LOW, "The claim that has the scopes.",
    ),
    _broker(
        "sasl.oauthbearer.sub.claim.name", _STRING, "sub", _LOW, "The claim that has the user's name.",
    ),
    _broker(
        "sasl.oauthbearer.token.endpoint.url", _STRING, None, _MEDIUM,
        "A file: with the token that this broker shows to the others, where they use OAUTHBEARER.",
    ),
    _broker(
        "tidelog.sasl.oauthbearer.unsecured.tokens", _BOOLEAN, False, _LOW,
        "Take tokens that nobody signed, as in Kafka's examples: anybody can be anybody. For trying out.",
    ),
)  # fmt: skip

SECURITY_SETTINGS: tuple[Setting, ...] = (
    *LISTENER_SETTINGS,
    _broker(
        "max.connection.creation.rate", _INT, INT32_MAX, _MEDIUM,
        "How many new connections are taken in a second, by the broker or by one listener.", minimum=1,
        update_mode=_CLUSTER,
    ),
    _broker(
        "security.inter.broker.protocol", _STRING, None, _MEDIUM,
        "The protocol brokers reach each other by: the listener of this name, instead of "
        "inter.broker.listener.name.", choices=SECURITY_PROTOCOLS,
    ),
    _broker(
        "sasl.mechanism.inter.broker.protocol", _STRING, "SCRAM-SHA-512", _MEDIUM,
        "The SASL mechanism that brokers authenticate to each other with.", choices=MECHANISMS,
    ),
    _broker(
        "connection.failed.authentication.delay.ms", _INT, 100, _LOW,
        "How long the answer to a failed authentication is kept back.", minimum=0, maximum=10_000,
    ),
    _broker(
        "tidelog.connection.authentication.timeout.ms", _INT, 30_000, _MEDIUM,
        "How long a client may take to authenticate, TLS handshake included, before it is disconnected.",
        minimum=100,
    ),
    _broker(
        "max.connections.per.ip.overrides", _LIST, (), _MEDIUM,
        "How many connections single addresses may have, as address:count, if not max.connections.per.ip.",
    ),
    _broker(
        "delegation.token.secret.key", _PASSWORD, None, _MEDIUM,
        "The secret, the same on every broker, that delegation tokens are made with; none are without it.",
    ),
    _broker(
        "delegation.token.max.lifetime.ms", _LONG, 7 * DAY_MS, _MEDIUM,
        "How long a delegation token can be renewed.", minimum=1,
    ),
    _broker(
        "delegation.token.expiry.time.ms", _LONG, DAY_MS, _MEDIUM,
        "How long a delegation token is valid without being renewed.", minimum=1,
    ),
    _broker(
        "delegation.token.expiry.check.interval.ms", _LONG, HOUR_MS, _LOW,
        "How often expired delegation tokens are cleared away.", minimum=1,
    ),
)  # fmt: skip

_LISTENER_FORMS = frozenset(
    {"max.connections", "max.connection.creation.rate", *(setting.name for setting in LISTENER_SETTINGS)}
)


def plain_name(name: str) -> str | None:
    """The setting that `listener.name.<listener>.[<mechanism>.]<setting>` is a form of; None if of none."""
    if not name.startswith(LISTENER_PREFIX):
        return None
    _, _, rest = name[len(LISTENER_PREFIX) :].partition(".")
    if rest in _LISTENER_FORMS:
        return rest
    mechanism, _, rest = rest.partition(".")
    return rest if mechanism.upper() in MECHANISMS and rest in _LISTENER_FORMS else None
