"""Further pages of the console in a real browser: groups of a topic, health of the cluster.

Pictures and axe as in test_browser.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.gateway.console.test_browser import CHROMIUM, HOSTILE, Watched, look
from tests.kit.forked_tidelog import ForkedBroker
from tidelog.testing.broker_process import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with ForkedBroker(tmp_path_factory.mktemp("console-more")) as process:
        process.start()
        yield process


@pytest.fixture(params=["light", "dark"])
def watched(request: pytest.FixtureRequest, browser: Browser, broker: BrokerProcess) -> Iterator[Watched]:
    context = browser.new_context(color_scheme=request.param, viewport={"width": 1280, "height": 860})
    page = Watched(context.new_page(), broker.http_url)
    yield page
    context.close()
    assert page.faults == []


def test_a_topic_leads_to_the_groups_that_read_it(watched: Watched, request: pytest.FixtureRequest) -> None:
    page = watched.page
    name = request.node.callspec.id
    topic, group = f"read-{name}", f"{HOSTILE[:30]} {name}"
    page.request.post(f"{watched.url}/v1/topics", data={"name": topic, "partition_count": 1})
    page.request.post(f"{watched.url}/v1/topics/{topic}/records", data={"records": [{"value": number} for number in range(5)]})
    watched.go(f"/topics/{topic}/groups")
    look(watched, "topic-groups-none")
    offsets = [{"topic": topic, "partition": 0, "offset": 2}]
    page.request.post(f"{watched.url}/v1/groups/{page.evaluate('encodeURIComponent', group)}/offsets", data={"offsets": offsets})
    page.get_by_role("navigation", name="Topic").get_by_role("link", name="Groups").click()
    page.get_by_role("link", name=group).wait_for()
    look(watched, "topic-groups")
    page.get_by_role("link", name=group).click()
    page.get_by_role("heading", name=group).wait_for()
