"""SCRAM, PLAIN and OAUTHBEARER byte by byte: the vectors of the RFCs, our own client, and whoever lies."""

import base64
import json
import random
import time

import pytest

from tidelog.client import sasl
from tidelog.client.client_settings import ClientSettings
from tidelog.model.credentials import DelegationToken, ScramCredential
from tidelog.security.delegation_tokens import token_password
from tidelog.security.exchange import (
    Accepted,
    Challenge,
    DeferredVerdict,
    Exchange,
    ExchangeOutcome,
    Rejected,
)
from tidelog.security.jwt_tokens import TokenRules, UnsecuredTokens
from tidelog.security.oauthbearer import OAuthBearerExchange
from tidelog.security.plain import PlainExchange
from tidelog.security.scram import ScramExchange, credential_from_password, fictional_credential


class KnownUsers:
    """Some users, and one delegation token."""

    def __init__(self) -> None:
        self.credentials: dict[tuple[str, str], ScramCredential] = {}
        self.tokens: dict[str, DelegationToken] = {}

    def add(self, user: str, password: str, mechanism: str, **fields: object) -> None:
        self.credentials[user, mechanism] = credential_from_password(mechanism, password, **fields)  # type: ignore[arg-type]

    def credential(self, user: str, mechanism: str) -> ScramCredential | None:
        return self.credentials.get((user, mechanism))

    def usual_iterations(self, mechanism: str) -> int:
        return 4096

    def token(self, token_id: str) -> DelegationToken | None:
        return self.tokens.get(token_id)

    def token_password(self, token_id: str) -> str:
        return token_password("secret", token_id)


def respond(exchange: Exchange, data: bytes) -> ExchangeOutcome:
    outcome = exchange.respond(data)
    return outcome.work() if isinstance(outcome, DeferredVerdict) else outcome


def log_in(exchange: Exchange, settings: ClientSettings) -> ExchangeOutcome:
    """Let our own client talk to the exchange until one of them has had enough."""
    client = sasl.exchange(settings)
    outcome = respond(exchange, next(client))
    while isinstance(outcome, Challenge):
        outcome = respond(exchange, client.send(outcome.data))
    if isinstance(outcome, Accepted):
        with pytest.raises(StopIteration):
            client.send(outcome.data)
    return outcome


def client(mechanism: str, user: str = "", password: str = "", token: str = "") -> ClientSettings:
    return ClientSettings(
        bootstrap_servers=(),
        sasl_mechanism=mechanism,
        sasl_username=user,
        sasl_password=password,
        oauth_token=token,
    )


