"""A broker with a listener for every way in, and what a client needs to come in by each.

    PLAINTEXT  SSL  MTLS (SSL with client certificates)  SASL_PLAINTEXT  SASL_SSL
    TRYING_OUT (SASL_SSL that takes tokens which nobody signed)

The users are `bob` (SCRAM and PLAIN) and whoever has a token that the test's key signed.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import jwt
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.conformance.drivers.contract import DEADLINE_SECONDS
from tidelog.security.certificates import Authority, write_secret
from tidelog.testing.broker import RunningBroker
from tidelog.testing.ports import ReservedPort

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "SSL": "SSL",
    "MTLS": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
    "TRYING_OUT": "SASL_SSL",
}
WAYS = (
    ("PLAINTEXT", ""),
    ("SSL", ""),
    ("MTLS", ""),
    *(("SASL_PLAINTEXT", mechanism) for mechanism in MECHANISMS),
    *(("SASL_SSL", mechanism) for mechanism in MECHANISMS),
)
USER, PASSWORD = "bob", 'p=a,s"s\\word'
ISSUER = "https://issuer.example"


@dataclass(frozen=True)
class Access:
    """One way in."""

    listener: str
    bootstrap: str
    protocol: str
    mechanism: str
    authority: str
    certificate: str = ""
    key: str = ""
    keystore: str = ""
    user: str = USER
    password: str = PASSWORD
    token: str = ""
    token_file: str = ""


class SecuredBroker:
    """The running broker, its authority and its issuer of tokens."""

    def __init__(self, folder: Path, ports: dict[str, int], authority: Authority) -> None:
        self.folder = folder
        self.ports = ports
        self.authority = authority
        self.issuer_key = rsa.generate_private_key(65537, 2048)
        fields = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.issuer_key.public_key()))
        (folder / "keys.json").write_text(json.dumps({"keys": [{**fields, "kid": "k1", "use": "sig"}]}))

    def settings(self) -> dict[str, str]:
        pairs = LISTENERS.items()
        return {
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()),
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in pairs),
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.location": str(self.folder / "broker.pem"),
            "ssl.truststore.location": str(self.folder / "ca.pem"),
            "listener.name.mtls.ssl.client.auth": "required",
            "listener.name.mtls.ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/L,DEFAULT",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "sasl.oauthbearer.jwks.endpoint.url": (self.folder / "keys.json").as_uri(),
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": "tidelog",
            "listener.name.trying_out.sasl.oauthbearer.jwks.endpoint.url": "",
            "listener.name.trying_out.tidelog.sasl.oauthbearer.unsecured.tokens": "true",
            "tidelog.connection.authentication.timeout.ms": "15000",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
        }

    def token(self, user: str = "carol", lifetime_seconds: int = 600, **claims: object) -> str:
        now = int(time.time())
        body = {"sub": user, "iss": ISSUER, "aud": "tidelog", "iat": now, "exp": now + lifetime_seconds}
        return jwt.encode({**body, **claims}, self.issuer_key, "RS256", headers={"kid": "k1"})

    def access(self, listener: str, mechanism: str) -> Access:
        token = self.token() if mechanism == "OAUTHBEARER" else ""
        file = self.folder / "token.jwt"
        if token:
            file.write_text(token)
        found = Access(
            listener,
            f"127.0.0.1:{self.ports[listener]}",
            LISTENERS[listener],
            mechanism,
            str(self.folder / "ca.pem"),
            token=token,
            token_file=str(file) if token else "",
        )
        if listener != "MTLS":
            return found
        return replace(
            found,
            certificate=str(self.folder / "client.pem"),
            key=str(self.folder / "client.key"),
            keystore=str(self.folder / "client-keystore.pem"),
        )

    def add_user(self, user: str, password: str) -> None:
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{self.ports['PLAINTEXT']}"})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            upsertion = UserScramCredentialUpsertion(
                user, ScramCredentialInfo(mechanism, 4096), password.encode()
            )
            admin.alter_user_scram_credentials([upsertion])[user].result(DEADLINE_SECONDS)


@contextmanager
def secured_broker(folder: Path) -> Iterator[SecuredBroker]:
    """Start it in a process of its own."""
    authority = Authority.create()
    write_secret(folder / "ca.pem", authority.certificate)
    write_secret(folder / "broker.pem", authority.issue("broker", ["localhost", "127.0.0.1"]).keystore)
    client = authority.issue("Alice", organization="Acme")
    write_secret(folder / "client.pem", client.certificate)
    write_secret(folder / "client.key", client.key)
    write_secret(folder / "client-keystore.pem", client.keystore)
    reserved = {name: ReservedPort() for name in LISTENERS}
    broker = SecuredBroker(folder, {name: port.port for name, port in reserved.items()}, authority)
    try:
        with RunningBroker(broker.settings(), mode="process"):
            broker.add_user(USER, PASSWORD)
            yield broker
    finally:
        for port in reserved.values():
            port.close()
