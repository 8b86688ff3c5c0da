"""What of an answer may differ between two systems that are both right, as data, each with its reason.

A rule is for the fields that its pattern matches: `Api.path.of.the.field`, arrays without their index, with
the wildcards of `fnmatch`. Its action says what becomes of the field before answers are compared:

- `drop`      it is left out
- `symbol`    a value that a system makes up becomes a word with a number, in the order of appearance: what
              was equal stays equal. Negative numbers, zero UUIDs and empty texts are themselves.
- `sort`      the order of the array has no meaning
- `join`      rows of partitions that are alike otherwise are one row
- `delivered` offsets without records, and batches of which nothing was acquired, are left out
- `telling`   rows of partitions that say nothing are left out
- `merged`    offsets side by side with the same count of deliveries are one row
- `ordered`   its order has a meaning after all
- `own`       elements that do not belong to this session are left out
- `internal`  the topics of the coordinators stay, without their ids
- `returned`  only what lies before the end of the records that are returned beside it
- `share key` the topic id in the key of a share partition becomes its symbol
- `present`   only whether there is one
- `clock`     a time of this year is that of a broker, older ones are those of records
- `since`     a time of a clock is told from the `issue_timestamp` beside it, if there is one
- `shared`    elements about what only Kafka has are left out
"""

import base64
import contextlib
import dataclasses
import fnmatch
import functools
import json
import re
import uuid
from typing import Any

from tests.oracle.generator import UNKNOWN_ID
from tests.oracle.session import Json
from tidelog.protocol.apis import APIS


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """One kind of field."""

    pattern: str
    action: str
    reason: str
    #: what the symbol is called
    kind: str = ""
    #: where it counts: everywhere, with `several` brokers, in sessions with `faults`, or with `kills`
    where: str = ""


