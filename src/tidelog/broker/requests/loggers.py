"""The loggers of the broker's process as a resource: DescribeConfigs shows them, IncrementalAlterConfigs
changes their levels at once (KIP-412). Nothing is kept: a broker starts with the levels it is given.

A logger is called as Python calls it (`tidelog.broker.requests.dispatch`), the one above all `root`. It has
the level of the next logger above it that has one of its own. Levels have Kafka's names:

    FATAL  CRITICAL      ERROR  ERROR      WARN  WARNING      INFO  INFO      DEBUG  DEBUG      TRACE  5
"""

import logging
from typing import Any

from tidelog.controller.commands import ConfigOperation
from tidelog.model.errors import ErrorCode, Refused

ROOT = "root"
TRACE = 5
LEVELS = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": TRACE,
}


def logger_levels() -> dict[str, str]:
    """The level of every logger, by name."""
    known = logging.Logger.manager.loggerDict
    # Also those that only have others below them: their level counts for these.
    names = [ROOT, *sorted(name for name in known if name != ROOT)]
    return {name: _level_name(_logger(name).getEffectiveLevel()) for name in names}


def _level_name(level: int) -> str:
    return next((name for name, least in LEVELS.items() if level >= least), "TRACE")


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def wrong_broker(node_id: int, name: str) -> Refused | None:
    """Only a broker itself knows its loggers."""
    if name == str(node_id):
        return None
    if not name:
        return Refused(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
    if not name.isascii() or not name.isdigit():
        return Refused(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
    return Refused(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {node_id} but received {name}")


def alter_loggers(node_id: int, resource: Any, *, validate_only: bool) -> Refused | None:
    """Give loggers other levels; all of them, or none where one cannot be."""
    refused = wrong_broker(node_id, resource.resource_name)
    if refused is not None:
        return refused
    names = [config.name for config in resource.configs]
    if len(set(names)) != len(names):
        return Refused(ErrorCode.INVALID_REQUEST, "settings are named more than once")
    for config in resource.configs:
        refused = _refusal(config)
        if refused is not None:
            return refused
    if not validate_only:
        for config in resource.configs:
            removed = config.config_operation == ConfigOperation.DELETE
            _logger(config.name).setLevel(logging.NOTSET if removed else LEVELS[config.value])
    return None


def _refusal(config: Any) -> Refused | None:
    operation, name = config.config_operation, config.name
    if operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        message = f"{ConfigOperation(operation).name} operation is not allowed for the BROKER_LOGGER resource"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    if operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
        return Refused(ErrorCode.INVALID_REQUEST, f"{name}: there is no operation {operation}")
    if name != ROOT and name not in logging.Logger.manager.loggerDict:
        return Refused(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
    if operation == ConfigOperation.DELETE:
        if name == ROOT:
            message = "Removing the log level of the root logger is not allowed"
            return Refused(ErrorCode.INVALID_REQUEST, message)
        return None
    if config.value is None:
        return Refused(ErrorCode.INVALID_REQUEST, f"settings were given no value: {name}")
    if config.value not in LEVELS:
        message = (
            f"Cannot set the log level of {name} to {config.value} as it is not a supported log level. "
            f"Valid log levels are {', '.join(sorted(LEVELS))}"
        )
        return Refused(ErrorCode.INVALID_CONFIG, message)
    return None
