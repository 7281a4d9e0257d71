"""Configures the log of a process: as text, or as JSON, one object a line.

  {"time": "2026-05-04T10:11:12.345Z", "level": "warning", "event": "the bucket takes no writes: …",
   "logger": "segments.object_store.health_tracking", "broker_id": "b1", "request_id": "…", "principal": "svc-billing",
   "trace_id": "…"}

`event` is the text line. Beside it stand the ids of the call that wrote it (telemetry/request_context.py), and of the partitions
and
errors that it names. Code adds more by `extra`; only the names in NAMES are used.

Invariant: no payload, and no secret. Lines are made of constant texts, a Secret does not show its value, and quoted client input is
cut.

The formatter has thirty lines over the standard library: structlog would change how every line of the program is written, and
python-json-logger would only save the loop below.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import msgspec

from gateway.access.authorization import present_principal
from gateway.telemetry.request_context import current_call
from gateway.telemetry.settings import TelemetrySettings
from metadata.errors import TidelogError
from metadata.model import TopicPartition

# Fields beside time, level, event and logger, and the constant ones.
NAMES: Final = ("request_id", "principal", "topic", "topic_id", "partition", "epoch", "session", "code", "trace_id")
# Details of errors, and the fields that carry them.
_OF_ERRORS: Final = {
    "topic": "topic",
    "topic_id": "topic_id",
    "partition": "partition",
    "leader_epoch": "epoch",
    "session": "session",
}
TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_encode: Final = msgspec.json.Encoder(enc_hook=str).encode


class JsonFormatter(logging.Formatter):
    """Formats each log record as one JSON object."""

    def __init__(self, **always: str) -> None:
        """`always` holds fields of each line, such as the broker's id."""
        super().__init__()
        self._always = always

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {
            "time": time,
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
            **self._always,
            **_of_the_call(),
        }
        for argument in record.args if isinstance(record.args, tuple) else ():
            line |= _of_argument(argument)
        line |= {name: found for name in NAMES if (found := getattr(record, name, None)) is not None}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return _encode(line).decode()
        except UnicodeEncodeError:  # half of a surrogate pair, as in names of files that are not UTF-8
            return json.dumps(line, default=str)


def _of_argument(argument: object) -> Mapping[str, Any]:
    """Returns the fields of a partition or an error that a line names."""
    if isinstance(argument, TopicPartition):
        return {"topic_id": argument.topic_id, "partition": argument.partition}
    if isinstance(argument, TidelogError):
        details = {name: argument.details[detail] for detail, name in _OF_ERRORS.items() if detail in argument.details}
        return {"code": argument.code, **details}
    return {}


def _of_the_call() -> Mapping[str, Any]:
    """Returns the fields of the call that this task answers."""
    call = current_call()
    if call is None:
        return {}
    fields: dict[str, Any] = {"request_id": call.request_id}
    if principal := present_principal():
        fields["principal"] = principal
    if call.topic:
        fields["topic"] = call.topic
    if call.trace_id:
        fields["trace_id"] = call.trace_id
    return fields


def configure_logging(
    settings: TelemetrySettings, *, level: str = "info", text: str = TEXT, stream: TextIO | None = None, **always: str
) -> None:
    """Configures the log on stderr, or on `stream`. `level` and `text` are the command's defaults; the settings override them."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(**always) if settings.log_format == "json" else logging.Formatter(text))
    logging.basicConfig(handlers=[handler], level=(settings.log_level or level).upper())
