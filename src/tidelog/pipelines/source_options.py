"""The options of the source, under the names of Spark's Kafka source, as one typed value.

`SourceOptions.read` checks them all before anything is connected, and says in words what to write instead of
what cannot work. Names are case-insensitive, as Spark hands them over. What begins with `kafka.` goes to
`ClientSettings`. A name that nobody knows is refused if it looks like a slip, else passed over.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.client.client_settings import ClientSettings
from tidelog.client.faults import BadOption
from tidelog.client.option_rows import INT64_MAX, OptionRow, choice, flag, number, read_table, text
from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines.decode_options import ROWS as DECODE_ROWS
from tidelog.pipelines.decode_options import DecodeOptions
from tidelog.pipelines.offset_planning import Offsets, parse_assignment, parse_offsets

LATEST_TEXT = "latest"
EARLIEST_TEXT = "earliest"

STRATEGIES = ("subscribe", "subscribepattern", "assign")
STARTING = ("startingtimestamp", "startingoffsetsbytimestamp", "startingoffsets")
OFFSETS_STRATEGY = "startingoffsetsstrategy"
TIMESTAMP_STRATEGY = "startingoffsetsbytimestampstrategy"
ENDING = ("endingtimestamp", "endingoffsetsbytimestamp", "endingoffsets")

#: by the field of SourceOptions that they fill
ROWS: dict[str, OptionRow] = {
    "offsets_strategy": choice("startingOffsetsStrategy", choices=("error", EARLIEST_TEXT), default="error"),
    "timestamp_strategy": choice(
        "startingOffsetsByTimestampStrategy", choices=("error", LATEST_TEXT), default="error"
    ),
    "fail_on_data_loss": flag("failOnDataLoss", default=True),
    "include_headers": flag("includeHeaders", default=False),
    "include_leader_epoch": flag("includeLeaderEpoch", default=False),
    "partitions_min": number("minPartitions", least=1, most=INT64_MAX),
    "records_per_partition_max": number("maxRecordsPerPartition", least=1, most=INT64_MAX),
    "offsets_per_trigger_max": number("maxOffsetsPerTrigger", least=1, most=INT64_MAX),
    "offsets_per_trigger_min": number("minOffsetsPerTrigger", least=1, most=INT64_MAX),
    "group_id": text("group.id"),
    "share_group": text("share.group"),
    "group_id_prefix": text("groupIdPrefix", default="tidelog-spark"),
    "commit_offsets": flag("commitOffsets", default=True),
    "poll_timeout_ms": number("kafkaConsumer.pollTimeoutMs", least=1, default=120_000),
    "latest_offset_cache_ms": number("latestOffsetCacheMs", default=20),
    "discovery_interval_ms": number("partitionDiscoveryIntervalMs", default=1_000),
}
#: option names as they are documented; those without a row are read together with others
NAMES = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "maxTriggerDelay",
    "isolationLevel",
    *(row.name for row in ROWS.values()),
    *(row.name for row in DECODE_ROWS.values()),
)
#: of Spark's source, without meaning here
TOLERATED = ("fetchoffset.numretries", "fetchoffset.retryintervalms", "kafkaconsumer.consumercachetimeout")
#: of the Java consumer; the source decides these itself
REFUSED = {
    "kafka.auto.offset.reset": "use startingOffsets: earliest, latest or offsets as JSON",
    "kafka.key.deserializer": "keys are bytes; cast the column: CAST(key AS STRING)",
    "kafka.value.deserializer": "values are bytes: CAST(value AS STRING), or option decode",
    "kafka.enable.auto.commit": "the source commits what was processed; commitOffsets=false switches it off",
    "kafka.interceptor.classes": "there is no JVM consumer to intercept",
}
#: with share.group; the group decides these
REFUSED_OF_A_QUEUE = {
    **dict.fromkeys(STARTING, "the group's setting share.auto.offset.reset says where it begins"),
    **dict.fromkeys(
        ("isolationlevel", "kafka.isolation.level"), "share.isolation.level of the group says it"
    ),
    **dict.fromkeys(("group.id", "kafka.group.id", "commitoffsets"), "the share group keeps what was done"),
    **dict.fromkeys(("subscribepattern", "assign"), "a share group subscribes to topics by name: subscribe"),
    "minoffsetspertrigger": "what a member has acquired it does not keep waiting",
}
_DURATION = re.compile(r"\s*(\d+)\s*([a-z]*)\s*")
_UNIT_MS = {
    "ms": 1,
    "millisecond": 1,
    "s": 1_000,
    "second": 1_000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
}


class ReadBoundary(NamedTuple):
    """Where to start or end: a word (earliest, latest), offsets, timestamps, or one timestamp for all."""

    word: str | None = None
    offsets: Offsets | None = None
    timestamps_ms: Offsets | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What the reader of a query was asked for."""

    client: ClientSettings
    topics: tuple[str, ...]
    pattern: str | None
    assigned: tuple[TopicPartition, ...]
    starting: ReadBoundary
    ending: ReadBoundary
    #: a partition that startingOffsets does not name: `error` or `earliest`
    offsets_strategy: str
    #: a timestamp behind the last record: `error` or `latest`
    timestamp_strategy: str
    fail_on_data_loss: bool
    include_headers: bool
    include_leader_epoch: bool
    partitions_min: int | None
    records_per_partition_max: int | None
    offsets_per_trigger_max: int | None
    offsets_per_trigger_min: int | None
    trigger_delay_max_ms: int
    group_id: str | None
    share_group: str | None
    group_id_prefix: str
    commit_offsets: bool
    poll_timeout_ms: int
    latest_offset_cache_ms: int
    discovery_interval_ms: int
    decode: DecodeOptions | None

    @staticmethod
    def decoding(options: Mapping[str, str]) -> DecodeOptions | None:
        """How values are to be decoded, without a look at the rest; raises BadOption."""
        given = _lowered(options)
        return DecodeOptions.read(given, _subscription(given)[0])

    @classmethod
    def read(cls, options: Mapping[str, str], *, streaming: bool) -> "SourceOptions":
        """Read and check; raises BadOption."""
        given = _lowered(options)
        _check_names(given)
        if "share.group" in given:
            _check_queue(given, streaming)
        topics, pattern, assigned = _subscription(given)
        starting, ending = _positions(given, streaming)
        values = read_table(ROWS, given)
        least, most = values["offsets_per_trigger_min"], values["offsets_per_trigger_max"]
        if least is not None and most is not None and least > most:
            raise BadOption(f"minOffsetsPerTrigger ({least}) is above maxOffsetsPerTrigger ({most})")
        values["group_id"] = given.get("group.id", given.get("kafka.group.id"))
        return cls(
            client=_client_settings(given),
            topics=topics,
            pattern=pattern,
            assigned=assigned,
            starting=starting,
            ending=ending,
            decode=DecodeOptions.read(given, topics),
            trigger_delay_max_ms=parse_duration_ms(given.get("maxtriggerdelay", "15m")),
            **values,
        )


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {str(name).lower(): str(value) for name, value in options.items()}


