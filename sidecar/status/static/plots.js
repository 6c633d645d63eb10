// The plots, by uPlot; the heat map is drawn into one. Colours come from the style sheet, so that dark and light are one place.
import { figure } from "./format.js";

const HEIGHT = 132;
const BANDS = 12;
const BAND_NAMES = ["0.5 ms", "1 ms", "2 ms", "4 ms", "8 ms", "16 ms", "32 ms", "64 ms", "128 ms", "256 ms", "512 ms", "more"];
const WHOLE = [1, 2, 5].flatMap((one) => [0, 1, 2, 3, 4, 5].map((power) => one * 10 ** power)).sort((a, b) => a - b);
const PLOTS = {
  records: { kind: "rate", lines: [["records_in", "in", "--line-a"], ["records_out", "out", "--line-b"]] },
  bytes: { kind: "bytes", lines: [["bytes_in", "in", "--line-a"], ["bytes_out", "out", "--line-b"]] },
  acks: { kind: "span", lines: [["ack_p50", "p50", "--line-a"], ["ack_p99", "p99", "--line-b"]] },
  heat: { kind: "rate", heat: true, lines: [] },
  flush: { kind: "span", lines: [["flush_p99", "p99", "--line-a"]] },
  lag: { kind: "span", lines: [["lag", "lag", "--line-a"]] },
  isr: {
    kind: "int",
    stacked: true,
    lines: [["isr_under_min", "under min_isr", "--bad"], ["isr_below", "below", "--warn"], ["isr_full", "full", "--line-a"]],
  },
  loop: { kind: "span", lines: [["loop_p99", "p99", "--line-a"]] },
  group_lag: { kind: "int", lines: [["lag_records", "records", "--line-a"]] },
  group_age: { kind: "span", lines: [["lag_s", "age", "--line-b"]] },
};

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function faint(name, part) {
  return `color-mix(in srgb, ${colour(name)} ${part}%, transparent)`;
}

// Each line stands on those before it; drawn from the top one down, so that the lower ones lie over it.
function stack(columns) {
  const sums = [];
  columns.forEach((column, number) => {
    sums.push(column.map((value, at) => (value === null ? null : value + (number ? sums[number - 1][at] ?? 0 : 0))));
  });
  return sums;
}

function heat(plot, series) {
  const bands = Array.from({ length: BANDS }, (_, number) => series().of(`acks_${number}`));
  const times = plot.data[0];
  const step = series().step;
  const context = plot.ctx;
  let most = 0;
  for (const band of bands) for (const value of band) most = Math.max(most, value ?? 0);
  if (!most) return;
  context.save();
  context.beginPath();
  context.rect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
  context.clip();
  context.fillStyle = colour("--line-a");
  const width = Math.max(1, plot.valToPos(times[0] + step, "x", true) - plot.valToPos(times[0], "x", true));
  for (let band = 0; band < BANDS; band += 1) {
    const top = plot.valToPos(band + 1, "y", true);
    const bottom = plot.valToPos(band, "y", true);
    for (let at = 0; at < times.length; at += 1) {
      const value = bands[band][at];
      if (!value) continue;
      context.globalAlpha = 0.15 + 0.85 * Math.sqrt(value / most);
      context.fillRect(plot.valToPos(times[at], "x", true), top, width + 0.5, bottom - top);
    }
  }
  context.restore();
}

// A dashed line at the moment of an event.
function line(plot, moment) {
  const { left, top, width, height } = plot.bbox;
  const x = plot.valToPos(moment, "x", true);
  if (!moment || x < left || x > left + width) return;
  const context = plot.ctx;
  context.save();
  context.strokeStyle = colour("--bad");
  context.lineWidth = 2;
  context.setLineDash([4, 4]);
  context.beginPath();
  context.moveTo(x, top);
  context.lineTo(x, top + height);
  context.stroke();
  context.restore();
}

