"""What of an outcome may differ between two systems that are both right, as data, each with its reason.

The actions are those of `rules`: a rule is for the fields `operation.path.of.the.field` that its pattern
matches. Keys that are names of topics, groups and the like are part of the path, as they are.
Besides, `ended` takes a transaction that is being ended for one that is.

`ACCEPTED` is what may differ so, with the reason: rows of `differences`, seen through a client.
"""

import fnmatch
import functools
import json
import re
from typing import Any

from tests.oracle.clients_session import ClientSession, Json, Operation, shown
from tests.oracle.differences import LESS, Accepted
from tests.oracle.rules import Rule

RULES = (
    Rule("*.message", "drop", "texts are for people"),
    Rule("*.id", "symbol", "made up by each cluster", "id"),
    Rule("*.member_id", "symbol", "made up by each client and coordinator", "member"),
    Rule("*.producer_id", "symbol", "handed out by each cluster", "producer id"),
    Rule(
        "describe_producers.*.producer_id", "present", "which of several is which cannot be told from a set"
    ),
    Rule("*.host", "drop", "another address"),
    Rule("*.timestamp", "clock", "records without a time get that of the client or the broker"),
    Rule("*.last_timestamp", "present", "a clock here, the record's time in Kafka (see `differences`)"),
    Rule("*.state", "ended", "a commit is answered when it is prepared (KIP-890), and completed soon after"),
    *(
        Rule(f"{name}*.cause", "drop", "of a wait that came to nothing: what the last attempt came to")
        for name in ("delete_records", "list_offsets", "describe_producers", "describe_log_dirs")
    ),
    Rule("*.configs.errors.deadletterqueue.*", "drop", "of Kafka 4.4 (KIP-1191)"),
    Rule("describe_configs.*.errors.deadletterqueue.*", "drop", "of Kafka 4.4 (KIP-1191)"),
    Rule("*.configs.tidelog.*", "drop", "settings of our own"),
    Rule("describe_configs.*.tidelog.*", "drop", "settings of our own"),
    Rule("*.members", "sort", "a set"),
    Rule("list_topics", "own", "other sessions"),
    Rule("list_groups", "own", "other sessions"),
    Rule("list_transactions", "own", "other sessions"),
    Rule("describe_log_dirs", "own", "other sessions"),
    Rule("list_config_resources", "own", "other sessions"),
    Rule("list_topics", "sort", "a set"),
    Rule("list_groups", "sort", "a set"),
    Rule("list_transactions", "sort", "a set"),
    Rule("describe_log_dirs", "sort", "a set"),
    Rule("describe_cluster.nodes", "sort", "a set"),
    Rule("describe_producers.*", "sort", "a set"),
)
#: of sessions in which brokers are killed
KILLS_RULES = (
    Rule("*.leader", "drop", "who leads depends on who is back first"),
    Rule("*.in_sync", "sort", "in the order in which they came back"),
    Rule("*.leader_epoch", "drop", "counts elections"),
    Rule("*.coordinator", "drop", "who coordinates depends on who is back first"),
    Rule("*.coordinator_epoch", "drop", "counts elections"),
    Rule("*.epoch", "drop", "members and producers may have begun anew"),
    Rule("*.target_epoch", "drop", "members may have begun anew"),
    Rule("*.assignment_epoch", "drop", "members may have begun anew"),
    *(
        Rule(f"{name}.timestamp", "drop", "of a batch that was sent again: the time of its newest record")
        for name in ("send", "flush.sent", "commit.sent", "abort.sent")
    ),
    Rule("*.repeated", "drop", "a member that begins anew reads again from what is committed"),
)

_MIN_IN_SYNC = "the source of `min.insync.replicas`, which Kafka's controller sets for all brokers"
ACCEPTED: tuple[Accepted, ...] = (
    Accepted("*", "*.min.insync.replicas.source", None, None, _MIN_IN_SYNC),
    Accepted("list_share_group_offsets", "*.start", LESS, None, "Kafka stores it with the next write"),
    Accepted("describe_share_groups", "*epoch", LESS, None, "altered offsets: the group has a new epoch"),
)

