"""Compares the explanations of a real broker with its decisions, and its newest audit lines with those of its audit log."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest

from gateway.access.audit_log import RECENT_ANONYMOUS_MAX, RECENT_MAX, AuditLine, AuditLog
from tests.kit.gateway.access.guarded_broker import ADMIN_KEY, Guarded, bearer, serve
from tests.kit.gateway.http_client import Client
from tests.kit.gateway.http_client import serve as serve_open
from tests.kit.gateway.small_broker import SmallBroker


async def explained(broker: Guarded, **asked: str) -> Any:
    return await broker.as_admin("GET", f"/v1/access/explain?{urlencode(asked)}")


@pytest.mark.slow
def test_a_refusal_and_its_explanation_give_the_same_hint(tmp_path: Path) -> None:
    async def scenario(broker: Guarded) -> None:
        await broker.as_admin("POST", "/v1/topics", json={"name": "orders", "partition_count": 1})
        await broker.allow("ann", "read", "topic", "orders")
        acl_id = await broker.allow("ann", "write", "topic", "ord", pattern="prefix", effect="deny")
        key = await broker.key("ann")
        key_id = key.split("_")[1]
        write = {"operation": "write", "resource": "topic", "name": "orders", "key_id": key_id}
        refused = await broker.http.ask(
            "POST", "/v1/topics/orders/records", json={"records": [{"value": "x"}]}, headers=bearer(key)
        )
        found = await explained(broker, **write)
        assert (found["principal"], found["allowed"], found["refusal"]) == ("ann", False, refused.json["code"])
        assert found["hint"] == refused.json["hint"]
        assert found["findings"][1]["acls"][0]["acl_id"] == acl_id
        read = await explained(broker, principal="ann", operation="read", resource="topic", name="orders")
        assert read["allowed"]
        await broker.as_admin("DELETE", f"/v1/keys/{key_id}")
        assert (await explained(broker, **write))["refusal"] == "UNAUTHENTICATED"
        assert not [line for line in await broker.audited() if "explain" in line["call"]], "an explanation changes nothing"

    serve(tmp_path, scenario)


@pytest.mark.slow
def test_only_administrators_of_the_cluster_receive_explanations_and_the_audit_log(tmp_path: Path) -> None:
    async def scenario(broker: Guarded) -> None:
        await broker.allow("ann", "all", "topic")
        await broker.allow("ann", "describe", "cluster")
        key = await broker.key("ann")
        for path in ("/v1/access/explain?principal=ann&operation=read&resource=topic&name=x", "/v1/access/audit"):
            assert (await broker.http.ask("GET", path, headers=bearer(key))).status == 403
        mistaken = await broker.http.ask("GET", "/v1/access/explain?principal=ann", headers=bearer(ADMIN_KEY))
        assert mistaken.status == 400

    serve(tmp_path, scenario)


@pytest.mark.slow
def test_the_newest_audit_lines_are_those_of_the_file(tmp_path: Path) -> None:
    async def scenario(broker: Guarded) -> None:
        await broker.as_admin("POST", "/v1/topics", json={"name": "orders", "partition_count": 1})
        key = await broker.key("ann")
        await broker.http.ask("GET", "/v1/topics/orders", headers=bearer(key))
        await broker.http.ask("GET", "/v1/topics")
        written = await broker.audited()
        tail = await broker.as_admin("GET", "/v1/access/audit")
        assert tail["broker_id"] == broker.broker.broker_id
        assert [(line["call"], line["outcome"], line["time"]) for line in tail["lines"]] == [
            (line["call"], line["outcome"], line["time"]) for line in reversed(written)
        ]
        anns = (await broker.as_admin("GET", "/v1/access/audit?principal=ann&refused=true"))["lines"]
        assert [(line["outcome"], line["resources"]) for line in anns] == [("PERMISSION_DENIED", ["topic:orders"])]
        assert len((await broker.as_admin("GET", "/v1/access/audit?limit=1"))["lines"]) == 1

    serve(tmp_path, scenario)


@pytest.mark.slow
def test_a_broker_without_authentication_explains_that_everything_is_allowed(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        found = (await client.get("/v1/access/explain?principal=ann&operation=admin&resource=cluster")).json
        assert (found["allowed"], found["findings"][0]["code"]) == (True, "AUTHENTICATION_OFF")
        tail = (await client.get("/v1/access/audit")).json
        assert (tail["is_on"], tail["lines"]) == (False, [])

    serve_open(tmp_path, scenario)


def test_anonymous_refusals_push_no_audit_line_of_a_principal_out_of_memory() -> None:
    clock = SimpleNamespace(now_ms=1_000)
    audit = AuditLog("stderr", broker_id="b", now_ms=lambda: clock.now_ms)
    for number in range(RECENT_MAX + 5):
        audit.record(AuditLine(outcome="ok", principal="ann", call=str(number)))
    for number in range(RECENT_ANONYMOUS_MAX * 3):
        clock.now_ms -= 1  # the clock goes back
        audit.record(AuditLine(outcome="UNAUTHENTICATED", call=f"stranger {number}"))
    lines = audit.recent()
    assert lines[0].call == f"stranger {RECENT_ANONYMOUS_MAX * 3 - 1}"
    assert len(lines) == RECENT_MAX + RECENT_ANONYMOUS_MAX
    assert [line.call for line in lines if line.principal] == [str(number) for number in range(RECENT_MAX + 4, 4, -1)]
