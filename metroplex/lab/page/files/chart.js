// Curves over iterations, as SVG. All charts of the page share the zoomed range and the cursor.
const view = {charts: [], range: null, cursor: null, onRange: () => {}};
const kLargest = 1e300;  // larger values are drawn here, so that sums stay finite

function make(name, attributes = {}, ...children) {
  const isSvg = ["svg", "g", "path", "line", "rect", "text", "clipPath", "circle"].includes(name);
  const node = isSvg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

function format(value, digits = 4, isExponential = false) {
  if (value === null || value === undefined) return "\u2013";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e15 || size < 1e-3 || isExponential) return value.toExponential(digits - 2).replace(/\.?0*e\+?/, "e");
  for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= 10 * unit || (size >= unit && unit > 1e3)) return Number((value / unit).toPrecision(digits)) + letter;
  }
  return String(Number(value.toPrecision(digits)));
}
const count = (value) => value.toLocaleString("en");

// Round positions between low and high: multiples of 1, 2 or 5 times a power of ten.
function ticks(low, high, most) {
  const raw = (high - low) / most, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw) || 10 * power;
  const out = [];
  for (let i = Math.ceil(low / step); i * step <= high && out.length < 50; ++i) out.push(Number((i * step).toPrecision(12)));
  return out;
}

function logTicks(low, high, most) {  // exponents
  if (high - low < 1) return ticks(10 ** low, 10 ** high, most).filter((tick) => tick > 0).map(Math.log10);
  const step = Math.max(1, Math.ceil((high - low) / most));
  const out = [];
  for (let i = Math.ceil(low); i <= high; i += step) out.push(i);
  return out;
}