def test_the_exchange_of_rfc_7677() -> None:
    users = KnownUsers()
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    users.add("user", "pencil", "SCRAM-SHA-256", salt=salt, iterations=4096)
    exchange = ScramExchange("SCRAM-SHA-256", users, make_nonce=lambda: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = exchange.respond(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == Challenge(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    last = exchange.respond(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert last == Accepted("user", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("user", ["alice", "a=b,c", "Grüße"])
def test_a_password_lets_its_user_in_and_no_other_does(mechanism: str, user: str) -> None:
    users = KnownUsers()
    users.add(user, "pass,word=1", mechanism)
    assert isinstance(
        log_in(ScramExchange(mechanism, users), client(mechanism, user, "pass,word=1")), Accepted
    )
    refused = log_in(ScramExchange(mechanism, users), client(mechanism, user, "pass,word=2"))
    assert refused == Rejected("a wrong password")


def test_who_does_not_exist_is_asked_like_everybody_else() -> None:
    users = KnownUsers()
    users.add("alice", "secret", "SCRAM-SHA-256")
    challenges = []
    for _ in range(2):
        exchange = ScramExchange("SCRAM-SHA-256", users, make_nonce=lambda: "ours")
        challenges.append(exchange.respond(b"n,,n=nobody,r=mine"))
    assert challenges[0] == challenges[1] and isinstance(challenges[0], Challenge)
    outcome = log_in(ScramExchange("SCRAM-SHA-256", users), client("SCRAM-SHA-256", "nobody", "x"))
    assert isinstance(outcome, Rejected) and outcome.message is None
    one, two = (fictional_credential("SCRAM-SHA-512", name, 4096) for name in ("ann", "bob"))
    assert one.salt != two.salt and one.stored_key not in repr(one).encode()


def test_what_an_old_librdkafka_sends_is_taken() -> None:
    """Before 2.4 it puts its own nonce in front of the one that was agreed on."""
    users = KnownUsers()
    users.add("u", "p", "SCRAM-SHA-256")
    exchange = ScramExchange("SCRAM-SHA-256", users)
    talk = sasl.exchange(client("SCRAM-SHA-256", "u", "p"), nonce="mine")
    first = exchange.respond(next(talk))
    assert isinstance(first, Challenge)
    final = talk.send(first.data)
    # The proof does not fit the changed text; what matters is that the nonce is not what it fails by.
    assert exchange.respond(final.replace(b"r=mine", b"r=minemine")) == Rejected("a wrong password")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,n=,r=x",
        b"n,,n=u,r=",
        b"p=tls-unique,,n=u,r=x",
        b"n,,n=u=zz,r=x",
        b"n,,m=ext,n=u,r=x",
        b"\xff\xfe",
        b"n,,n=u,r=" + b"x" * 5000,
        b"\x00" * 100,
    ],
)
def test_first_messages_that_are_none(message: bytes) -> None:
    assert isinstance(ScramExchange("SCRAM-SHA-256", KnownUsers()).respond(message), Rejected)


def test_nobody_acts_for_another() -> None:
    users = KnownUsers()
    users.add("u", "p", "SCRAM-SHA-256")
    outcome = ScramExchange("SCRAM-SHA-256", users).respond(b"n,a=admin,n=u,r=x")
    assert isinstance(outcome, Rejected)
    assert isinstance(respond(PlainExchange({"u": "p"}, users), b"admin\0u\0p"), Rejected)


def test_a_proof_cannot_be_used_again() -> None:
    users = KnownUsers()
    users.add("u", "p", "SCRAM-SHA-256")
    talk = sasl.exchange(client("SCRAM-SHA-256", "u", "p"))
    begin = next(talk)
    first = ScramExchange("SCRAM-SHA-256", users).respond(begin)
    assert isinstance(first, Challenge)
    final = talk.send(first.data)
    again = ScramExchange("SCRAM-SHA-256", users)
    again.respond(begin)
    assert isinstance(again.respond(final), Rejected)


def test_random_bytes_never_get_in() -> None:
    chance = random.Random(20261115)
    users = KnownUsers()
    users.add("u", "p", "SCRAM-SHA-512")
    template = b"c=biws,r=x,p=" + base64.b64encode(bytes(64))
    for _ in range(500):
        exchange = ScramExchange("SCRAM-SHA-512", users)
        exchange.respond(b"n,,n=u,r=x")
        data = bytearray(template)
        for _ in range(chance.randrange(1, 8)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        assert isinstance(exchange.respond(bytes(data)), Rejected)
        for other in (
            PlainExchange({"u": "p"}, users),
            OAuthBearerExchange(UnsecuredTokens(TokenRules()).check),
        ):
            outcome = other.respond(chance.randbytes(chance.randrange(64)))
            assert isinstance(outcome, Rejected | DeferredVerdict)


def test_a_delegation_token_stands_for_its_owner() -> None:
    users = KnownUsers()
    users.tokens["t1"] = DelegationToken("t1", "User:alice", "User:alice", (), 1, 2_000, 3_000)
    password = users.token_password("t1")
    talk = sasl.exchange(client("SCRAM-SHA-256", "t1", password), nonce="mine")
    next(talk)
    exchange = ScramExchange("SCRAM-SHA-256", users)
    first = respond(exchange, b"n,,n=t1,r=mine,tokenauth=true")
    assert isinstance(first, Challenge)
    final = talk.send(first.data)
    # Our client did not name the extension, so its proof is for another first message.
    assert exchange.respond(final) == Rejected("a wrong password")
    # Without the extension there is no user of that name.
    assert isinstance(
        log_in(ScramExchange("SCRAM-SHA-256", users), client("SCRAM-SHA-256", "t1", password)), Rejected
    )


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_plain_knows_the_users_of_jaas_and_of_scram(mechanism: str) -> None:
    users = KnownUsers()
    users.add("scram", "one", mechanism)
    named = {"jaas": "two"}
    assert log_in(PlainExchange(named, users), client("PLAIN", "scram", "one")) == Accepted("scram")
    assert log_in(PlainExchange(named, users), client("PLAIN", "jaas", "two")) == Accepted("jaas")
    for user, password in (("scram", "two"), ("jaas", "one"), ("nobody", "one"), ("jaas", ""), ("", "two")):
        outcome = log_in(PlainExchange(named, users), client("PLAIN", user, password))
        assert isinstance(outcome, Rejected) and "two" not in repr(outcome) and "one" not in repr(outcome)


def unsecured(claims: dict[str, object], algorithm: str = "none") -> str:
    parts = [json.dumps(part).encode() for part in ({"alg": algorithm}, claims)]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."


def test_unsecured_tokens() -> None:
    now = time.time()
    checker = UnsecuredTokens(TokenRules(skew_seconds=5), lambda: now)

    def outcome(token: str) -> ExchangeOutcome:
        return respond(OAuthBearerExchange(checker.check), f"n,,\x01auth=Bearer {token}\x01\x01".encode())

    good = outcome(unsecured({"sub": "carol", "exp": now + 60}))
    assert isinstance(good, Accepted) and good.user == "carol" and good.expires_ms == int((now + 60) * 1000)
    for claims in (
        {"sub": "carol", "exp": now - 6},
        {"sub": "carol"},
        {"exp": now + 9},
        {"sub": "", "exp": now + 9},
    ):
        assert outcome(unsecured(dict(claims))) == Challenge(b'{"status":"invalid_token"}')
    assert isinstance(outcome(unsecured({"sub": "carol", "exp": now + 60}, "RS256")), Challenge)


def test_a_refused_token_is_refused_when_the_client_has_heard() -> None:
    exchange = OAuthBearerExchange(UnsecuredTokens(TokenRules()).check)
    assert isinstance(respond(exchange, b"n,,\x01auth=Bearer a.b.c\x01\x01"), Challenge)
    assert isinstance(exchange.respond(b"\x01"), Rejected)
    exchange = OAuthBearerExchange(UnsecuredTokens(TokenRules()).check)
    assert isinstance(log_in(exchange, client("OAUTHBEARER", token="a.b.c")), Rejected)


def test_nobody_learns_which_tokens_there_are() -> None:
    """The same salt again and again, the same iterations, and work in both cases."""
    users = KnownUsers()
    users.tokens["t1"] = DelegationToken("t1", "User:alice", "User:alice", (), 1, 2_000, 3_000)
    for token_id in ("t1", "t2"):
        shown = set()
        for _ in range(3):
            exchange = ScramExchange("SCRAM-SHA-256", users, make_nonce=lambda: "ours")
            outcome = exchange.respond(f"n,,n={token_id},r=mine,tokenauth=true".encode())
            assert isinstance(outcome, DeferredVerdict)
            challenge = outcome.work()
            assert isinstance(challenge, Challenge)
            shown.add(challenge.data)
        assert len(shown) == 1
        assert shown.pop().endswith(f",i={users.usual_iterations('SCRAM-SHA-256')}".encode())
