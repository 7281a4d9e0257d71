"""The pages that explain refusals and show the audit log, at a broker with authentication."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.settings import GatewaySettings
from tests.kit.gateway.access.guarded_broker import ADMIN_KEY, Guarded, bearer, serve
from tests.kit.gateway.console_reader import Reader
from tests.kit.gateway.http_client import Client
from tests.kit.gateway.http_client import serve as serve_open
from tests.kit.gateway.small_broker import SmallBroker

pytestmark = pytest.mark.slow

SIGN_IN = "/console/sign-in"
ON = GatewaySettings(console=True)


async def signed_in(broker: Guarded, key: str = ADMIN_KEY) -> Reader:
    reader = Reader(broker.http)
    assert (await reader.post(SIGN_IN, SIGN_IN, f"key={key}"))[0] == 303
    return reader


def test_a_refused_call_leads_from_the_audit_log_to_its_explanation(tmp_path: Path) -> None:
    async def scenario(broker: Guarded) -> None:
        key = await broker.key("ann", scopes=[{"operation": "read", "resource": "topic"}])
        await broker.http.ask("POST", "/v1/topics", json={"name": "orders"}, headers=bearer(key))
        reader = await signed_in(broker)
        _, html = await reader.get("/console/access/audit?principal=ann")
        address = f"/console/access/explain?principal=ann&amp;key_id={key.split('_')[1]}&amp;operation=create&amp;resource=topic"
        assert f'href="{address}&amp;name=orders"' in html
        status, html = await reader.get(f"{address}&amp;name=orders".replace("&amp;", "&"))
        assert status == 200
        assert "ann may not create topic orders" in html
        assert "No ACL allows it to this principal." in html
        assert "narrowed to these scopes, and none holds it" in html
        assert "tidelog acl add ann create --topic orders" in html

    serve(tmp_path, scenario, gateway=ON)


def test_a_refusal_page_names_the_address_of_its_explanation(tmp_path: Path) -> None:
    async def scenario(broker: Guarded) -> None:
        reader = await signed_in(broker, await broker.key("ann"))
        for path in ("/console/topics/orders/partitions", "/console/access/audit", "/console/access/explain?principal=ann"):
            status, html = await reader.get(path)
            assert status in {400, 403}
        status, html = await reader.get("/console/topics/orders/partitions")
        assert status == 403
        address = "/console/access/explain?principal=ann&amp;operation=describe&amp;resource=topic&amp;name=orders"
        assert f'href="{address}"' in html
        status, html = await (await signed_in(broker)).get(address.replace("&amp;", "&"))
        assert status == 200
        assert "ann may not describe topic orders" in html

    serve(tmp_path, scenario, gateway=ON)


def test_hostile_names_are_shown_and_not_run(tmp_path: Path) -> None:
    async def scenario(broker: Guarded) -> None:
        hostile = "%3Cscript%3Ealert(1)%3C/script%3E"
        reader = await signed_in(broker)
        status, html = await reader.get(f"/console/access/explain?principal={hostile}&operation=read&resource=topic&name={hostile}")
        assert status == 200
        assert "&lt;script&gt;alert(1)" in html
        assert "<script>alert(1)" not in html
        key = await broker.key("<script>alert(1)</script>")
        await broker.http.ask("GET", "/v1/topics/x", headers=bearer(key))
        _, html = await reader.get("/console/access/audit")
        assert "&lt;script&gt;alert(1)" in html
        assert "<script>alert(1)" not in html

    serve(tmp_path, scenario, gateway=ON)


def test_a_question_that_makes_no_sense_is_refused_beside_its_form(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        answer = await client.get("/console/access/explain?principal=ann&operation=create&resource=group&name=g")
        assert answer.status == 200
        assert 'role="alert"' in answer.body.decode()
        assert "keeps no audit log" in (await client.get("/console/access/audit")).body.decode()
        everything = (await client.get("/console/access/explain?principal=ann&operation=admin&resource=cluster")).body.decode()
        assert "ann may admin the cluster" in everything

    serve_open(tmp_path, scenario)
