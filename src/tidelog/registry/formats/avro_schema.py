"""Avro: read and compared by Apache Avro's own library, a port of the Java one that Confluent uses.

Texts are written canonically (`avro_text`), so the same schema has the same id however it was written.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import avro.errors
import avro.name
import avro.schema
from avro.compatibility import (
    CompatibleResult,
    ReaderWriterCompatibilityChecker,
    SchemaCompatibilityResult,
    SchemaCompatibilityType,
    SchemaIncompatibilityType,
    incompatible,
    merge,
)

from tidelog.registry import limits
from tidelog.registry.faults import BadSchema
from tidelog.registry.formats.avro_text import AvroText
from tidelog.registry.formats.parsed import Difference, Parsed, Referenced

#: a step of the library's costs about as much as ten of ours
_STEPS_MAX = 20_000


class AvroSchema(Parsed):
    """An Avro schema with the types that it refers to."""

    def __init__(self, value: Any, schema: avro.schema.Schema) -> None:
        self._value = value
        self._schema = schema
        self.text = AvroText(sort=False).text(value)

    def __repr__(self) -> str:
        return f"<AvroSchema {self.text[:60]}>"

    def normalized(self) -> str:
        return AvroText(sort=True).text(self._value)

    def unreadable(self, previous: Parsed, policy: str) -> list[Difference]:
        if not isinstance(previous, AvroSchema):
            return [Difference("TYPE_MISMATCH", "/", "the old schema is no Avro schema")]
        checker = _Checker(limits.Steps(_STEPS_MAX))
        try:
            found = checker.get_compatibility(self._schema, previous._schema)
        except (RecursionError, avro.errors.AvroException) as fault:
            raise BadSchema(f"the schemas cannot be compared: {fault}") from fault
        if found.compatibility is SchemaCompatibilityType.compatible:
            return []
        kinds = [kind.name.upper() for kind in found.incompatibilities] or ["TYPE_MISMATCH"]
        places = ", ".join(sorted(found.locations))
        told = "; ".join(sorted(found.messages))
        return [Difference(kind, places, told) for kind in dict.fromkeys(kinds)]


class _Checker(ReaderWriterCompatibilityChecker):
    """The library's rules, with a limit on its steps and without two things that are quadratic.

    It finds pairs that were compared by a hash that is the same for many of them, and makes a table of all
    fields anew for each field.
    """

    def __init__(self, steps: limits.Steps) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._steps = steps
        self._known: dict[tuple[int, int], SchemaCompatibilityResult] = {}

    def get_compatibility(
        self, reader: Any, writer: Any, reference_token: str = "/", location: list[str] | None = None
    ) -> SchemaCompatibilityResult:
        self._steps.take()
        pair = (id(reader), id(writer))
        known = self._known.get(pair)
        if known is not None:
            # A pair that is being compared further out is taken to be compatible.
            under_way = known.compatibility is SchemaCompatibilityType.recursion_in_progress
            return CompatibleResult if under_way else known
        self._known[pair] = SchemaCompatibilityResult()
        place = [*(location or ()), reference_token]
        self._known[pair] = self.calculate_compatibility(reader, writer, place)
        return self._known[pair]

    def check_reader_writer_record_fields(
        self, reader: Any, writer: Any, location: list[str]
    ) -> SchemaCompatibilityResult:
        """As the library's; `fields_dict` is made once, for the library makes it anew at each use."""
        result = CompatibleResult
        written = writer.fields_dict
        for index, field in enumerate(reader.fields):
            found = written.get(field.name)
            for alias in () if found is not None else field.props.get("aliases") or ():
                found = found or written.get(alias)
            place = [*location, "fields", str(index)]
            if found is not None:
                result = merge(result, self.get_compatibility(field.type, found.type, "type", place))
            elif not field.has_default:
                missing = SchemaIncompatibilityType.reader_field_missing_default_value
                result = merge(result, incompatible(missing, field.name, place))
        return result


def parse(text: str, references: Sequence[Referenced]) -> AvroSchema:
    """Read a schema and what it refers to; raises BadSchema."""
    names = avro.name.Names(validate_names=True)
    for reference in references:
        _made(limits.read_json(reference.text), names, f"the reference {reference.name}")
    value = limits.read_json(text)
    return AvroSchema(value, _made(value, names, "the schema"))


def _made(value: Any, names: avro.name.Names, what: str) -> avro.schema.Schema:
    if not isinstance(value, str | list | dict):
        raise BadSchema(f"{what} is no Avro schema")
    try:
        with warnings.catch_warnings():
            # Logical types that it does not know mean nothing, as the specification has it.
            warnings.simplefilter("ignore")
            return avro.schema.make_avsc_object(value, names)
    except (avro.errors.AvroException, RecursionError) as fault:
        raise BadSchema(f"{what}: {fault}") from fault
    except (TypeError, KeyError, ValueError, AttributeError) as fault:
        # The library assumes types in places that a JSON text does not promise.
        raise BadSchema(f"{what} is no Avro schema: {fault!r}") from fault
