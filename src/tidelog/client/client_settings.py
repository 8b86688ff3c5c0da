"""Client options under the names that people know, from Java and from librdkafka, as one typed value.

`ClientSettings.from_options` reads a mapping of option names (without Spark's prefix `kafka.`). `OPTIONS` is
the table of the names it understands; docs/pipelines.md shows it. A name it does not know is passed
over and listed in `ignored`, as other clients do, save for names that begin with `ssl.` or `sasl.`: to pass
over one of those could mean to connect less safely than asked, so it is refused.

The value is frozen and can be pickled: the driver of a Spark query makes it, its executors use it. A token
callback is named as `module:function`, so that it can travel too.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidelog.client.faults import BadOption
from tidelog.model.addresses import split_address

DEFAULT_PORT = 9092
READ_UNCOMMITTED = 0
READ_COMMITTED = 1

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_ISOLATION_LEVELS = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}

#: option names by the setting they fill; the first is the one that messages use
OPTIONS: dict[str, tuple[str, ...]] = {
    "bootstrap_servers": ("bootstrap.servers", "metadata.broker.list"),
    "client_id": ("client.id",),
    "client_rack": ("client.rack",),
    "security_protocol": ("security.protocol",),
    "sasl_mechanism": ("sasl.mechanism", "sasl.mechanisms"),
    "sasl_username": ("sasl.username",),
    "sasl_password": ("sasl.password",),
    "sasl_jaas_config": ("sasl.jaas.config",),
    "oauth_token": ("sasl.oauthbearer.token",),
    "oauth_token_callback": ("sasl.oauthbearer.token.callback",),
    "oauth_extensions": ("sasl.oauthbearer.extensions",),
    "ca_location": ("ssl.ca.location", "ssl.truststore.location"),
    "ca_pem": ("ssl.ca.pem", "ssl.truststore.certificates"),
    "truststore_type": ("ssl.truststore.type",),
    "certificate_location": ("ssl.certificate.location", "ssl.keystore.location"),
    "certificate_pem": ("ssl.certificate.pem", "ssl.keystore.certificate.chain"),
    "keystore_type": ("ssl.keystore.type",),
    "key_location": ("ssl.key.location",),
    "key_pem": ("ssl.key.pem", "ssl.keystore.key"),
    "key_password": ("ssl.key.password",),
    "endpoint_identification": ("ssl.endpoint.identification.algorithm",),
    "verify_certificate": ("enable.ssl.certificate.verification",),
    "request_timeout_ms": ("request.timeout.ms", "socket.timeout.ms"),
    "connection_timeout_ms": ("socket.connection.setup.timeout.ms",),
    "api_timeout_ms": ("default.api.timeout.ms",),
    "retry_backoff_ms": ("retry.backoff.ms",),
    "retry_backoff_max_ms": ("retry.backoff.max.ms",),
    "metadata_max_age_ms": ("metadata.max.age.ms", "topic.metadata.refresh.interval.ms"),
    "fetch_max_bytes": ("fetch.max.bytes",),
    "partition_fetch_bytes": ("max.partition.fetch.bytes", "fetch.message.max.bytes"),
    "fetch_max_wait_ms": ("fetch.max.wait.ms", "fetch.wait.max.ms"),
    "fetch_min_bytes": ("fetch.min.bytes",),
    "isolation_level": ("isolation.level",),
    "check_crcs": ("check.crcs",),
    "group_id": ("group.id",),
}

_FIELD_BY_NAME = {name: field_name for field_name, names in OPTIONS.items() for name in names}
_PEM_STORES = {"truststore_type": "ssl.truststore.type", "keystore_type": "ssl.keystore.type"}
_JAAS_VALUE = re.compile(
    r"""\b(username|password|oauth\.token)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s;]+))"""
)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How to reach a cluster and how to read from it."""

    bootstrap_servers: tuple[tuple[str, int], ...]
    client_id: str = "tidelog"
    client_rack: str = ""
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = ""
    sasl_username: str = ""
    sasl_password: str = field(default="", repr=False)
    oauth_token: str = field(default="", repr=False)
    oauth_token_callback: str = ""
    oauth_extensions: str = ""
    ca_location: str = ""
    ca_pem: str = field(default="", repr=False)
    certificate_location: str = ""
    certificate_pem: str = field(default="", repr=False)
    key_location: str = ""
    key_pem: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    #: whether the certificate must be one for the host that we connect to
    check_hostname: bool = True
    verify_certificate: bool = True
    request_timeout_ms: int = 30_000
    connection_timeout_ms: int = 10_000
    #: for an operation with all its tries
    api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    fetch_max_bytes: int = 32 << 20
    partition_fetch_bytes: int = 8 << 20
    fetch_max_wait_ms: int = 500
    fetch_min_bytes: int = 1
    isolation_level: int = READ_COMMITTED
    check_crcs: bool = True
    group_id: str | None = None
    #: names that nothing here reads
    ignored: tuple[str, ...] = ()

    @property
    def encrypted(self) -> bool:
        return self.security_protocol.endswith("SSL")

    @property
    def authenticated(self) -> bool:
        return self.security_protocol.startswith("SASL_")

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> "ClientSettings":
        """Read options by their public names; raises BadOption."""
        given, ignored = _sort_out(options)
        if "bootstrap_servers" not in given:
            raise BadOption(
                "bootstrap.servers is missing: the address of one broker or more, host:port,host:port"
            )
        values: dict[str, object] = {"ignored": tuple(ignored)}
        values["bootstrap_servers"] = parse_addresses(given.pop("bootstrap_servers"))
        for field_name, option in _PEM_STORES.items():
            if given.pop(field_name, "PEM").upper() != "PEM":
                raise BadOption(
                    f"{option}: only PEM can be read here; convert the store with"
                    " 'keytool -importkeystore -deststoretype PKCS12' and 'openssl pkcs12 -nodes'"
                )
        endpoint_identification = given.pop("endpoint_identification", "https").lower()
        if endpoint_identification not in ("https", "", "none"):
            raise BadOption("ssl.endpoint.identification.algorithm is 'https', or 'none' to switch it off")
        values["check_hostname"] = endpoint_identification == "https"
        _read_jaas(given)
        for field_name, text in given.items():
            values[field_name] = _typed(field_name, text)
        settings = cls(**values)  # type: ignore[arg-type]  # the table holds the names of the fields
        _check_security(settings)
        return settings


