"""How a command fails: one sentence with the cause, one with the next step, and an exit code.

Exit code 1 is the situation (no broker, no such topic), 2 is the command line itself (click's own rule).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

import click

from tidelog.admin.faults import AdminFault
from tidelog.client.faults import ClientFault, Refusal, UnsupportedVersion
from tidelog.model.errors import ErrorCode


class CommandError(click.ClickException):
    """The command could not be carried out; `hint` says what to try next."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"error: {self.message}", err=True)
        if self.hint is not None:
            click.echo(f"  try: {self.hint}", err=True)


# What to do next about the errors people meet most, by the name confluent-kafka gives them.
_HINTS = {
    "UNKNOWN_TOPIC_OR_PART": "'tidelog topic list' shows the topics; 'tidelog topic create NAME' makes one",
    "_UNKNOWN_TOPIC": "'tidelog topic list' shows the topics; 'tidelog topic create NAME' makes one",
    "_UNKNOWN_PARTITION": "'tidelog topic describe NAME' shows the partitions",
    "TOPIC_ALREADY_EXISTS": "choose another name, or add --if-not-exists",
    "INVALID_REPLICATION_FACTOR": "use a --replication-factor no larger than the number of brokers "
    "('tidelog cluster status')",
    "INVALID_PARTITIONS": "partitions can be added, never removed: 'tidelog topic describe NAME' "
    "shows how many there are",
    "INVALID_CONFIG": "'tidelog config describe topic NAME --all' lists the names and values",
    "TOPIC_EXCEPTION": "use ASCII letters, digits, '.', '_' and '-', at most 249 characters",
    "MSG_SIZE_TOO_LARGE": "raise max.message.bytes of the topic, and -X message.max.bytes=… of the client",
    "GROUP_ID_NOT_FOUND": "'tidelog group list' shows the groups",
    "NON_EMPTY_GROUP": "stop the group's consumers first ('tidelog group describe GROUP' names them)",
    "UNKNOWN_MEMBER_ID": "stop the group's consumers first ('tidelog group describe GROUP' names them)",
    "GROUP_SUBSCRIBED_TO_TOPIC": "stop the consumers of this group that read the topic first",
    "NOT_ENOUGH_REPLICAS": "too few replicas are in sync (min.insync.replicas): see 'tidelog topic describe'",
    "INVALID_RECORD": "a compacted topic takes only records with a key: give -k or -K",
    "UNSUPPORTED_VERSION": "the broker does not offer this operation",
    "_UNSUPPORTED_FEATURE": "the broker does not offer this operation",
    "_TIMED_OUT": "raise --timeout, or check 'tidelog cluster status'",
    "_MSG_TIMED_OUT": "raise --timeout, or check 'tidelog cluster status'",
    "_TRANSPORT": "check --bootstrap and that the broker is running ('tidelog up')",
    "_ALL_BROKERS_DOWN": "check --bootstrap and that the broker is running ('tidelog up')",
    "_AUTHENTICATION": "check the sasl.* properties given with -X or --client-config-file",
    "_SSL": "check the ssl.* properties given with -X or --client-config-file",
    "TRANSACTIONAL_ID_NOT_FOUND": "'tidelog txn list' shows the transactional ids",
    "TOPIC_AUTHORIZATION_FAILED": "this user may not do that to the topic: ask for an ACL",
    "GROUP_AUTHORIZATION_FAILED": "this user may not use the group: ask for an ACL",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "this user may not use the transactional id: ask for an ACL",
    "CLUSTER_AUTHORIZATION_FAILED": "this user may not do that to the cluster: ask for an ACL",
}


#: where a broker that was to be reached directly could not be
UNREACHABLE_HINT = "'tidelog doctor' tries every broker and says what is wrong"

#: what to do about refusals of requests about users, ACLs and quotas
ACCESS_HINTS = {
    "SECURITY_DISABLED": "start the brokers with the setting authorizer.class.name "
    "('tidelog up --secure' does)",
    "CLUSTER_AUTHORIZATION_FAILED": "connect as a super user, or ask one for 'tidelog acl allow USER "
    "OPERATION --cluster': describe and alter for ACLs and users, describe_configs and alter_configs for "
    "quotas",
    "RESOURCE_NOT_FOUND": "'tidelog user list' shows the users",
    "INVALID_REQUEST": "the command's --help has examples",
}

#: what brokers say about groups and topics, in words that people know from other Kafka tools
_WORDS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed",
    ErrorCode.NON_EMPTY_GROUP: "The group is not empty",
    ErrorCode.GROUP_ID_NOT_FOUND: "The group id does not exist",
    ErrorCode.UNKNOWN_MEMBER_ID: "Unknown member",
    ErrorCode.INVALID_GROUP_ID: "Invalid group.id",
}

_NAMES = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "UNKNOWN_TOPIC_OR_PART",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "TOPIC_EXCEPTION",
}


def hint_for(name: str) -> str:
    """What to try about an error of the protocol, by its name in capitals."""
    known = "UNKNOWN_TOPIC_OR_PART" if name == "UNKNOWN_TOPIC_OR_PARTITION" else name
    return _HINTS.get(known, "'tidelog doctor' looks for what is wrong with the cluster")


def from_kafka_error(error: Any, doing: str) -> CommandError:
    """Turn a `confluent_kafka.KafkaError` met while `doing` something into an error for a person."""
    name = error.name()
    reason = str(error.str()).strip()
    return CommandError(f"{doing}: {reason} ({name})", _HINTS.get(name))


def from_client_fault(fault: ClientFault, doing: str, hints: Mapping[str, str]) -> CommandError:
    """Turn what our own client met while `doing` something into an error for a person."""
    if isinstance(fault, Refusal):
        # What a broker explains bears the name that confluent-kafka has for it, as errors of topics do.
        name = _NAMES.get(fault.code, fault.code.name) if fault.message else fault.code.name
        words = fault.message or (f"Broker: {_WORDS[fault.code]}" if fault.code in _WORDS else None)
        return CommandError(
            f"{doing}: {words} ({name})" if words else f"{doing}: {name}", hints.get(name) or hint_for(name)
        )
    if isinstance(fault, UnsupportedVersion):
        return CommandError(f"{doing}: {fault}", _HINTS["UNSUPPORTED_VERSION"])
    return CommandError(f"{doing}: {fault}", UNREACHABLE_HINT)


@contextmanager
def explained(doing: str, hints: Mapping[str, str] | None = None) -> Iterator[None]:
    """Report a client error raised inside as what was being done, why it failed and what to try."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        yield
    except ClientFault as fault:
        raise from_client_fault(fault, doing, hints or {}) from fault
    except KafkaException as failure:
        error = failure.args[0] if failure.args else None
        if isinstance(error, KafkaError):
            raise from_kafka_error(error, doing) from failure
        raise CommandError(f"{doing}: {failure}", UNREACHABLE_HINT) from failure


@contextmanager
def as_command_error() -> Iterator[None]:
    """Show what cannot be done with a cluster as it is as a command's error."""
    try:
        yield
    except AdminFault as fault:
        raise CommandError(fault.message, fault.hint) from fault
