// Draws the charts of a page. Each has its figures as text as well, so the page is complete without this script.
"use strict";

const MINUTE_S = 60;
const HEIGHT = 180;

function shownBytes(rate) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (rate >= 1024 && power < units.length - 1) {
    rate /= 1024;
    power += 1;
  }
  return (rate >= 100 || rate === 0 ? rate.toFixed(0) : rate.toPrecision(2)) + " " + units[power] + "/s";
}

function shownTime(seconds) {
  return new Date(1000 * seconds).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
}

function plot(place) {
  const values = place.dataset.values.split(" ").map(Number);
  const now = Math.floor(Date.now() / 1000);
  const times = values.map((_, index) => now - (values.length - 1 - index) * MINUTE_S);
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  place.replaceChildren();
  return new uPlot(
    {
      width: place.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      cursor: { show: false },
      scales: { y: { range: (_, least, most) => [0, most > 0 ? most * 1.1 : 1] } },
      axes: [{ ...axis, incrs: [1, 2, 5, 10].map((minutes) => minutes * MINUTE_S), values: (_, ticks) => ticks.map(shownTime) }, { ...axis, size: 84, values: (_, ticks) => ticks.map(shownBytes) }],
      series: [{}, { stroke: color("--accent"), width: 2, points: { show: false } }],
    },
    [times, values],
    place,
  );
}

document.addEventListener("DOMContentLoaded", () => {
  for (const place of document.querySelectorAll(".plot")) {
    let drawn = plot(place);
    new ResizeObserver(() => drawn.setSize({ width: place.clientWidth, height: HEIGHT })).observe(place);
    document.getElementById("theme").addEventListener("click", () => { drawn = plot(place); });
  }
});