function axes(spec) {
  const common = { stroke: colour("--quiet"), font: "11px system-ui, sans-serif", ticks: { show: false }, grid: { stroke: colour("--rule"), width: 1 } };
  const values = spec.heat
    ? (_, splits) => splits.map((at) => (BAND_NAMES[at] && Number.isInteger(at) ? BAND_NAMES[at] : ""))
    : (_, splits) => splits.map((value) => figure(spec.kind, value));
  return [
    { ...common, size: 24, space: 90, values: (_, splits) => splits.map((at) => new Date(at * 1000).toISOString().slice(11, 16)) },
    { ...common, size: 62, space: 30, values, ...(spec.heat ? { splits: () => [1, 3, 5, 7, 9, 11] } : {}), ...(spec.kind === "int" ? { incrs: WHOLE } : {}) },
  ];
}

function options(spec, width, series, sync, moment) {
  const lines = spec.stacked ? [...spec.lines].reverse() : spec.lines;
  return {
    width,
    height: HEIGHT,
    padding: [8, 20, 0, 0],
    legend: { show: false },
    cursor: { sync: { key: sync }, points: { size: 6 }, drag: { x: false, y: false } },
    scales: { x: { time: true, range: () => series().window() }, y: { range: spec.heat ? [0, BANDS] : (_, __, most) => [0, most > 0 ? most * 1.1 : 1] } },
    axes: axes(spec),
    series: [
      {},
      ...(spec.heat ? [{ show: false }] : lines.map(([, label, name]) => ({
        label,
        stroke: colour(name),
        width: spec.stacked ? 1 : 1.5,
        fill: spec.stacked ? faint(name, 45) : lines.length === 1 ? faint(name, 12) : undefined,
        spanGaps: false,
        points: { show: false },
      }))),
    ],
    hooks: { ...(spec.heat ? { drawClear: [(plot) => heat(plot, series)] } : {}), draw: [(plot) => line(plot, moment)] },
  };
}

function data(spec, series) {
  if (spec.heat) return [series.times, new Array(series.times.length).fill(null)];
  const columns = spec.lines.map(([name]) => series.of(name));
  return [series.times, ...(spec.stacked ? stack(columns).reverse() : columns)];
}

// One line of words under the title: what the cursor is at, else the newest values.
function words(spec, series, at) {
  if (spec.heat) return "each column a second, each row a latency";
  const parts = spec.lines.map(([name, label]) => {
    const column = series.of(name);
    let place = at;
    if ((place === null || place === undefined) && series.isOld()) return `${label} ${figure(spec.kind, null)}`;
    if (place === null || place === undefined) {
      place = column.length - 1;
      while (place > 0 && column[place] === null && column.length - place < 6) place -= 1;
    }
    return `${label} ${figure(spec.kind, column[place])}`;
  });
  return parts.join(" · ");
}

export class Plots {
  constructor(section, series, moment = 0) {
    this.series = series;
    this.moment = moment;
    this.plots = [];
    for (const place of section.querySelectorAll("figure[data-plot]")) {
      const spec = PLOTS[place.dataset.plot];
      const legend = document.createElement("p");
      legend.className = "legend";
      const box = document.createElement("div");
      box.className = "box";
      box.setAttribute("role", "img");
      place.append(legend, box);
      this.plots.push({ spec, place, legend, box, plot: null });
    }
    this.draw();
    new ResizeObserver(() => this.resize()).observe(section);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  draw() {
    for (const one of this.plots) {
      one.plot?.destroy();
      const made = options(one.spec, one.box.clientWidth || 280, () => this.series, "liftpy", this.moment);
      made.hooks.setCursor = [(plot) => { one.legend.textContent = words(one.spec, this.series, plot.cursor.idx); }];
      one.plot = new uPlot(made, data(one.spec, this.series), one.box);
      this.say(one);
    }
  }

  say(one) {
    const text = words(one.spec, this.series, one.plot.cursor.idx);
    one.legend.textContent = text;
    one.box.setAttribute("aria-label", `${one.place.querySelector("figcaption").textContent}: ${text}`);
  }

  use(series) {
    this.series = series;
    this.update();
  }

  update() {
    for (const one of this.plots) {
      one.plot.setData(data(one.spec, this.series));
      this.say(one);
    }
  }

  resize() {
    for (const one of this.plots) {
      const width = one.box.clientWidth;
      if (width && Math.abs(width - one.plot.width) > 1) one.plot.setSize({ width, height: HEIGHT });
    }
  }
}
