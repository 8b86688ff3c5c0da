"""SASL exchanges against the examples of their RFCs, and against a broker's side that cheats."""

import base64
import hashlib
import hmac
from typing import Any

import pytest

from tidelog.client.client_settings import ClientSettings
from tidelog.client.faults import AuthenticationFailed, BadOption
from tidelog.client.sasl import exchange


def settings(mechanism: str, **options: Any) -> ClientSettings:
    return ClientSettings(
        bootstrap_servers=(("a", 1),), security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism, **options
    )


def test_plain() -> None:
    steps = exchange(settings("PLAIN", sasl_username="tim", sasl_password="tanstaaf"))
    assert next(steps) == b"\0tim\0tanstaaf"
    with pytest.raises(StopIteration):
        steps.send(b"")


def test_scram_sha_256_is_that_of_rfc_7677() -> None:
    pencil = settings("SCRAM-SHA-256", sasl_username="user", sasl_password="pencil")
    steps = exchange(pencil, "rOprNGfwEbeRWgbNEkqO")
    assert next(steps) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert steps.send(challenge) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    with pytest.raises(StopIteration):
        steps.send(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_scram_sha_512_against_a_broker_written_from_the_rfc() -> None:
    steps = exchange(settings("SCRAM-SHA-512", sasl_username="a,b=c", sasl_password="s3cret"), "cn")
    first = next(steps)
    assert first == b"n,,n=a=2Cb=3Dc,r=cn"
    salt = b"0123456789abcdef"
    challenge = b"r=cnsn,s=" + base64.b64encode(salt) + b",i=8192"
    final = steps.send(challenge)
    without_proof, _, proof = final.partition(b",p=")
    salted = hashlib.pbkdf2_hmac("sha512", b"s3cret", salt, 8192)
    message = b",".join((first[3:], challenge, without_proof))
    client_key = hmac.digest(salted, b"Client Key", "sha512")
    signature = hmac.digest(hashlib.sha512(client_key).digest(), message, "sha512")
    assert bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True)) == client_key
    server_signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha512"), message, "sha512")
    with pytest.raises(StopIteration):
        steps.send(b"v=" + base64.b64encode(server_signature))


@pytest.mark.parametrize(
    "challenge",
    [
        b"r=other,s=AAAA,i=4096",
        b"r=cn,s=AAAA,i=4096",
        b"r=cnsn,s=AAAA,i=1",
        b"r=cnsn,s=AAAA,i=999999999",
        b"r=cnsn,s=AAAA,i=100001",
        b"r=cnsn,s=AAAA,i=" + b"9" * 5000,
        b"r=cnsn,i=4096",
        b"e=unknown-user",
        b"\xff\xfe",
        b"",
    ],
)
def test_scram_refuses_a_broker_that_cheats(challenge: bytes) -> None:
    steps = exchange(settings("SCRAM-SHA-256", sasl_username="u", sasl_password="p"), "cn")
    next(steps)
    with pytest.raises(AuthenticationFailed):
        steps.send(challenge)


def test_scram_refuses_a_broker_that_does_not_know_the_password() -> None:
    steps = exchange(settings("SCRAM-SHA-256", sasl_username="u", sasl_password="p"), "cn")
    next(steps)
    steps.send(b"r=cnsn,s=AAAA,i=4096")
    with pytest.raises(AuthenticationFailed, match="does not know the password"):
        steps.send(b"v=AAAA")


def test_oauth_bearer() -> None:
    steps = exchange(settings("OAUTHBEARER", oauth_token="t0k", oauth_extensions="logicalCluster=lkc-1"))
    assert next(steps) == b"n,,\x01auth=Bearer t0k\x01logicalCluster=lkc-1\x01\x01"
    with pytest.raises(StopIteration):
        steps.send(b"")


def test_oauth_bearer_refused() -> None:
    steps = exchange(settings("OAUTHBEARER", oauth_token="t0k"))
    next(steps)
    assert steps.send(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(AuthenticationFailed, match="invalid_token"):
        steps.send(b"")


def token_for_test() -> str:
    return "from-callback"


def test_oauth_callback() -> None:
    named = settings("OAUTHBEARER", oauth_token_callback=f"{__name__}:token_for_test")
    assert b"Bearer from-callback" in next(exchange(named))
    for wrong in ("nomodule", "no.such.module:f", f"{__name__}:nothing"):
        with pytest.raises(BadOption):
            exchange(settings("OAUTHBEARER", oauth_token_callback=wrong))
