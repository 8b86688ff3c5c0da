"""Transactions of both protocols: with partitions added first (v1), and added by writing (v2, KIP-890)."""

from tests.oracle.activities_producing import produce, records
from tests.oracle.generator import Activity, Builder, Producer
from tests.oracle.session import Json, name, ref

_ENDED = ["CompleteCommit", "CompleteAbort", "Empty"]
#: from these versions on a request takes part in transactions v2
_V2 = {"Produce": 12, "TxnOffsetCommit": 5, "EndTxn": 5}


def version_of(b: Builder, api: str, v2: bool) -> int:
    return b.version(api, _V2[api]) if v2 else b.version(api, highest=_V2[api] - 1)


def transactional_id(producer: Producer) -> Json:
    assert producer.transactional_id is not None
    return name(producer.transactional_id)


def init(b: Builder) -> Producer:
    """A transactional producer, for a new transactional id or one that another has."""
    known = b.transactional_ids
    chosen = b.choose(*known) if known and b.chance(0.4) else b.new("x")
    if chosen not in known:
        known.append(chosen)
    label = b.ask(
        "InitProducerId",
        {
            "transactional_id": name(chosen),
            "transaction_timeout": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
        },
    )
    wait_ended(b, chosen)
    made = Producer(
        "c0",
        ref(label, "producer_id", otherwise=4711),
        ref(label, "producer_epoch", otherwise=0),
        transactional_id=chosen,
        v2=b.chance(0.5),
    )
    b.producers.append(made)
    return made


def init_oddly(b: Builder) -> None:
    """Limits of the timeout, ids and epochs that are not right."""
    mine = [one for one in b.producers if one.transactional_id]
    producer = b.choose(*mine) if mine else init(b)
    right = b.chance(0.5)
    fields = {
        "transactional_id": b.choose(
            transactional_id(producer), transactional_id(producer), name("xodd"), ""
        ),
        "transaction_timeout": b.choose(60_000, 60_000, 0, -1, 900_001),
        "producer_id": producer.id if right else b.choose(-1, 424_242),
        "producer_epoch": producer.epoch if right else b.choose(-1, 0, 5),
    }
    label = b.ask("InitProducerId", fields)
    wait_ended(b, producer.transactional_id or "")
    if right:
        producer.id = ref(label, "producer_id", otherwise=producer.id)
        producer.epoch = ref(label, "producer_epoch", otherwise=producer.epoch)
        producer.sequences.clear()
        producer.open = False


def wait_ended(b: Builder, transactional_id: str) -> None:
    """Until the markers of the last transaction are written."""
    b.ask(
        "DescribeTransactions",
        {"transactional_ids": [name(transactional_id)]},
        until={
            "path": ["transaction_states", 0, "transaction_state"],
            "not_in": ["PrepareCommit", "PrepareAbort", "PrepareEpochFence"],
        },
    )


def chosen_producer(b: Builder) -> Producer:
    mine = [one for one in b.producers if one.transactional_id]
    return b.choose(*mine) if mine and b.chance(0.85) else init(b)


def add_partitions(b: Builder, producer: Producer, places: list[tuple[str, int]]) -> None:
    topics = [{"name": name(alias), "partitions": [number]} for alias, number in places]
    # from 4 on only brokers ask
    b.ask(
        "AddPartitionsToTxn",
        {
            "v3_and_below_transactional_id": transactional_id(producer),
            "v3_and_below_producer_id": producer.id,
            "v3_and_below_producer_epoch": producer.epoch,
            "v3_and_below_topics": topics,
        },
        version=b.version("AddPartitionsToTxn", highest=3),
    )


def write(b: Builder) -> None:
    """Some batches in a transaction that is open or begins with them."""
    producer = chosen_producer(b)
    topic = b.topic()
    partition = b.random.randrange(topic.partitions)
    place = (topic.alias, partition)
    added = producer.v2 or b.chance(0.93)
    if added and not producer.v2:
        add_partitions(b, producer, [place])
    count = b.choose(1, 1, 2)
    begun = False
    for number in range(count):
        sequence = producer.sequences.get(place, 0)
        rows = records(b)
        named = b.chance(0.97)
        if place in producer.sequences and b.chance(0.1):
            # before the transaction has begun in a partition Kafka holds later sequences against a lower one
            sequence += b.choose(3, -1 if begun else 3)
        elif added and named:
            producer.sequences[place] = sequence + len(rows)
            begun = True
        one = {
            "records": rows,
            "producer_id": producer.id,
            "producer_epoch": producer.epoch,
            "base_sequence": sequence,
            "transactional": True,
        }
        if b.chance(0.03) and named:
            # Kafka holds later sequences against what it refused in a transaction, Tidelog only in one. In no
            # transaction it would be appended, and a batch of the transaction be taken for its repetition.
            one |= {"transactional": False, "base_sequence": 0}
        produce(
            b,
            [(topic, partition, [one])],
            version=version_of(b, "Produce", producer.v2),
            transactional_id=transactional_id(producer) if named else None,
            later=number < count - 1,
        )
    producer.open = True