def _sort_out(options: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The known options by field, and the names of the others."""
    given: dict[str, str] = {}
    spelled: dict[str, str] = {}
    ignored: list[str] = []
    for name in sorted(options):
        field_name = _FIELD_BY_NAME.get(name)
        text = str(options[name]).strip()
        if field_name is None:
            if name.startswith(("ssl.", "sasl.")):
                known = sorted(known for known in _FIELD_BY_NAME if known.startswith(("ssl.", "sasl.")))
                raise BadOption(
                    f"{name} is not known here, and security is not guessed at; known: {', '.join(known)}"
                )
            ignored.append(name)
            continue
        if field_name in given and given[field_name] != text:
            raise BadOption(f"{name} and {spelled[field_name]} mean the same and have different values")
        given[field_name] = text
        spelled[field_name] = name
    return given, ignored


def parse_addresses(text: str) -> tuple[tuple[str, int], ...]:
    """`host:port,host:port` as pairs; the port may be left out, an IPv6 address stands in brackets."""
    addresses: list[tuple[str, int]] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            addresses.append(split_address(part, DEFAULT_PORT))
        except ValueError as fault:
            raise BadOption(f"bootstrap.servers: {fault}") from fault
    if not addresses:
        raise BadOption("bootstrap.servers is empty: give the address of one broker or more, host:port")
    return tuple(addresses)


def _read_jaas(given: dict[str, str]) -> None:
    """Take user and password out of a line meant for Java's login modules."""
    line = given.pop("sasl_jaas_config", None)
    if line is None:
        return
    for name, quoted, apostrophed, bare in _JAAS_VALUE.findall(line):
        value = re.sub(r"\\(.)", r"\1", quoted) if quoted else apostrophed or bare
        target = {"username": "sasl_username", "password": "sasl_password", "oauth.token": "oauth_token"}[
            name
        ]
        given.setdefault(target, value)
    if not {"sasl_username", "oauth_token", "oauth_token_callback"} & set(given):
        raise BadOption(
            'sasl.jaas.config: no username="…" password="…" in it; give sasl.username and sasl.password'
        )


def _typed(field_name: str, text: str) -> object:
    option = OPTIONS[field_name][0]
    kind = ClientSettings.__annotations__[field_name]
    if field_name == "isolation_level":
        if text.lower() not in _ISOLATION_LEVELS:
            raise BadOption(f"isolation.level is read_committed or read_uncommitted, not {text!r}")
        return _ISOLATION_LEVELS[text.lower()]
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise BadOption(f"{option} is true or false, not {text!r}")
        return text.lower() == "true"
    if kind is int:
        try:
            number = int(text)
        except ValueError:
            raise BadOption(f"{option} is a number, not {text!r}") from None
        if not 0 <= number < 2**31:
            raise BadOption(f"{option} lies between 0 and 2147483647, not at {number}")
        return number
    return text.upper() if field_name in ("security_protocol", "sasl_mechanism") else text


def _check_security(settings: ClientSettings) -> None:
    if settings.security_protocol not in SECURITY_PROTOCOLS:
        raise BadOption(
            f"security.protocol is one of {', '.join(SECURITY_PROTOCOLS)}, not {settings.security_protocol!r}"
        )
    for location, option in (
        (settings.ca_location, "ssl.ca.location"),
        (settings.certificate_location, "ssl.certificate.location"),
        (settings.key_location, "ssl.key.location"),
    ):
        if settings.encrypted and location and not Path(location).exists():
            raise BadOption(
                f"{option}: there is no file {location}; it must be at the same place on every machine"
            )
    if not settings.authenticated:
        return
    mechanism = settings.sasl_mechanism
    if mechanism not in MECHANISMS:
        raise BadOption(f"sasl.mechanism is one of {', '.join(MECHANISMS)}, not {mechanism!r}")
    if mechanism == "OAUTHBEARER":
        if not settings.oauth_token and not settings.oauth_token_callback:
            raise BadOption(
                "OAUTHBEARER needs sasl.oauthbearer.token, or sasl.oauthbearer.token.callback=module:function"
            )
    elif not settings.sasl_username:
        raise BadOption(f"{mechanism} needs sasl.username and sasl.password (or sasl.jaas.config)")