RULES = (
    Rule("*.error_message", "drop", "texts are for people"),
    Rule("*.acknowledge_error_message", "drop", "texts are for people"),
    Rule("*.batch_index_error_message", "drop", "texts are for people"),
    Rule("*.documentation", "present", "texts are for people"),
    Rule("*.host", "present", "another address"),
    Rule("*.port", "present", "another address"),
    Rule("Metadata.controller_id", "present", "Kafka names any broker: all forward to it", where="several"),
    Rule("DescribeCluster.controller_id", "present", "Kafka names any broker", where="several"),
    Rule("*.leader_id", "drop", "who leads after a crash depends on who is first back", where="faults"),
    Rule("*.isr_nodes", "drop", "the same", where="faults"),
    Rule("*.offline_replicas", "drop", "who is back", where="faults"),
    Rule("*.eligible_leader_replicas", "drop", "who is back", where="faults"),
    Rule("*.last_known_elr", "drop", "who is back", where="faults"),
    Rule("Metadata.brokers", "drop", "who is back", where="faults"),
    Rule("*.node_endpoints", "drop", "who leads", where="faults"),
    Rule("*.leader_epoch", "drop", "counts elections, more or fewer by time", where="faults"),
    Rule("*.partition_leader_epoch", "drop", "counts elections", where="faults"),
    Rule("*.coordinator_epoch", "drop", "counts elections", where="faults"),
    Rule("FindCoordinator.*node_id", "present", "who leads after a crash", where="faults"),
    Rule(
        "Produce.*.log_append_time", "drop", "tells whether a batch was there before the crash", where="kills"
    ),
    Rule("*.cluster_id", "present", "made up by each cluster"),
    Rule("*.log_dir", "present", "another folder"),
    Rule("*.total_bytes", "present", "the disk of the machine"),
    Rule("*.usable_bytes", "present", "the disk of the machine"),
    Rule("*.topic_id", "symbol", "made up by each cluster", "topic id"),
    Rule("FindCoordinator.coordinators.key", "share key", "has a topic id, which each cluster makes up"),
    Rule("*.producer_id", "symbol", "handed out by each cluster", "producer id"),
    Rule("*.ongoing_txn_producer_id", "symbol", "handed out by each cluster", "producer id"),
    Rule("*.member_id", "symbol", "made up by each coordinator", "member"),
    Rule("JoinGroup.leader", "symbol", "made up by each coordinator", "member"),
    Rule("Fetch.session_id", "symbol", "made up by each broker", "fetch session"),
    Rule("Produce.responses.partition_responses.log_append_time", "present", "a clock"),
    Rule("DescribeTransactions.transaction_states.transaction_start_time", "present", "a clock"),
    Rule("*.active_producers.last_timestamp", "clock", "of markers and of LogAppendTime"),
    Rule("ListOffsets.topics.partitions.timestamp", "clock", "of markers and of LogAppendTime"),
    Rule("*.records.crc", "drop", "over times and producer ids, which differ; the contents are compared"),
    Rule("*DelegationToken.*timestamp", "since", "a clock"),
    Rule("*.token_id", "symbol", "made up by each cluster", "token"),
    Rule("*.hmac", "symbol", "made up by each cluster", "hmac"),
    Rule("ApiVersions.api_keys", "shared", "APIs that only Kafka has"),
    Rule("ApiVersions.api_keys", "sort", "a set"),
    Rule("CreateTopics.topics.configs", "shared", "settings that the recorded Kafka does not have"),
    Rule("DescribeConfigs.results.configs", "shared", "settings that the recorded Kafka does not have"),
    Rule("ApiVersions.finalized_features_epoch", "drop", "counts changes of each cluster"),
    Rule("ApiVersions.*_features", "shared", "KRaft's own features are Kafka's alone"),
    Rule("ApiVersions.*_features", "sort", "a set"),
    Rule("ApiVersions.zk_migration_ready", "drop", "Kafka's alone"),
    Rule("DescribeQuorum.*", "drop", "there is no quorum"),
    Rule("Metadata.topics", "own", "other sessions"),
    Rule("Metadata.topics", "internal", "both have them"),
    Rule("ListGroups.groups", "own", "other sessions"),
    Rule("ListTransactions.transaction_states", "own", "other sessions"),
    Rule("DescribeLogDirs.results.topics", "own", "other sessions"),
    Rule("DescribeAcls.resources", "own", "other sessions"),
    Rule("DescribeClientQuotas.entries", "own", "other sessions"),
    Rule("DescribeUserScramCredentials.results", "own", "other sessions"),
    Rule("ListConfigResources.config_resources", "own", "other sessions"),
    Rule("ListPartitionReassignments.topics", "own", "other sessions"),
    Rule("ElectLeaders.replica_election_results", "own", "other sessions"),
    Rule("DescribeTopicPartitions.topics", "own", "other sessions"),
    Rule("DeleteAcls.filter_results.matching_acls", "sort", "a set"),
    Rule("Metadata.topics", "sort", "a set"),
    Rule("Metadata.brokers", "sort", "a set"),
    Rule("*.isr_nodes", "sort", "a set"),
    Rule("*.partitions", "sort", "a set, in the order of a hash table"),
    Rule("*.topics", "sort", "a set, in the order of a hash table"),
    Rule("DescribeTopicPartitions.topics*", "ordered", "pages go by names and numbers"),
    Rule("Produce.responses", "sort", "a set, in the order of a hash table"),
    Rule("Produce.responses.partition_responses", "sort", "a set, in the order of a hash table"),
    Rule("Fetch.responses", "sort", "a set"),
    Rule(
        "Fetch.responses.partitions.aborted_transactions",
        "returned",
        "Kafka names those up to the next entry of its index, which is sparse",
    ),
    Rule("Fetch.responses", "join", "Kafka begins a topic anew where others stand between its partitions"),
    Rule("CreatePartitions.results", "sort", "a set"),
    Rule("DeleteTopics.responses", "sort", "a set"),
    Rule("*.results_by_transaction", "sort", "a set"),
    Rule("*.topic_results", "sort", "a set"),
    Rule("*.results_by_partition", "sort", "a set"),
    Rule("*.results_by_topic_v3_and_below", "sort", "a set"),
    Rule("*.markers", "sort", "a set"),
    Rule("*.configs", "sort", "a set"),
    Rule("*.topic_partitions", "sort", "a set"),
    Rule("*.members", "sort", "a set"),
    Rule("ListGroups.groups", "sort", "a set"),
    Rule("ListTransactions.transaction_states", "sort", "a set"),
    Rule("DescribeAcls.resources", "sort", "a set"),
    Rule("DescribeAcls.resources.acls", "sort", "a set"),
    Rule("DescribeClientQuotas.entries", "sort", "a set"),
    Rule("DescribeClientQuotas.entries.values", "sort", "a set"),
    Rule("*.entity", "sort", "a set"),
    Rule("*Scram*.results", "sort", "a set"),
    Rule("*.credential_infos", "sort", "a set"),
    Rule("ListConfigResources.config_resources", "sort", "a set"),
    Rule("AlterPartitionReassignments.responses", "sort", "a set"),
    Rule("AlterReplicaLogDirs.results", "sort", "a set"),
    Rule("*ElectLeaders.replica_election_results", "sort", "a set"),
    Rule("*ElectLeaders.replica_election_results.partition_result", "sort", "a set"),
    Rule("*.active_producers", "sort", "a set"),
    Rule("*.unknown_state_filters", "sort", "a set"),
    Rule("*AlterConfigs.responses", "sort", "a set"),
    Rule("DescribeConfigs.results", "sort", "a set"),
    Rule("DeleteGroups.results", "sort", "a set"),
    Rule("DescribeDelegationToken.tokens", "sort", "a set"),
    Rule("FindCoordinator.coordinators", "sort", "a set"),
    Rule("*.subscribed_topic_names", "sort", "a set"),
    Rule("ShareFetch.responses", "sort", "a set"),
    Rule("ShareFetch.responses.partitions", "delivered", "here gaps and control batches are not delivered"),
    Rule("ShareFetch.responses", "telling", "partitions without news may be in an answer or not"),
    Rule("ShareFetch.*.acquired_records", "merged", "Kafka has a row for each batch that it keeps in memory"),
    Rule("ShareAcknowledge.responses", "sort", "a set"),
    Rule("*ShareGroupOffsets.responses", "sort", "a set"),
    Rule("*ShareGroupState*.results", "sort", "a set"),
    Rule("ShareGroupDescribe.groups", "sort", "a set"),
    Rule("DescribeGroups.groups", "sort", "a set"),
    Rule("ConsumerGroupDescribe.groups", "sort", "a set"),
    Rule("OffsetFetch.groups", "sort", "a set"),
    Rule("LeaveGroup.members", "sort", "a set"),
    Rule("CreateTopics.topics.configs", "sort", "a set"),
    Rule("SaslHandshake.mechanisms", "sort", "a set"),
)


