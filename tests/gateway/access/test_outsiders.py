"""Clients without credentials get the status of the broker, and nothing else. Without authentication nothing changes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from gateway.access.authentication import read_admin_key
from gateway.access.permissions import GRPC_CALLS
from gateway.access.settings import AccessSettings
from gateway.process.broker_process import run_broker
from gateway.settings import BrokerSettings
from metadata.errors import InvalidArgument
from tests.kit.gateway.access.guarded_broker import ADMIN_KEY, FAST, Guarded, bearer, serve
from tests.kit.gateway.http_client import Client
from tests.kit.gateway.stubs import health_stub


@pytest.mark.slow
def test_probes_need_no_credentials_and_learn_no_names(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        for path in ("/livez", "/readyz", "/startupz"):
            for headers in ({}, bearer("tlk_wrong")):
                answer = await at.http.ask("GET", path, headers=headers)
                assert (answer.status, answer.json) == (200, {"status": "ok"})
        powerless = bearer(await at.key("powerless"))
        at.broker._leadership.stop()
        outsider, admin = await at.http.get("/readyz"), await at.http.get("/readyz", **bearer(ADMIN_KEY))
        assert outsider.json.keys() == {"status"}
        assert (await at.http.get("/readyz", **powerless)).json.keys() == {"status"}
        assert {"status", "reason", "hint"} <= admin.json.keys()
        health = await health_stub(at.channel).Check(health_pb2.HealthCheckRequest())
        assert health.status in {health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING}

    serve(tmp_path, scenario)


@pytest.mark.slow
def test_a_call_without_a_message_is_not_held_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call without credentials, one to a method that is open to all, and one with credentials."""
    monkeypatch.setattr("gateway.grpc.calls.MESSAGE_TIMEOUT_S", 0.05)

    async def scenario(at: Guarded) -> None:
        shown = (("authorization", f"Bearer {ADMIN_KEY}"),)
        services = {service for service, _, _ in (path[1:].partition("/") for path in GRPC_CALLS)}
        assert len(services) == 5
        for path in (*GRPC_CALLS, "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"):
            silent: Any = at.channel.stream_stream(path)()
            if "health" in path:
                assert await silent.code() is grpc.StatusCode.UNAVAILABLE, path
                assert "has not come within" in await silent.details()
            else:
                assert await silent.code() is grpc.StatusCode.UNAUTHENTICATED, path
        known: Any = at.channel.stream_stream("/tidelog.v1.Access/CreateKey")(metadata=shown)
        assert await known.code() is grpc.StatusCode.UNAVAILABLE, "to be retried: nothing was begun"
        empty: Any = at.channel.stream_stream("/tidelog.v1.Access/CreateKey")(metadata=shown)
        await empty.done_writing()
        assert await empty.code() is grpc.StatusCode.INVALID_ARGUMENT
        reported = [line["outcome"] for line in await at.audited() if line["call"] == "/tidelog.v1.Access/CreateKey"]
        assert reported == ["UNAUTHENTICATED"], "nothing was made, nor asked for"

    serve(tmp_path, scenario)


@pytest.mark.slow
def test_metrics_are_open_where_the_settings_say_so(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        for path in ("/metrics", "/metrics/detail"):
            assert (await at.http.get(path)).status == 200
        assert (await at.http.get("/v1/cluster")).status == 401

    serve(tmp_path, scenario, metrics_open=True)


@pytest.mark.slow
def test_only_authenticated_clients_learn_that_a_path_does_not_exist(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        for method, path in (
            ("GET", "/v1/nothing"),
            ("PUT", "/v1/topics"),
            ("POST", "/livez"),
            ("GET", "/v1/groups/g/members/m/x"),
        ):
            assert (await at.http.ask(method, path)).status == 401
            assert (await at.http.ask(method, path, headers=bearer(ADMIN_KEY))).status in {404, 405}

    serve(tmp_path, scenario)


@pytest.mark.slow
def test_without_authentication_no_credentials_are_checked_and_keys_can_be_prepared(tmp_path: Path) -> None:
    async def whole() -> None:
        settings = BrokerSettings(data_dir=tmp_path / "broker", http="127.0.0.1:0", grpc="127.0.0.1:0", segments=FAST)
        async with (
            run_broker(settings) as broker,
            aiohttp.ClientSession(f"http://{broker.http_address}") as session,
            grpc.aio.insecure_channel(broker.grpc_address),
        ):
            assert broker.guard is None
            client = Client(session)
            assert (await client.ask("POST", "/v1/topics", json={"name": "orders"})).status == 201
            made = await client.ask("POST", "/v1/keys", json={"principal": "billing"})
            assert (made.status, made.headers["cache-control"]) == (201, "no-store")
            tried = await client.ask("POST", "/v1/keys?validate_only=true", json={"principal": "billing"})
            assert (tried.status, tried.json["text"]) == (200, "")
            assert len((await client.get("/v1/keys")).json["keys"]) == 1
            assert (await client.get("/v1/topics/orders", authorization="Bearer nonsense")).status == 200
            assert await client.refused(client.ask("POST", "/v1/keys", json={"principal": "*"})) == (400, "INVALID_ARGUMENT")
            assert await client.refused(client.ask("DELETE", "/v1/keys/nothing")) == (400, "INVALID_ARGUMENT")
            assert await client.refused(client.ask("DELETE", "/v1/acls/nothing")) == (404, "NOT_FOUND")

    asyncio.run(whole())


def test_a_file_without_a_key_is_refused_and_not_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "key"
    with pytest.raises(InvalidArgument):
        read_admin_key(path)
    for text in ("", "canary-secret", ADMIN_KEY + "0", "é"):
        path.write_text(text)
        with pytest.raises(InvalidArgument) as refused:
            read_admin_key(path)
        assert "canary" not in refused.value.message + refused.value.hint
    path.write_text(ADMIN_KEY + "\n")
    path.chmod(0o604)
    assert read_admin_key(path).secret.reveal() == "5e" * 32
    assert f"readable by all users path={path}" in caplog.text
    caplog.clear()
    path.chmod(0o600)
    read_admin_key(path)
    assert not caplog.text


def test_settings_that_hold_no_water_are_refused() -> None:
    assert AccessSettings(admin_principals="a, b").admins == {"a", "b"}
    assert AccessSettings(admin_principals="CN=a,O=x;CN=b").admins == {"CN=a,O=x", "CN=b"}
    assert AccessSettings().admins == frozenset()
    for wrong in ({"admin_principals": "*"}, {"tls_principal": "issuer"}, {"audit_log": ""}, {"oidc_principal_claim": ""}):
        with pytest.raises(InvalidArgument):
            AccessSettings(**wrong)  # type: ignore[arg-type]  # wrong on purpose
