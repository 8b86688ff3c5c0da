"""SASL on one connection, without sockets: what is let through when, and what a refusal looks like."""

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.broker.node import NodeUnderTest, batch, joined, produce_frame
from tidelog.broker.requests.request import CloseConnection, PendingAnswer
from tidelog.client import sasl
from tidelog.client.client_settings import ClientSettings
from tidelog.client.requests import (
    decode_response,
    encode_request,
    flexible_answer,
    frame_prefix,
    response_body,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.settings import BrokerSettings
from tidelog.protocol import messages
from tidelog.protocol.apis import APIS
from tidelog.security.delegation_tokens import token_password
from tidelog.security.exchange import Rejected
from tidelog.security.listeners import ListenerSecurity
from tidelog.security.scram import salted_password

HANDSHAKE, API_VERSIONS, AUTHENTICATE, METADATA = 17, 18, 36, 3
SECRET = "the secret of the cluster"


class SecuredNode(NodeUnderTest):
    """A broker with one connection on a listener with SASL."""

    def __init__(self, **more: str) -> None:
        settings: dict[str, Any] = {
            "listener_security_protocol_map": "PLAINTEXT:SASL_PLAINTEXT",
            "sasl_enabled_mechanisms": "PLAIN,SCRAM-SHA-256",
            "sasl_jaas_config": 'x required user_bob="builder";',
            "delegation_token_secret_key": SECRET,
            **more,
        }
        super().__init__(**settings)
        self.security = ListenerSecurity(self.broker.settings.current, "PLAINTEXT")
        self.closed: list[str] = []
        self.connect()

    def connect(self) -> None:
        self.context = type(self.context)("127.0.0.1", 1, "PLAINTEXT")
        gate = self.broker.authenticator.get().gate(self.context, self.security, self.closed.append)
        self.context.authentication = self.context.gate = gate

    def ask(self, key: int, version: int, **fields: Any) -> Any:
        """One request; the decoded answer, or the place of one that comes later."""
        body = encode_request(key, version, fields)
        answer = self.handle((frame_prefix(key, version, 7, b"test", len(body)) + body)[4:])
        if isinstance(answer, PendingAnswer) and answer.chunks is None:
            return answer
        return self.decoded(key, version, answer)

    @staticmethod
    def decoded(key: int, version: int, answer: Any) -> Any:
        frame = memoryview(joined(answer))[4:]
        return decode_response(key, version, response_body(frame, flexible_answer(key, version)))

    def log_in(self, mechanism: str, user: str, password: str, version: int = 2) -> Any:
        """A whole exchange; the last answer."""
        assert self.ask(HANDSHAKE, 1, mechanism=mechanism).error_code == 0
        settings = ClientSettings((), sasl_mechanism=mechanism, sasl_username=user, sasl_password=password)
        talk = sasl.exchange(settings)
        token = next(talk)
        while True:
            answer = self.ask(AUTHENTICATE, version, auth_bytes=token)
            if isinstance(answer, PendingAnswer) or answer.error_code:
                return answer
            try:
                token = talk.send(answer.auth_bytes)
            except StopIteration:
                return answer

    def add_user(self, user: str, password: str, iterations: int = 4096, mechanism: int = 1) -> Any:
        salted = salted_password("SCRAM-SHA-256", password, b"salt", iterations)
        upsertion = {
            "name": user,
            "mechanism": mechanism,
            "iterations": iterations,
            "salt": b"salt",
            "salted_password": salted,
        }
        [result] = self.ask(51, 0, deletions=(), upsertions=(upsertion,)).results
        return result


@pytest.fixture
def node() -> SecuredNode:
    return SecuredNode()


def test_nothing_but_the_handshake_before_it(node: SecuredNode) -> None:
    assert node.ask(API_VERSIONS, 3, client_software_name="x", client_software_version="1").error_code == 0
    for key in sorted(APIS.keys() - {HANDSHAKE, API_VERSIONS}):
        with pytest.raises(CloseConnection):
            version = max(APIS[key].min_version, APIS[key].served_from)
            node.handle(frame_prefix(key, version, 1, b"c", 0)[4:])
    with pytest.raises(CloseConnection):
        node.handle(frame_prefix(10_000, 0, 1, b"c", 0)[4:])
    node.ask(HANDSHAKE, 1, mechanism="PLAIN")
    for key in (API_VERSIONS, HANDSHAKE, METADATA):
        with pytest.raises(CloseConnection):
            node.handle(frame_prefix(key, 1, 1, b"c", 0)[4:])


def test_who_has_authenticated_is_that_user(node: SecuredNode) -> None:
    answer = node.log_in("PLAIN", "bob", "builder")
    assert answer.error_code == 0 and node.context.principal == "User:bob" and node.context.gate is None
    assert node.ask(METADATA, 9, topics=None).brokers
    assert node.ask(AUTHENTICATE, 2, auth_bytes=b"").error_code == ErrorCode.ILLEGAL_SASL_STATE


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_is_answered_late_and_closed(node: SecuredNode, mechanism: str) -> None:
    answer = node.log_in(mechanism, "bob", "hunter2")
    assert isinstance(answer, PendingAnswer) and not node.closed
    with pytest.raises(CloseConnection):
        node.ask(METADATA, 9, topics=None)
    node.advance(99)
    assert answer.chunks is None and not node.closed
    node.advance(1)
    refused = node.decoded(AUTHENTICATE, 2, answer)
    assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED and node.closed
    assert "hunter2" not in refused.error_message and "bob" not in refused.error_message
    assert node.context.principal == "User:ANONYMOUS"


def test_a_mechanism_that_is_not_enabled(node: SecuredNode) -> None:
    answer = node.ask(HANDSHAKE, 1, mechanism="OAUTHBEARER")
    assert isinstance(answer, PendingAnswer)
    node.advance(100)
    refused = node.decoded(HANDSHAKE, 1, answer)
    assert refused.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert refused.mechanisms == ("PLAIN", "SCRAM-SHA-256") and node.closed


def test_users_are_made_changed_and_deleted(node: SecuredNode) -> None:
    node.log_in("PLAIN", "bob", "builder")
    assert node.add_user("alice", "one").error_code == 0
    described = node.ask(50, 0, users=None).results
    assert [(each.user, each.credential_infos[0].iterations) for each in described] == [("alice", 4096)]
    node.connect()
    assert node.log_in("SCRAM-SHA-256", "alice", "one").error_code == 0
    assert node.context.principal == "User:alice"
    assert node.add_user("alice", "two").error_code == 0
    node.connect()
    assert isinstance(node.log_in("SCRAM-SHA-256", "alice", "one"), PendingAnswer)
    node.connect()
    assert node.log_in("PLAIN", "alice", "two").error_code == 0
    deletion = {"name": "alice", "mechanism": 1}
    assert node.ask(51, 0, deletions=(deletion,), upsertions=()).results[0].error_code == 0
    gone = node.ask(51, 0, deletions=(deletion,), upsertions=()).results[0]
    assert gone.error_code == ErrorCode.RESOURCE_NOT_FOUND
    node.connect()
    assert isinstance(node.log_in("SCRAM-SHA-256", "alice", "two"), PendingAnswer)


def test_credentials_that_are_not_taken(node: SecuredNode) -> None:
    node.log_in("PLAIN", "bob", "builder")
    assert node.add_user("a", "p", iterations=4095).error_code == ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert node.add_user("a", "p", iterations=16385).error_code == ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert node.add_user("", "p").error_code == ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert node.add_user("a", "p", mechanism=9).error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    names = ({"name": "x"}, {"name": "x"})
    [twice] = node.ask(50, 0, users=names).results
    assert twice.error_code == ErrorCode.DUPLICATE_RESOURCE
    [unknown] = node.ask(50, 0, users=({"name": "x"},)).results
    assert unknown.error_code == ErrorCode.RESOURCE_NOT_FOUND
    assert not node.broker.image.users


def test_an_authentication_ends_and_is_made_anew() -> None:
    node = SecuredNode(connections_max_reauth_ms="60000")
    node.create_topic("t")
    answer = node.log_in("PLAIN", "bob", "builder", version=1)
    assert answer.session_lifetime.total_seconds() == 60
    for _ in range(2):
        node.handle(produce_frame(9, batch(b"x")))
    assert node.context.produce_template_end
    node.advance(60_000)
    assert node.context.produce_template_end == 0 and not node.context.produce_templates
    with pytest.raises(CloseConnection):
        node.handle(produce_frame(9, batch(b"x")))
    assert node.log_in("PLAIN", "bob", "builder").error_code == 0
    assert joined(node.handle(produce_frame(9, batch(b"x"))))


def test_whoever_authenticates_again_stays_who_it_was(node: SecuredNode) -> None:
    node.log_in("PLAIN", "bob", "builder")
    assert node.ask(HANDSHAKE, 1, mechanism="PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE  # too soon
    node.add_user("alice", "one")
    node.advance(1_000)
    assert node.ask(HANDSHAKE, 1, mechanism="PLAIN").error_code == 0
    with pytest.raises(CloseConnection):
        node.handle(produce_frame(9, batch(b"x")))
    refused = node.ask(AUTHENTICATE, 2, auth_bytes=b"\0alice\0one")
    assert isinstance(refused, PendingAnswer)
    node.advance(100)
    assert node.closed and node.context.principal == "User:bob"
    node.connect()
    node.log_in("PLAIN", "bob", "builder")
    node.advance(1_000)
    node.ask(HANDSHAKE, 1, mechanism="SCRAM-SHA-256")
    assert isinstance(node.ask(AUTHENTICATE, 2, auth_bytes=b"n,,n=bob,r=x"), PendingAnswer)


def test_tokens_without_requests_around_them(node: SecuredNode) -> None:
    """SaslHandshake version 0 is followed by bare tokens."""
    node.ask(HANDSHAKE, 0, mechanism="PLAIN")
    assert joined(node.handle(b"\0bob\0builder")) == b"\0\0\0\0"
    assert node.context.principal == "User:bob"
    assert node.ask(METADATA, 9, topics=None).brokers
    node.connect()
    node.ask(HANDSHAKE, 0, mechanism="PLAIN")
    answer = node.handle(b"\0bob\0wrong")
    node.advance(100)
    assert answer.chunks is None and node.closed


def test_a_listener_without_sasl_says_so() -> None:
    plain = NodeUnderTest()
    for key, fields in ((HANDSHAKE, {"mechanism": "PLAIN"}), (AUTHENTICATE, {"auth_bytes": b""})):
        body = encode_request(key, 1, fields)
        answer = plain.handle((frame_prefix(key, 1, 7, b"test", len(body)) + body)[4:])
        assert SecuredNode.decoded(key, 1, answer).error_code == ErrorCode.ILLEGAL_SASL_STATE


def make_token(node: SecuredNode, **fields: Any) -> Any:
    return node.ask(
        38, 3, renewers=fields.pop("renewers", ()), max_lifetime=fields.pop("max_lifetime", -1), **fields
    )


def test_a_delegation_token_from_its_making_to_its_end(node: SecuredNode) -> None:
    node.log_in("PLAIN", "bob", "builder")
    made = make_token(node, renewers=({"principal_type": "User", "principal_name": "rita"},))
    assert made.error_code == 0 and made.principal_name == "bob"
    [described] = node.ask(41, 3, owners=None).tokens
    assert described.hmac == made.hmac and described.token_id == made.token_id
    renewed = node.ask(39, 2, hmac=made.hmac, renew_period=3_600_000)
    assert renewed.error_code == 0 and renewed.expiry_timestamp < made.expiry_timestamp

    node.connect()
    node.ask(HANDSHAKE, 1, mechanism="SCRAM-SHA-256")
    assert log_in_with_token(node, made.token_id).session_lifetime.total_seconds() == 3600
    assert node.context.principal == "User:bob" and node.context.token_id == made.token_id
    assert make_token(node).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED

    node.connect()
    node.log_in("PLAIN", "bob", "builder")
    for absent in (
        node.ask(39, 2, hmac=b"x", renew_period=-1),
        node.ask(40, 2, hmac=b"x", expiry_time_period=-1),
    ):
        assert absent.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        assert absent.expiry_timestamp.timestamp() == 0
    assert node.ask(40, 2, hmac=made.hmac, expiry_time_period=-1).error_code == 0
    assert node.ask(41, 3, owners=None).tokens == () and not node.broker.image.tokens


def log_in_with_token(node: SecuredNode, token_id: str) -> Any:
    """SCRAM with the extension that says that the user is a token."""
    import base64
    import hashlib
    import hmac

    first_bare = f"n={token_id},r=mine,tokenauth=true"
    server_first = node.ask(AUTHENTICATE, 2, auth_bytes=f"n,,{first_bare}".encode()).auth_bytes.decode()
    fields = dict(part.split("=", 1) for part in server_first.split(","))
    salt, iterations = base64.b64decode(fields["s"]), int(fields["i"])
    salted = salted_password("SCRAM-SHA-256", token_password(SECRET, token_id), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    without_proof = f"c=biws,r={fields['r']}"
    message = ",".join((first_bare, server_first, without_proof)).encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), message, "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    return node.ask(AUTHENTICATE, 2, auth_bytes=f"{without_proof},p={proof}".encode())


def test_tokens_of_others(node: SecuredNode) -> None:
    node.log_in("PLAIN", "bob", "builder")
    node.add_user("eve", "one")
    made = make_token(node)
    other = make_token(node, owner_principal_type="User", owner_principal_name="admin")
    assert other.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    node.connect()
    node.log_in("PLAIN", "eve", "one")
    assert node.ask(41, 3, owners=None).tokens == ()
    mismatch = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert node.ask(39, 2, hmac=made.hmac, renew_period=-1).error_code == mismatch
    assert node.ask(40, 2, hmac=made.hmac, expiry_time_period=-1).error_code == mismatch


def test_expired_tokens_are_cleared_away() -> None:
    node = SecuredNode(
        delegation_token_expiry_time_ms="5000", delegation_token_expiry_check_interval_ms="60000"
    )
    node.log_in("PLAIN", "bob", "builder")
    token_id = make_token(node).token_id
    node.advance(5_001)
    assert node.broker.users.token(token_id) is None and node.broker.image.tokens
    node.advance(60_000)
    assert not node.broker.image.tokens


def test_without_a_secret_there_are_no_tokens() -> None:
    node = SecuredNode(delegation_token_secret_key="")
    node.log_in("PLAIN", "bob", "builder")
    assert make_token(node).error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


@pytest.mark.parametrize("key", [17, 36, 38, 39, 40, 41, 50, 51])
def test_answers_have_the_fields_of_the_schema(node: SecuredNode, key: int) -> None:
    """A field under another name than the schema's would silently be left out."""

    api = APIS[key]
    handler = node.broker.make_handler(api)
    node.log_in("PLAIN", "bob", "builder")
    seen: list[Any] = []

    def spy(request: Any) -> Any:
        answer = handler.handle(request)
        if isinstance(answer, dict):
            seen.append(answer)
        else:
            deliver = answer.deliver_to
            assert deliver is not None
            seen.append(getattr(answer, "_response", None))
        return answer

    node.dispatcher._handlers[key] = spy
    node.ask(key, api.max_version, **ARGUMENTS.get(key, {}))
    for fields in seen:
        if fields is not None:
            message = messages._message_class(api.module, api.max_version, "response")
            assert set(fields) <= {field.name for field in dataclasses.fields(message)}


ARGUMENTS: dict[int, dict[str, Any]] = {
    17: {"mechanism": "PLAIN"},
    36: {"auth_bytes": b""},
    38: {"renewers": (), "max_lifetime": -1},
    39: {"hmac": b"x", "renew_period": -1},
    40: {"hmac": b"x", "expiry_time_period": -1},
    41: {"owners": None},
    50: {"users": None},
    51: {"deletions": ({"name": "x", "mechanism": 1},), "upsertions": ()},
}


def test_settings_of_the_listener_are_those_of_the_broker() -> None:
    settings = BrokerSettings.resolve({"listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT"})
    assert ListenerSecurity(settings, "PLAINTEXT").mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512")


def test_the_password_of_a_connection_that_is_gone_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    node = SecuredNode()
    waiting: list[Callable[[], object]] = []
    later = SimpleNamespace(run=lambda work, then: waiting.append(work))
    monkeypatch.setattr(node.broker, "authentication_background", later)
    monkeypatch.setattr(node.broker.authenticator, "made", None)
    node.connect()
    node.ask(HANDSHAKE, 1, mechanism="PLAIN")
    node.ask(AUTHENTICATE, 2, auth_bytes=b"\0alice\0guess")
    assert node.context.authentication is not None
    node.context.authentication.abandon()
    monkeypatch.setattr("tidelog.security.plain.password_fits", lambda *_: pytest.fail("it was checked"))
    [work] = waiting
    assert work() == Rejected("the connection is gone")
