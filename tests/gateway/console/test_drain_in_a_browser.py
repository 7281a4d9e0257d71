"""The drain button in a real browser, on three broker processes with an etcd: the page follows the drain to its end.

Pictures and axe as in test_browser.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Page

from tests.kit.etcd_server import running_etcd
from tests.kit.forked_tidelog import ForkedBroker
from tests.kit.gateway.console_browser import IN_CHROMIUM, Watched, look
from tests.kit.gateway.flights_broker import ask
from tidelog.testing.broker_process import BrokerProcess

pytestmark = IN_CHROMIUM

BROKERS = ("b1", "b2", "b3")
PARTITIONS = 24
# Longer than a broker stands still here: its lease goes on.
SESSION_TIMEOUT_MS = 120_000
# Keeps each state of the table that the page has shown.
KEEP_SHOWN = """
() => {
  window.shown = [];
  const keep = () => {
    const led = {};
    for (const row of document.querySelectorAll('#brokers tbody tr')) {
      led[row.cells[0].textContent.trim().split(' ')[0]] = Number(row.cells[2].textContent);
    }
    const notice = document.querySelector('#brokers .notice');
    window.shown.push({ led, notice: notice ? notice.textContent : '' });
  };
  keep();
  new MutationObserver(keep).observe(document.querySelector('main'), { childList: true });
}
"""
# The fewest that a broker leads, and the most, differ by one at most, and none drains.
BALANCED = """
async () => {
  const { brokers } = await (await fetch('/v1/cluster')).json();
  const led = brokers.map((broker) => broker.partitions_led);
  const least = Math.min(...led);
  return brokers.length === 3 && !brokers.some((broker) => broker.draining) && least > 0 && Math.max(...led) - least <= 1;
}
"""

LEADS_NONE = """
async (id) => {
  const { brokers } = await (await fetch('/v1/cluster')).json();
  return brokers.some((broker) => broker.broker_id === id && broker.partitions_led === 0);
}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BrokerProcess]]:
    directory = tmp_path_factory.mktemp("drained")
    bucket = directory / "bucket"
    bucket.mkdir()
    with ExitStack() as parts:
        etcd = parts.enter_context(running_etcd(directory))
        brokers: dict[str, BrokerProcess] = {}
        for broker_id in BROKERS:
            flags = ["--etcd", etcd.url, "--cluster", "drained", "--bucket", bucket.as_uri(), "--broker-id", broker_id]
            flags += ["--console", "true", "--session-timeout-ms", str(SESSION_TIMEOUT_MS)]
            brokers[broker_id] = parts.enter_context(ForkedBroker(directory / broker_id, flags=flags, command="serve"))
            brokers[broker_id].start()
        yield brokers


@pytest.fixture(scope="module")
def console_url(cluster: dict[str, BrokerProcess]) -> str:
    return cluster["b1"].http_url


def led(page: Page, url: str) -> dict[str, int]:
    """By broker, as its API says."""
    brokers = page.request.get(f"{url}/v1/cluster").json()["brokers"]
    return {broker["broker_id"]: broker["partitions_led"] for broker in brokers}


def test_a_drain_is_shown_to_its_end_while_leaders_move(
    watched: Watched, cluster: dict[str, BrokerProcess], request: pytest.FixtureRequest
) -> None:
    page = watched.page
    topic = f"flights-{request.node.callspec.id}"
    ask(f"{watched.url}/v1/topics", {"name": topic, "partition_count": PARTITIONS})
    records = [{"value": number, "partition": number % PARTITIONS} for number in range(10 * PARTITIONS)]
    ask(f"{watched.url}/v1/topics/{topic}/records", {"records": records})
    watched.go("/cluster")
    page.wait_for_function(BALANCED, polling=200)
    whole = sum(led(page, watched.url).values())
    moving = led(page, watched.url)["b2"]
    watched.go("/cluster")
    os.kill(cluster["b2"].pid, signal.SIGSTOP)  # until the page has shown that it waits
    try:
        page.get_by_role("button", name="Drain of b2").click()
        page.get_by_text(f"b2 drains: it hands over {moving} more partitions.").wait_for()
        page.evaluate(KEEP_SHOWN)
        look(watched, "drain-begun")
        with page.expect_response("**/console/cluster"):
            pass
    finally:
        os.kill(cluster["b2"].pid, signal.SIGCONT)
    page.get_by_text("b2 is drained: it leads no partition, and may be stopped.").wait_for()
    page.locator("#brokers:not([data-refresh-ms])").wait_for()
    shown = page.evaluate("window.shown")
    assert {sum(state["led"].values()) for state in shown} == {whole}, "each partition is led by one broker in every state"
    counts = [state["led"]["b2"] for state in shown]
    assert counts == sorted(counts, reverse=True)
    assert (counts[0], counts[-1]) == (moving, 0)
    for state in shown:
        left = state["led"]["b2"]
        assert (f"{left} more partition" if left else "is drained") in state["notice"], "the sentence and the table agree"
    look(watched, "drain-ended")
    watched.go(f"/topics/{topic}/partitions")
    leaders = {row.split("\t")[1] for row in page.get_by_role("region", name="Partitions").locator("tbody tr").all_inner_texts()}
    assert leaders == {"b1", "b3"}
    watched.go(f"/topics/{topic}/records?order=earliest&count=500")
    assert page.locator("table.records tbody tr").count() == 10 * PARTITIONS, "nothing is lost, and every leader answers"
    watched.go("/cluster")
    page.get_by_role("button", name="End the drain of b2").click()
    page.get_by_role("button", name="Drain of b2").wait_for()
    page.wait_for_function(BALANCED, polling=200)


def test_the_broker_that_shows_the_page_may_be_drained_itself(watched: Watched, request: pytest.FixtureRequest) -> None:
    page = watched.page
    ask(f"{watched.url}/v1/topics", {"name": f"moved-{request.node.callspec.id}", "partition_count": len(BROKERS)})
    watched.go("/cluster")
    page.wait_for_function(BALANCED, polling=200)
    watched.go("/cluster")
    page.get_by_role("button", name="Drain of b1").click()
    page.get_by_text("b1 is drained: it leads no partition, and may be stopped.").wait_for()
    page.wait_for_function(LEADS_NONE, arg="b1", polling=200)
    page.get_by_role("button", name="End the drain of b1").click()
    page.get_by_role("button", name="Drain of b1").wait_for()