def commit_offsets(b: Builder) -> None:
    """Offsets of a group within a transaction."""
    producer = chosen_producer(b)
    group = b.choose("g0", "g1", "gt")
    if not producer.v2 and b.chance(0.9):
        b.ask(
            "AddOffsetsToTxn",
            {
                "transactional_id": transactional_id(producer),
                "producer_id": producer.id,
                "producer_epoch": producer.epoch,
                "group_id": name(group),
            },
        )
    topic = b.topic()
    fields = {
        "transactional_id": transactional_id(producer),
        "group_id": name(group),
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "generation_id": b.choose(-1, -1, -1, 3),
        "member_id": b.choose("", "", "", "someone"),
        "group_instance_id": None,
        "topics": [
            {
                "name": name(topic.alias),
                "partitions": [
                    {
                        "partition_index": b.partition(topic),
                        "committed_offset": b.choose(0, 1, 5),
                        "committed_leader_epoch": b.choose(-1, 0),
                        "committed_metadata": b.choose("", "m", None),
                    }
                ],
            }
        ],
    }
    b.groups.setdefault(group, {"kind": "offsets"})
    b.ask("TxnOffsetCommit", fields, version=version_of(b, "TxnOffsetCommit", producer.v2))
    if b.chance(0.5):
        offset_fetch(b, group, require_stable=False)
    producer.open = True


def offset_fetch(b: Builder, group: str, *, require_stable: bool) -> None:
    topic = b.topic()
    rows = [{"name": name(topic.alias), "topic_id": topic.id, "partition_indexes": [0, 1]}]
    fields = {
        "group_id": name(group),
        "topics": rows,
        "groups": [{"group_id": name(group), "topics": rows, "member_id": None, "member_epoch": -1}],
        "require_stable": require_stable,
    }
    b.ask("OffsetFetch", fields)


def end(b: Builder) -> None:
    """Commit or abort; again; with the wrong epoch; without a transaction."""
    producer = chosen_producer(b)
    how = b.choose("right", "right", "right", "right", "old", "new", "other id")
    epoch: Json = producer.epoch
    if how in ("old", "new"):
        epoch = {"$ref": [*producer.epoch["$ref"][:3], -1 if how == "old" else 1]}
    v2 = producer.v2 if b.chance(0.95) else not producer.v2
    fields = {
        "transactional_id": transactional_id(producer),
        "producer_id": 31_337 if how == "other id" else producer.id,
        "producer_epoch": epoch,
        "committed": b.chance(0.6),
    }
    version = version_of(b, "EndTxn", v2)
    for _ in range(1 if b.chance(0.85) else 2):
        label = b.ask("EndTxn", fields, version=version)
        wait_ended(b, producer.transactional_id or "")
    if how == "right":
        producer.open = False
        if v2:
            was = producer.epoch
            producer.id = ref(label, "producer_id", otherwise=producer.id)
            producer.epoch = ref(label, "producer_epoch", otherwise=was)
            producer.sequences.clear()


def whole(b: Builder) -> None:
    """A transaction from its beginning to its end."""
    write(b)
    if b.chance(0.4):
        commit_offsets(b)
    if b.chance(0.4):
        write(b)
    end(b)


def odd_requests(b: Builder) -> None:
    """Transactional ids that nobody has, versions for brokers, markers by hand."""
    producer = chosen_producer(b)
    topic = b.topic()
    kind = b.choose("unknown id", "bad partition", "verify", "marker", "bad group")
    if kind == "unknown id":
        b.ask(
            "EndTxn",
            {"transactional_id": name("xabsent"), "producer_id": 5, "producer_epoch": 0, "committed": True},
        )
    elif kind == "bad partition":
        add_partitions(b, producer, [(topic.alias, 0), ("absent", 0)])
    elif kind == "verify":
        transaction = {
            "transactional_id": transactional_id(producer),
            "producer_id": producer.id,
            "producer_epoch": producer.epoch,
            "verify_only": b.chance(0.7),
            "topics": [{"name": name(topic.alias), "partitions": [0]}],
        }
        b.ask(
            "AddPartitionsToTxn", {"transactions": [transaction]}, version=b.version("AddPartitionsToTxn", 4)
        )
        producer.open = True
    elif kind == "marker":
        marker = {
            "producer_id": b.choose(producer.id, 918_273),
            "producer_epoch": 0,
            "transaction_result": b.chance(0.5),
            "coordinator_epoch": b.choose(0, 0, 5, -1),
            "topics": [{"name": b.choose(name("absent"), name(topic.alias)), "partition_indexes": [0, 9]}],
            "transaction_version": b.choose(0, 0, 1, 2),
        }
        b.ask("WriteTxnMarkers", {"markers": [marker]})
    else:
        b.ask(
            "AddOffsetsToTxn",
            {
                "transactional_id": transactional_id(producer),
                "producer_id": producer.id,
                "producer_epoch": producer.epoch,
                "group_id": b.choose("", name("g0")),
            },
        )


def describe(b: Builder) -> None:
    known = b.together([*(name(one) for one in b.transactional_ids[:2]), name("xabsent")])
    if b.chance(0.5):
        b.ask("DescribeTransactions", {"transactional_ids": known})
    else:
        fields = {
            "state_filters": b.choose([], ["Ongoing"], ["CompleteCommit", "Empty"], ["Nonsense"]),
            "producer_id_filters": b.choose([], [], [5]),
            "duration_filter": b.choose(-1, -1, 0),
            "transactional_id_pattern": b.choose(None, None, ".*x0", "nothing", "(["),
        }
        b.ask("ListTransactions", fields)


ACTIVITIES: list[tuple[float, Activity]] = [
    (2.0, whole),
    (1.5, write),
    (1.0, commit_offsets),
    (1.5, end),
    (0.5, init_oddly),
    (1.0, odd_requests),
    (0.6, describe),
]
