"""TLS contexts from settings, certificates that change, names that become users."""

import ssl
from pathlib import Path

import pytest

from tidelog.model.settings import BrokerSettings, SettingsError, broker_config_faults
from tidelog.model.settings_table import BROKER_SETTINGS
from tidelog.security.certificates import Authority, write_secret
from tidelog.security.jaas import parse_options, plain_users
from tidelog.security.listeners import ListenerSecurity
from tidelog.security.principals import distinguished_name, parse_rules, user_name
from tidelog.security.tls import ReloadingContext, TlsSettings, TlsUnusable, client_context, server_context


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create()


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost") -> ssl.SSLObject:
    """Both sides in memory; the client's side, or SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = server.wrap_bio(to_server, to_client, server_side=True)
    other = client.wrap_bio(to_client, to_server, server_hostname=host)
    done = set()
    for _ in range(10):
        for side in (other, one):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                pass
    assert len(done) == 2
    return other


def stores(tmp_path: Path, authority: Authority, **fields: object) -> TlsSettings:
    write_secret(tmp_path / "ca.pem", authority.certificate)
    write_secret(tmp_path / "broker.pem", authority.issue("broker", ["localhost", "127.0.0.1"]).keystore)
    return TlsSettings(str(tmp_path / "broker.pem"), truststore=str(tmp_path / "ca.pem"), **fields)  # type: ignore[arg-type]


def test_versions_and_names(tmp_path: Path, authority: Authority) -> None:
    tls = stores(tmp_path, authority)
    server, client = server_context(tls), client_context(tls)
    assert shake_hands(server, client).version() == "TLSv1.3"
    assert shake_hands(server, client, "127.0.0.1").version() == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, client, "elsewhere")
    old = client_context(tls)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert shake_hands(server, old).version() == "TLSv1.2"
    with pytest.warns(DeprecationWarning):
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        shake_hands(server, old)
    assert (tmp_path / "broker.pem").stat().st_mode & 0o077 == 0


def test_keys_in_settings_themselves(authority: Authority) -> None:
    issued = authority.issue("broker", ["localhost"])
    tls = TlsSettings(key=issued.key, chain=issued.certificate, trusted=authority.certificate)
    assert shake_hands(server_context(tls), client_context(tls)).version() == "TLSv1.3"
    assert issued.key not in repr(tls) and "PRIVATE" not in repr(issued)


def test_unknown_authorities_are_refused_on_both_sides(tmp_path: Path, authority: Authority) -> None:
    tls = stores(tmp_path, authority, client_auth="required")
    stranger = Authority.create()
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server_context(tls), client_context(TlsSettings(trusted=stranger.certificate)))
    with pytest.raises(ssl.SSLError):
        shake_hands(server_context(tls), client_context(TlsSettings(trusted=authority.certificate)))
    own = stranger.issue("mallory")
    forged = TlsSettings(key=own.key, chain=own.certificate, trusted=authority.certificate)
    with pytest.raises(ssl.SSLError):
        shake_hands(server_context(tls), client_context(forged))


def test_a_certificate_changes_while_it_is_used(tmp_path: Path, authority: Authority) -> None:
    tls = stores(tmp_path, authority)
    current = ReloadingContext(tls, server_context)
    before = current.context
    assert not current.refresh() and current.context is before
    write_secret(tmp_path / "broker.pem", "half of a fi")
    assert not current.refresh() and current.context is before
    write_secret(tmp_path / "broker.pem", authority.issue("renewed", ["localhost"]).keystore)
    assert current.refresh() and current.context is not before
    peer = shake_hands(current.context, client_context(tls)).getpeercert()
    assert peer is not None and peer["subject"] == ((("commonName", "renewed"),),)
    with pytest.raises(TlsUnusable):
        server_context(TlsSettings(str(tmp_path / "missing.pem")))


def test_ciphers_by_both_names(tmp_path: Path, authority: Authority) -> None:
    for name in ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"):
        tls = stores(tmp_path, authority, ciphers=(name,), protocols=("TLSv1.2",))
        chosen = shake_hands(server_context(tls), client_context(tls)).cipher()
        assert chosen is not None and chosen[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"
    with pytest.raises(TlsUnusable):
        server_context(stores(tmp_path, authority, ciphers=("TLS_NOTHING_WITH_NOTHING",)))


SUBJECT = ((("countryName", "DE"),), (("organizationName", "Acme, Inc."),), (("commonName", "Alice"),))


def test_principal_rules() -> None:
    name = distinguished_name(SUBJECT)
    assert name == r"CN=Alice,O=Acme\, Inc.,C=DE"
    assert user_name(name, parse_rules("DEFAULT")) == name
    assert user_name(name, parse_rules("RULE:^CN=([^,]*),.*$/$1/L, DEFAULT")) == "alice"
    assert user_name(name, parse_rules("RULE:^CN=(.*?),O=.*,C=(.*)$/$1@$2/U")) == "ALICE@DE"
    assert user_name(name, parse_rules("RULE:^CN=([^,]*),.*$/$1-$9/")) == "Alice-$9"
    assert user_name(name, parse_rules("RULE:^OU=.*$/x/")) is None
    for bad in ("RULE:^CN=(.*$/x/", "NONSENSE", "RULE:a/b"):
        with pytest.raises(ValueError, match=r"ssl\.principal\.mapping\.rules"):
            parse_rules(bad)


def test_jaas() -> None:
    line = r"""x.y.PlainLoginModule required username="me" password='it"s' user_al="a\"b;c" user_bo=plain;"""
    assert parse_options(line)["password"] == 'it"s'
    assert plain_users(line) == {"al": 'a"b;c', "bo": "plain"}


def test_listeners_have_settings_of_their_own(tmp_path: Path, authority: Authority) -> None:
    stores(tmp_path, authority)
    settings = BrokerSettings.resolve(
        {
            "listeners": "CLIENTS://:9092,BROKERS://:9093",
            "listener.security.protocol.map": "CLIENTS:SASL_SSL,BROKERS:SSL",
            "inter.broker.listener.name": "BROKERS",
            "ssl.keystore.location": str(tmp_path / "broker.pem"),
            "ssl.truststore.location": str(tmp_path / "ca.pem"),
            "listener.name.brokers.ssl.client.auth": "required",
            "listener.name.clients.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.clients.plain.sasl.jaas.config": 'x required user_a="secret";',
            "listener.name.clients.scram-sha-512.connections.max.reauth.ms": "60000",
        }
    )
    clients, brokers = (ListenerSecurity(settings, name) for name in ("CLIENTS", "BROKERS"))
    assert clients.mechanisms == ("PLAIN", "SCRAM-SHA-512") and brokers.mechanisms == ()
    assert brokers.tls is not None and brokers.tls.context.verify_mode is ssl.CERT_REQUIRED
    assert clients.tls is not None and clients.tls.context.verify_mode is ssl.CERT_NONE
    assert clients.session_ms("PLAIN", None, 0) == 0
    assert clients.session_ms("SCRAM-SHA-512", None, 0) == 60_000
    assert clients.session_ms("SCRAM-SHA-512", 5_000, 1_000) == 4_000
    assert clients.session_ms("PLAIN", 500, 1_000) == 1
    assert brokers.certificate_principal(None) == "User:ANONYMOUS"
    assert "secret" not in repr(settings) + repr(clients)
    explained = settings.explain("listener.name.clients.plain.sasl.jaas.config")
    assert explained.value is None and all(item.value is None for item in explained.synonyms)


@pytest.mark.parametrize(
    "wrong",
    [
        {"listeners": "SSL://:9092"},
        {"listeners": "X://:9092", "listener.security.protocol.map": "X:GSSAPI"},
        {"listener.name.other.ssl.client.auth": "none"},
        {"listener.name.plaintext.nonsense": "1"},
        {"listener.name.plaintext.plain.num.partitions": "1"},
        {"security.inter.broker.protocol": "SSL"},
        {"security.inter.broker.protocol": "PLAINTEXT", "inter.broker.listener.name": "PLAINTEXT"},
        {"sasl.enabled.mechanisms": "GSSAPI"},
        {"ssl.enabled.protocols": "TLSv1.1"},
        {"ssl.client.auth": "maybe"},
    ],
)
def test_settings_that_cannot_work(wrong: dict[str, str]) -> None:
    with pytest.raises(SettingsError):
        BrokerSettings.resolve(wrong)


@pytest.mark.parametrize(
    "name",
    [
        setting.name
        for setting in BROKER_SETTINGS.values()
        if setting.name.startswith("ssl.") and not (setting.inert or setting.read_only or setting.choices)
    ],
)
def test_what_changes_by_request_is_what_tls_is_made_from(name: str) -> None:
    """A listener whose `TlsSettings` differ makes another context with the next tick."""
    settings = BrokerSettings.resolve({})
    before = TlsSettings.of_listener(settings, "PLAINTEXT")
    assert TlsSettings.of_listener(settings.with_dynamic({}, {name: "other"}), "PLAINTEXT") != before


def test_certificates_of_a_listener_change_by_request() -> None:
    name = "listener.name.plaintext.ssl.keystore.location"
    assert broker_config_faults({name: "/a.pem"}, cluster_wide=False) == []
    assert broker_config_faults({name: "/a.pem"}, cluster_wide=True)
    assert broker_config_faults({"listener.name.plaintext.ssl.client.auth": "none"}, cluster_wide=False)
    settings = BrokerSettings.resolve({}).with_dynamic({}, {name: "/b.pem"})
    assert TlsSettings.of_listener(settings, "PLAINTEXT").keystore == "/b.pem"
    assert list(settings.listener_forms) == [name]