@functools.cache
def rules_of(path: str, where: frozenset[str] = frozenset()) -> tuple[Rule, ...]:
    """The rules for a field, `Api.path.of.the.field`."""
    return tuple(
        rule
        for rule in RULES
        if (not rule.where or rule.where in where) and fnmatch.fnmatchcase(path, rule.pattern)
    )


#: the end of an id that a coordinator made up
_MADE_UP = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
#: times of records are before this, clocks are behind it
_CLOCKS_FROM_MS = 1_750_000_000_000


class Normaliser:
    """Applies the rules to the answers of one transcript, in order."""

    def __init__(self, prefix: str, where: frozenset[str] = frozenset()) -> None:
        self._prefix = prefix
        self._where = where
        self._symbols: dict[tuple[str, Any], str] = {}
        self._counts: dict[str, int] = {}

    def note_ids(self, api: str, answer: Json) -> None:
        """Give symbols to what an answer says by itself, before those that stand in sets without an order."""
        if isinstance(answer, dict):
            for key, value in answer.items():
                for rule in rules_of(f"{api}.{key}", self._where):
                    if rule.action == "symbol":
                        self._symbol(rule.kind, value)

    def normalise(self, api: str, answer: Json) -> Json:
        return self._value(api, answer)

    def _value(self, path: str, value: Json) -> Json:
        if isinstance(value, dict):
            if "$bytes" in value or "$uuid" in value:
                return value
            if path.endswith(".records") and "attributes" in value:
                return self._batch(path, value)
            return self._mapping(path, value)
        if isinstance(value, list):
            return [self._value(path, one) for one in value]
        return value

    def _mapping(self, path: str, value: dict[str, Json]) -> Json:
        result = {}
        for key, inner in value.items():
            inner_path = f"{path}.{key}"
            rules = rules_of(inner_path, self._where)
            actions = {rule.action for rule in rules}
            if "drop" in actions:
                continue
            if "own" in actions and isinstance(inner, list):
                mine = [one for one in inner if self._prefix in json.dumps(one)]
                inner = [*_internal(inner), *mine] if "internal" in actions else mine
            if "shared" in actions and isinstance(inner, list):
                inner = [one for one in inner if _is_shared(one)]
            if "returned" in actions and isinstance(inner, list):
                inner = _returned(inner, value["records"])
            if "delivered" in actions and isinstance(inner, list):
                inner = [_delivered(row) for row in inner]
            if "telling" in actions and isinstance(inner, list):
                inner = _telling(inner)
            if "merged" in actions and isinstance(inner, list):
                inner = _merged(inner)
            if "join" in actions and isinstance(inner, list):
                inner = _joined(inner)
            if "symbol" in actions:
                result[key] = self._symbol(
                    next(rule.kind for rule in rules if rule.action == "symbol"), inner
                )
                continue
            if "share key" in actions:
                result[key] = self._share_key(inner)
                continue
            if "present" in actions:
                result[key] = inner not in (None, -1, "")
                continue
            if "clock" in actions:
                result[key] = _clock(inner)
                continue
            if "since" in actions and isinstance(inner, int) and inner >= _CLOCKS_FROM_MS:
                result[key] = inner - value.get("issue_timestamp", inner)
                continue
            inner = self._value(inner_path, inner)
            if "sort" in actions and "ordered" not in actions and isinstance(inner, list):
                inner = sorted(inner, key=_sort_key)
            result[key] = inner
        return result

    def _batch(self, path: str, batch: dict[str, Json]) -> Json:
        """A batch that the broker stamped has its own times."""
        result = self._mapping(path, batch)
        if batch["attributes"] & 8 or batch["attributes"] & 32:
            times = {key: result[key] for key in ("base_timestamp_ms", "max_timestamp_ms")}
            result |= {key: _clock(value) for key, value in times.items()}
            result["records"] = [{**one, "timestamp": _clock(one["timestamp"])} for one in result["records"]]
        if batch["attributes"] & 32 and "faults" in self._where:
            # behind the version stands the coordinator's epoch
            result["records"] = [{**one, "value": one["value"][:6]} for one in result["records"]]
        return result

    def _share_key(self, value: Json) -> Json:
        parts = value.split(":") if isinstance(value, str) else []
        if len(parts) != 3 or (topic_id := _topic_id(parts[1])) is None:
            return value
        return ":".join([parts[0], str(self._symbol("topic id", topic_id)), parts[2]])

    def _symbol(self, kind: str, value: Json) -> Json:
        if isinstance(value, dict):
            value = next(iter(value.values()))
        if (
            value in (None, "", 0, -1, UNKNOWN_ID["$uuid"])
            or isinstance(value, list)
            or (isinstance(value, int) and value < 0)
        ):
            return value
        if isinstance(value, str) and value.startswith(self._prefix) and not _MADE_UP.search(value):
            return value
        key = (kind, value)
        if key not in self._symbols:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._symbols[key] = f"{kind} {self._counts[kind]}"
        return self._symbols[key]


