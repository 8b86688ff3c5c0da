"""What a cluster says about a plan before it starts: topics, partitions, rights, settings. Changes nothing.

For each cluster that a plan names:

    Metadata, with the rights that we have on each topic     is it there, may we read or write it
    CreateTopics with validate_only                          could it be made, where a plan makes it
    FindCoordinator, EndTxn for nobody's producer            may we write transactions (exactly once)
    DescribeConfigs                                          is a topic compacted whose records have no key

A right that the cluster does not tell about (brokers before 2.3) is not held against anybody. Lag is shown by
a consumer group, without which a pipeline runs as well: a right that is missing there is a note.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidelog.client.api_keys import (
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    END_TXN,
    METADATA,
)
from tidelog.client.cluster import Cluster, CoordinatorKind
from tidelog.client.faults import BadOption, ClientFault, Refusal, UnsupportedVersion, known_code
from tidelog.model.acls import AclOperation
from tidelog.model.errors import ErrorCode
from tidelog.pipelines.commit_protocol import COMMIT_LOG_TOPIC
from tidelog.pipelines.problems import Findings, Problem, Where
from tidelog.pipelines.source_options import SourceOptions
from tidelog.pipelines.target_topics import client_settings
from tidelog.pipelines.topic_uses import TopicUse

#: a check is a look: it does not wait for a cluster that is away
PATIENCE_MS = 4_000
#: what a broker answers that was not asked for rights, or does not know how to tell
_NOT_TOLD = -(1 << 31)
_END_TXN_HIGHEST = 3
_TOPIC_RESOURCE = 2
_KEPT_OFFSETS = "compact"


@dataclass(frozen=True, slots=True)
class _Topic:
    """What Metadata says of one topic."""

    error: ErrorCode
    partitions: int
    #: a bit for each operation that we may do; None where the cluster does not tell
    operations: int | None

    def may(self, operation: AclOperation) -> bool:
        return self.operations is None or bool(self.operations & 1 << operation.value)


def check_uses(uses: Sequence[TopicUse], cluster_where: Where = ("bootstrap",)) -> Findings:
    """What is wrong with the topics of a plan, each cluster asked once."""
    found = Findings(tuple(_option_problems(uses)))
    by_cluster: dict[tuple[tuple[str, str], ...], list[TopicUse]] = {}
    for use in uses:
        by_cluster.setdefault(tuple(sorted(use.kafka.items())), []).append(use)
    counts: dict[str, int] = {}
    for kafka, of_cluster in by_cluster.items():
        found += _check_cluster(dict(kafka), of_cluster, cluster_where, counts)
    return found


def _option_problems(uses: Iterable[TopicUse]) -> Iterator[Problem]:
    """Options of sources and sinks that nobody knows, or that cannot be together."""
    seen: set[tuple[Where, str]] = set()
    for use in uses:
        given = {**use.kafka, **use.options}
        try:
            if not use.written:
                named = {name.lower() for name in use.options}
                asked = {"subscribe": "x"} if not named & {"subscribe", "subscribepattern", "assign"} else {}
                SourceOptions.read({**given, **asked}, streaming=True)
            elif (read := _sink_reader()) is not None:
                read({**given, "topic": use.topic or ""})
        except BadOption as fault:
            if (use.where, str(fault)) not in seen:
                seen.add((use.where, str(fault)))
                yield Problem((*use.where[:-1], "options"), str(fault))


def _sink_reader() -> Any:
    """What reads a sink's options, which are Spark's types too; None without Spark."""
    try:
        from tidelog.pipelines.sink_options import SinkOptions
    except ModuleNotFoundError:
        return None
    return SinkOptions.read


def _check_cluster(
    kafka: Mapping[str, str], uses: Sequence[TopicUse], where: Where, counts: dict[str, int]
) -> Findings:
    try:
        settings = replace(
            client_settings(kafka),
            api_timeout_ms=PATIENCE_MS,
            request_timeout_ms=PATIENCE_MS,
            connection_timeout_ms=PATIENCE_MS,
        )
        with Cluster(settings) as cluster:
            return _Checks(cluster, uses, counts).run()
    except BadOption as fault:
        return Findings((Problem(where, str(fault)),))
    except ClientFault as fault:
        servers = kafka.get("kafka.bootstrap.servers", "")
        return Findings((Problem(where, f"the cluster at {servers} cannot be asked: {fault}"),))


class _Checks:
    """The questions to one cluster. `counts` collects the partitions of topics over all clusters."""

    def __init__(self, cluster: Cluster, uses: Sequence[TopicUse], counts: dict[str, int]) -> None:
        self._cluster = cluster
        self._uses = uses
        self._counts = counts
        self._problems: list[Problem] = []
        self._notes: list[str] = []

    def run(self) -> Findings:
        """Ask everything."""
        names = list(dict.fromkeys(use.topic for use in self._uses if use.topic is not None))
        exactly_once = [use for use in self._uses if use.written and _exactly_once(use)]
        topics = self._cluster.persist(
            lambda: self._described([*names, *((COMMIT_LOG_TOPIC,) if exactly_once else ())])
        )
        for use in self._uses:
            if use.topic is not None:
                self._check_topic(use, topics[use.topic])
        if exactly_once:
            self._check_transactions(exactly_once, topics[COMMIT_LOG_TOPIC])
        self._check_keys([use for use in self._uses if use.keyless and use.written])
        self._check_groups()
        return Findings(tuple(self._problems), tuple(self._notes))

    def _described(self, names: Sequence[str]) -> dict[str, _Topic]:
        fields = {
            "topics": [{"name": name, "topic_id": None} for name in names],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": True,
        }
        answer = self._cluster.any_link().request(METADATA, fields, lowest=4, highest=12)
        found = {}
        for row in answer.topics:
            code = known_code(row.error_code)
            if code is ErrorCode.LEADER_NOT_AVAILABLE:
                # It was just made, or a leader is being elected: it is there.
                code = ErrorCode.NONE
            told = getattr(row, "topic_authorized_operations", _NOT_TOLD)
            found[str(row.name)] = _Topic(code, len(row.partitions), None if told == _NOT_TOLD else int(told))
        return found

    def _check_topic(self, use: TopicUse, topic: _Topic) -> None:
        assert use.topic is not None
        verb, right = ("write", AclOperation.WRITE) if use.written else ("read", AclOperation.READ)
        if topic.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._missing(use)
        elif topic.error is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            self._problem(use, f"this user may not see topic {use.topic}: it needs {right.name} on it")
        elif topic.error is ErrorCode.INVALID_TOPIC_EXCEPTION:
            self._problem(use, f"{use.topic!r} cannot be the name of a topic")
        elif topic.error is not ErrorCode.NONE:
            self._problem(use, f"topic {use.topic}: {topic.error.name}")
        elif not topic.may(right):
            self._problem(use, f"this user may not {verb} topic {use.topic}: it needs {right.name} on it")
        else:
            self._check_partitions(use, topic)

    def _check_partitions(self, use: TopicUse, topic: _Topic) -> None:
        assert use.topic is not None
        if not use.written:
            self._counts[use.topic] = topic.partitions
        elif (source := use.partitions_of) is not None and self._counts.get(source, 0) > topic.partitions:
            self._problem(
                use,
                f"topic {use.topic} has {topic.partitions} partitions and {source} has "
                f"{self._counts[source]}, whose records keep their partition: add partitions",
            )

    def _missing(self, use: TopicUse) -> None:
        assert use.topic is not None
        if use.made:
            self._could_make(use, use.topic)
            return
        hint = f"make it with 'tidelog topic create {use.topic}'"
        if not use.written:
            names = self._visible_topics()
            near = difflib.get_close_matches(use.topic, names, n=1)
            hint = f"did you mean {near[0]}?" if near else "'tidelog topic list' shows those that are"
        self._problem(use, f"topic {use.topic} is not there; {hint}")

    def _visible_topics(self) -> list[str]:
        return [name for name, topic in self._cluster.topics().items() if not topic.internal]

    def _could_make(self, use: TopicUse, name: str, partitions: int = 1) -> bool:
        row = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": -1,
            "assignments": [],
            "configs": [],
        }
        fields = {"topics": [row], "timeout": PATIENCE_MS, "validate_only": True}
        link = self._cluster.any_link()
        try:
            brokers = link.request(METADATA, {"topics": []}, lowest=4, highest=12)
            link = self._cluster.link_to(int(brokers.controller_id))
            (made,) = link.request(CREATE_TOPICS, fields, lowest=4, highest=5).topics
        except UnsupportedVersion:
            return True
        code = known_code(made.error_code)
        if code in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
            self._problem(
                use, f"topic {name} is not there, and this user may not make it: it needs CREATE on it"
            )
        elif code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            why = f" ({made.error_message})" if made.error_message else ""
            self._problem(use, f"topic {name} cannot be made: {code.name}{why}")
        return code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)

    def _check_transactions(self, uses: Sequence[TopicUse], commit_log: _Topic) -> None:
        use = uses[0]
        if commit_log.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._could_make(use, COMMIT_LOG_TOPIC, partitions=8)
        elif commit_log.error is not ErrorCode.NONE or not (
            commit_log.may(AclOperation.READ) and commit_log.may(AclOperation.WRITE)
        ):
            self._problem(
                use,
                f"to write exactly once takes READ and WRITE on topic {COMMIT_LOG_TOPIC}, "
                "which this user does not have",
            )
        for prefix in dict.fromkeys(_prefix(one) for one in uses):
            if not self._may_write_transactions(f"{prefix}plan"):
                self._problem(
                    next(one for one in uses if _prefix(one) == prefix),
                    f"to write exactly once takes WRITE on the transactional ids that begin with {prefix}, "
                    "which this user does not have",
                )

    def _may_write_transactions(self, transactional_id: str) -> bool:
        fields = {
            "transactional_id": transactional_id,
            "producer_id": -1,
            "producer_epoch": -1,
            "committed": False,
        }

        def ask() -> int:
            link = self._cluster.coordinator_link(CoordinatorKind.TRANSACTION, transactional_id)
            return int(link.request(END_TXN, fields, highest=_END_TXN_HIGHEST).error_code)

        try:
            # That there is no such transaction is the answer of a coordinator that would let us have one.
            return self._cluster.persist(ask) != ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        except Refusal as refusal:
            return refusal.code is not ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    def _check_keys(self, uses: Sequence[TopicUse]) -> None:
        """A compacted topic takes no record without a key."""
        for use in uses:
            resource = {
                "resource_type": _TOPIC_RESOURCE,
                "resource_name": use.topic,
                "configuration_keys": ["cleanup.policy"],
            }
            fields = {"resources": [resource], "include_synonyms": False}
            (row,) = self._cluster.any_link().request(DESCRIBE_CONFIGS, fields, lowest=1, highest=3).results
            policies = [str(one.value) for one in row.configs if one.name == "cleanup.policy"]
            if not row.error_code and any(_KEPT_OFFSETS in policy for policy in policies):
                self._problem(
                    use, f"topic {use.topic} is compacted, so its records need a key: say which column it is"
                )

    def _check_groups(self) -> None:
        """A note for each group that could not be committed to: only its lag would be missing."""
        groups = dict.fromkeys(use.group for use in self._uses if use.group is not None and not use.written)
        for group in groups:
            fields = {"groups": [group], "include_authorized_operations": True}
            try:
                link = self._cluster.coordinator_link(CoordinatorKind.GROUP, str(group))
                (row,) = link.request(DESCRIBE_GROUPS, fields, lowest=3, highest=5).groups
            except UnsupportedVersion:
                return
            except Refusal as refusal:
                code, operations = refusal.code, _NOT_TOLD
            else:
                code, operations = known_code(row.error_code), int(row.authorized_operations)
            denied = operations != _NOT_TOLD and not operations & 1 << AclOperation.READ.value
            if denied or code is ErrorCode.GROUP_AUTHORIZATION_FAILED:
                self._notes.append(
                    f"its lag will not show: this user has no READ on group {group} "
                    "(group.id among the options of a source names another)"
                )

    def _problem(self, use: TopicUse, sentence: str) -> None:
        problem = Problem(use.where, sentence)
        if problem not in self._problems:
            self._problems.append(problem)


def _exactly_once(use: TopicUse) -> bool:
    given = {name.lower(): text for name, text in use.options.items()}
    return given.get("delivery", "exactly_once") == "exactly_once"


def _prefix(use: TopicUse) -> str:
    given = {name.lower(): text for name, text in use.options.items()}
    return given.get("transactionalidprefix", "tidelog-spark-")
