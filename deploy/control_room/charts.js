// The control room's charts; one script with room.js, which has what they show.
// SVG in the page's own pixels, so that its texts stay legible at any width

const HEIGHT = 104, LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 20;

const shape = (tag, attributes, ...text) => filled(document.createElementNS(SVG, tag), attributes, text);

function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step * power >= value);
}

class Chart {
  constructor(id, title, unit, draw) {
    this.figure = at(id);
    this.draw = draw;
    this.value = element("span", { class: "value" });
    this.svg = shape("svg", { role: "img", height: HEIGHT });
    this.svg.setAttribute("aria-label", `${title}, ${unit}`);
    this.figure.append(element("figcaption", {}, element("span", {}, title, element("span", { class: "quiet" }, `  ${unit}`)), this.value), this.svg);
    this.figure.addEventListener("pointermove", (event) => {
      const box = this.svg.getBoundingClientRect();
      const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
      hover_s = share >= 0 && share <= 1 ? wall() - span_s * (1 - share) : null;
      drawCharts();
    });
    this.figure.addEventListener("pointerleave", () => { hover_s = null; drawCharts(); });
  }

  begin(end_s, top, label = (value) => number(value)) {
    this.width = Math.max(200, this.svg.clientWidth || this.figure.clientWidth);
    this.end_s = end_s;
    this.top = top;
    this.svg.replaceChildren();
    for (const value of [0, top / 2, top]) {
      const y = this.y(value);
      this.add("line", { class: value ? "grid" : "axis", x1: LEFT, x2: this.width - RIGHT, y1: y, y2: y });
      this.add("text", { x: LEFT - 7, y: y + 4, "text-anchor": "end" }, label(value));
    }
    const step_s = span_s / (this.width < 420 ? 2 : 5);
    for (let ago_s = span_s; ago_s >= 0; ago_s -= step_s) {
      const text = ago_s < 1 ? "now" : ago_s < 60 ? `−${Math.round(ago_s)} s` : `−${number(ago_s / 60)} min`;
      const anchor = ago_s < 1 ? "end" : ago_s === span_s ? "start" : "middle";
      this.add("text", { x: this.x(end_s - ago_s), y: HEIGHT - 4, "text-anchor": anchor }, text);
    }
    for (const each of decisions) {
      if (each.outcome !== "applied" || each.wall_s < end_s - span_s || each.from_mode === each.to_mode) continue;
      const x = this.x(each.wall_s);
      this.add("line", { class: `mark ${each.to_mode}`, x1: x, x2: x, y1: TOP - 4, y2: HEIGHT - BOTTOM });
    }
  }

  end() {
    if (hover_s === null) return;
    const x = this.x(hover_s);
    this.add("line", { class: "cursor", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM });
  }

  x(wall_s) { return LEFT + (this.width - LEFT - RIGHT) * (1 - (this.end_s - wall_s) / span_s); }
  y(value) { return TOP + (HEIGHT - TOP - BOTTOM) * (1 - Math.min(value, this.top) / this.top); }
  add(tag, attributes, ...text) { this.svg.append(shape(tag, attributes, ...text)); }

  // A line through what is known; a gap where nothing is, or where the samples have one.
  line(shown, pick) {
    let path = "", area = "", from = null, last = null;
    const close = () => { if (from !== null) area += `L${last},${this.y(0)}L${from},${this.y(0)}Z`; from = null; };
    for (const sample of shown) {
      const value = pick(sample);
      if (value === null || sample.span_s === null || sample.span_s > 5) close();
      if (value === null) continue;
      const point = `${this.x(sample.wall_s).toFixed(1)},${this.y(value).toFixed(1)}`;
      path += (from === null ? "M" : "L") + point;
      area += (from === null ? "M" : "L") + point;
      last = this.x(sample.wall_s).toFixed(1);
      from ??= last;
    }
    close();
    this.add("path", { class: "area", d: area });
    this.add("path", { class: "series", d: path });
  }

  limit(value) {
    const y = this.y(value);
    this.add("line", { class: "limit", x1: LEFT, x2: this.width - RIGHT, y1: y, y2: y });
    this.add("text", { class: "limit", x: LEFT + 5, y: y - 4 }, `objective ${number(value)} ms`);
  }
}

const most = (shown, pick, least) => ceiling(Math.max(least, ...shown.map((each) => pick(each) ?? 0)));

function simple(pick, least, unit, limit = () => null) {
  return (chart, shown, current, end_s) => {
    const objective = limit();
    chart.begin(end_s, most(shown, pick, Math.max(least, objective === null ? 0 : 1.25 * objective)));
    chart.line(shown, pick);
    if (objective !== null) chart.limit(objective);
    const value = current ? pick(current) : null;
    return value === null ? "–" : `${number(value)} ${unit}`;
  };
}

function precision(chart, shown, current, end_s) {
  chart.begin(end_s, 100);
  const bins = 90, begin_s = end_s - span_s;
  const edge = (bin) => Math.round(LEFT + ((chart.width - LEFT - RIGHT) * bin) / bins);  // whole pixels: no seams
  const fp16 = new Array(bins).fill(0), fp8 = new Array(bins).fill(0);
  for (const sample of shown) {
    const bin = Math.floor(((sample.wall_s - begin_s) / span_s) * bins);
    if (bin < 0 || bin >= bins) continue;
    fp16[bin] += sample.tokens_fp16;
    fp8[bin] += sample.tokens_fp8;
  }
  const full = HEIGHT - TOP - BOTTOM;
  for (let bin = 0; bin < bins; bin += 1) {
    const total = fp16[bin] + fp8[bin];
    if (!total) continue;
    const exact = (full * fp16[bin]) / total, x = edge(bin), width = edge(bin + 1) - x;
    if (exact > 0) chart.svg.prepend(shape("rect", { class: "fp16", x, y: TOP + full - exact, width, height: exact }));
    if (exact < full) chart.svg.prepend(shape("rect", { class: "fp8", x, y: TOP, width, height: full - exact }));
  }
  const total = current ? current.tokens_fp16 + current.tokens_fp8 : 0;
  return total ? `${percent(current.tokens_fp16, total)} FP16` : "no tokens";
}

const charts = [
  new Chart("chart-load", "Load", "requests/s", simple((each) => each.arrivals_per_s, 1, "requests/s")),
  new Chart("chart-queue", "Queue", "requests waiting", simple((each) => each.waiting, 4, "waiting")),
  new Chart("chart-ttft", "Time to first token", "p90, ms", simple((each) => each.ttft_p90_ms, 10, "ms", () => status?.slo_ttft_ms ?? null)),
  new Chart("chart-precision", "Precision", "% of tokens", precision),
];

function drawCharts() {
  const end_s = wall(), shown = samples.filter((each) => each.wall_s >= end_s - span_s);
  const wanted_s = hover_s ?? end_s;
  const current = shown.findLast((each) => each.wall_s <= wanted_s + 0.5) ?? null;
  for (const chart of charts) {
    chart.value.textContent = chart.draw(chart, shown, current, end_s) + (hover_s === null ? "" : ` at ${clock(hover_s)}`);
    chart.end();
  }
}
