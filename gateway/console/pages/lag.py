"""Prepares the history of a group's lag for the pages of groups: sparklines and charts. Pure, but for reading it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gateway.console.api_client import ApiRefused
from gateway.console.page import View

# How often a page reads the history again; a hidden page is slowed by the browser.
REFRESH_S: Final = 15
# A line is broken where no sample was taken for so many intervals, and a sample that is older is not the present lag.
GAP_INTERVALS: Final = 3
# Figures of a chart that are also listed.
FIGURES_MAX: Final = 30
# The status of a call that the broker could not answer now, as of a coordinator that is silent.
UNAVAILABLE: Final = 503
# In the place of a value where the line is broken, as static/charts.js reads it.
BREAK: Final = "-"


class LagChart(NamedTuple):
    """Holds one line of a chart."""

    title: str
    at_ms: Sequence[int]
    values: Sequence[float]
    # As static/charts.js draws them: seconds since 1970, and values, with BREAK between samples that lie far apart.
    drawn_at_s: Sequence[float]
    drawn: Sequence[float | str]

    @property
    def least(self) -> float:
        return min(self.values)

    @property
    def most(self) -> float:
        return max(self.values)

    @property
    def some(self) -> Iterable[tuple[int, float]]:
        """Returns up to FIGURES_MAX samples, evenly spread, the newest among them."""
        step = -(-len(self.at_ms) // FIGURES_MAX)
        return list(zip(self.at_ms, self.values, strict=True))[::-1][::step][::-1]


class TopicLine(NamedTuple):
    """Holds the sparkline of one topic."""

    topic: str
    at_ms: Sequence[int]
    records: Sequence[int]
    # None where the age of no first unread record was known.
    seconds_most: float | None


async def lag_history(view: View, group: str, *, raises_unavailable: bool = False) -> Mapping[str, Any] | None:
    """Returns the history of a group; None where the broker does not know it.

    Raises ApiRefused for a group that is not there, without credentials, and with `raises_unavailable` where no answer came.
    """
    try:
        found: Mapping[str, Any] = await view.api.get("v1", "groups", group, "lag-history")
    except ApiRefused as error:
        if error.status in {401, 404} or (raises_unavailable and error.status == UNAVAILABLE):
            raise
        return None
    return found


def present_lag(history: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns the lag of the newest sample; None if there is none, or it is old."""
    if history is None or history["age_ms"] is None or history["age_ms"] > GAP_INTERVALS * history["interval_ms"]:
        return None
    return {"lag_records": history["lag_records"][-1], "lag_seconds": history["lag_seconds"][-1]}


def lag_charts(history: Mapping[str, Any]) -> dict[str, LagChart]:
    """Returns the charts of records and seconds that have two samples at least."""
    charts = {
        "records": lag_chart("Records behind", history["at_ms"], history["lag_records"], history["interval_ms"]),
        "seconds": lag_chart("Time behind", history["at_ms"], history["lag_seconds"], history["interval_ms"]),
    }
    return {kind: chart for kind, chart in charts.items() if chart is not None}


def lag_chart(title: str, at_ms: Sequence[int], values: Sequence[float | None], interval_ms: int) -> LagChart | None:
    """Returns a chart of the known values; None for fewer than two of them."""
    known = [(at, value) for at, value in zip(at_ms, values, strict=True) if value is not None]
    if len(known) < 2:
        return None
    drawn_at_s: list[float] = []
    drawn: list[float | str] = []
    last_ms = known[0][0]
    for at, value in known:
        if at - last_ms > GAP_INTERVALS * interval_ms:
            drawn_at_s.append((last_ms + 1) / 1000)
            drawn.append(BREAK)
        drawn_at_s.append(at / 1000)
        drawn.append(value)
        last_ms = at
    return LagChart(title, [at for at, _ in known], [value for _, value in known], drawn_at_s, drawn)


def known_topics(history: Mapping[str, Any]) -> list[TopicLine]:
    """Returns the topics of a history with the samples in which the group read them, for a sparkline each."""
    shown = []
    for topic in history["topics"]:
        known = [(at, value) for at, value in zip(history["at_ms"], topic["lag_records"], strict=True) if value is not None]
        seconds = [value for value in topic["lag_seconds"] if value is not None]
        shown.append(TopicLine(topic["topic"], [at for at, _ in known], [value for _, value in known], max(seconds, default=None)))
    return shown
