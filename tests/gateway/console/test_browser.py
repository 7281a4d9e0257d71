"""The console in a real browser, on a real broker: Chromium, where this machine has one.

Each page is kept as a picture in build/console-pages, in both themes. axe looks for faults of accessibility.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.kit.gateway.console_browser import HOSTILE, IN_CHROMIUM, PICTURES, Watched, look
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


def test_a_topic_is_made_written_searched_followed_and_deleted(watched: Watched, request: pytest.FixtureRequest) -> None:
    page = watched.page
    topic = f"orders-{request.node.callspec.id}"
    watched.go("/topics")
    look(watched, "topics-first")
    page.get_by_text("Create a topic").click()
    page.get_by_label("Name", exact=True).fill(topic)
    page.get_by_label("Partitions", exact=True).fill("2")
    page.get_by_role("button", name="Create", exact=True).click()
    page.get_by_role("heading", name=topic).wait_for()
    for key, value in (("c-1", HOSTILE), ("c-2", '{"customer":{"id":7},"item":"kettle"}'), ("c-3", "x" * 100_000)):
        watched.go(f"/topics/{topic}/produce")
        page.get_by_label("Key", exact=True).fill(key)
        page.get_by_label("Value", exact=True).fill(value)
        page.get_by_label("Headers, one on each line").fill(f"trace: {HOSTILE}")
        page.get_by_role("button", name="Produce").click()
        page.get_by_text("Where it lies").wait_for()
    look(watched, "record")
    watched.go(f"/topics/{topic}/records")
    assert page.locator("table.records tbody tr").count() == 3
    look(watched, "records")
    page.get_by_label("JSON field").fill("customer.id=7")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**json=customer.id**")  # the address can be shared
    page.get_by_text("kettle").wait_for()
    assert page.locator("table.records tbody tr").count() == 1
    with page.expect_download() as download:
        page.get_by_text("Download NDJSON").click()
    assert Path(download.value.path()).read_text().count("\n") == 1
    watched.go(f"/topics/{topic}/partitions")
    look(watched, "partitions")
    page.get_by_label(f"Type {topic} to delete").fill(topic)
    page.get_by_role("button", name="Delete the topic").click()
    page.wait_for_url("**/console/topics")
    page.get_by_role("heading", name="Topics").wait_for()
    assert topic not in page.locator("main").inner_text()


def test_the_live_tail_shows_records_as_they_come_and_pauses(watched: Watched, request: pytest.FixtureRequest) -> None:
    page = watched.page
    topic = f"tail-{request.node.callspec.id}"
    page.request.post(f"{watched.url}/v1/topics", data={"name": topic, "partition_count": 2})
    watched.go(f"/topics/{topic}/tail")
    page.get_by_text("Live.").wait_for()

    def produce(count: int) -> None:
        records = [{"key": f"k{number}", "value": HOSTILE} for number in range(count)]
        page.request.post(f"{watched.url}/v1/topics/{topic}/records", data={"records": records})

    produce(3)
    page.locator("#tail tbody tr").nth(2).wait_for()
    assert page.locator("#tail tbody tr").count() == 3
    look(watched, "tail")
    produce(500)
    page.get_by_text("too fast to show").wait_for()
    page.get_by_role("button", name="Pause").click()
    page.get_by_text("Paused.").wait_for()


def test_settings_groups_cluster_and_access_are_shown_and_changed(watched: Watched, request: pytest.FixtureRequest) -> None:
    page = watched.page
    name = request.node.callspec.id
    topic, group = f"settings-{name}", f"billing-{name}"
    page.request.post(f"{watched.url}/v1/topics", data={"name": topic, "partition_count": 1})
    page.request.post(f"{watched.url}/v1/topics/{topic}/records", data={"records": [{"value": number} for number in range(5)]})
    offsets = [{"topic": topic, "partition": 0, "offset": 4}]
    page.request.post(f"{watched.url}/v1/groups/{group}/offsets", data={"offsets": offsets})
    watched.go(f"/topics/{topic}/settings")
    page.get_by_label("Value of retention.ms").fill("86400000")
    with page.expect_navigation():
        page.get_by_role("button", name="Set retention.ms").click()
    assert page.get_by_label("Value of retention.ms").input_value() == "86400000"
    look(watched, "settings")
    watched.go("/groups")
    look(watched, "groups")
    page.get_by_role("link", name=group).click()
    page.get_by_role("button", name="Show what would change").click()
    page.get_by_role("heading", name="What would change").wait_for()
    look(watched, "group")
    page.get_by_role("button", name="Move the offsets").click()
    page.get_by_text("The offsets were moved.").wait_for()
    watched.go("/cluster")
    look(watched, "cluster")
    watched.go("/access")
    page.get_by_label("Principal", exact=True).first.fill(f"ann-{name}")
    page.get_by_role("button", name="Create a key").click()
    page.get_by_text("is shown this once").wait_for()
    look(watched, "access")


def test_pages_fit_a_small_screen(browser: Browser, broker: BrokerProcess) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800})
    watched = Watched(context.new_page(), broker.http_url)
    for path in ("/topics", "/groups", "/cluster", "/access"):
        watched.go(path)
        assert watched.page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), path
    watched.page.screenshot(path=PICTURES / "small-screen.png")
    context.close()
    assert watched.faults == []


def test_the_theme_that_a_reader_chooses_stays(browser: Browser, broker: BrokerProcess) -> None:
    context = browser.new_context(color_scheme="light")
    watched = Watched(context.new_page(), broker.http_url)
    watched.go("/topics")
    watched.page.get_by_role("button", name="Switch between dark and light").click()
    watched.go("/groups")
    assert watched.page.locator("html").get_attribute("data-theme") == "dark"
    context.close()
    assert watched.faults == []
