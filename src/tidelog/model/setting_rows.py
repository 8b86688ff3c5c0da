"""What a row of the settings table is, and the short forms in which the tables are written."""

from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import partial

SettingValue = bool | int | float | str | tuple[str, ...] | None

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class SettingType(IntEnum):
    """The type of a setting; the number is the one DescribeConfigs sends."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Scope(Enum):
    """What a setting belongs to."""

    BROKER = "broker"
    TOPIC = "topic"
    GROUP = "group"
    CLIENT_METRICS = "client metrics"


class UpdateMode(Enum):
    """How a setting of a running broker changes; those of topics and groups always change by theirs."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"
    TOPIC = "topic"
    GROUP = "group"
    CLIENT_METRICS = "client-metrics"


class Importance(Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker setting that gives a topic setting its default, in its own unit (`factor` converts it)."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table.

    An `inert` one is Kafka's and has no effect here. Any legal value is accepted and noted, unless `refused`
    says why none but the default is.
    """

    name: str
    type: SettingType
    default: SettingValue
    documentation: str
    scope: Scope
    update_mode: UpdateMode
    importance: Importance
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str | int, ...] = ()
    synonyms: tuple[Synonym, ...] = ()
    inert: bool = False
    refused: str = ""

    @property
    def sensitive(self) -> bool:
        """Whether the value must never be shown."""
        return self.type is SettingType.PASSWORD

    @property
    def read_only(self) -> bool:
        return self.update_mode is UpdateMode.READ_ONLY

    def __repr__(self) -> str:
        return f"<Setting {self.name} {self.type.name.lower()} default={self.default!r}>"


_MODE_OF_SCOPE = {
    Scope.TOPIC: UpdateMode.TOPIC,
    Scope.GROUP: UpdateMode.GROUP,
    Scope.CLIENT_METRICS: UpdateMode.CLIENT_METRICS,
}


def broker_setting(
    name: str,
    type: SettingType,
    default: SettingValue,
    importance: Importance,
    documentation: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str | int, ...] = (),
    update_mode: UpdateMode = UpdateMode.READ_ONLY,
    inert: bool = False,
    refused: str = "",
) -> Setting:
    return Setting(
        name,
        type,
        default,
        documentation,
        Scope.BROKER,
        update_mode,
        importance,
        minimum,
        maximum,
        choices,
        (),
        inert or bool(refused),
        refused,
    )


noted_setting = partial(broker_setting, inert=True)


def refused_setting(
    name: str,
    type: SettingType,
    default: SettingValue,
    importance: Importance,
    documentation: str,
    reason: str,
    update_mode: UpdateMode = UpdateMode.READ_ONLY,
) -> Setting:
    return broker_setting(
        name, type, default, importance, documentation, update_mode=update_mode, refused=reason
    )


def topic_setting(
    name: str,
    type: SettingType,
    default: SettingValue,
    documentation: str,
    *synonyms: Synonym,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str | int, ...] = (),
    inert: bool = False,
    refused: str = "",
    scope: Scope = Scope.TOPIC,
) -> Setting:
    return Setting(
        name,
        type,
        default,
        documentation,
        scope,
        _MODE_OF_SCOPE[scope],
        Importance.MEDIUM,
        minimum,
        maximum,
        choices,
        synonyms,
        inert or bool(refused),
        refused,
    )
