// What a page does: it shows what the server has written, then an object a second. Nothing here changes anything in the cluster.
import { clock } from "./format.js";
import { Plots } from "./plots.js";
import { Series } from "./series.js";
import { show } from "./tables.js";
import { Timeline } from "./timeline.js";

const SPANS = { 1: 600, 10: 14400 };
const ROW_STEP = 30; // seconds between two rows of a page's own history, at least ten minutes of which are shown
const view = document.body.dataset.view;
const asked = new URLSearchParams(location.search);
const after = asked.get("after");
const moment = Number(asked.get("at")) || 0; // seconds since 1970, from a link of an event
document.documentElement.classList.add("scripted");

const section = document.querySelector(".plots");
const timelinePlace = document.getElementById("timeline");
const live = document.getElementById("live");
let series = null;
let plots = null;
let timeline = null;
let step = 1;

async function use(wanted) {
  step = wanted;
  for (const button of document.querySelectorAll("[data-step]")) button.setAttribute("aria-pressed", String(Number(button.dataset.step) === step));
  if (section && !section.dataset.rows) {
    series = await Series.load(step, section.dataset.node);
    if (plots) plots.use(series);
    else plots = new Plots(section, series, moment);
  }
  if (timelinePlace) {
    timeline ??= new Timeline(timelinePlace, document.getElementById("at-mark"));
    await timeline.load(step, SPANS[step]);
  }
}

function heard(found) {
  show(found);
  if (section?.dataset.rows) {
    series = Series.ofRows(found.page[section.dataset.rows] ?? [], ROW_STEP, 600 / ROW_STEP, found.time_ms / 1000);
    if (plots) plots.use(series);
    else plots = new Plots(section, series, moment);
  } else if (step === 1 && plots) {
    series.now = found.time_ms / 1000;
    series.take(found.tail);
    plots.update();
  }
  if (step === 1 && timeline) timeline.take(found.timeline);
  live.textContent = `live, ${clock(found.time_ms / 1000)} UTC`;
  live.classList.remove("is-old");
}

function watch() {
  const source = new EventSource(`/api/live?view=${encodeURIComponent(view)}${after ? `&after=${encodeURIComponent(after)}` : ""}`);
  source.addEventListener("message", (event) => heard(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    live.textContent = "not live: this node does not answer";
    live.classList.add("is-old");
    if (source.readyState === EventSource.CLOSED) setTimeout(watch, 5000);
  });
  return source;
}

for (const button of document.querySelectorAll("[data-step]")) button.addEventListener("click", () => use(Number(button.dataset.step)));
await use(moment && Date.now() / 1000 - moment > SPANS[1] - 30 ? 10 : 1);
if (moment && timeline) await timeline.show(moment);
if (view !== "events" && view !== "search" && !view.startsWith("records/")) watch();
