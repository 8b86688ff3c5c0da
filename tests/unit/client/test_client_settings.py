"""Options in both spellings, and refusals that say what to write."""

import pickle
from pathlib import Path

import pytest

from tidelog.client.client_settings import OPTIONS, READ_COMMITTED, READ_UNCOMMITTED, ClientSettings
from tidelog.client.faults import BadOption

BOOTSTRAP = {"bootstrap.servers": "a:1"}


def read(**options: str) -> ClientSettings:
    return ClientSettings.from_options(
        {**BOOTSTRAP, **{name.replace("__", "."): value for name, value in options.items()}}
    )


def test_addresses() -> None:
    settings = ClientSettings.from_options({"bootstrap.servers": " a:1, b ,PLAINTEXT://c:3,[::1]:4 "})
    assert settings.bootstrap_servers == (("a", 1), ("b", 9092), ("c", 3), ("::1", 4))


@pytest.mark.parametrize("text", ["", ",", "a:b", ":1", "a:0", "a:70000"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(BadOption, match=r"bootstrap\.servers"):
        ClientSettings.from_options({"bootstrap.servers": text})


def test_both_spellings_mean_the_same() -> None:
    java = read(sasl__mechanism="plain", security__protocol="sasl_plaintext", sasl__username="u")
    librdkafka = read(sasl__mechanisms="PLAIN", security__protocol="SASL_PLAINTEXT", sasl__username="u")
    assert java == librdkafka
    assert read(fetch__max__wait__ms="7") == read(fetch__wait__max__ms="7")
    with pytest.raises(BadOption, match="mean the same"):
        read(fetch__max__wait__ms="7", fetch__wait__max__ms="8")


def test_every_option_fills_a_field_or_is_taken_apart() -> None:
    taken_apart = {"sasl_jaas_config", "truststore_type", "keystore_type", "endpoint_identification"}
    assert set(OPTIONS) - set(ClientSettings.__annotations__) == taken_apart


def test_a_jaas_line_is_read() -> None:
    line = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required"
        ' username="ann" password="a \\"quoted\\" one";'
    )
    settings = read(security__protocol="SASL_SSL", sasl__mechanism="SCRAM-SHA-512", sasl__jaas__config=line)
    assert (settings.sasl_username, settings.sasl_password) == ("ann", 'a "quoted" one')
    assert settings.encrypted and settings.authenticated
    with pytest.raises(BadOption, match=r"sasl\.username"):
        read(security__protocol="SASL_SSL", sasl__mechanism="PLAIN", sasl__jaas__config="Module required;")


def test_secrets_are_not_shown() -> None:
    settings = read(
        security__protocol="SASL_PLAINTEXT",
        sasl__mechanism="PLAIN",
        sasl__username="u",
        sasl__password="hush",
    )
    assert "hush" not in repr(settings)
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert hash(settings) == hash(pickle.loads(pickle.dumps(settings)))


def test_unknown_names_are_passed_over_but_not_those_of_security() -> None:
    assert read(receive__buffer__bytes="1").ignored == ("receive.buffer.bytes",)
    for name in ("ssl.cipher.suites", "sasl.kerberos.service.name"):
        with pytest.raises(BadOption, match=name):
            ClientSettings.from_options({**BOOTSTRAP, name: "x"})


def test_isolation() -> None:
    assert read().isolation_level == READ_COMMITTED
    assert read(isolation__level="read_uncommitted").isolation_level == READ_UNCOMMITTED
    with pytest.raises(BadOption, match="read_committed or read_uncommitted"):
        read(isolation__level="serializable")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"security.protocol": "TLS"}, "PLAINTEXT, SSL"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "SCRAM-SHA-256"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "sasl.username"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
            "token.callback=module:function",
        ),
        ({"ssl.truststore.type": "JKS"}, "only PEM"),
        ({"ssl.endpoint.identification.algorithm": "ldap"}, "'none' to switch it off"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/nowhere.pem"}, "there is no file /nowhere.pem"),
        ({"request.timeout.ms": "soon"}, "a number"),
        ({"request.timeout.ms": "-1"}, "at least 0"),
        ({"request.timeout.ms": str(2**31)}, "at most 2147483647"),
        ({"SSL.Cipher.Suites": "x"}, "security is not guessed at"),
        ({"check.crcs": "yes"}, "true or false"),
    ],
)
def test_what_cannot_work_is_refused_with_a_hint(options: dict[str, str], words: str) -> None:
    with pytest.raises(BadOption) as refused:
        ClientSettings.from_options({**BOOTSTRAP, **options})
    assert words in str(refused.value)


def test_hostnames_are_checked_unless_switched_off(tmp_path: Path) -> None:
    assert read(security__protocol="SSL").check_hostname
    for off in ("", "none"):
        assert not read(ssl__endpoint__identification__algorithm=off).check_hostname
