from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from openapi_spec_validator import validate

from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.http.admin.api import admin_api
from gateway.http.groups.routes import HttpGroups
from gateway.http.status import HttpStatus
from gateway.records.response_budget import ResponseBudget
from gateway.topics.names import partition_of
from metadata.errors import Corrupt, NoLeader, Stopping, TidelogError
from metadata.topics.settings import SETTINGS
from segments.object_store.health_tracking import StoreTrouble
from tests.kit.gateway.http_client import Client, serve
from tests.kit.gateway.small_broker import SmallBroker

pytestmark = pytest.mark.slow

TOPICS = "/v1/topics"


async def names(client: Client) -> list[str]:
    return [topic["name"] for topic in (await client.get(TOPICS)).json["topics"]]


def test_a_topic_lives_from_create_to_delete(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        new = {"name": "new", "partition_count": 2, "settings": {"retention.ms": 5}}
        made = await client.ask("POST", TOPICS, json=new)
        assert (made.status, made.headers["location"]) == (201, "/v1/topics/new")
        assert made.json["settings"] == {"retention.ms": "5"}
        assert (await client.produce("/v1/topics/new/records?partition=1", [{"value": 1}] * 2)).status == 200
        found = (await client.get(f"{TOPICS}/new")).json
        assert found["id"] == made.json["id"]
        assert found["partitions"] == [
            {
                "partition": partition,
                "log_start_offset": 0,
                "high_watermark": high_watermark,
                "leader_epoch": 7,
                "leader": "broker-1",
                "leader_http_address": broker.http_address,
                "leader_grpc_address": broker.grpc_address,
            }
            for partition, high_watermark in ((0, 0), (1, 2))
        ]
        assert (await client.get(f"{TOPICS}/new/partitions")).json == {"partitions": found["partitions"]}
        assert (await client.get(f"{TOPICS}/new/partitions/1")).json == found["partitions"][1]
        deleted = await client.ask("DELETE", f"{TOPICS}/new")
        assert (deleted.status, deleted.body) == (204, b"")
        assert await client.refused(client.get(f"{TOPICS}/new")) == (404, "UNKNOWN_TOPIC")

    serve(tmp_path, scenario)


def test_changes_that_only_ask_change_nothing(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        asked = await client.ask("POST", f"{TOPICS}?validate_only=true", json={"name": "new"})
        assert (asked.status, asked.json["partition_count"]) == (200, 6)
        asked = await client.ask("PATCH", f"{TOPICS}/orders?validate_only=true", json={"partition_count": 9})
        assert (asked.status, asked.json["partition_count"]) == (200, 9)
        assert (await client.ask("DELETE", f"{TOPICS}/orders?validate_only=true")).status == 204
        asked = await client.ask("PUT", f"{TOPICS}/orders/settings?validate_only=true", json={"settings": {"retention.ms": 1}})
        assert asked.status == 200
        assert await names(client) == ["orders", "single"]
        found = (await client.get(f"{TOPICS}/orders")).json
        assert (found["partition_count"], found["settings"]) == (3, {})
        assert await client.refused(client.ask("DELETE", f"{TOPICS}/nothing?validate_only=true")) == (404, "UNKNOWN_TOPIC")

    serve(tmp_path, scenario)


def test_settings_are_changed_one_by_one_or_replaced(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        async def patch(**change: Any) -> Any:
            return (await client.ask("PATCH", f"{TOPICS}/orders", json=change)).json["settings"]

        assert await patch(settings={"retention.ms": 5, "cleanup.policy": "compact"}) == {
            "retention.ms": "5",
            "cleanup.policy": "compact",
        }
        assert await patch(settings={"retention.ms": None}, partition_count=4) == {"cleanup.policy": "compact"}
        replaced = await client.ask("PUT", f"{TOPICS}/orders/settings", json={"settings": {"retention.bytes": "9"}})
        reported = {setting["name"]: setting for setting in replaced.json["settings"]}
        assert reported.keys() == SETTINGS.keys()
        assert (reported["retention.bytes"]["value"], reported["cleanup.policy"]["value"]) == ("9", "delete")
        assert (await client.get(f"{TOPICS}/orders/settings")).json == replaced.json
        assert (await client.get(f"{TOPICS}/orders")).json["partition_count"] == 4

    serve(tmp_path, scenario)


def test_topics_are_listed_page_by_page(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        first = (await client.get(f"{TOPICS}?page_size=1")).json
        second = (await client.get(f"{TOPICS}?page_size=1&page_token={first['next_page_token']}")).json
        assert [topic["name"] for topic in first["topics"] + second["topics"]] == ["orders", "single"]
        assert second["next_page_token"] == ""
        for query in ("page_size=-1", "page_size=1001", "page_size=x", "page_token=nonsense", "page=1"):
            assert await client.refused(client.get(f"{TOPICS}?{query}")) == (400, "INVALID_ARGUMENT")

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"name": "orders"}, (409, "ALREADY_EXISTS")),
        ({"name": "a/b"}, (400, "INVALID_NAME")),
        ({"name": ".."}, (400, "INVALID_NAME")),
        ({"name": "naïve"}, (400, "INVALID_NAME")),
        ({"name": "x" * 250}, (400, "INVALID_NAME")),
        ({"name": ""}, (400, "INVALID_NAME")),
        ({"name": "new", "partition_count": 0}, (400, "INVALID_ARGUMENT")),
        ({"name": "new", "partition_count": 10_001}, (400, "INVALID_ARGUMENT")),
        ({"name": "new", "partition_count": "2"}, (400, "INVALID_ARGUMENT")),
        ({"name": "new", "partition_count": 1.5}, (400, "INVALID_ARGUMENT")),
        ({"name": "new", "settings": {"retention.ms": "soon"}}, (400, "INVALID_ARGUMENT")),
        ({"name": "new", "settings": {"retentoin.ms": 1}}, (400, "INVALID_ARGUMENT")),
        ({"name": "new", "settings": {"retention.ms": None}}, (400, "INVALID_ARGUMENT")),
        ({"name": "new", "partitions": 3}, (400, "INVALID_ARGUMENT")),
        ({"name": 7}, (400, "INVALID_ARGUMENT")),
        ({}, (400, "INVALID_ARGUMENT")),
        ([], (400, "INVALID_ARGUMENT")),
    ],
)
def test_a_topic_that_can_not_be_is_refused(tmp_path: Path, body: Any, expected: tuple[int, str]) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        assert await client.refused(client.ask("POST", TOPICS, json=body)) == expected
        assert await names(client) == ["orders", "single"]

    serve(tmp_path, scenario)