#: states of transactions that are as good as the next
_ENDED = {"PrepareCommit": "CompleteCommit", "PrepareAbort": "CompleteAbort"}
#: the end of an id that a coordinator made up
_MADE_UP = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
_CLOCKS_FROM_MS = 1_750_000_000_000


@functools.cache
def rules_of(path: str, kills: bool) -> tuple[Rule, ...]:
    rules = (*RULES, *KILLS_RULES) if kills else RULES
    return tuple(rule for rule in rules if fnmatch.fnmatchcase(path, rule.pattern))


class ClientNormaliser:
    """Applies the rules to the outcomes of one run, in order."""

    def __init__(self, prefix: str, kills: bool) -> None:
        self._prefix = prefix
        self._rules_of = functools.partial(rules_of, kills=kills)
        self._symbols: dict[tuple[str, Any], str] = {}
        self._counts: dict[str, int] = {}

    def normalise(self, operation: Operation, outcome: Json) -> Json:
        return self._field(operation.name, outcome)

    def _field(self, path: str, value: Json, *, ids: bool = True) -> Json:
        rules = self._rules_of(path)
        actions = {rule.action for rule in rules}
        if "present" in actions:
            return value not in (None, -1, "")
        if "symbol" in actions:
            if not ids:
                return value if self._own_name(value) else ""
            return self._symbol(next(rule.kind for rule in rules if rule.action == "symbol"), value)
        if "ended" in actions:
            return _ENDED.get(value, value) if isinstance(value, str) else value
        if "clock" in actions and isinstance(value, int) and value >= _CLOCKS_FROM_MS:
            return "a clock"
        if "own" in actions and isinstance(value, list):
            value = [one for one in value if self._prefix in json.dumps(one)]
        if isinstance(value, dict):
            return {
                key: self._field(f"{path}.{key}", inner, ids=ids)
                for key, inner in value.items()
                if not any(rule.action == "drop" for rule in self._rules_of(f"{path}.{key}"))
            }
        if isinstance(value, list):
            if "sort" in actions:
                # before ids get their symbols, which count in this order
                value = sorted(value, key=lambda one: self._sort_key(path, one))
            return [self._field(path, one, ids=ids) if isinstance(one, dict) else one for one in value]
        return value

    def _sort_key(self, path: str, value: Json) -> str:
        if isinstance(value, dict):
            value = self._field(path, value, ids=False)
        return json.dumps(value, sort_keys=True)

    def _own_name(self, value: Json) -> bool:
        """Whether a session gave this name, and no coordinator added to it."""
        return isinstance(value, str) and value.startswith(self._prefix) and not _MADE_UP.search(value)

    def _symbol(self, kind: str, value: Json) -> Json:
        # broker ids are small and the same on both
        if value in (None, "") or (isinstance(value, int) and value < 100 and kind == "id"):
            return value
        if self._own_name(value):
            return value
        if isinstance(value, int) and value < 0:
            return value
        key = (kind, value)
        if key not in self._symbols:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._symbols[key] = f"{kind} {self._counts[kind]}"
        return self._symbols[key]


def normalised(session: ClientSession, prefix: str, outcomes: dict[str, Json]) -> dict[str, Json]:
    """The outcomes by label, with everything that may differ taken out."""
    normaliser = ClientNormaliser(prefix, session.kills)
    found = {
        one.label: normaliser.normalise(one, outcomes[one.label])
        for one in session.operations
        if one.label in outcomes
    }
    loaded: dict[str, Json] = json.loads(json.dumps(found).replace(prefix, "~"))
    return loaded


def accepted(operation: Operation, path: str, kafka: Json, here: Json) -> bool:
    """Whether a difference is one of those that are meant."""
    asked = shown(operation.fields)
    return any(row.covers(operation.name, asked, path, kafka, here) for row in ACCEPTED)
