// Draws the charts of a page. Each has its figures as text as well, so the page is complete without this script.
"use strict";

const MINUTE_S = 60;
const HEIGHT = 180;
// Of the axis of time, from 10 seconds to a day.
const TICKS_S = [10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400];

// Of an axis that shows spans of time, from a tenth of a second to a month.
const SPANS_S = [0.1, 0.2, 0.5, 1, 2, 5, ...TICKS_S, 172800, 432000, 864000, 2592000];

function shownBytes(rate) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (rate >= 1024 && power < units.length - 1) {
    rate /= 1024;
    power += 1;
  }
  return (rate >= 100 || rate === 0 ? rate.toFixed(0) : rate.toPrecision(2)) + " " + units[power] + "/s";
}

function shownRecords(count) {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (count >= size) return Number((count / size).toPrecision(3)) + unit;
  return String(Number(count.toPrecision(3)));
}

function shownSpan(seconds) {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) if (seconds >= size) return Number((seconds / size).toPrecision(3)) + " " + unit;
  return Number(seconds.toPrecision(3)) + " s";
}

const SHOWN = { bytes: shownBytes, records: shownRecords, seconds: shownSpan };

function shownTime(seconds, withSeconds) {
  const options = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  if (withSeconds) options.second = "2-digit";
  return new Date(1000 * seconds).toLocaleTimeString([], options);
}

// The values of data-values, and their times: those of data-times, or minute by minute until now. "-" breaks the line.
function series(place) {
  const values = place.dataset.values.split(" ").map((text) => (text === "-" ? null : Number(text)));
  if (place.dataset.times) return [place.dataset.times.split(" ").map(Number), values];
  const now = Math.floor(Date.now() / 1000);
  return [values.map((_, index) => now - (values.length - 1 - index) * MINUTE_S), values];
}

function plot(place) {
  const drawn = series(place);
  const shown = SHOWN[place.dataset.unit || "bytes"];
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const withSeconds = drawn[0][drawn[0].length - 1] - drawn[0][0] < 5 * MINUTE_S;
  place.drawn?.destroy(); // a chart listens to the window until then
  place.replaceChildren();
  place.drawn = new uPlot(
    {
      width: place.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      cursor: { show: false },
      scales: { y: { range: (_, least, most) => [0, most > 0 ? most * 1.1 : 1] } },
      axes: [{ ...axis, space: 80, incrs: TICKS_S, values: (_, ticks) => ticks.map((tick) => shownTime(tick, withSeconds)) }, { ...axis, size: 84, ...(place.dataset.unit === "seconds" ? { incrs: SPANS_S } : {}), values: (_, ticks) => ticks.map(shown) }],
      series: [{}, { stroke: color("--accent"), width: 2, points: { show: false } }],
    },
    drawn,
    place,
  );
}

const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) target.drawn.setSize({ width: target.clientWidth, height: HEIGHT });
});

function plotAll(root) {
  for (const place of root.querySelectorAll(".plot")) {
    if (place.drawn) continue;
    plot(place);
    resized.observe(place);
  }
}

document.addEventListener("DOMContentLoaded", () => {
  plotAll(document);
  document.getElementById("theme").addEventListener("click", () => {
    for (const place of document.querySelectorAll(".plot")) plot(place);
  });
});
document.addEventListener("htmx:beforeCleanupElement", (event) => {
  if (!event.target.drawn) return;
  resized.unobserve(event.target);
  event.target.drawn.destroy();
  delete event.target.drawn;
});
document.addEventListener("htmx:afterSettle", () => plotAll(document));