def _topic_id(text: str) -> str | None:
    """A topic id as clients write it; None if this is none."""
    with contextlib.suppress(ValueError):
        return str(uuid.UUID(bytes=base64.urlsafe_b64decode(text + "==")))
    return None


def _clock(value: Json) -> Json:
    return "a clock" if isinstance(value, int) and value >= _CLOCKS_FROM_MS else value


def _internal(topics: list[Json]) -> list[Json]:
    """The topics of the coordinators; their ids have no order of appearance."""
    rows = [topic for topic in topics if topic.get("name") in _INTERNAL]
    return [{key: value for key, value in row.items() if key != "topic_id"} for row in rows]


def _is_shared(row: Json) -> bool:
    """Whether an API or a feature is not Kafka's alone."""
    if "config_source" in row:
        return not str(row["name"]).startswith(_NEWER_SETTINGS)
    return row["api_key"] in APIS if "api_key" in row else row["name"] in _SHARED_FEATURES


def _returned(transactions: list[Json], batches: list[Json] | None) -> list[Json]:
    """The transactions that begin before the end of the batches."""
    ends = [batch["base_offset"] + batch["last_offset_delta"] + 1 for batch in batches or ()]
    return [one for one in transactions if ends and one["first_offset"] < ends[-1]]


def _joined(rows: list[Json]) -> list[Json]:
    """The rows with all partitions of those that are alike in everything else."""
    found: dict[str, Json] = {}
    for row in rows:
        alike = json.dumps({key: value for key, value in row.items() if key != "partitions"}, sort_keys=True)
        before = found.get(alike, {"partitions": []})["partitions"]
        found[alike] = {**row, "partitions": [*before, *row["partitions"]]}
    return list(found.values())