// Index of the first x that is not below `value`.
function lowerBound(x, value) {
  let low = 0, high = x.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

function nearest(curve, iteration) {
  const i = lowerBound(curve.x, iteration);
  if (i === 0) return 0;
  return i === curve.x.length || iteration - curve.x[i - 1] < curve.x[i] - iteration ? i - 1 : i;
}

class Chart {
  // curves: [{label, color, x, y, style}]; label null: not in the legend;
  // style: "curve", "raw" or "dashed". marks: {restarts, skipped}.
  constructor(parent, {title, unit = "", curves, marks = {}, height = 170, full = false, log = false, canLog = false}) {
    Object.assign(this, {title, curves, marks, height, full, log});
    this.number = view.charts.push(this);
    const head = make("div", {class: "head"}, make("h3", {}, title), make("span", {class: "unit"}, unit));
    if (canLog) head.append(this.logButton());
    this.legend = make("div", {class: "legend"});
    this.svg = make("svg", {class: "chart", role: "img", tabindex: 0, height});
    this.card = make("figure", {class: full ? "card full" : "card"}, head, this.legend, this.svg);
    parent.append(this.card);
    this.values = curves.map((curve) => this.addLegend(curve));
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  logButton() {
    const button = make("button", {type: "button", "aria-pressed": this.log}, "log");
    button.title = "logarithmic scale";
    button.addEventListener("click", () => {
      this.log = !this.log;
      button.setAttribute("aria-pressed", this.log);
      this.draw();
    });
    return button;
  }

  addLegend(curve) {
    const value = make("b");
    if (curve.label === null) return value;
    const mark = make("i", {class: {dashed: "dashed", raw: "thin"}[curve.style] || "", style: `color: ${curve.color}`});
    this.legend.append(make("span", {}, ...(curve.label ? [mark, curve.label + " "] : []), value));
    return value;
  }

  get domain() {
    if (view.range) return view.range;
    const ends = view.charts.flatMap((chart) => chart.curves.flatMap((curve) => [curve.x[0], curve.x.at(-1)]));
    const low = Math.min(...ends), high = Math.max(...ends);
    return low === high ? [low - 1, high + 1] : [low, high];
  }

  scaled(value) {
    if (value === null || (this.log && value <= 0)) return null;
    return this.log ? Math.log10(value) : Math.max(-kLargest, Math.min(kLargest, value));
  }

  // The points in the domain and one on each side; of more than two per pixel, the smallest and largest per pixel.
  visible(curve, [low, high], width) {
    const begin = Math.max(0, lowerBound(curve.x, low) - 1), end = Math.min(curve.x.length, lowerBound(curve.x, high) + 1);
    const points = [];
    const size = Math.max(1, Math.floor((end - begin) / width));
    for (let i = begin; i < end; i += size) {
      const bucket = [];
      for (let k = i; k < Math.min(i + size, end); ++k) bucket.push([curve.x[k], this.scaled(curve.y[k])]);
      if (size < 3) {
        points.push(...bucket);
        continue;
      }
      const finite = bucket.filter((point) => point[1] !== null).sort((a, b) => a[1] - b[1]);
      const chosen = finite.length ? [finite[0], finite.at(-1)] : [bucket[0]];
      points.push(...chosen.sort((a, b) => a[0] - b[0]));
    }
    return points;
  }

  draw() {
    const width = Math.floor(this.svg.clientWidth);
    if (width < 60) return;
    const domain = this.domain;
    const points = this.curves.map((curve) => this.visible(curve, domain, width));
    let low = Infinity, high = -Infinity;
    for (const [x, y] of points.flat()) {
      if (y === null || x < domain[0] || x > domain[1]) continue;
      low = Math.min(low, y);
      high = Math.max(high, y);
    }
    if (low > high) [low, high] = [0, 1];
    const pad = high > low ? (high / 2 - low / 2) * 0.1 : Math.abs(low) * 0.1 || 1;
    low -= pad;
    high += pad;
    const yTicks = this.log ? logTicks(low, high, this.height / 34) : ticks(low, high, this.height / 34);
    const labels = yTicks.map((tick) => this.log ? format(10 ** tick, 3) : format(tick, 6, Math.max(Math.abs(low), Math.abs(high)) < 0.01));
    const left = 12 + 6.3 * Math.max(2, ...labels.map((label) => label.length)), right = width - 8;
    const bottom = this.height - 20, top = 6;
    this.frame = {left, right, top, bottom, domain};
    this.toX = (x) => left + (right - left) * (x - domain[0]) / (domain[1] - domain[0]);
    this.toY = (y) => bottom - (bottom - top) * (y - low) / (high - low);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    this.svg.replaceChildren(...this.axes(yTicks, labels, width), this.drawCurves(points), ...this.drawMarks());
    this.overlay = make("g");
    this.svg.append(this.overlay);
    this.drawCursor();
  }

  axes(yTicks, labels, width) {
    const {left, right, top, bottom, domain} = this.frame;
    const out = [];
    yTicks.forEach((tick, i) => {
      const y = this.toY(tick);
      out.push(make("line", {class: "grid-line", x1: left, x2: right, y1: y, y2: y}),
               make("text", {x: left - 6, y: y + 4, "text-anchor": "end"}, labels[i]));
    });
    for (const tick of ticks(domain[0], domain[1], width / 80)) {
      if (tick !== Math.round(tick)) continue;
      const x = this.toX(tick), anchor = x > right - 24 ? "end" : x < left + 12 ? "start" : "middle";
      out.push(make("line", {class: "axis-line", x1: x, x2: x, y1: bottom, y2: bottom + 3}),
               make("text", {x, y: bottom + 15, "text-anchor": anchor}, format(tick, 6)));
    }
    out.push(make("line", {class: "axis-line", x1: left, x2: right, y1: bottom, y2: bottom}));
    const {left: x, top: y} = this.frame;
    const clip = make("clipPath", {id: `clip${this.number}`},
                      make("rect", {x, y: y - 4, width: right - x, height: bottom - top + 8}));
    return [clip, ...out];
  }

  drawCurves(points) {
    const group = make("g", {"clip-path": `url(#clip${this.number})`});
    this.curves.forEach((curve, i) => {
      let path = "", pen = "M";
      for (const [x, y] of points[i]) {
        if (y !== null) path += `${pen}${this.toX(x).toFixed(1)} ${this.toY(y).toFixed(1)}`;
        pen = y === null ? "M" : "L";
      }
      group.append(make("path", {class: curve.style === "raw" ? "raw" : "curve " + (curve.style || ""), stroke: curve.color, d: path}));
      if (curve.style === "raw" || points[i].length > this.svg.clientWidth / 12) return;
      for (const [x, y] of points[i]) {
        if (y !== null) group.append(make("circle", {cx: this.toX(x), cy: this.toY(y), r: 2.2, fill: curve.color}));
      }
    });
    return group;
  }
}
