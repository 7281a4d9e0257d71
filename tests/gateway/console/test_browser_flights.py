"""Every page and every button of the console in a real browser, at a broker that holds the flights of `tidelog demo`.

Pictures and axe as in test_browser.py, on a large and on a small screen.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page

from tests.kit.gateway.console_browser import IN_CHROMIUM, PICTURES, WAIT_MS, Watched, look
from tests.kit.gateway.flights_broker import GROUP, PARTITIONS, ROWS, TOPIC, HeldFlights

pytestmark = IN_CHROMIUM

ROWS_OF_A_PAGE = 50
# Stands between the thousands of a number.
THIN = "\u202f"
# The listeners of the window, once both charts of the history are drawn: htmx swaps the part before they are.
CHARTS = "() => document.querySelectorAll('#history .plot canvas').length === 2 && window.listeners"
CHARTS_AS = "before => document.querySelectorAll('#history .plot canvas').length === 2 && window.listeners === before"
DRAWN_AGAIN = """
(before) => {
  const place = document.querySelector('#history .plot');
  return place && place.querySelector('canvas') && place.dataset.values !== before;
}
"""


@pytest.fixture(scope="module")
def console_url(flights: HeldFlights) -> str:
    return flights.url


def rows(page: Page) -> list[str]:
    return page.locator("table.records tbody tr").all_inner_texts()


def rows_of_search(page: Page) -> list[str]:
    """Returns the rows of this page and of all older ones. On a busy machine a search may end with fewer than a page holds."""
    found = rows(page)
    older = page.get_by_role("link", name="Older")
    while older.count():
        with page.expect_navigation():
            older.click()
        found += rows(page)
    return found


def theme(request: pytest.FixtureRequest) -> str:
    name: str = request.node.callspec.id
    return name


def test_the_topics_lead_to_the_newest_flights_with_their_size_and_cost(watched: Watched) -> None:
    page = watched.page
    watched.go("/topics")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name=TOPIC, exact=True))
    assert re.search(r"\d [KM]iB\s", row.inner_text()), "its size"
    assert "$" in row.inner_text()
    look(watched, "flights-topics")
    page.get_by_role("link", name=TOPIC, exact=True).click()
    page.get_by_role("region", name="Records").wait_for()
    assert len(rows(page)) == ROWS_OF_A_PAGE
    assert all('"carrier"' in row for row in rows(page))
    look(watched, "flights-records")
    page.get_by_role("link", name="Older").click()
    page.wait_for_url("**go_on=**")
    assert len(rows(page)) == ROWS_OF_A_PAGE


def test_flights_are_browsed_from_an_offset_a_time_and_the_earliest(watched: Watched, flights: HeldFlights) -> None:
    page = watched.page
    ends = flights.ends()
    partition = max(ends, key=lambda each: ends[each])
    watched.go(f"/topics/{TOPIC}/records")
    page.get_by_label("Partition", exact=True).fill(str(partition))
    page.get_by_label("Begin with").select_option("an offset")
    page.get_by_label("Offset", exact=True).fill("100")
    page.get_by_role("combobox", name="Records").select_option("25")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("link", name=f"Record at partition {partition}, offset 100", exact=True).wait_for()
    assert [row.split()[0] for row in rows(page)] == [f"{partition}:{offset}" for offset in range(100, 125)]
    page.get_by_role("link", name="Newer").click()
    page.get_by_role("link", name=f"Record at partition {partition}, offset 125", exact=True).wait_for()
    page.get_by_label("Partition", exact=True).fill("all")
    page.get_by_role("button", name="Show").click()
    page.get_by_text("an offset belongs to one partition").wait_for()
    page.get_by_label("Begin with").select_option("a time")
    page.get_by_label("Time (UTC)").fill("2013-01-01T00:00:00")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("region", name="Records").wait_for()
    assert len(rows(page)) == 25
    look(watched, "flights-from-a-time")
    page.get_by_label("Begin with").select_option("the earliest")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**order=earliest**")
    assert {row.split()[0].partition(":")[2] for row in rows(page)} >= {"0"}


def test_flights_are_filtered_by_key_value_field_and_header(watched: Watched, flights: HeldFlights) -> None:
    page = watched.page
    hawaiian = flights.of_carrier("HA")
    assert 0 < len(hawaiian) < ROWS_OF_A_PAGE
    watched.go(f"/topics/{TOPIC}/records")
    page.get_by_label("Key contains").fill("HA")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**key=HA**")
    look(watched, "flights-of-one-airline")
    assert len(rows_of_search(page)) == len(hawaiian)
    page.get_by_label("Key contains").fill("")
    page.get_by_label("JSON field").fill("dest=HNL")
    page.get_by_label("Value contains").fill('"origin":"EWR"')
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**json=dest%3DHNL**")
    expected = [value for value in map(json.loads, flights.values.values()) if (value["dest"], value["origin"]) == ("HNL", "EWR")]
    assert len(rows_of_search(page)) == len(expected)
    page.get_by_label("Header").fill("trace=7")
    page.get_by_role("button", name="Show").click()
    page.get_by_text("records that were searched matches").wait_for()
    look(watched, "flights-none-found")


@pytest.mark.parametrize("form", ["parquet", "segment"])
def test_one_flight_is_shown_in_full_with_where_it_lies(
    watched: Watched, flights: HeldFlights, form: str, request: pytest.FixtureRequest
) -> None:
    page = watched.page
    topic, partition = TOPIC, flights.compacted[0]
    values = [flights.values[partition, offset] for offset in range(3)]
    if form == "segment":  # too small to be compacted
        topic, partition = f"late-{theme(request)}", 0
        page.request.post(f"{watched.url}/v1/topics", data={"name": topic, "partition_count": 1})
        records = [{"value": value.decode()} for value in values]
        assert page.request.post(f"{watched.url}/v1/topics/{topic}/records", data={"records": records}).ok
    watched.go(f"/topics/{topic}/records?partition={partition}&order=offset&offset=1")
    page.get_by_role("link", name=f"Record at partition {partition}, offset 1", exact=True).click()
    page.get_by_role("heading", name=f"Partition {partition}, offset 1").wait_for()
    shown = json.loads(page.locator("pre.payload").inner_text())
    assert shown == json.loads(values[1])
    said = "of a Parquet file" if form == "parquet" else "a record batch in a segment"
    page.get_by_text(said).wait_for()
    look(watched, f"flight-in-{form}")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the value").click()
    assert Path(download.value.path()).read_bytes() == values[1]
    page.get_by_role("link", name="Next").click()
    page.get_by_role("heading", name=f"Partition {partition}, offset 2").wait_for()
    page.get_by_role("link", name="Previous").click()
    page.get_by_role("heading", name=f"Partition {partition}, offset 1").wait_for()


def test_the_flights_of_an_airline_are_downloaded_as_they_were_written(watched: Watched, flights: HeldFlights) -> None:
    page = watched.page
    written = sorted(flights.of_carrier("AS"))
    watched.go(f"/topics/{TOPIC}/records?key=AS&order=earliest")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download NDJSON").click()
    assert download.value.suggested_filename == f"{TOPIC}.ndjson"
    lines = [json.loads(line) for line in Path(download.value.path()).read_text().splitlines()]
    assert sorted(line["value"].encode() for line in lines) == written
    assert {line["key"] for line in lines} == {"AS"}
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV", exact=True).click()
    with Path(download.value.path()).open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert sorted(cell["value"].encode() for cell in cells) == written
    assert {flights.values[int(cell["partition"]), int(cell["offset"])].decode() for cell in cells} == {
        value.decode() for value in written
    }


def test_the_live_tail_shows_the_flights_that_match_as_they_come(watched: Watched, request: pytest.FixtureRequest) -> None:
    page = watched.page
    topic = f"departures-{theme(request)}"
    page.request.post(f"{watched.url}/v1/topics", data={"name": topic, "partition_count": 2})
    watched.go(f"/topics/{topic}/tail")
    page.get_by_label("JSON field").fill("origin=JFK")
    page.get_by_role("button", name="Filter").click()
    page.get_by_text("Live.").wait_for()

    def depart(*origins: str) -> None:
        records = [{"key": "UA", "value": {"carrier": "UA", "flight": number, "origin": at}} for number, at in enumerate(origins)]
        assert page.request.post(f"{watched.url}/v1/topics/{topic}/records", data={"records": records}).ok

    depart("JFK", "LGA", "JFK", "EWR")
    page.locator("#tail tbody tr").nth(1).wait_for()
    page.get_by_text("4 records came").wait_for()
    assert page.locator("#tail tbody tr").count() == 2
    look(watched, "flights-tail")
    page.get_by_role("button", name="Pause").click()
    page.get_by_text("Paused.").wait_for()
    page.get_by_role("button", name="Go on").click()
    page.get_by_text("Live.").wait_for()
    depart("JFK")
    page.locator("#tail tbody tr").nth(2).wait_for()


def test_a_flight_is_produced_by_the_form_and_refused_with_the_reason(watched: Watched, request: pytest.FixtureRequest) -> None:
    page = watched.page
    topic = f"produced-{theme(request)}"
    page.request.post(f"{watched.url}/v1/topics", data={"name": topic, "partition_count": 2})
    watched.go(f"/topics/{topic}/produce")
    look(watched, "flights-produce")
    page.get_by_label("Key", exact=True).fill("DL")
    page.get_by_label("Value", exact=True).fill('{"carrier":"DL","flight":1,"origin":"LGA","dest":"ATL"}')
    page.get_by_label("Headers, one on each line").fill("tower: KLGA\ngate: 7")
    page.get_by_label("Partition (empty: by the key)").fill("1")
    page.get_by_role("button", name="Produce").click()
    page.get_by_role("heading", name="Partition 1, offset 0").wait_for()
    assert json.loads(page.locator("pre.payload").inner_text())["dest"] == "ATL"
    page.get_by_role("region", name="Headers").get_by_text("KLGA").wait_for()
    watched.go(f"/topics/{topic}/produce")
    page.get_by_label("Key", exact=True).fill("DL")
    page.get_by_label("No value (a tombstone)").check()
    page.get_by_role("button", name="Produce").click()
    page.get_by_text("Where it lies").wait_for()
    look(watched, "flights-tombstone")
    watched.go(f"/topics/{topic}/produce")
    page.get_by_label("Headers, one on each line").fill(": without a name")
    page.get_by_role("button", name="Produce").click()
    page.wait_for_load_state()
    watched.faults = [fault for fault in watched.faults if "400" not in fault]


def test_the_topic_of_the_flights_shows_where_its_bytes_are_and_who_reads_it(watched: Watched, flights: HeldFlights) -> None:
    page = watched.page
    watched.go(f"/topics/{TOPIC}/partitions")
    assert page.get_by_role("region", name="Partitions").get_by_role("row").count() == PARTITIONS + 1
    facts = page.locator("dl.facts").first.inner_text()
    assert f"{ROWS:,}".replace(",", THIN) in facts
    look(watched, "flights-partitions")
    page.get_by_role("navigation", name="Topic").get_by_role("link", name="Groups").click()
    page.get_by_role("link", name=GROUP, exact=True).wait_for()
    look(watched, "flights-readers")
    page.get_by_role("link", name=GROUP, exact=True).click()
    page.get_by_role("heading", name=GROUP).wait_for()


def test_settings_are_set_reset_and_refused_and_partitions_are_added(watched: Watched, request: pytest.FixtureRequest) -> None:
    page = watched.page
    topic = f"kept-{theme(request)}"
    page.request.post(f"{watched.url}/v1/topics", data={"name": topic, "partition_count": 1})
    watched.go(f"/topics/{topic}/settings")
    look(watched, "flights-settings")
    before = page.get_by_label("Value of retention.ms").input_value()
    for entered, kept in (("86400000", "86400000"), ("", before)):
        page.get_by_label("Value of retention.ms").fill(entered)
        with page.expect_navigation():
            page.get_by_role("button", name="Set retention.ms").click()
        assert page.get_by_label("Value of retention.ms").input_value() == kept
    page.get_by_label("Value of retention.ms").fill("a week")
    page.get_by_role("button", name="Set retention.ms").click()
    page.get_by_role("alert").wait_for()
    look(watched, "flights-settings-refused")
    watched.faults = [fault for fault in watched.faults if "400" not in fault]
    page.get_by_label("Partitions (they may grow").fill("4")
    page.get_by_role("button", name="Add partitions").click()
    page.get_by_role("heading", name="Partitions").wait_for()
    assert page.get_by_role("region", name="Partitions").get_by_role("row").count() == 5
    page.get_by_label(f"Type {topic} to delete").fill("another")
    page.get_by_role("button", name="Delete the topic").click()
    page.get_by_text("Nothing was deleted").wait_for()
    watched.faults = [fault for fault in watched.faults if "409" not in fault]


def test_offsets_are_moved_once_a_table_has_shown_what_would_change(
    watched: Watched, flights: HeldFlights, request: pytest.FixtureRequest
) -> None:
    page = watched.page
    group = f"late/{theme(request)}"
    ends = flights.ends()
    offsets = [{"topic": TOPIC, "partition": partition, "offset": 5} for partition in ends]
    assert page.request.post(f"{watched.url}/v1/groups/{quote(group, safe='')}/offsets", data={"offsets": offsets}).ok

    def what_would_change(to: str, point: str = "", partition: str = "") -> dict[int, tuple[str, str]]:
        page.get_by_label("To", exact=True).select_option(to)
        page.get_by_label("Time, offset or number").fill(point)
        page.get_by_label("Topic (empty: all)").fill(TOPIC if partition else "")
        page.get_by_label("Partition (empty: all)").fill(partition)
        with page.expect_navigation():
            page.get_by_role("button", name="Show what would change").click()
        page.get_by_role("heading", name="What would change").wait_for()
        shown = [
            row.split("\t") for row in page.get_by_role("region", name="What would change").locator("tbody tr").all_inner_texts()
        ]
        return {int(row[1]): (row[2].replace(THIN, ""), row[3].replace(THIN, "")) for row in shown}

    watched.go(f"/groups/{quote(group, safe='')}")
    look(watched, "flights-group")
    assert what_would_change("the end") == {at: ("5", str(end)) for at, end in ends.items()}
    look(watched, "flights-seek")
    page.get_by_role("link", name="Leave them").click()
    page.get_by_role("heading", name="What would change").wait_for(state="hidden")
    assert what_would_change("a time", "2013-01-01T00:00:00Z") == dict.fromkeys(ends, ("5", "0")), "all were written later"
    assert what_would_change("an offset", "17", "3" if 3 in ends else str(min(ends))).popitem()[1] == ("5", "17")
    assert what_would_change("so many records on or back", "-2") == dict.fromkeys(ends, ("5", "3"))
    page.get_by_role("button", name="Move the offsets").click()
    page.get_by_text("The offsets were moved.").wait_for()
    moved = page.request.get(f"{watched.url}/v1/groups/{quote(group, safe='')}/offsets").json()["offsets"]
    assert {offset["offset"] for offset in moved} == {3}
    page.get_by_label("Time, offset or number").fill("soon")
    page.get_by_role("button", name="Show what would change").click()
    page.get_by_role("alert").wait_for()
    page.get_by_label(f"Type {group} to delete").fill(group)
    page.get_by_role("button", name="Delete the group").click()
    page.get_by_role("heading", name="Groups", exact=True).wait_for()
    assert group not in page.locator("main").inner_text()


def test_the_lag_of_a_group_is_followed_in_the_list_and_on_its_page(watched: Watched, flights: HeldFlights) -> None:
    page = watched.page
    behind = sum(end - end // 2 for end in flights.ends().values())
    watched.go("/groups")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name=GROUP, exact=True))
    row.locator("svg.spark").wait_for(timeout=2 * WAIT_MS)  # the list refreshes itself until there are two samples
    assert f"{behind:,}".replace(",", THIN) in row.inner_text()
    look(watched, "flights-groups")
    page.get_by_role("link", name=GROUP, exact=True).click()
    page.locator("#history .plot canvas").first.wait_for()
    assert page.locator("#history .plot canvas").count() == 2
    assert page.get_by_role("region", name="Lag by topic").get_by_role("link", name=TOPIC, exact=True).count() == 1
    look(watched, "flights-lag")
    listeners = page.wait_for_function(CHARTS).json_value()
    drawn = page.locator("#history .plot").first.get_attribute("data-values") or ""
    with page.expect_response(lambda answer: answer.request.headers.get("hx-request") == "true") as refreshed:
        pass
    assert refreshed.value.status == 200
    page.wait_for_function(DRAWN_AGAIN, arg=drawn)
    page.wait_for_function(CHARTS_AS, arg=listeners)  # those before the refresh were destroyed
    page.get_by_text("The figures").first.click()
    page.get_by_role("button", name="Switch between dark and light").click()
    page.wait_for_function(CHARTS_AS, arg=listeners)  # it is drawn again in the other colours
    history = page.request.get(f"{watched.url}/v1/groups/{GROUP}/lag-history").json()
    assert set(history["lag_records"]) == {behind}


def test_the_cluster_the_bucket_and_the_bill_of_the_flights_are_shown_and_verified(watched: Watched) -> None:
    page = watched.page
    watched.go("/cluster")
    page.get_by_role("region", name="Brokers").get_by_text("serving").wait_for()
    look(watched, "flights-cluster")
    watched.go("/bill")
    page.get_by_role("region", name="By topic").get_by_role("link", name=TOPIC, exact=True).wait_for()
    look(watched, "flights-bill")
    page.get_by_label("1,000 PUTs or LISTs, $").fill("5")
    page.get_by_role("button", name="Calculate with these").click()
    page.wait_for_url("**price_1000_writes=5**")
    page.get_by_role("button", name="Verify the bucket").click()
    page.get_by_text("Every rule that was checked holds.").wait_for()
    look(watched, "flights-verified")


def test_keys_rules_and_quotas_are_made_and_taken_back(watched: Watched, request: pytest.FixtureRequest) -> None:
    page = watched.page
    principal = f"tower-{theme(request)}"
    watched.go("/access")
    page.get_by_label("Principal", exact=True).first.fill(principal)
    page.get_by_label("Description").fill("reads the departures")
    page.get_by_role("button", name="Create a key").click()
    page.get_by_text("is shown this once").wait_for()
    page.get_by_label("Principal", exact=True).nth(1).fill(principal)
    page.get_by_label("Operation").select_option("read")
    page.get_by_label("Name", exact=True).fill("fli")
    page.get_by_label("The name is").select_option("its beginning")
    page.get_by_role("button", name="Add the rule").click()
    page.get_by_role("region", name="Rights").get_by_text(principal).first.wait_for()
    page.get_by_label("Principal (* for all others)").fill(principal)
    page.get_by_label("Bytes out, a second").fill("1048576")
    page.get_by_role("button", name="Set the quota").click()
    quotas = page.get_by_role("region", name="Quotas")
    quotas.get_by_text(principal).wait_for()
    look(watched, "flights-access")
    page.get_by_label("Principal (* for all others)").fill(principal)
    page.get_by_role("button", name="Set the quota").click()
    quotas.get_by_text(principal).wait_for(state="hidden")
    page.get_by_role("button", name=f"the right of {principal}").click()
    page.get_by_role("button", name=f"the right of {principal}").wait_for(state="hidden")
    key = page.get_by_role("region", name="API keys").get_by_role("row").filter(has_text=principal)
    key.get_by_role("button", name="Revoke").click()
    key.get_by_text("revoked").wait_for()
    page.get_by_role("link", name="Audit log").click()
    page.get_by_text("This broker keeps no audit log").wait_for()
    look(watched, "flights-audit")
    page.get_by_role("link", name="Why is this refused?").click()
    page.get_by_role("button", name="Explain").wait_for()
    look(watched, "flights-explain")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_of_the_flights_fits_a_small_screen(browser: Browser, flights: HeldFlights, scheme: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]  # one of its words
    watched = Watched(context.new_page(), flights.url)
    tabs = ("records", "tail", "partitions", "groups", "produce", "settings")
    pages = {f"topic-{tab}": f"/topics/{TOPIC}/{tab}" for tab in tabs}
    pages |= {name: f"/{name}" for name in ("topics", "groups", "cluster", "bill", "access", "access/explain", "access/audit")}
    pages |= {"record": f"/topics/{TOPIC}/records/{flights.compacted[0]}/1", "group": f"/groups/{GROUP}"}
    for name, path in pages.items():
        watched.go(path)
        assert watched.page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), path
        look(watched, f"small-{name.replace('/', '-')}")
    context.close()
    assert watched.faults == []
    assert (PICTURES / f"small-topics-{scheme}.png").exists()
