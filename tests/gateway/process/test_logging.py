from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.process.logging import JsonFormatter, configure_logging
from gateway.telemetry.request_context import RequestContext, begin_call, end_call
from gateway.telemetry.settings import TelemetrySettings
from gateway.telemetry.traffic import ListenerTraffic
from metadata.errors import Corrupt, InvalidArgument
from metadata.model import Partition, TopicId, TopicPartition
from metadata.secret import Secret


@pytest.fixture(autouse=True)
def _root_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def started(**settings: Any) -> io.StringIO:
    stream = io.StringIO()
    logging.getLogger().handlers[:] = []  # those of pytest
    configure_logging(TelemetrySettings(**settings), stream=stream, broker_id="b1")
    return stream


def test_a_line_is_one_object_with_time_level_event_and_logger() -> None:
    stream = started(log_format="json")
    logging.getLogger("segments.wal.session").warning("session %s was sealed\nby another", 7)
    (line,) = lines(stream)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "event": "session 7 was sealed\nby another",
        "logger": "segments.wal.session",
        "broker_id": "b1",
    }


def test_known_extras_of_a_line_stand_in_fields_of_their_own_and_no_others_do() -> None:
    stream = started(log_format="json")
    known = {"topic": "orders", "partition": 3, "epoch": 7, "payload": "never"}
    logging.getLogger("x").info("a line", extra=known)
    (line,) = lines(stream)
    assert (line["topic"], line["partition"], line["epoch"]) == ("orders", 3, 7)
    assert "payload" not in line


def test_a_line_that_names_a_partition_or_an_error_has_them_in_fields_as_well() -> None:
    stream = started(log_format="json")
    where = TopicPartition(TopicId("a" * 8), Partition(3))
    error = Corrupt("torn", key="wal/7", leader_epoch=9)
    logging.getLogger("x").error("%s is not served: %s", where, error)
    (line,) = lines(stream)
    assert (line["topic_id"], line["partition"], line["code"], line["epoch"]) == ("a" * 8, 3, Corrupt.code, 9)
    assert "key" not in line, "the words have it"


def test_lines_that_a_call_writes_carry_its_request_id_also_from_tasks_that_it_starts() -> None:
    stream = started(log_format="json")

    async def answer(request_id: str) -> None:
        call = RequestContext(ListenerTraffic(), request_id)
        token = begin_call(call)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(reported())
        end_call(call, token)

    async def reported() -> None:
        await asyncio.sleep(0)
        logging.getLogger("x").info("in a call")

    async def main() -> None:
        await asyncio.gather(answer("one"), answer("two"))
        logging.getLogger("x").info("outside")

    asyncio.run(main())
    assert [line.get("request_id") for line in lines(stream)] == ["one", "two", None]


def test_a_call_without_an_id_of_its_own_gets_one_and_keeps_it() -> None:
    call = RequestContext(ListenerTraffic())
    assert len(call.request_id) == 32
    assert call.request_id == call.request_id


def test_an_error_is_logged_with_its_traceback_in_the_same_line() -> None:
    stream = started(log_format="json")
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("x").exception("it failed")
    (line,) = lines(stream)
    assert line["event"] == "it failed"
    assert "ValueError: no" in line["exception"]


def test_a_secret_does_not_show() -> None:
    stream = started(log_format="json")
    logging.getLogger("x").info("connecting with %s and %r", Secret("hunter2"), Secret("hunter2"))
    assert "hunter2" not in stream.getvalue()


def test_text_is_for_people_and_the_level_is_a_setting() -> None:
    stream = started(log_level="error")
    logging.getLogger("x").warning("quiet")
    logging.getLogger("x").error("loud")
    assert stream.getvalue().endswith("ERROR x: loud\n")
    assert "quiet" not in stream.getvalue()


def test_an_extra_that_is_no_json_is_written_as_text() -> None:
    record = logging.LogRecord("x", logging.INFO, "f", 1, "n", (), None)
    record.topic = object()
    assert "object object" in json.loads(JsonFormatter().format(record))["topic"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"log_format": "xml"},
        {"log_level": "loud"},
        {"otlp_endpoint": "collector:4317"},
        {"otlp_endpoint": "http://127.0.0.1:99999"},
        {"otlp_endpoint": "http://"},
        {"otlp_sample": 2},
        {"price_gib_month": -1},
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        TelemetrySettings(**wrong)


def test_a_line_with_half_a_character_is_written_all_the_same() -> None:
    stream = started(log_format="json")
    logging.getLogger("x").error("no such file: %s", b"a\xff".decode(errors="surrogateescape"))
    assert lines(stream)[0]["event"] == "no such file: a\udcff"
