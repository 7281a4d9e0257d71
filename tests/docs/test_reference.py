"""The pages of docs/reference are what the code says now."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from docs import command_line_page, errors_page, grpc_page, http_page, kafka_page, metrics_page, settings_page
from docs.page_broker import cell, shown_rights
from gateway.access.permissions import RequiredAccess


@pytest.mark.parametrize(
    ("path", "page", "module"),
    [
        (settings_page.PAGE, settings_page.page, "docs.settings_page"),
        (errors_page.PAGE, errors_page.page, "docs.errors_page"),
        (grpc_page.PAGE, grpc_page.page, "docs.grpc_page"),
        (command_line_page.PAGE, command_line_page.page, "docs.command_line_page"),
    ],
    ids=["settings", "errors", "grpc", "command line"],
)
def test_a_page_of_reference_is_what_the_code_says(path: Path, page: Callable[[], str], module: str) -> None:
    assert path.read_text(encoding="utf-8") == page(), f"run python -m {module}"


@pytest.mark.slow  # each runs a broker
@pytest.mark.parametrize(
    ("path", "page", "module"),
    [
        (metrics_page.PAGE, metrics_page.page, "docs.metrics_page"),
        (http_page.PAGE, http_page.page, "docs.http_page"),
        (kafka_page.PAGE, kafka_page.page, "docs.kafka_page"),
    ],
    ids=["metrics", "http", "kafka"],
)
def test_a_page_of_reference_is_what_a_broker_answers(
    path: Path, page: Callable[[], Coroutine[Any, Any, str]], module: str
) -> None:
    assert path.read_text(encoding="utf-8") == uvloop.run(page()), f"run python -m {module}"


def test_a_proto_file_is_read_with_the_comments_that_belong_to_each_part() -> None:
    text = """
        // Not of the service.

        // Reads.
        service Log {
          // Waits.
          rpc Fetch(FetchRequest) returns (stream FetchResponse);
          rpc Ping(PingRequest) returns (google.protobuf.Empty);
        }
        message Empty {}
        message Append {
          string topic = 1;  // its name
          oneof payload {
            bytes record_batch = 3;
          }
          // Lasts.
          map<string, string> settings = 4;
        }
        enum Acks {
          ACKS_ALL = 1;  // committed
        }
    """
    log, empty, append, acks = grpc_page.parsed(text)
    assert (log.kind, log.name, log.comment) == ("service", "Log", "Reads.")
    assert log.rows == [
        ("Fetch", "[FetchRequest](#fetchrequest), stream of [FetchResponse](#fetchresponse)", "Waits."),
        ("Ping", "[PingRequest](#pingrequest), google.protobuf.Empty", ""),
    ]
    assert empty.rows == []
    assert append.rows == [
        ("topic", "string, 1", "its name"),
        ("record_batch", "bytes, 3", ""),
        ("settings", "map<string, string>, 4", "Lasts."),
    ]
    assert acks.rows == [("ACKS_ALL", "1", "committed")]


def test_rights_of_a_call_are_shown_by_resource() -> None:
    assert shown_rights(RequiredAccess(topic="read", group="read")) == "topic: `read`, group: `read`"
    assert shown_rights(RequiredAccess()) == "any principal"
    assert shown_rights(RequiredAccess(peer=True)) == "brokers only"
    assert shown_rights(RequiredAccess(open=True)) == "none: needs no authentication"


def test_a_cell_of_a_table_is_one_line_without_a_border_of_its_own() -> None:
    assert cell("a |\n b") == "a \\| b"
