"""Further pages of the console in a real browser: groups of a topic, health of the cluster.

Pictures and axe as in test_browser.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route

from tests.kit.forked_tidelog import ForkedBroker
from tests.kit.gateway.console_browser import HOSTILE, IN_CHROMIUM, WAIT_MS, Watched, look
from tests.kit.gateway.flights_broker import HeldFlights
from tidelog.testing.broker_process import BrokerProcess

pytestmark = IN_CHROMIUM


@pytest.fixture(scope="module")
def broker(flights: HeldFlights) -> BrokerProcess:
    """Holds the flights of the demo as well."""
    return flights.process


@pytest.fixture(scope="module")
def console_url(broker: BrokerProcess) -> str:
    return broker.http_url


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


def test_the_cluster_shows_its_health_and_a_drain_is_followed_by_itself(watched: Watched) -> None:
    page = watched.page
    watched.go("/cluster")
    page.get_by_role("region", name="Health").get_by_text("can be listed and read").wait_for()
    look(watched, "cluster-health")
    page.get_by_role("button", name="Drain").click()
    page.get_by_text("no other broker could take over").wait_for()
    answers = 0

    def answer(route: Route) -> None:
        nonlocal answers
        answers += 1
        html = route.fetch().text()
        if answers <= 3:
            html = html.replace(
                '<div id="brokers">', f'<div id="brokers" data-refresh-ms="100"><p class="notice">{4 - answers} left</p>'
            )
        route.fulfill(body=html, content_type="text/html")

    page.route("**/console/cluster", answer)
    watched.go("/cluster")
    page.locator("#brokers:not([data-refresh-ms])").wait_for()
    assert answers == 4, "the page asks no longer once nothing moves"
    # The browser itself reports the refusal.
    watched.faults = [fault for fault in watched.faults if "400" not in fault]


def test_pages_of_a_broker_that_dies_say_so_and_go_on_once_it_is_back(browser: Browser, tmp_path: Path) -> None:
    with ForkedBroker(tmp_path) as process:
        process.start()
        context = browser.new_context()
        watched = Watched(context.new_page(), process.http_url)
        page = watched.page
        page.request.post(f"{watched.url}/v1/topics", data={"name": "orders", "partition_count": 1})
        watched.go("/topics/orders/tail")
        page.get_by_text("Live.").wait_for()
        process.kill()
        page.get_by_text("The connection is lost").wait_for()
        process.start()
        page.get_by_text("Live.").wait_for()
        page.request.post(f"{watched.url}/v1/topics/orders/records", data={"records": [{"value": "after"}]})
        page.get_by_text("after").wait_for()
        context.close()
        # The browser reports each connection that is refused; nothing else may fail.
        assert [fault for fault in watched.faults if "ERR_" not in fault] == []


def test_long_lists_are_paged_and_searched(watched: Watched, request: pytest.FixtureRequest) -> None:
    page = watched.page
    topic, group = f"wide-{request.node.callspec.id}", f"wide-reader-{request.node.callspec.id}"
    page.request.post(f"{watched.url}/v1/topics", data={"name": topic, "partition_count": 450}, timeout=WAIT_MS)
    offsets = [{"topic": topic, "partition": number, "offset": 0} for number in range(450)]
    assert page.request.post(f"{watched.url}/v1/groups/{group}/offsets", data={"offsets": offsets}, timeout=WAIT_MS).ok
    watched.go("/topics")
    page.get_by_label("Name contains").fill(topic.upper())
    page.get_by_role("button", name="Search").click()
    page.get_by_role("link", name=topic).wait_for()
    look(watched, "topics-searched")
    watched.go(f"/topics/{topic}/partitions")
    page.get_by_role("link", name="Next page").click()
    page.get_by_role("heading", name="Partitions 200 to 399").wait_for()
    look(watched, "partitions-second-page")
    watched.go("/groups")
    page.get_by_label("Name contains").fill(group)
    page.get_by_label("State").select_option("Empty")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("link", name=group).click()
    page.get_by_role("link", name="Next page").click()
    page.get_by_text("201 to 400 of 450 partitions.").wait_for()
    look(watched, "group-second-page")
