"""Records of `tidelog consume` and `tidelog produce` with the schemas of a registry.

Consuming, the id in front of a key or value says which schema it was written with. Producing, the command
line says which one is meant: `latest` or the number of a version of the topic's subject (`<topic>-value`,
`<topic>-key`), `id:7`, or a file, which is registered under that subject.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.errors import CommandError
from tidelog.cli.record_format import DecodedField, ShownRecord
from tidelog.cli.registry_access import SCHEMA_TYPES, open_registry, registry_faults

if TYPE_CHECKING:
    from tidelog.schemas.decoding import Decoder
    from tidelog.schemas.registered import RegisteredSchema, RegisteredSchemas

NOT_FRAMED = "not framed with a schema id; it is shown as it is without --schema or --key-schema"
UNKNOWN_ID = "the registry does not know schema {id}; is --registry the one that it was written with?"


@dataclass
class RecordDecoder:
    """Decodes the fields of records that were asked for, and counts those that could not be."""

    decoder: "Decoder"
    fields: tuple[str, ...]
    faults_count: int = 0
    _refused: dict[int, str] = field(default_factory=dict)

    def decoded(self, record: ShownRecord) -> ShownRecord:
        """The record with what its schemas say; CommandError where the registry cannot be asked."""
        found = {
            name: self._field(data) for name in self.fields if (data := getattr(record, name)) is not None
        }
        for name, one in found.items():
            if one.fault:
                self.faults_count += 1
                place = f"{record.topic}-{record.partition}, offset {record.offset}"
                click.echo(f"{place}: the {name} cannot be decoded: {one.fault}", err=True)
        return record._replace(decoded=found)

    def _field(self, data: bytes) -> DecodedField:
        from tidelog.schemas.framing import unframed

        framed = unframed(data)
        if framed is None:
            return DecodedField(None, None, NOT_FRAMED)
        schema_id = framed.schema_id
        fault = self._refused.get(schema_id) or self._unknown(schema_id)
        if fault:
            # The next record with this schema does not ask the registry again.
            self._refused[schema_id] = fault
            return DecodedField(schema_id, None, fault)
        try:
            return DecodedField(schema_id, self.decoder.decode(data).value)
        except ValueError as failure:
            return DecodedField(schema_id, None, str(failure))

    def _unknown(self, schema_id: int) -> str:
        """Why there is no reader of a schema; empty if there is one."""
        from tidelog.schemas.registry_client import RegistryFault

        with registry_faults():
            try:
                self.decoder.reader(schema_id)
            except RegistryFault as fault:
                if fault.status != 404:
                    raise
                return UNKNOWN_ID.format(id=schema_id)
            except ValueError as fault:
                return f"schema {schema_id}: {fault}"
        return ""


def record_decoder(
    registry_url: str, timeout_seconds: float, *, keys: bool, values: bool
) -> RecordDecoder | None:
    """What decodes the records of a command; None where nothing was asked for."""
    from tidelog.schemas.decoding import Decoder
    from tidelog.schemas.registered import RegisteredSchemas

    fields = tuple(name for name, wanted in (("key", keys), ("value", values)) if wanted)
    if not fields:
        return None
    return RecordDecoder(Decoder(RegisteredSchemas(open_registry(registry_url, timeout_seconds))), fields)


def record_encoders(
    registry_url: str, timeout_seconds: float, topic: str, wanted: dict[str, str | None], message: str | None
) -> dict[str, Callable[[Any], bytes]]:
    """By field, what encodes it with the schema that is `wanted` for it."""
    if not any(wanted.values()):
        return {}
    from tidelog.schemas.encoding import Encoder, NoValidator
    from tidelog.schemas.registered import RegisteredSchemas

    schemas = RegisteredSchemas(open_registry(registry_url, timeout_seconds))
    encoders: dict[str, Callable[[Any], bytes]] = {}
    with registry_faults():
        for name, which in wanted.items():
            if which is None:
                continue
            try:
                schema = _chosen(schemas, f"{topic}-{name}", which)
                # --message is for values; keys of Protobuf have their first message.
                named = message if name == "value" else None
                encoders[name] = Encoder(schema, named).encode
            except NoValidator as fault:
                raise CommandError(
                    "JSON Schema cannot be checked", "pip install 'tidelog[registry]'"
                ) from fault
            except ValueError as fault:
                raise CommandError(
                    f"the schema of the {name} cannot be used: {fault}", "'tidelog schema describe' shows it"
                ) from fault
    return encoders


def _chosen(schemas: "RegisteredSchemas", subject: str, which: str) -> "RegisteredSchema":
    from tidelog.schemas.registered import KINDS, LATEST
    from tidelog.schemas.registry_client import RegistryFault

    path = Path(which)
    if path.suffix in SCHEMA_TYPES:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as failure:
            raise CommandError(f"cannot read {path}: {failure}", "check the path") from failure
        return schemas.register(subject, KINDS[SCHEMA_TYPES[path.suffix]], text)
    kind, _, number = which.rpartition(":")
    if kind == "id" and number.isdigit():
        return schemas.by_id(int(number))
    if which != LATEST and not which.isdigit():
        raise click.UsageError(
            f"{which!r} is no schema: latest, the number of a version of {subject}, id:7, or a file"
            f" ({', '.join(SCHEMA_TYPES)})."
        )
    try:
        return schemas.version(subject, which)
    except RegistryFault as fault:
        if fault.status != 404:
            raise
        raise CommandError(
            f"{fault.message} ({fault.code})", f"register one: tidelog schema register {subject} FILE"
        ) from fault