def _check_names(given: Mapping[str, str]) -> None:
    for name in given:
        if name in REFUSED:
            raise BadOption(f"option {name} cannot be used: {REFUSED[name]}")
    refuse_slips(given, NAMES, TOLERATED)


def _check_queue(given: Mapping[str, str], streaming: bool) -> None:
    if not given["share.group"].strip():
        raise BadOption("share.group is empty; it is the name of the share group")
    if not streaming:
        raise BadOption(
            "share.group is for spark.readStream: nobody tells a source when a batch query is done;"
            " a stream with trigger(availableNow=True) reads what is there and ends"
        )
    for name, reason in REFUSED_OF_A_QUEUE.items():
        if name in given:
            raise BadOption(f"option {name} does not go with share.group: {reason}")


def refuse_slips(given: Iterable[str], names: Iterable[str], tolerated: Collection[str] = ()) -> None:
    """Raises BadOption for a name, in lower case, that nobody knows but that looks like one of `names`."""
    known = {name.lower(): name for name in names}
    for name in given:
        if name in known or name in tolerated or name.startswith("kafka."):
            continue
        near = difflib.get_close_matches(name, [*known, "kafka.bootstrap.servers"], n=1, cutoff=0.8)
        if near:
            raise BadOption(f"option {name!r} is not known; is {known.get(near[0], near[0])!r} meant?")


