// Tables, figures and reasons: what the server wrote goes on with each object that comes. Names become text nodes, never markup.
import { figure, lookUp } from "./format.js";

function cell(column, row) {
  const made = document.createElement("td");
  const value = row[column.name];
  const text = figure(column.kind, value);
  if (column.kind !== "text") made.className = "number";
  if (column.link && value) {
    const link = document.createElement("a");
    link.href = `/${column.link}/${encodeURIComponent(value)}`;
    link.textContent = text;
    made.append(link);
  } else {
    made.textContent = text;
  }
  if ((column.name === "state" || column.name === "problem") && value) made.dataset.is = value;
  return made;
}

function line(columns, row) {
  const made = document.createElement("tr");
  made.append(...columns.map((column) => cell(column, row)));
  return made;
}

// Only cells whose text differs are touched: whoever reads with a screen reader, or has a link focused, is not disturbed.
function update(body, columns, rows) {
  while (body.rows.length > rows.length) body.rows[body.rows.length - 1].remove();
  rows.forEach((row, number) => {
    const wanted = line(columns, row);
    const there = body.rows[number];
    if (!there) {
      body.append(wanted);
      return;
    }
    [...wanted.cells].forEach((one, at) => {
      const old = there.cells[at];
      if (old.textContent !== one.textContent || old.dataset.is !== one.dataset.is) old.replaceWith(one);
    });
  });
}

export function fillTable(table, rows) {
  update(table.tBodies[0], JSON.parse(table.dataset.columns), rows);
}

function showReasons(list, reasons) {
  const wanted = reasons.map((reason) => {
    const item = document.createElement("li");
    const word = document.createElement("b");
    const text = document.createElement("span");
    const link = document.createElement("a");
    item.className = reason.stops ? "stops" : "todo";
    word.textContent = reason.word;
    text.textContent = reason.text;
    link.href = `/runbook/${encodeURIComponent(reason.runbook)}`;
    link.textContent = "runbook";
    item.append(word, " ", text, " ", link);
    if (reason.events.length) {
      const events = document.createElement("a");
      events.href = `/events?kind=${encodeURIComponent(reason.events[0])}`;
      events.textContent = "events";
      item.append(" ", events);
    }
    return item;
  });
  if (list.textContent !== wanted.map((one) => one.textContent).join("")) list.replaceChildren(...wanted);
}

const SIGNS = { OK: "ok", DEGRADED: "degraded" };

function put(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

export function show(found) {
  for (const element of document.querySelectorAll("[data-v]")) {
    const value = lookUp(found, element.dataset.v);
    put(element, figure(element.dataset.f, value));
    const count = element.closest("[data-bad]");
    if (count) count.classList.toggle("is-bad", Boolean(count.dataset.bad) && value > 0);
  }
  for (const table of document.querySelectorAll("table[data-rows]")) {
    const rows = lookUp(found, table.dataset.rows);
    if (Array.isArray(rows)) fillTable(table, rows);
  }
  put(document.getElementById("word"), found.cluster.word);
  put(document.getElementById("chip"), found.cluster.word);
  document.title = `${found.cluster.word} · ${document.title.split(" · ").slice(1).join(" · ")}`;
  document.body.dataset.sign = SIGNS[found.cluster.word] ?? "unavailable";
  const reasons = document.getElementById("reasons");
  if (reasons) showReasons(reasons, found.cluster.reasons);
  document.body.dataset.seq = found.seq;
}