EXAMPLE = 'Send for example {"name":"orders","partition_count":6,"settings":{"retention.ms":86400000}}.'


@pytest.mark.parametrize(
    ("body", "detail", "hint", "field"),
    [
        (b"", "the body is empty (byte 0)", EXAMPLE, None),
        (b'{"name":}', "the body is not JSON: invalid character (byte 8)", EXAMPLE, None),
        (b"[]", "the body must be an object; it is a list", EXAMPLE, None),
        (b"{}", "the body lacks the field 'name'", EXAMPLE, None),
        (b'{"name":7}', "name must be a string; it is a whole number", EXAMPLE, "name"),
        (b'{"name":null}', "name must be a string; it is null", EXAMPLE, "name"),
        (
            b'{"name":"x","partition_count":"3"}',
            "partition_count must be a whole number; it is a string",
            EXAMPLE,
            "partition_count",
        ),
        (b'{"name":"x","partition_count":true}', "partition_count must be a whole number; it is true or false", EXAMPLE, None),
        (b'{"name":"x","settings":[]}', "settings must be an object; it is a list", EXAMPLE, "settings"),
        (
            b'{"name":"x","settings":{"retention.ms":null}}',
            "settings['retention.ms'] must be a whole number or a string; it is null",
            EXAMPLE,
            "settings['retention.ms']",
        ),
        (b'{"nmae":"x"}', "the body has a field 'nmae' that is not known", "Did you mean 'name'? Send for example", None),
        (b'{"name":"x","partitions":3}', "the body has a field 'partitions' that is not known", "Did you mean", None),
        (b'{"name":"x","%b":3}' % (b"y" * 300), "the body has a field 'yyy", EXAMPLE, None),
    ],
)
def test_an_invalid_body_is_refused_with_its_fault_and_an_example(
    tmp_path: Path, body: bytes, detail: str, hint: str, field: str | None
) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        reported = (await client.post(TOPICS, body)).json
        assert reported["detail"].startswith(detail), reported["detail"]
        assert len(reported["detail"]) < 200
        assert hint in reported["hint"]
        assert field in (None, reported.get("field"))

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        ("?page_size=x", "the query parameter page_size must be a whole number; it is 'x'"),
        (f"?page_size={'9' * 300}", f"the query parameter page_size must be at most 1000; it is '{'9' * 59}…'"),
        ("/orders?validate_only=true", "'validate_only' is not a query parameter of this route"),
        ("?page_size=1001", "the query parameter page_size must be at most 1000; it is '1001'"),
        ("?page_size=-1", "the query parameter page_size must be at least 0; it is '-1'"),
        ("/orders/partitions/first", "the path parameter partition must be a whole number; it is 'first'"),
        ("/orders/partitions/-1", "the path parameter partition must be at least 0; it is '-1'"),
        ("/orders/partitions/3000000000", "the path parameter partition must be below 2147483648; it is '3000000000'"),
    ],
)
def test_an_invalid_parameter_is_refused_by_its_name(tmp_path: Path, path: str, detail: str) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        answer = await client.get(TOPICS + path)
        assert (answer.status, answer.json["detail"]) == (400, detail)

    serve(tmp_path, scenario)