def _delivered(row: Json) -> Json:
    """A partition of a ShareFetch with the batches and the offsets that a member is given as records."""
    spans = [(one["first_offset"], one["last_offset"]) for one in row["acquired_records"]]
    batches = []
    given = set()
    for batch in row["records"] or ():
        offsets = {record["offset"] for record in batch["records"]}
        acquired = {offset for offset in offsets if any(first <= offset <= last for first, last in spans)}
        if acquired and not batch["attributes"] & 32:
            batches.append(batch)
            given |= acquired
    rows = [
        {**one, "first_offset": offset, "last_offset": offset}
        for one in row["acquired_records"]
        for offset in range(one["first_offset"], one["last_offset"] + 1)
        if offset in given
    ]
    return {**row, "records": batches, "acquired_records": rows}


def _telling(topics: list[Json]) -> list[Json]:
    """The topics of a ShareFetch with the partitions that have records or errors."""
    rows = []
    for topic in topics:
        partitions = [
            part
            for part in topic["partitions"]
            if part["error_code"] or part["acknowledge_error_code"] or _delivered(part)["acquired_records"]
        ]
        if partitions:
            rows.append({**topic, "partitions": partitions})
    return rows


def _merged(rows: list[Json]) -> list[Json]:
    """Acquired records with as few rows as possible."""
    found: list[Json] = []
    for row in rows:
        before = found[-1] if found else None
        if (
            before
            and before["last_offset"] + 1 == row["first_offset"]
            and before["delivery_count"] == row["delivery_count"]
        ):
            found[-1] = {**before, "last_offset": row["last_offset"]}
        else:
            found.append(row)
    return found


def _sort_key(value: Json) -> str:
    """The names first, so that the same element of two systems stands at the same place."""
    if isinstance(value, dict):
        names = [key for key in value if key in _NAMES]
        return json.dumps([[value[key] for key in names], value], sort_keys=True)
    return json.dumps(value, sort_keys=True)


_INTERNAL = {"__consumer_offsets", "__transaction_state", "__share_group_state"}
#: of Kafka 4.4, and our own
_NEWER_SETTINGS = ("errors.deadletterqueue.", "tidelog.")
_SHARED_FEATURES = {"transaction.version", "eligible.leader.replicas.version"}
_NAMES = {
    "name", "topic", "topic_name", "topic_id", "partition", "partition_index", "index", "group_id",
    "transactional_id", "resource_name", "resource_type", "user", "node_id", "entity", "key", "producer_id",
    "entity_type", "entity_name", "partition_id", "mechanism", "api_key",
    "member_id",
}  # fmt: skip
