"""pytest fixtures that run real brokers: `tidelog_broker`, `tidelog_broker_session` and `tidelog_cluster`.

pytest loads this module in every project of an environment with Tidelog, so it imports only pytest; the
broker is imported when a fixture is used.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tidelog.testing.broker import RunningBroker
    from tidelog.testing.cluster import RunningCluster

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
    """Register the markers that configure one test's broker or cluster."""
    config.addinivalue_line(
        "markers", "tidelog(mode=None, **settings): how this test's broker runs, e.g. num_partitions=3"
    )
    config.addinivalue_line(
        "markers",
        "tidelog_cluster(brokers=3, racks=(), zookeeper=None, **settings): how this test's cluster runs",
    )


def broker_options(config: pytest.Config, marker: "pytest.Mark | None") -> tuple[str, dict[str, str]]:
    """The mode and settings for a broker: ini, then command line, then the test's own marker."""
    settings = ini_settings(config)
    mode = config.getoption("tidelog_mode") or config.getini("tidelog_mode")
    if marker is not None:
        options: dict[str, Any] = dict(marker.kwargs)
        mode = options.pop("mode", None) or mode
        settings |= named_settings(options)
    if mode not in _MODES:
        raise pytest.UsageError(f"tidelog_mode is {mode!r}, not one of {', '.join(_MODES)}")
    return mode, settings


def ini_settings(config: pytest.Config) -> dict[str, str]:
    """The settings that the ini file has for every test broker."""
    settings: dict[str, str] = {}
    for line in config.getini("tidelog_settings"):
        name, separator, value = line.partition("=")
        if not separator:
            raise pytest.UsageError(f"tidelog_settings: {line!r} is not name=value")
        settings[name.strip()] = value.strip()
    return settings


def named_settings(options: dict[str, Any]) -> dict[str, str]:
    """Settings given as keyword arguments of a marker: num_partitions=3 is num.partitions=3."""
    return {name.replace("_", "."): _text(value) for name, value in options.items()}


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


@pytest.fixture
def tidelog_cluster(request: pytest.FixtureRequest) -> "Iterator[RunningCluster]":
    """A fresh cluster of three broker processes: `.bootstrap`, `.create_topic()`, `.kill(2)`, …"""
    from tidelog.testing.cluster import RunningCluster

    marker = request.node.get_closest_marker("tidelog_cluster")
    options: dict[str, Any] = dict(marker.kwargs) if marker is not None else {}
    if marker is not None and marker.args:
        options["brokers"] = marker.args[0]
    chosen = {name: options.pop(name) for name in ("brokers", "racks", "zookeeper") if name in options}
    settings = {**ini_settings(request.config), **named_settings(options)}
    with RunningCluster(settings=settings, **chosen) as cluster:
        yield cluster
