"""What `tidelog up --secure` makes before the first start, and finds again at every later one.

In the folder `security` of the data, which nobody else can read:

    ca.pem              the certificate of a local authority, for clients to trust
    ca-key.pem          its key; keep it, or delete it and never issue another certificate
    broker.pem          the brokers' key and certificate
    credentials.json    the passwords of the users `admin` and `tidelog-broker`
    client.properties   for confluent-kafka, and for the commands of tidelog
    kcat.conf           for kcat -F
    java.properties     for the Java client and Kafka's own tools
    kafka-python.json   keyword arguments for kafka-python and aiokafka

The users are put straight into the coordination store: nobody could come in to create the first one. Users
that are there are left alone, so a password that was changed stays changed.
"""

import json
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidelog.cli.errors import CommandError
from tidelog.client.client_settings import ClientSettings
from tidelog.coordination.opening import open_store
from tidelog.coordination.store import ABSENT, Conflict, StoreError, Write
from tidelog.model.access_settings import STANDARD_AUTHORIZER
from tidelog.model.credentials import SCRAM_SHA_256, SCRAM_SHA_512, UserRecord
from tidelog.model.settings import BrokerSettings
from tidelog.security.certificates import Authority, write_secret
from tidelog.security.scram import credential_from_password

FOLDER = "security"
PROTOCOL = "SASL_SSL"
ADMIN = "admin"
BROKER_USER = "tidelog-broker"
#: more than Kafka's 4,096: these passwords are not chosen by people, but others may be added beside them
ITERATIONS = 8_192
_WILDCARDS = ("", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class SecureSetup:
    """Where everything is, and the passwords."""

    folder: Path
    passwords: Mapping[str, str] = field(repr=False)
    #: whether this is the first start with this folder
    created: bool

    def broker_settings(self) -> dict[str, str]:
        """What brokers are started with."""
        login = (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{BROKER_USER}" password="{self.passwords[BROKER_USER]}";'
        )
        return {
            "ssl.keystore.location": str(self.folder / "broker.pem"),
            "ssl.truststore.location": str(self.folder / "ca.pem"),
            "sasl.enabled.mechanisms": f"{SCRAM_SHA_256},{SCRAM_SHA_512}",
            "sasl.mechanism.inter.broker.protocol": SCRAM_SHA_512,
            "sasl.jaas.config": login,
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": f"User:{ADMIN};User:{BROKER_USER}",
        }

    def client_settings(self) -> ClientSettings:
        """How this machine's own supervisor asks the brokers."""
        return ClientSettings(
            bootstrap_servers=(),
            client_id="tidelog-supervisor",
            security_protocol=PROTOCOL,
            sasl_mechanism=SCRAM_SHA_256,
            sasl_username=BROKER_USER,
            sasl_password=self.passwords[BROKER_USER],
            ca_location=str(self.folder / "ca.pem"),
            request_timeout_ms=5_000,
            connection_timeout_ms=5_000,
        )

    def write_client_files(self, bootstrap: str) -> None:
        """Write how clients connect, as the admin."""
        password = self.passwords[ADMIN]
        authority = str((self.folder / "ca.pem").resolve())
        librdkafka = {
            "bootstrap.servers": bootstrap,
            "security.protocol": PROTOCOL,
            "sasl.mechanisms": SCRAM_SHA_512,
            "sasl.username": ADMIN,
            "sasl.password": password,
            "ssl.ca.location": authority,
        }
        java = {
            "bootstrap.servers": bootstrap,
            "security.protocol": PROTOCOL,
            "sasl.mechanism": SCRAM_SHA_512,
            "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{ADMIN}" password="{password}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": authority,
        }
        python = {
            "bootstrap_servers": bootstrap,
            "security_protocol": PROTOCOL,
            "sasl_mechanism": SCRAM_SHA_512,
            "sasl_plain_username": ADMIN,
            "sasl_plain_password": password,
            "ssl_cafile": authority,
        }
        write_secret(self.folder / "client.properties", _properties(librdkafka))
        write_secret(self.folder / "kcat.conf", _properties(librdkafka))
        write_secret(self.folder / "java.properties", _properties(java))
        write_secret(self.folder / "kafka-python.json", json.dumps(python, indent=2) + "\n")

    def instructions(self) -> list[str]:
        """How to go on, for people."""
        folder = self.folder.resolve()
        return [
            f"  security   {folder} (TLS and SCRAM; the user {ADMIN} may do everything)",
            "  next, in another terminal:",
            f"    export TIDELOG_CLIENT_CONFIG={folder}/client.properties",
            "    tidelog topic create orders",
            "    tidelog user create alice              # asks for a password",
            "    tidelog acl allow alice read write --topic orders",
            f"    kcat -F {folder}/kcat.conf -L",
            f"    Java: {folder}/java.properties   kafka-python: {folder}/kafka-python.json",
        ]


def _properties(values: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in values.items())


def prepare(data: Path, hosts: Sequence[str]) -> SecureSetup:
    """Make what is not there yet; the brokers' certificate anew where it is not for one of the hosts."""
    folder = data / FOLDER
    try:
        # A new one is for this user alone; the modes of one from before are its owner's affair.
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
        authority = _authority(folder)
        _issue_for_brokers(folder, authority, certificate_hosts(hosts))
        passwords, created = _passwords(folder)
    except ModuleNotFoundError as missing:
        raise CommandError(
            f"--secure needs {missing.name}, which is not installed", "pip install 'tidelog[security]'"
        ) from missing
    except OSError as failure:
        raise CommandError(
            f"cannot set up security in {folder}: {failure.strerror}", "choose another --data"
        ) from failure
    return SecureSetup(folder, passwords, created)


def certificate_hosts(hosts: Sequence[str]) -> list[str]:
    """The names and addresses a broker's certificate is for: those given, and this machine's own."""
    own = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    given = [host.strip("[]") for host in hosts]
    return list(dict.fromkeys([*own, *(host for host in given if host not in _WILDCARDS)]))


def _authority(folder: Path) -> Authority:
    path = folder / "ca-key.pem"
    if path.exists():
        return Authority.load(path.read_text())
    authority = Authority.create()
    write_secret(path, authority.keystore)
    write_secret(folder / "ca.pem", authority.certificate)
    return authority


def _issue_for_brokers(folder: Path, authority: Authority, hosts: Sequence[str]) -> None:
    path, noted = folder / "broker.pem", folder / "broker-hosts.json"
    known = json.loads(noted.read_text()) if path.exists() and noted.exists() else []
    if set(hosts) <= set(known):
        return
    wanted = list(dict.fromkeys([*known, *hosts]))
    write_secret(path, authority.issue("tidelog broker", wanted).keystore)
    write_secret(noted, json.dumps(wanted) + "\n")


def _passwords(folder: Path) -> tuple[dict[str, str], bool]:
    path = folder / "credentials.json"
    if path.exists():
        return {str(user): str(password) for user, password in json.loads(path.read_text()).items()}, False
    passwords = {user: secrets.token_urlsafe(24) for user in (ADMIN, BROKER_USER)}
    write_secret(path, json.dumps(passwords, indent=2) + "\n")
    return passwords, True


def store_users(setup: SecureSetup, settings: BrokerSettings) -> None:
    """Put the first users into the store that the brokers will open."""
    try:
        store = open_store(settings)
        try:
            for user, password in setup.passwords.items():
                credentials = {
                    mechanism: credential_from_password(mechanism, password, ITERATIONS)
                    for mechanism in (SCRAM_SHA_256, SCRAM_SHA_512)
                }
                [(key, value)] = UserRecord(user, credentials).writes()
                # Passwords that were just made are the ones that the files have.
                outcome = store.commit([Write(key, value, None if setup.created else ABSENT)])
                assert not (setup.created and isinstance(outcome, Conflict))
        finally:
            store.close()
    except StoreError as failure:
        raise CommandError(
            f"the first users cannot be stored: {failure}", "stop whatever uses this data, or choose another"
        ) from failure
