// The console works without this script. It shows times in the reader's zone, and switches the theme.
"use strict";

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

function showTimes(root) {
  for (const shown of root.querySelectorAll("time[data-ms]")) {
    if (shown.title) continue;
    const ms = Number(shown.dataset.ms);
    const moment = new Date(ms);
    if (Number.isNaN(moment.getTime())) continue;
    shown.title = shown.textContent;
    shown.dateTime = moment.toISOString();
    const local = new Date(ms - moment.getTimezoneOffset() * 60000).toISOString();
    shown.textContent = local.slice(0, 10) + " " + local.slice(11, shown.dataset.precise ? 23 : 19);
  }
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function nameThemeButton() {
  const button = document.getElementById("theme");
  if (button) button.textContent = isDark() ? "Light" : "Dark";
}

document.addEventListener("DOMContentLoaded", () => {
  showTimes(document);
  nameThemeButton();
  document.getElementById("zone").textContent = zone === "UTC" ? "times in UTC" : "times in " + zone + "; point at one for UTC";
  document.getElementById("theme").addEventListener("click", () => {
    const next = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    localStorage.setItem("tidelog-theme", next);
    nameThemeButton();
  });
});
document.addEventListener("htmx:afterSettle", () => showTimes(document));
// What a reader has opened stays as it is until it is closed again.
document.addEventListener("htmx:beforeRequest", (event) => {
  if (event.target.querySelector("details[open]")) event.preventDefault();
});

// ── the live tail ──────────────────────────────────────────────────────────────────────────────────────────────────────
const ROWS_MAX = 300;

function followTail(table) {
  const body = table.tBodies[0];
  const state = document.getElementById("tail-state");
  const pause = document.getElementById("pause");
  let source = null;
  let seen = 0;
  let leftOut = 0;

  function show(text) {
    state.textContent = text + " " + seen.toLocaleString() + " records came" + (leftOut ? ", " + leftOut.toLocaleString() + " of them too fast to show." : ".");
  }
  function open() {
    source = new EventSource(table.dataset.events);
    source.addEventListener("open", () => show("Live."));
    source.addEventListener("rows", (event) => {
      const data = JSON.parse(event.data);
      seen += data.seen;
      leftOut += data.left_out;
      const part = document.createElement("template");
      part.innerHTML = data.html; // rendered by the broker, which escapes each value
      showTimes(part.content);
      body.prepend(part.content);
      while (body.rows.length > ROWS_MAX) body.deleteRow(-1);
      show("Live.");
    });
    source.addEventListener("error", () => show("The connection is lost; the browser tries again."));
    pause.textContent = "Pause";
  }
  pause.hidden = false;
  pause.addEventListener("click", () => {
    if (source) {
      source.close();
      source = null;
      pause.textContent = "Go on";
      show("Paused.");
    } else open();
  });
  open();
}

document.addEventListener("DOMContentLoaded", () => {
  const table = document.getElementById("tail");
  if (table) followTail(table);
});

// ── what changes by itself ─────────────────────────────────────────────────────────────────────────────────────────────
// Replaces an element with data-refresh-ms by the one of the same id in the present page, until that has no data-refresh-ms.
function refresh(shown) {
  setTimeout(async () => {
    let next = null;
    try {
      const answer = await fetch(location.href);
      if (answer.ok) next = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(shown.id);
    } catch {
      // the broker does not answer: the next try follows
    }
    if (next && !shown.contains(document.activeElement)) {
      showTimes(next);
      shown.replaceWith(next);
      shown = next;
    }
    if (shown.dataset.refreshMs) refresh(shown);
  }, Number(shown.dataset.refreshMs));
}

document.addEventListener("DOMContentLoaded", () => {
  for (const shown of document.querySelectorAll("[data-refresh-ms]")) refresh(shown);
});
