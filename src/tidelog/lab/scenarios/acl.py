"""ACLs: public and private topics. What is not allowed is refused, and private topics cannot even be seen."""

from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tidelog.lab.clients import client_config, text
from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic
from tidelog.lab.to_the_end import to_the_end

WAIT_SECONDS = 10.0
ITERATIONS = 4_096
DENIED = "TOPIC_AUTHORIZATION_FAILED"

SCENARIO = Scenario(
    name="acl",
    title="Who may do what (ACLs)",
    minutes=5,
    learn=(
        "without a rule nobody may do anything",
        "rules can name a topic, or the beginning of names: public.* for all, team-a.* for one team",
        "what somebody may not see looks as if it were not there",
        "a rule counts at once, also for clients that are connected",
    ),
    brokers=1,
    topics=(Topic("public.news"), Topic("team-a.orders")),
    users=True,
    summary="Name topics so that their beginning says who owns them, and give rights to the beginning.",
)


def _password(user: str) -> str:
    return f"secret of {user}"


def _as(lab: Lab, user: str, **options: Any) -> dict[str, Any]:
    """Settings of a client that shows the user's password."""
    return client_config(
        lab.cluster.user_address(1),
        {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_username": user,
            "sasl_password": options.pop("password", _password(user)),
            **options,
        },
    )


def _create_user(lab: Lab, user: str) -> None:
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, ITERATIONS)
    wanted = UserScramCredentialUpsertion(user, credential, _password(user).encode())
    lab.admin().alter_user_scram_credentials([wanted])[user].result(WAIT_SECONDS)


def _rule(
    user: str,
    operation: AclOperation,
    name: str,
    *,
    kind: ResourceType = ResourceType.TOPIC,
    prefix: bool = False,
    permission: AclPermissionType = AclPermissionType.ALLOW,
) -> AclBinding:
    pattern = ResourcePatternType.PREFIXED if prefix else ResourcePatternType.LITERAL
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, permission)


def _add_rules(lab: Lab, *rules: AclBinding) -> None:
    for future in lab.admin().create_acls(list(rules)).values():
        future.result(WAIT_SECONDS)


def _write(lab: Lab, user: str, topic: str) -> str:
    """`done`, or the name of the error."""
    producer = Producer(_as(lab, user, message_timeout_ms=int(WAIT_SECONDS * 1000)))
    told: list[str] = []
    producer.produce(
        topic,
        f"from {user}",
        on_delivery=lambda error, _: told.append("done" if error is None else error.name()),
    )
    producer.flush(WAIT_SECONDS)
    return told[0] if told else "no answer"


def _read(lab: Lab, user: str, topic: str) -> str:
    """The number of records, or the name of the error."""
    options = {
        "group_id": f"{user}.reading",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "enable_partition_eof": True,
    }
    consumer = Consumer(_as(lab, user, **options))
    try:
        consumer.subscribe([topic])
        return f"{sum(1 for _ in to_the_end(consumer))} records"
    except KafkaException as fault:
        return str(fault.args[0].name())
    finally:
        consumer.close()


def _seen(lab: Lab, user: str) -> list[str]:
    """The topics that a user sees in the list of all."""
    listed = AdminClient(_as(lab, user)).list_topics(timeout=WAIT_SECONDS).topics
    return sorted(str(text(name)) for name in listed)


@SCENARIO.step(
    "Nobody may do anything",
    narration="The broker has two doors: one for its administrator, and one where users show a "
    "password. Alice and bob are new; there is no rule yet.",
    action="create both users, let alice log in, list topics and write; let somebody try a wrong password",
    prediction="alice comes in, sees no topic and may not write; a wrong password does not come in",
)
def nobody(lab: Lab, see: Observation) -> None:
    for user in ("alice", "bob"):
        _create_user(lab, user)
    seen, written = _seen(lab, "alice"), _write(lab, "alice", "team-a.orders")
    refused = "came in"
    try:
        AdminClient(_as(lab, "alice", password="wrong")).list_topics(timeout=2.0)
    except KafkaException as fault:
        refused = fault.args[0].name()
    see.figure("alice_sees", seen)
    see.figure("alice_writes", written)
    see.figure("wrong_password", refused)
    see.table(
        ("who", "does", "answer"),
        [
            ("alice", "lists topics", ", ".join(seen) or "none"),
            ("alice", "writes to team-a.orders", written),
            ("somebody", "logs in as alice with a wrong password", refused),
        ],
    )
    see.check("alice sees no topic", seen == [], seen)
    see.check("she may not write", written == DENIED, written)
    see.check("a wrong password does not come in", refused in ("_TRANSPORT", "_AUTHENTICATION"), refused)


