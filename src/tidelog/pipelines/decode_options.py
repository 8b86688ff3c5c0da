"""The options of the source that say how values are decoded with the schemas of a registry.

    decode                                  avro, protobuf or json-schema
    schema.registry.url                     http://host:8081
    schema.registry.basic.auth.user.info    name:password
    decode.schema                           the schema of the columns: latest, a version's number, or id:7
    decode.subject                          where that is looked up; <topic>-value of the one topic
    decode.message                          the message of a Protobuf schema; the first
    decode.mode                             failfast or permissive

Those of the registry have the names that Confluent's clients have for them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidelog.client.faults import BadOption
from tidelog.client.option_rows import OptionRow, choice, read_table, text
from tidelog.schemas.registered import AVRO, JSON_SCHEMA, LATEST, PROTOBUF

FAILFAST, PERMISSIVE = "failfast", "permissive"

ROWS: dict[str, OptionRow] = {
    "kind": choice("decode", choices=(AVRO, PROTOBUF, JSON_SCHEMA)),
    "registry_url": text("schema.registry.url"),
    "user_info": text("schema.registry.basic.auth.user.info", default=""),
    "which": text("decode.schema", default=LATEST),
    "subject": text("decode.subject"),
    "message": text("decode.message"),
    "mode": choice("decode.mode", choices=(FAILFAST, PERMISSIVE), default=FAILFAST),
}


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """What a query asks for."""

    kind: str
    registry_url: str = field(repr=False)
    user_info: str = field(repr=False)
    which: str
    subject: str
    message: str | None
    mode: str

    @property
    def permissive(self) -> bool:
        return self.mode == PERMISSIVE

    @classmethod
    def read(cls, given: Mapping[str, str], topics: tuple[str, ...]) -> "DecodeOptions | None":
        """From options with names in lower case; None without `decode`. Raises BadOption."""
        asked = [row.name for row in ROWS.values() if row.name.lower() in given]
        if "decode" not in given:
            if asked:
                raise BadOption(f"option {asked[0]} says how to decode: it goes with option decode")
            return None
        values = read_table(ROWS, given)
        if not values["registry_url"]:
            raise BadOption('option("schema.registry.url", "http://host:8081") is missing: decode needs it')
        if values["subject"] is None:
            if len(topics) != 1 and not values["which"].startswith("id:"):
                raise BadOption(
                    "decode.subject names the subject of the columns' schema, where it is not"
                    " <topic>-value of one topic"
                )
            values["subject"] = f"{topics[0]}-value" if topics else ""
        if values["message"] is not None and values["kind"] != PROTOBUF:
            raise BadOption(
                "decode.message is for decode=protobuf: only its schemas have messages to choose from"
            )
        return cls(**values)
