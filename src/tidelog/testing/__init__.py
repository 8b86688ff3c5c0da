"""A pytest plugin and helpers that run a real broker, or several, inside a test.

`RunningBroker` (also under the name `TestBroker`) and `RunningCluster` work without pytest; `plugin` offers
them as fixtures. Nothing is imported until it is used: pytest loads the plugin in every project that has
Tidelog installed.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.testing.broker import RunningBroker, TestBroker
    from tidelog.testing.cluster import RunningCluster

__all__ = ["RunningBroker", "RunningCluster", "TestBroker"]

_MODULES = {"RunningBroker": "broker", "RunningCluster": "cluster", "TestBroker": "broker"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"tidelog.testing.{_MODULES[name]}"), name)
