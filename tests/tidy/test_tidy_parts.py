"""What the composition root fills in by name: every field is a part of the broker of that name and type.

The checker of types cannot see it, for the fields are looked up while the broker runs.
"""

import ast
import importlib
import inspect
import sys
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from tests.unit.broker.node import NodeUnderTest
from tidelog.broker.broker import Broker
from tidelog.broker.requests import handlers
from tidelog.broker.requests.authentication import Authenticator
from tidelog.broker.requests.produce_fast_path import ProduceFastPath
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.telemetry.health import Health
from tidelog.broker.telemetry.scrape import SECTIONS
from tidelog.model.access_settings import STANDARD_AUTHORIZER
from tidelog.server.socket_server import ServedBroker

HANDLERS = [
    importlib.import_module(f"{handlers.__name__}.{path.stem}").Handler
    for path in sorted(Path(handlers.__path__[0]).glob("*.py"))
    if path.stem != "__init__"
]
FILLED = [*HANDLERS, *SECTIONS, Authenticator, Health, ProduceFastPath, ServedBroker]
#: parts that are known by what they can do alone: the broker is given them, with these types
GIVEN = inspect.get_annotations(Broker.__init__)


@pytest.fixture(scope="module")
def broker() -> Broker:
    """One with everything: who may do what is decided."""
    return NodeUnderTest(authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:ANONYMOUS").broker


def types_of(kind: type[Any]) -> dict[str, Any]:
    """The types of the fields, those too that are imported for the checker of types alone."""
    module = sys.modules[kind.__module__]
    tree = ast.parse(inspect.getsource(module))
    names = {
        alias.name: getattr(importlib.import_module(node.module), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
        if alias.name[0].isupper() and node.module.startswith("tidelog.")
    }
    return get_type_hints(kind, localns=names)


def is_a(part: Any, kind: Any, name: str) -> bool:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return any(is_a(part, each, name) for each in get_args(kind))
    if origin is Deferred:
        return isinstance(part, Deferred) and is_a(part.get(), get_args(kind)[0], name)
    if getattr(kind, "_is_protocol", False):
        return kind is GIVEN[name] or kind in get_args(GIVEN[name])
    return isinstance(part, NoneType if kind is None else origin or kind)


@pytest.mark.parametrize("kind", FILLED, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_every_field_is_a_part_of_the_broker_with_its_name_and_type(kind: type[Any], broker: Broker) -> None:
    types = types_of(kind)
    for field in fields(kind):
        if field.init:
            part = getattr(broker, field.name)
            assert is_a(part, types[field.name], field.name), f"{field.name} is {part!r}"
    broker.filled(kind)


@pytest.mark.parametrize("kind", HANDLERS, ids=lambda kind: kind.__module__.rpartition(".")[2])
def test_a_handler_is_nothing_but_its_parts(kind: type[Any]) -> None:
    assert kind.__dataclass_params__.frozen
    assert kind.__slots__ == tuple(field.name for field in fields(kind) if field.init)
