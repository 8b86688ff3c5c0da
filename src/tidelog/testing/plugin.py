"""pytest fixtures that run a real broker: `tidelog_broker` and `tidelog_broker_session`.

pytest loads this module in every project of an environment with Tidelog, so it imports only pytest; the
broker is imported when a fixture is used.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tidelog.testing.broker import RunningBroker

_MODES = ("thread", "process")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --tidelog-mode, and the ini settings tidelog_mode and tidelog_settings."""
    group = parser.getgroup("tidelog", "a Tidelog broker for tests")
    group.addoption(
        "--tidelog-mode",
        choices=_MODES,
        default=None,
        help="Run test brokers in a thread of the test process (default) or in a child process.",
    )
    parser.addini("tidelog_mode", "thread or process: where test brokers run", default="thread")
    parser.addini("tidelog_settings", "broker settings of test brokers, one name=value per line", "linelist")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker that configures one test's broker."""
    config.addinivalue_line(
        "markers", "tidelog(mode=None, **settings): how this test's broker runs, e.g. num_partitions=3"
    )


def broker_options(config: pytest.Config, marker: "pytest.Mark | None") -> tuple[str, dict[str, str]]:
    """The mode and settings for a broker: ini, then command line, then the test's own marker."""
    settings: dict[str, str] = {}
    for line in config.getini("tidelog_settings"):
        name, separator, value = line.partition("=")
        if not separator:
            raise pytest.UsageError(f"tidelog_settings: {line!r} is not name=value")
        settings[name.strip()] = value.strip()
    mode = config.getoption("tidelog_mode") or config.getini("tidelog_mode")
    if marker is not None:
        options: dict[str, Any] = dict(marker.kwargs)
        mode = options.pop("mode", None) or mode
        settings |= {name.replace("_", "."): _text(value) for name, value in options.items()}
    if mode not in _MODES:
        raise pytest.UsageError(f"tidelog_mode is {mode!r}, not one of {', '.join(_MODES)}")
    return mode, settings


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _run(config: pytest.Config, marker: "pytest.Mark | None") -> "Iterator[RunningBroker]":
    from tidelog.testing.broker import RunningBroker

    mode, settings = broker_options(config, marker)
    with RunningBroker(settings, mode="process" if mode == "process" else "thread") as broker:
        yield broker


@pytest.fixture
def tidelog_broker(request: pytest.FixtureRequest) -> "Iterator[RunningBroker]":
    """A fresh broker for this test: `.bootstrap`, `.create_topic()`, `.restart()`, `.kill()`, `.stop()`."""
    yield from _run(request.config, request.node.get_closest_marker("tidelog"))


@pytest.fixture(scope="session")
def tidelog_broker_session(request: pytest.FixtureRequest) -> "Iterator[RunningBroker]":
    """One broker shared by all tests of the session; use topic names of your own."""
    yield from _run(request.config, None)
