"""Whether a JSON value keeps to its JSON Schema, said by the library jsonschema (the extra `registry`).

Drafts as in the registry; references are those that the registry has, nothing is ever fetched.
"""

import json
from collections.abc import Callable
from typing import Any

from tidelog.schemas.misfit import DoesNotFit
from tidelog.schemas.registered import RegisteredSchema

#: where a schema without an address of its own lives
_HOME = "urn:tidelog:schema"
_FAULT_CHARACTERS_MAX = 300


def checker(schema: RegisteredSchema) -> Callable[[Any], None]:
    """A function that raises DoesNotFit for values that the schema refuses."""
    import jsonschema
    import referencing.exceptions
    import referencing.jsonschema
    from jsonschema.validators import validator_for

    value = json.loads(schema.text)

    def resource(content: Any) -> Any:
        return referencing.Resource.from_contents(
            content, default_specification=referencing.jsonschema.DRAFT7
        )

    registry: Any = referencing.Registry()
    for reference in schema.references:
        found = resource(json.loads(reference.text))
        registry = registry.with_resources((name, found) for name in {reference.name, found.id()} - {None})
    home = resource(value)
    registry = registry.with_resource(home.id() or _HOME, home).crawl()
    default: Any = jsonschema.Draft7Validator
    validator = validator_for(value, default=default)(value, registry=registry)

    def check(given: Any) -> None:
        try:
            fault = jsonschema.exceptions.best_match(validator.iter_errors(given))
        except (referencing.exceptions.Unresolvable, RecursionError) as failure:
            raise DoesNotFit(f"the schema cannot be used: {failure}"[:_FAULT_CHARACTERS_MAX]) from failure
        if fault is not None:
            place = "".join(
                f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault.absolute_path
            )
            raise DoesNotFit(fault.message[:_FAULT_CHARACTERS_MAX], place)

    return check