def test_every_body_of_the_interface_has_an_example_that_is_taken(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        document = (await client.get("/openapi.json")).json
        examples = {
            name: schema["examples"][0] for name, schema in document["components"]["schemas"].items() if "examples" in schema
        }
        # tests/gateway/http/groups/test_admin.py takes these
        of_groups = {"NewMember", "Heartbeat", "MemberCommit", "Commit", "Seek"}
        of_access = {"NewKey": ("/v1/keys", 201), "NewAcl": ("/v1/acls", 200), "QuotaBody": ("/v1/quotas", 200)}
        assert examples.keys() - of_groups == {"NewTopic", "TopicChange", "NewSettings", "DeletedRecords"} | of_access.keys()
        for name, (path, status) in of_access.items():
            assert (await client.ask("POST", path, json=examples[name])).status == status
        await broker.delete_topic("orders")
        assert (await client.ask("POST", TOPICS, json=examples["NewTopic"])).status == 201
        assert (await client.ask("PATCH", f"{TOPICS}/orders", json=examples["TopicChange"])).status == 200
        assert (await client.ask("PUT", f"{TOPICS}/orders/settings", json=examples["NewSettings"])).status == 200
        deleting = client.ask("POST", f"{TOPICS}/orders/partitions/0/delete-records", json=examples["DeletedRecords"])
        assert await client.refused(deleting) == (416, "OFFSET_OUT_OF_RANGE"), "it was taken, and the topic is empty"

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/topics/orders/records", "/v1/topics/orders/records"),
        ("/v1/topic/orders/records", "/v1/topics/orders/records"),
        ("/v1/topics/orders/record", "/v1/topics/orders/records"),
        ("/v1/topics/orders/partition/0/records", "/v1/topics/orders/partitions/0/records"),
        ("/v1/topics/", "/v1/topics"),
        ("/brokers", "/v1/brokers"),
        ("/readyz/", "/readyz"),
    ],
)
def test_a_mistyped_path_gets_a_hint_with_the_right_one(tmp_path: Path, path: str, meant: str) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        answer = await client.get(path)
        assert (answer.status, answer.json["hint"]) == (404, f"Did you mean {meant}?")
        assert (await client.get("/nothing/like/it")).json["hint"] == "GET /openapi.json lists every route."

    serve(tmp_path, scenario)


