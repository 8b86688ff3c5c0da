"""How a broker's log looks: text or JSON lines on standard error, in UTC."""

import logging
import sys
import time


class JsonLogFormatter(logging.Formatter):
    """One JSON object per log line: time, level, logger, message, domain event, exception."""

    def format(self, record: logging.LogRecord) -> str:
        import json

        fields: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        event = getattr(record, "event", None)
        if event is not None:
            fields["event"] = event
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=list)


def configure_logging(log_format: str, log_level: str) -> None:
    """Send the log of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    formatter: logging.Formatter
    if log_format == "json":
        formatter = JsonLogFormatter()
    else:
        formatter = logging.Formatter(
            "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%S"
        )
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(level=log_level.upper(), handlers=[handler], force=True)