def _client_settings(given: Mapping[str, str]) -> ClientSettings:
    client = {
        name.removeprefix("kafka."): value for name, value in given.items() if name.startswith("kafka.")
    }
    if "isolationlevel" in given:
        client["isolation.level"] = given["isolationlevel"]
    if "share.group" in given:
        # The group has chosen already: a task reads what was acquired, and no more.
        client["isolation.level"] = "read_uncommitted"
    if "bootstrap.servers" not in client:
        raise BadOption('option("kafka.bootstrap.servers", "host:port,host:port") is missing')
    return ClientSettings.from_options(client)


def _subscription(given: Mapping[str, str]) -> tuple[tuple[str, ...], str | None, tuple[TopicPartition, ...]]:
    chosen = [name for name in STRATEGIES if name in given]
    if len(chosen) != 1:
        raise BadOption(
            "give exactly one of subscribe ('orders,payments'), subscribePattern ('orders.*')"
            f" and assign ('{{\"orders\":[0,1]}}'); given: {', '.join(chosen) or 'none'}"
        )
    if "assign" in given:
        return (), None, parse_assignment(given["assign"])
    if "subscribe" in given:
        topics = tuple(sorted({part.strip() for part in given["subscribe"].split(",") if part.strip()}))
        if not topics:
            raise BadOption("subscribe names no topic; write 'orders,payments'")
        return topics, None, ()
    pattern = given["subscribepattern"].strip()
    try:
        re.compile(pattern)
    except re.error as fault:
        raise BadOption(f"subscribePattern {pattern!r} is no regular expression: {fault}") from fault
    if not pattern:
        raise BadOption("subscribePattern is empty; write 'orders.*'")
    return (), pattern, ()


def _positions(given: Mapping[str, str], streaming: bool) -> tuple[ReadBoundary, ReadBoundary]:
    for names in (STARTING, ENDING):
        chosen = [name for name in names if name in given]
        if streaming and chosen and names is ENDING:
            raise BadOption(
                "a stream has no end: ending options are for spark.read;"
                " trigger(availableNow=True) stops at what is there now"
            )
    starting = _position(given, STARTING, LATEST_TEXT if streaming else EARLIEST_TEXT)
    ending = _position(given, ENDING, LATEST_TEXT)
    if not streaming and starting.word == LATEST_TEXT:
        raise BadOption(
            "startingOffsets=latest reads nothing in a batch query; use earliest or offsets as JSON"
        )
    if ending.word == EARLIEST_TEXT:
        raise BadOption("endingOffsets=earliest reads nothing; use latest or offsets as JSON")
    if not streaming and starting.offsets and -1 in starting.offsets.values():
        raise BadOption("startingOffsets: -1 (latest) reads nothing in a batch query")
    if ending.offsets and -2 in ending.offsets.values():
        raise BadOption("endingOffsets: -2 (earliest) reads nothing")
    return starting, ending


def _position(given: Mapping[str, str], names: tuple[str, str, str], default: str) -> ReadBoundary:
    """One timestamp for all goes before timestamps, those before offsets, as in Spark."""
    one_timestamp, timestamps, offsets = names
    if one_timestamp in given:
        return ReadBoundary(timestamp_ms=number(one_timestamp, most=INT64_MAX).read(given[one_timestamp]))
    if timestamps in given:
        parsed = parse_offsets(timestamps, given[timestamps])
        if any(timestamp < 0 for timestamp in parsed.values()):
            raise BadOption(f"{timestamps} has timestamps below 0; they are milliseconds since 1970")
        return ReadBoundary(timestamps_ms=parsed)
    written = given.get(offsets, default).strip()
    if written.lower() in (LATEST_TEXT, EARLIEST_TEXT):
        return ReadBoundary(word=written.lower())
    parsed = parse_offsets(offsets, written)
    if any(offset < -2 for offset in parsed.values()):
        raise BadOption(f"{offsets}: offsets are at least 0, or -1 for latest, or -2 for earliest")
    return ReadBoundary(offsets=parsed)


def parse_duration_ms(duration: str) -> int:
    """`15m`, `90 seconds`, `200ms` in milliseconds; raises BadOption."""
    found = _DURATION.fullmatch(duration.lower())
    unit = "" if found is None else found[2] or "ms"
    factor = _UNIT_MS.get(unit) or _UNIT_MS.get(unit.removesuffix("s"))
    if found is None or factor is None:
        raise BadOption(f"maxTriggerDelay is a duration such as 15m or 30s, not {duration!r}")
    return int(found[1]) * factor