def test_a_change_that_can_not_be_is_refused(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        changes: tuple[dict[str, Any], ...] = (
            {},
            {"settings": {}},
            {"partition_count": 2},
            {"partition_count": -1},
            {"name": "x"},
            {"settings": {"x": 1}},
        )
        for change in changes:
            refused = client.ask("PATCH", f"{TOPICS}/orders", json=change)
            assert await client.refused(refused) == (400, "INVALID_ARGUMENT"), change
        assert await client.refused(client.ask("PATCH", f"{TOPICS}/nothing", json={"partition_count": 9})) == (404, "UNKNOWN_TOPIC")
        mistyped = client.ask("PATCH", f"{TOPICS}/orders?validate_onyl=true", json={"partition_count": 9})
        assert await client.refused(mistyped) == (400, "INVALID_ARGUMENT")
        twice = client.ask("DELETE", f"{TOPICS}/orders?validate_only=true&validate_only=false")
        assert await client.refused(twice) == (400, "INVALID_ARGUMENT")
        assert (await client.get(f"{TOPICS}/orders")).json["partition_count"] == 3

    serve(tmp_path, scenario)


def test_bodies_that_are_no_json_too_long_or_of_another_type_are_refused(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        malformed = await client.post(TOPICS, b'{"name": "x",}')
        assert (malformed.status, malformed.json["code"]) == (400, "INVALID_ARGUMENT")
        assert "byte" in malformed.json["detail"]
        assert await client.refused(client.post(TOPICS, b'{"name": "\xff"}')) == (400, "INVALID_ARGUMENT")
        nested = b'{"name":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        assert await client.refused(client.post(TOPICS, nested)) == (400, "INVALID_ARGUMENT")
        assert await client.refused(client.post(TOPICS, b"{}", "text/plain")) == (415, "UNSUPPORTED_MEDIA_TYPE")
        assert await client.refused(client.post(TOPICS, b" " * (2 << 20))) == (413, "TOO_LARGE")
        assert "1048576 bytes, the most for anything but records" in (await client.post(TOPICS, b" " * (2 << 20))).json["detail"]

    serve(tmp_path, scenario)


def test_an_unknown_route_returns_404_and_an_unknown_method_405_with_allow(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        for path in ("/", "/v1", "/v2/topics", "/v1/topics/", "/v1/topics/orders/", "/v1/topics/orders/nothing", "/docs", "/redoc"):
            assert await client.refused(client.get(path)) == (404, "UNKNOWN_ROUTE"), path
        answer = await client.ask("PUT", TOPICS)
        assert (answer.status, answer.headers["allow"]) == (405, "GET, POST")
        answer = await client.ask("POST", f"{TOPICS}/orders")
        assert (answer.status, answer.headers["allow"]) == (405, "DELETE, GET, PATCH")

    serve(tmp_path, scenario)


def test_the_routes_of_the_cluster_and_its_brokers_describe_every_broker(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        brokers = [
            {
                "broker_id": "broker-1",
                "http_address": broker.http_address,
                "grpc_address": broker.grpc_address,
                "session": 1,
                "draining": False,
                "rack": "",
                "version": "0.0.0+test",
                "partitions_led": 0,
                "controller": True,
            }
        ]
        assert (await client.get("/v1/brokers")).json == {"brokers": brokers}
        assert (await client.get("/v1/cluster")).json == {
            "metadata_age_ms": 0,
            "cluster_id": broker.cluster_id,
            "version": "0.0.0+test",
            "bucket": "memory://",
            "brokers": brokers,
        }

    serve(tmp_path, scenario)


def test_an_offset_is_explained_by_the_bytes_on_the_bucket(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await client.produce("/v1/topics/single/records", [{"value": "needle"}, {"value": 2}])
        reported = (await client.get(f"{TOPICS}/single/partitions/0/offsets/1/explain")).json
        stored = await broker.store.get(reported["object_key"], start=reported["range_start"], end=reported["range_end"])
        assert b"needle" in stored
        assert (reported["tier"], reported["base_offset"], reported["last_offset"], reported["segment_seq"]) == ("segment", 0, 1, 0)
        for path, expected in (
            ("single/partitions/0/offsets/2", (416, "OFFSET_OUT_OF_RANGE")),
            ("single/partitions/0/offsets/-1", (400, "INVALID_ARGUMENT")),
            ("single/partitions/0/offsets/x", (400, "INVALID_ARGUMENT")),
            ("single/partitions/1/offsets/0", (404, "UNKNOWN_PARTITION")),
            ("nothing/partitions/0/offsets/0", (404, "UNKNOWN_TOPIC")),
        ):
            assert await client.refused(client.get(f"{TOPICS}/{path}/explain")) == expected

    serve(tmp_path, scenario)


def test_probes_distinguish_liveness_readiness_and_startup(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        async def probes() -> list[int]:
            return [(await client.get(path)).status for path in ("/livez", "/readyz", "/startupz")]

        assert await probes() == [200, 200, 200]
        broker.serving = False
        assert await probes() == [200, 503, 200]
        broker.started = False
        assert await probes() == [200, 503, 503]
        for path in ("/readyz", "/startupz"):
            reported = (await client.get(path)).json
            assert reported["status"] == ("not serving" if path == "/readyz" else "starting")
        assert (await client.get("/livez")).json == {"status": "ok"}

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    ("started", "log", "reported"),
    [
        (True, None, ("not serving", "the broker is shutting down", "another broker")),
        (True, NoLeader("it is opening one"), ("not serving", "it is opening one", "Retry")),
        (False, NoLeader("it is opening one"), ("starting", "the broker opens its first session", "tidelog doctor")),
        (False, Stopping("the broker is shutting down"), ("not serving", "the broker is shutting down", "another broker")),
    ],
)
def test_a_broker_that_is_not_ready_says_why_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: bool, log: TidelogError | None, reported: tuple[str, str, str]
) -> None:
    def no_log(_: SmallBroker) -> NoReturn:
        assert log is not None
        raise log

    async def scenario(broker: SmallBroker, client: Client) -> None:
        broker.started, broker.serving = started, False
        with monkeypatch.context() as stopped:
            if log is not None:
                stopped.setattr(SmallBroker, "log", property(no_log))
            answer = await client.get("/readyz")
        status, reason, hint = reported
        assert (answer.status, answer.json["status"]) == (503, status)
        assert answer.json["reason"].startswith(reason)
        assert hint in answer.json["hint"]

    serve(tmp_path, scenario)


def test_a_broker_without_a_session_says_what_keeps_it_from_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_log(_: SmallBroker) -> NoReturn:
        raise NoLeader("it is opening one")

    async def scenario(broker: SmallBroker, client: Client) -> None:
        broker.serving = False
        broker.metadata_trouble = StoreTrouble("the metadata are away", "Bring them back.")
        with monkeypatch.context() as stopped:
            stopped.setattr(SmallBroker, "log", property(no_log))
            reported = (await client.get("/readyz")).json
            assert (reported["reason"], reported["hint"]) == ("it is opening one; the metadata are away", "Bring them back.")
            broker.bucket_trouble = StoreTrouble("No space left on device", "Free disk space.")
            reported = (await client.get("/readyz")).json
        assert (reported["reason"], reported["hint"]) == ("it is opening one; No space left on device", "Free disk space.")

    serve(tmp_path, scenario)


def test_a_broker_whose_bucket_takes_no_writes_stays_ready_and_says_so(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        broker.bucket_trouble = StoreTrouble("No space left on device", "Free disk space.")
        answer = await client.get("/readyz")
        assert (answer.status, answer.json) == (
            200,
            {
                "status": "no writes",
                "reason": "No space left on device",
                "hint": "Free disk space.",
            },
        )
        assert (await client.get("/livez")).json == {"status": "ok"}

    serve(tmp_path, scenario)


def test_every_answer_carries_the_request_id(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        for path in ("/livez", "/v1/topics", "/v1/topics/single/partitions/0/records", "/nothing"):
            assert (await client.get(path, x_request_id="mine-1")).headers["x-request-id"] == "mine-1"
        assert len((await client.get("/livez", x_request_id="not sane")).headers["x-request-id"]) == 32
        assert (await client.get("/nothing", x_request_id="mine-2")).json["request_id"] == "mine-2"

    serve(tmp_path, scenario)


def test_an_internal_error_is_logged_and_its_details_are_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        with monkeypatch.context() as broken:
            broken.setattr(broker.topic_cache, "topics", lambda: 1 / 0)
            broken.setattr(broker.topic_cache, "get", lambda _: 1 / 0)
            for path in ("/v1/topics", "/v1/topics/single/partitions/0/records"):
                answer = await client.get(path, x_request_id="r-7")
                assert (answer.status, answer.json["code"]) == (500, "INTERNAL")
                assert "division" not in answer.body.decode()
        assert caplog.text.count("ZeroDivisionError") == 2
        assert "request=r-7" in caplog.text
        assert (await client.get("/v1/topics")).status == 200

    serve(tmp_path, scenario)


def test_the_openapi_document_is_valid_and_lists_every_route(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        document = (await client.get("/openapi.json")).json
        validate(document)
        reported = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
        app = admin_api(broker)
        served = {(method, route.path) for route in app.routes if isinstance(route, APIRoute) for method in route.methods or ()}
        fast = {
            ("POST", "/v1/topics/{topic}/records"),
            ("GET", "/v1/topics/{topic}/records"),
            ("GET", "/v1/topics/{topic}/partitions/{partition}/records"),
        }
        of_groups = {(method, path) for method, path in reported if path.startswith("/v1/groups")}
        asked_often = {
            ("GET", path)
            for path in ("/livez", "/readyz", "/startupz", "/metrics", "/metrics/detail", "/v1/cluster", "/v1/brokers")
        }
        assert reported == served | fast | of_groups | asked_often
        status = HttpStatus(broker)
        assert all(status.handler(path.removeprefix("/")) for _, path in asked_often)
        groups = HttpGroups(broker, InterruptibleWaits(), ResponseBudget(broker.settings, InterruptibleWaits()))
        assert len(of_groups) == 13
        for method, path in of_groups:
            assert method in groups.routes(path.split("/")[3:]), path
        operations = [operation for methods in document["paths"].values() for operation in methods.values()]
        assert all("application/problem+json" in operation["responses"]["default"]["content"] for operation in operations)
        assert not any("422" in operation["responses"] for operation in operations)
        assert "HTTPValidationError" not in document["components"]["schemas"]

    serve(tmp_path, scenario)


def test_the_admin_api_is_made_once_with_its_first_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def made_slowly(broker: SmallBroker) -> FastAPI:
        made.append(threading.current_thread())
        assert asked.wait(timeout=60)
        return admin_api(broker)

    async def scenario(broker: SmallBroker, client: Client) -> None:
        assert [(await client.get(path)).status for path in ("/readyz", "/metrics", "/v1/cluster", "/v1/brokers")] == [200] * 4
        assert made == []
        async with asyncio.TaskGroup() as tasks:
            asking = [tasks.create_task(client.get(TOPICS)) for _ in range(3)]
            while not made:  # noqa: ASYNC110  # the thread can't notify the loop
                await asyncio.sleep(0)
            assert (await client.get("/livez")).status == 200
            asked.set()
        assert [asked.result().status for asked in asking] == [200] * 3
        assert len(made) == 1
        assert made[0] is not threading.main_thread()

    asked = threading.Event()
    monkeypatch.setattr("gateway.http.admin.api.admin_api", made_slowly)
    serve(tmp_path, scenario)


def test_a_broker_is_drained_and_takes_partitions_again(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        reported = await client.ask("POST", "/v1/brokers/broker-1/drain?validate_only=true")
        assert (reported.json, broker.draining) == ({"broker_id": "broker-1", "draining": True, "partitions_led": 4}, False)
        asked = [await client.ask("POST", f"/v1/brokers/broker-1/{command}") for command in ("drain", "undrain", "drain")]
        assert [(answer.status, answer.json["draining"]) for answer in asked] == [(200, True), (200, False), (200, True)]
        assert broker.draining
        assert await client.refused(client.ask("POST", "/v1/brokers/b9/drain")) == (404, "NOT_FOUND")

    serve(tmp_path, scenario)


def test_a_broker_that_refuses_damaged_partitions_stays_ready_and_says_which_and_why(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        orders = broker.topic_cache.get("orders")
        hurt = partition_of(orders, 1)
        broker.log.stop_leading(hurt)
        broker.log.partitions.mark_damaged(
            hurt, Corrupt(f"wal/1/2, which may hold records of {hurt}, is damaged", hint="Restore it.")
        )
        ready = await client.get("/readyz")
        assert (ready.status, ready.json["status"]) == (200, "damaged partitions")
        assert ready.json["refused_partitions"] == [
            {
                "topic": "orders",
                "partition": 1,
                "reason": "wal/1/2, which may hold records of orders/1, is damaged",
                "hint": "Restore it.",
            }
        ]
        _, damaged, sound = (await client.get("/v1/topics/orders")).json["partitions"]
        assert (damaged["high_watermark"], damaged["leader"]) == (-1, "broker-1")
        assert (damaged["error"]["code"], damaged["error"]["hint"]) == ("CORRUPT", "Restore it.")
        assert "error" not in sound
        broker.metadata_trouble = StoreTrouble("etcd is away", "Bring it back.")
        ready = await client.get("/readyz")
        assert (ready.status, ready.json["status"], len(ready.json["refused_partitions"])) == (200, "no changes", 1)

    serve(tmp_path, scenario)
