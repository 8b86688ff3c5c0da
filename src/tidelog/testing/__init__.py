"""A pytest plugin and helpers that run a real broker inside a test.

`RunningBroker` (also under the name `TestBroker`) works without pytest; `plugin` offers it as fixtures.
Nothing is imported until it is used: pytest loads the plugin in every project that has Tidelog installed.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.testing.broker import RunningBroker, TestBroker

__all__ = ["RunningBroker", "TestBroker"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tidelog.testing import broker

    return getattr(broker, name)
