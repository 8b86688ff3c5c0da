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
from tidelog.client.option_rows import OptionRow, choice, flag, number, sort_out, text
from tidelog.model.addresses import split_address

DEFAULT_PORT = 9092
READ_UNCOMMITTED = 0
READ_COMMITTED = 1

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_ISOLATION_LEVELS = {"read_committed": READ_COMMITTED, "read_uncommitted": READ_UNCOMMITTED}

#: by the setting that they fill; defaults are those of the settings
OPTIONS: dict[str, OptionRow] = {
    "bootstrap_servers": text("bootstrap.servers", "metadata.broker.list"),
    "client_id": text("client.id"),
    "client_rack": text("client.rack"),
    "security_protocol": text("security.protocol"),
    "sasl_mechanism": text("sasl.mechanism", "sasl.mechanisms"),
    "sasl_username": text("sasl.username"),
    "sasl_password": text("sasl.password"),
    "sasl_jaas_config": text("sasl.jaas.config"),
    "oauth_token": text("sasl.oauthbearer.token"),
    "oauth_token_callback": text("sasl.oauthbearer.token.callback"),
    "oauth_extensions": text("sasl.oauthbearer.extensions"),
    "ca_location": text("ssl.ca.location", "ssl.truststore.location"),
    "ca_pem": text("ssl.ca.pem", "ssl.truststore.certificates"),
    "truststore_type": text("ssl.truststore.type"),
    "certificate_location": text("ssl.certificate.location", "ssl.keystore.location"),
    "certificate_pem": text("ssl.certificate.pem", "ssl.keystore.certificate.chain"),
    "keystore_type": text("ssl.keystore.type"),
    "key_location": text("ssl.key.location"),
    "key_pem": text("ssl.key.pem", "ssl.keystore.key"),
    "key_password": text("ssl.key.password"),
    "endpoint_identification": text("ssl.endpoint.identification.algorithm"),
    "verify_certificate": flag("enable.ssl.certificate.verification"),
    "request_timeout_ms": number("request.timeout.ms", "socket.timeout.ms"),
    "connection_timeout_ms": number("socket.connection.setup.timeout.ms"),
    "api_timeout_ms": number("default.api.timeout.ms"),
    "retry_backoff_ms": number("retry.backoff.ms"),
    "retry_backoff_max_ms": number("retry.backoff.max.ms"),
    "metadata_max_age_ms": number("metadata.max.age.ms", "topic.metadata.refresh.interval.ms"),
    "fetch_max_bytes": number("fetch.max.bytes"),
    "partition_fetch_bytes": number("max.partition.fetch.bytes", "fetch.message.max.bytes"),
    "fetch_max_wait_ms": number("fetch.max.wait.ms", "fetch.wait.max.ms"),
    "fetch_min_bytes": number("fetch.min.bytes"),
    "isolation_level": choice("isolation.level", choices=tuple(_ISOLATION_LEVELS)),
    "check_crcs": flag("check.crcs"),
    "group_id": text("group.id"),
}

_SECURITY = ("ssl.", "sasl.")
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
        given, ignored = sort_out(OPTIONS, options)
        _refuse_unknown_security(ignored)
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
        values |= {field_name: OPTIONS[field_name].read(written) for field_name, written in given.items()}
        for field_name in ("security_protocol", "sasl_mechanism"):
            if field_name in given:
                values[field_name] = given[field_name].upper()
        if "isolation_level" in given:
            values["isolation_level"] = _ISOLATION_LEVELS[str(values["isolation_level"])]
        settings = cls(**values)  # type: ignore[arg-type]  # the table holds the names of the fields
        _check_security(settings)
        return settings


def _refuse_unknown_security(names: list[str]) -> None:
    for name in names:
        if name.lower().startswith(_SECURITY):
            known = sorted(
                known for row in OPTIONS.values() for known in row.names if known.startswith(_SECURITY)
            )
            raise BadOption(
                f"{name} is not known here, and security is not guessed at; known: {', '.join(known)}"
            )


def parse_addresses(servers: str) -> tuple[tuple[str, int], ...]:
    """`host:port,host:port` as pairs; the port may be left out, an IPv6 address stands in brackets."""
    addresses: list[tuple[str, int]] = []
    for part in filter(None, (part.strip() for part in servers.split(","))):
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