@SCENARIO.step(
    "A private and a public topic",
    narration="Two rules by the beginning of names: alice may do everything with team-a., everybody may "
    "read public.",
    action="allow alice all on team-a.*, and everybody to read public.*",
    prediction="alice writes and reads orders; bob reads the news and may not touch the orders",
)
def rules(lab: Lab, see: Observation) -> None:
    _add_rules(
        lab,
        _rule("alice", AclOperation.ALL, "team-a.", prefix=True),
        _rule("*", AclOperation.READ, "public.", prefix=True),
        _rule("alice", AclOperation.READ, "alice.", kind=ResourceType.GROUP, prefix=True),
        _rule("bob", AclOperation.READ, "bob.", kind=ResourceType.GROUP, prefix=True),
    )
    lab.produce("public.news", ["good morning"])
    tried = [
        ("alice", "write", "team-a.orders", _write(lab, "alice", "team-a.orders"), "done"),
        ("alice", "read", "team-a.orders", _read(lab, "alice", "team-a.orders"), "1 records"),
        ("alice", "write", "public.news", _write(lab, "alice", "public.news"), DENIED),
        ("bob", "read", "public.news", _read(lab, "bob", "public.news"), "1 records"),
        ("bob", "read", "team-a.orders", _read(lab, "bob", "team-a.orders"), DENIED),
        ("bob", "write", "team-a.orders", _write(lab, "bob", "team-a.orders"), DENIED),
    ]
    see.table(("who", "does", "to", "answer"), [row[:4] for row in tried])
    see.figure("denied", sum(row[3] == DENIED for row in tried))
    for who, does, topic, answer, expected in tried:
        see.check(f"{who} {does} {topic}: {expected}", answer == expected, answer)


@SCENARIO.step(
    "What is private is not there",
    narration="A refusal must not tell that something exists.",
    action="list topics as bob and as alice; ask as bob for the private topic and for one that does not "
    "exist",
    prediction="bob sees the public topic only, and gets the same answer for both",
)
def unseen(lab: Lab, see: Observation) -> None:
    of_bob, of_alice = _seen(lab, "bob"), _seen(lab, "alice")
    answers = [_read(lab, "bob", name) for name in ("team-a.orders", "team-a.nothing")]
    see.table(("who", "sees"), [("bob", ", ".join(of_bob)), ("alice", ", ".join(of_alice))])
    see.figure("answers_to_bob", answers)
    see.check("bob sees what is public", of_bob == ["public.news"], of_bob)
    see.check("alice sees both", of_alice == ["public.news", "team-a.orders"], of_alice)
    see.check("the two answers are the same", answers == [DENIED, DENIED], answers)


@SCENARIO.step(
    "Denied wins, at once",
    narration="Bob is reading the news. A rule that denies wins over any that allows, and connections "
    "are not spared.",
    action="deny bob to read public.news, then take the rule away again",
    prediction="his next request is refused; without the rule he reads again; alice is not touched",
)
def denied(lab: Lab, see: Observation) -> None:
    options = {"group_id": "bob.watching", "enable_auto_commit": False, "fetch_wait_max_ms": 100}
    watching = Consumer(_as(lab, "bob", **options))
    try:
        watching.assign([TopicPartition("public.news", 0, 0)])
        first = watching.poll(WAIT_SECONDS)
        rule = _rule("bob", AclOperation.READ, "public.news", permission=AclPermissionType.DENY)
        _add_rules(lab, rule)
        lab.produce("public.news", ["not for bob"])
        then = watching.poll(WAIT_SECONDS)
    finally:
        watching.close()
    fault = then.error() if then is not None else None
    told = fault.name() if fault is not None else text(then.value()) if then is not None else "nothing"
    of_alice = _read(lab, "alice", "public.news")
    taken = AclBindingFilter(
        ResourceType.TOPIC,
        "public.news",
        ResourcePatternType.LITERAL,
        "User:bob",
        "*",
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    for future in lab.admin().delete_acls([taken]).values():
        future.result(WAIT_SECONDS)
    again = _read(lab, "bob", "public.news")
    see.figure("bob_was_told", told)
    see.say(f"Bob had read one record; his next request was answered {told}. Without the rule: {again}.")
    see.check("bob read the first news", first is not None and first.error() is None)
    see.check("his open connection was refused the next", told == DENIED, told)
    see.check("alice reads both", of_alice == "2 records", of_alice)
    see.check("without the rule bob reads both", again == "2 records", again)
