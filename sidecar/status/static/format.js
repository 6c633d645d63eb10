// Figures in words, as liftpy/core/observe/page_model.py writes them; a test compares the two.
const UNITS = ["", " k", " M", " G", " T"];
export const NOTHING = "–";

function round(value, digits) {
  const scale = 10 ** digits;
  return Math.floor(value * scale + 0.5) / scale;
}

function grouped(value, digits = 0) {
  const [whole, part] = round(value, digits).toFixed(digits).split(".");
  const text = whole.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
  return part === undefined ? text : `${text}.${part}`;
}

function unit(value, name) {
  let number = 0;
  while (number < UNITS.length - 1 && value >= 999.5) {
    value /= 1000;
    number += 1;
  }
  const digits = number === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  const text = round(value, digits).toFixed(digits) + UNITS[number];
  return number ? text + name : `${text} ${name}`.trim();
}

function span(value) {
  if (value >= 0.9995) return `${grouped(value, 1)} s`;
  const ms = value * 1000;
  if (!ms) return "0 ms";
  const digits = ms < 9.995 ? 2 : ms < 99.95 ? 1 : 0;
  return `${round(ms, digits).toFixed(digits)} ms`;
}

function age(value) {
  const minutes = Math.floor(value / 60);
  if (minutes < 1) return `${Math.floor(value)} s`;
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

export function figure(kind, value) {
  if (value === null || value === undefined || value === "") return NOTHING;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "object") return NOTHING;
  if (kind === "text" || typeof value === "string") return String(value);
  if (kind === "int") return grouped(value);
  if (kind === "rate") {
    if (value > 0 && value < 9.95) return round(value, 1).toFixed(1);
    return value < 99999.5 ? grouped(value) : unit(value, "");
  }
  if (kind === "bytes") return unit(value, "B");
  if (kind === "span") return span(value);
  if (kind === "share") return `${round(value * 100, 0).toFixed(0)} %`;
  return age(value);
}

export function lookUp(found, path) {
  for (const name of path.split(".")) {
    found = found !== null && typeof found === "object" && !Array.isArray(found) && Object.hasOwn(found, name) ? found[name] : null;
  }
  return found;
}

export function clock(second) {
  return new Date(second * 1000).toISOString().slice(11, 19);
}
