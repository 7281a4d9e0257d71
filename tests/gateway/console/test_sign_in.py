"""Readers of the console at a broker with authentication."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.settings import GatewaySettings
from tests.kit.gateway.access.guarded_broker import ADMIN_KEY, Guarded, bearer, serve
from tests.kit.gateway.console_reader import Reader

pytestmark = pytest.mark.slow

SIGN_IN = "/console/sign-in"
ON = GatewaySettings(console=True)


def test_a_reader_signs_in_and_comes_back_to_the_page_that_was_asked_for(tmp_path: Path) -> None:
    async def scenario(broker: Guarded) -> None:
        reader = Reader(broker.http)
        answer = await broker.http.ask("GET", "/console/topics?page=x", allow_redirects=False)
        assert (answer.status, answer.headers["location"]) == (303, f"{SIGN_IN}?next=%2Fconsole%2Ftopics%3Fpage%3Dx")
        form = f"key={ADMIN_KEY}&next=%2Fconsole%2Fcluster"
        assert await reader.post(SIGN_IN, SIGN_IN, form) == (303, "/console/cluster")
        status, html = await reader.get("/console/cluster")
        assert status == 200
        assert broker.broker.broker_id in html
        assert ADMIN_KEY not in html

    serve(tmp_path, scenario, gateway=ON)


@pytest.mark.parametrize("elsewhere", ["https://example.org/", "//example.org", "/consoles", "/v1/topics"])
def test_a_reader_who_signs_in_is_sent_to_no_address_but_of_the_console(elsewhere: str, tmp_path: Path) -> None:
    async def scenario(broker: Guarded) -> None:
        form = f"key={ADMIN_KEY}&next={elsewhere.replace('/', '%2F')}"
        assert await Reader(broker.http).post(SIGN_IN, SIGN_IN, form) == (303, "/console/topics")

    serve(tmp_path, scenario, gateway=ON)


def test_an_invalid_key_is_refused_on_the_page(tmp_path: Path) -> None:
    async def scenario(broker: Guarded) -> None:
        for key in ("tlk_0000000000000000_00", "", "%00%01"):
            status, html = await Reader(broker.http).post(SIGN_IN, SIGN_IN, f"key={key}")
            assert status == 403
            assert 'role="alert"' in html

    serve(tmp_path, scenario, gateway=ON)


def test_a_reader_sees_and_changes_what_the_rights_of_the_key_permit(tmp_path: Path) -> None:
    async def scenario(broker: Guarded) -> None:
        for name in ("orders", "salaries"):
            await broker.as_admin("POST", "/v1/topics", json={"name": name, "partition_count": 1})
        await broker.allow("ann", "read", "topic", "orders")
        reader = Reader(broker.http)
        await reader.post(SIGN_IN, SIGN_IN, f"key={await broker.key('ann')}")
        status, html = await reader.get("/console/topics")
        assert status == 200
        assert "orders" in html
        assert "salaries" not in html
        assert (await reader.get("/console/topics/salaries/records"))[0] == 403
        status, html = await reader.post(
            "/console/topics/orders/partitions", "/console/topics/orders/delete", "confirmation=orders"
        )
        assert status == 403
        assert "orders" in str(await broker.as_admin("GET", "/v1/topics"))
        lines = [line for line in await broker.audited() if line.get("outcome") != "ok"]
        assert {line["principal"] for line in lines} == {"ann"}

    serve(tmp_path, scenario, gateway=ON)


def test_a_revoked_key_ends_the_session_of_the_reader(tmp_path: Path) -> None:
    async def scenario(broker: Guarded) -> None:
        key = await broker.key("ann")
        reader = Reader(broker.http)
        await reader.post(SIGN_IN, SIGN_IN, f"key={key}")
        assert (await reader.get("/console/topics"))[0] == 200
        await broker.as_admin("DELETE", f"/v1/keys/{key.split('_')[1]}")
        assert (await reader.get("/console/topics"))[0] == 303
        assert (await reader.get("/console/topics"))[0] == 303, "the cookie is gone"

    serve(tmp_path, scenario, gateway=ON)


def test_a_reader_who_signs_out_has_to_sign_in_again(tmp_path: Path) -> None:
    async def scenario(broker: Guarded) -> None:
        reader = Reader(broker.http)
        await reader.post(SIGN_IN, SIGN_IN, f"key={ADMIN_KEY}")
        assert (await reader.post("/console/topics", "/console/sign-out", ""))[0] == 303
        assert (await reader.get("/console/topics"))[0] == 303

    serve(tmp_path, scenario, gateway=ON)


def test_a_console_that_is_off_is_not_there(tmp_path: Path) -> None:
    async def scenario(broker: Guarded) -> None:
        assert (await broker.http.ask("GET", "/console/topics", headers=bearer(ADMIN_KEY))).status == 404

    serve(tmp_path, scenario)


def test_a_topic_that_a_reader_may_describe_and_not_read_is_refused(tmp_path: Path) -> None:
    async def scenario(broker: Guarded) -> None:
        await broker.as_admin("POST", "/v1/topics", json={"name": "orders", "partition_count": 3})
        await broker.allow("ann", "describe", "topic", "orders")
        reader = Reader(broker.http)
        await reader.post(SIGN_IN, SIGN_IN, f"key={await broker.key('ann')}")
        status, html = await reader.get("/console/topics/orders/records")
        assert status == 403
        assert "PERMISSION_DENIED" in html

    serve(tmp_path, scenario, gateway=ON)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_link_of_another_site_does_not_replace_the_session(site: str, tmp_path: Path) -> None:
    async def scenario(broker: Guarded) -> None:
        navigation = {"sec-fetch-mode": "navigate", "sec-fetch-site": site}
        path = "/console/topics?page=x%26y"
        answer = await broker.http.ask("GET", path, headers=navigation, allow_redirects=False)
        assert answer.status == 200
        assert "set-cookie" not in answer.headers, "the browser has withheld the cookie, and would lose it"
        assert f'content="0; url={path}"' in answer.body.decode()

    serve(tmp_path, scenario, gateway=ON)
