// The elections timeline: a row for each node, coloured by how much of the cluster it led, with marks; a mark lists its events.
import { clock, NOTHING } from "./format.js";

const PLACES = 120;
const ORDER = ["unclean", "offline", "fenced", "election", "isr", "restart", "upgrade", "other"];
const WORDS = {
  unclean: "unclean election", offline: "partition offline", fenced: "fenced", election: "election", isr: "ISR change",
  restart: "restart", upgrade: "upgrade", other: "other",
};
const SIGNS = { unclean: "!", offline: "×", fenced: "‖", election: "▲", isr: "●", restart: "↻", upgrade: "⇧", other: "·" };

export class Timeline {
  constructor(place, list) {
    this.place = place;
    this.list = list;
    this.rows = new Map();
    this.legend();
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close();
    });
  }

  // Empties the list of events. The focus goes back to the mark that opened it.
  close() {
    if (!this.list.childElementCount) return;
    this.list.replaceChildren();
    this.opener?.focus();
  }

  async load(step, span) {
    this.step = step;
    this.span = span;
    this.led = new Map();
    this.marks = new Map();
    const answer = await fetch(`/api/timeline.json?step=${step}`);
    this.take(await answer.json());
  }

  take(found) {
    this.nodes = found.nodes;
    for (const [node, told] of Object.entries(found.led)) {
      const led = this.led.get(node) ?? new Map();
      told.led.forEach((count, number) => led.set(told.first + number * found.step, count));
      this.led.set(node, led);
    }
    for (const [second, node, mark, count] of found.marks) this.marks.set(`${second} ${node}`, { second, node, mark, count });
    this.draw();
  }

  legend() {
    const made = document.createElement("p");
    made.className = "legend marks";
    for (const mark of ORDER.slice(0, -1)) {
      const one = document.createElement("span");
      const sign = document.createElement("i");
      sign.className = `mark is-${mark}`;
      sign.textContent = SIGNS[mark];
      one.append(sign, ` ${WORDS[mark]}`);
      made.append(one);
    }
    this.body = document.createElement("div");
    this.body.className = "rows";
    this.place.append(made, this.body);
  }

  // What lies beyond the window is forgotten; the window ends with the newest second that any node has told.
  prune() {
    let end = 0;
    for (const led of this.led.values()) for (const second of led.keys()) end = Math.max(end, second);
    for (const { second } of this.marks.values()) end = Math.max(end, second);
    this.end = end + this.step;
    this.begin = this.end - this.span;
    for (const led of this.led.values()) for (const second of led.keys()) if (second < this.begin) led.delete(second);
    for (const [key, { second }] of this.marks) if (second < this.begin) this.marks.delete(key);
  }

  draw() {
    this.prune();
    const anyone = [...this.marks.values()].some(({ node }) => node === "");
    const names = [...this.nodes, ...(anyone ? [""] : [])];
    for (const [name, row] of this.rows) {
      if (!names.includes(name)) {
        row.line.remove();
        this.rows.delete(name);
      }
    }
    let most = 1;
    for (const led of this.led.values()) for (const count of led.values()) most = Math.max(most, count ?? 0);
    names.forEach((name) => this.drawRow(name, most));
  }

  row(name) {
    let row = this.rows.get(name);
    if (!row) {
      const line = document.createElement("div");
      const title = document.createElement("span");
      const track = document.createElement("div");
      const canvas = document.createElement("canvas");
      line.className = "row";
      title.className = "name";
      title.textContent = name || "cluster";
      track.className = "track";
      track.append(canvas);
      line.append(title, track);
      this.body.append(line);
      row = { line, track, canvas, buttons: new Map() };
      this.rows.set(name, row);
    }
    return row;
  }

  drawRow(name, most) {
    const row = this.row(name);
    this.paint(row.canvas, this.led.get(name) ?? new Map(), most);
    const wide = this.span / PLACES;
    const places = new Map();
    for (const one of this.marks.values()) {
      if (one.node !== name) continue;
      const at = Math.floor(one.second / wide) * wide;
      const there = places.get(at) ?? { mark: "other", count: 0 };
      const worse = ORDER.indexOf(one.mark) < ORDER.indexOf(there.mark);
      places.set(at, { mark: worse ? one.mark : there.mark, count: there.count + one.count });
    }
    for (const [at, button] of row.buttons) {
      if (!places.has(at)) {
        button.remove();
        row.buttons.delete(at);
      }
    }
    for (const [at, { mark, count }] of places) {
      let button = row.buttons.get(at);
      if (!button) {
        button = document.createElement("button");
        button.type = "button";
        button.addEventListener("click", () => {
          this.opener = button;
          this.tell(name, at, wide);
        });
        row.track.append(button);
        row.buttons.set(at, button);
      }
      button.className = `mark is-${mark}`;
      button.textContent = SIGNS[mark];
      button.title = `${WORDS[mark]}${count > 1 ? ` and more, ${count} in all` : ""}, ${clock(at)} UTC`;
      button.setAttribute("aria-label", `${name || "cluster"}: ${button.title}`);
      button.style.left = `${Math.min(100, Math.max(0, ((at + wide / 2 - this.begin) / this.span) * 100))}%`;
    }
  }

  // The part of the width that a second has is filled as strongly as the node led; a gap is left empty.
  paint(canvas, led, most) {
    const width = (canvas.width = Math.max(1, canvas.clientWidth * devicePixelRatio));
    const height = (canvas.height = Math.max(1, canvas.clientHeight * devicePixelRatio));
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, width, height);
    context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--line-a").trim();
    const each = (width * this.step) / this.span;
    const seconds = [...led.keys()].sort((a, b) => a - b);
    for (let at = 0; at < seconds.length; ) {
      const count = led.get(seconds[at]);
      let end = at + 1; // as far as it led as much without a gap: one piece
      while (end < seconds.length && led.get(seconds[end]) === count && seconds[end] === seconds[end - 1] + this.step) end += 1;
      const x = Math.round(((seconds[at] - this.begin) / this.span) * width);
      const wide = Math.round(((seconds[end - 1] - this.begin) / this.span) * width + each) - x;
      at = end;
      if (count === null) continue;
      context.globalAlpha = count ? 0.3 + 0.5 * (count / most) : 0.25;
      context.fillRect(x, count ? 0 : Math.round(height * 0.44), wide, count ? height : Math.round(height * 0.12));
    }
  }

  // Lists the events around a moment, and moves the focus there.
  async show(moment) {
    await this.tell("", moment - 5, 15);
    this.list.tabIndex = -1;
    this.list.focus();
    this.list.scrollIntoView({ block: "center" });
  }

  async tell(name, at, wide) {
    const only = name ? `&node=${encodeURIComponent(name)}` : "";
    const answer = await fetch(`/api/events.json?since=${at}&until=${at + wide}${only}`);
    const { page } = await answer.json();
    const title = document.createElement("h3");
    title.textContent = `${name || "cluster"}, ${clock(at)} to ${clock(at + wide)} UTC`;
    const items = document.createElement("ul");
    for (const event of page.events.slice(0, 40)) {
      const item = document.createElement("li");
      const where = event.stream === undefined ? event.node ?? "" : `${event.stream}/${event.partition ?? ""}`;
      const change = event.was !== undefined || event.now !== undefined ? `${event.was || "none"} → ${event.now || "none"}` : "";
      item.textContent = [clock(event.time_ns / 1e9), String(event.kind).replaceAll("_", " "), where, change, event.detail ?? ""].join("  ").trim();
      items.append(item);
    }
    if (page.events.length > 40) {
      const more = document.createElement("li");
      more.textContent = `and ${page.count - 40} more`;
      items.append(more);
    }
    if (!page.events.length) title.textContent += ` ${NOTHING} nothing is known of it any more`;
    this.list.replaceChildren(title, items);
  }
}
