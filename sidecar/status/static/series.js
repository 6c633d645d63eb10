// A history as the server sends it: 32 bit numbers, one series behind the other; NaN, which uPlot wants as null, is a gap.
const OLD_AFTER = 10;

export class Series {
  constructor(step, most) {
    this.step = step;
    this.most = most;
    this.now = 0;
    this.times = [];
    this.columns = new Map();
  }

  static async load(step, node) {
    const answer = await fetch(`/api/history.json?step=${step}&node=${encodeURIComponent(node)}`);
    const made = new Series(step, step === 1 ? 600 : 1440);
    made.take(await answer.json());
    return made;
  }

  // Rows {at, name: value, ...}, each a multiple of `step` seconds after the one before. Missing ones are gaps.
  static ofRows(rows, step, least, now) {
    const first = rows.length ? rows[0].at : 0;
    const count = rows.length ? (rows[rows.length - 1].at - first) / step + 1 : 0;
    const made = new Series(step, Math.max(count, least));
    made.now = now;
    made.times = Array.from({ length: count }, (_, number) => first + number * step);
    for (const row of rows) {
      for (const [name, value] of Object.entries(row)) {
        if (!made.columns.has(name)) made.columns.set(name, new Array(count).fill(null));
        made.columns.get(name)[(row.at - first) / step] = value;
      }
    }
    return made;
  }

  // What comes again replaces what was there: nodes answer at different moments.
  take(rows) {
    if (!rows.count) return;
    const bytes = Uint8Array.from(atob(rows.data), (letter) => letter.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    const end = rows.first + rows.count * this.step;
    if (this.times.length && (end <= this.times[0] || rows.first - this.last() > this.most * this.step)) {
      this.times = []; // a clock has jumped
      this.columns.clear();
    }
    const oldest = this.times.length ? this.times[0] : rows.first;
    for (let number = 0; number < rows.count; number += 1) {
      const time = rows.first + number * this.step;
      let place = (time - oldest) / this.step;
      if (place < 0) continue;
      while (this.times.length <= place) {
        this.times.push(oldest + this.times.length * this.step);
        for (const column of this.columns.values()) column.push(null);
      }
      rows.series.forEach((name, at) => {
        if (!this.columns.has(name)) this.columns.set(name, new Array(this.times.length).fill(null));
        const value = view.getFloat32(4 * (at * rows.count + number), true);
        this.columns.get(name)[place] = Number.isNaN(value) ? null : value;
      });
    }
    const beyond = this.times.length - this.most;
    if (beyond > 0) {
      this.times.splice(0, beyond);
      for (const column of this.columns.values()) column.splice(0, beyond);
    }
  }

  last() {
    return this.times.length ? this.times[this.times.length - 1] : 0;
  }

  // Whether nothing has come for a while: the node does not answer.
  isOld() {
    return this.now - this.last() > OLD_AFTER * this.step;
  }

  // The whole time that is shown, as gaps where nothing is known.
  window() {
    const end = this.isOld() ? this.now : this.last();
    return [end - (this.most - 1) * this.step, end];
  }

  of(name) {
    return this.columns.get(name) ?? new Array(this.times.length).fill(null);
  }
}
