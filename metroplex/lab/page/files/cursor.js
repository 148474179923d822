// Marks, cursor, zoom and keys of a Chart.
function redraw() {
  for (const chart of view.charts) chart.draw();
}

function setRange(range) {
  view.range = range && range[1] > range[0] ? range : null;
  view.onRange();
  redraw();
}

function setCursor(iteration) {
  view.cursor = iteration;
  for (const chart of view.charts) chart.drawCursor();
}

Object.assign(Chart.prototype, {
  drawMarks() {
    const {left, right, top, bottom, domain} = this.frame;
    const out = [];
    const inside = (list) => (list || []).filter((x) => x >= domain[0] && x <= domain[1]);
    const restarts = inside(this.marks.restarts);
    restarts.forEach((x, i) => {
      const px = this.toX(x), end = px > right - 50;
      out.push(make("line", {class: "restart", x1: px, x2: px, y1: top, y2: bottom}));
      if (this.full && (restarts.length <= 4 || i === 0)) {
        out.push(make("text", {class: "label", x: end ? px - 4 : px + 4, y: top + 8, "text-anchor": end ? "end" : "start"}, "restart"));
      }
    });
    for (const x of inside(this.marks.skipped)) {
      out.push(make("line", {class: "event", x1: this.toX(x), x2: this.toX(x), y1: bottom - 7, y2: bottom}));
    }
    const missing = this.curves.filter((curve) => curve.style !== "dashed")
      .flatMap((curve) => inside(curve.x.filter((_, i) => curve.y[i] === null)));
    for (const x of new Set(missing)) {
      const px = Math.max(left, this.toX(x));
      out.push(make("path", {class: "event", d: `M${px - 3} ${top - 4}h6l-3 5z`}));
    }
    return out;
  },

  drawCursor() {
    if (!this.frame) return;
    const {left, right, top, bottom, domain} = this.frame;
    const at = view.cursor !== null && view.cursor >= domain[0] && view.cursor <= domain[1] ? view.cursor : null;
    this.curves.forEach((curve, i) => {
      const index = at === null ? curve.x.length - 1 : nearest(curve, at);
      const isFar = at !== null && Math.abs(curve.x[index] - at) > (domain[1] - domain[0]) / 8;
      this.values[i].textContent = isFar ? "\u2013" : format(curve.y[index], 5);
    });
    const main = this.curves[0];
    this.svg.setAttribute("aria-label", `${this.title}, iterations ${count(Math.round(domain[0]))} to ${count(Math.round(domain[1]))}, ` +
      (at === null ? "last value " : `at iteration ${count(Math.round(at))} `) + this.values[0].textContent);
    this.overlay.replaceChildren();
    if (this.drag) {
      const [a, b] = [this.drag.from, this.drag.to].sort((p, q) => p - q);
      this.overlay.append(make("rect", {class: "selection", x: a, y: top, width: b - a, height: bottom - top}));
    }
    if (at === null) return;
    const iteration = main.x[nearest(main, at)], x = this.toX(iteration);
    if (x < left || x > right) return;
    const anchor = x > right - 40 ? "end" : x < left + 40 ? "start" : "middle";
    this.overlay.append(make("line", {class: "cursor", x1: x, x2: x, y1: top, y2: bottom}));
    for (const curve of this.curves.filter((curve) => curve.style !== "raw")) {
      const index = nearest(curve, at), y = this.scaled(curve.y[index]), px = this.toX(curve.x[index]);
      if (y !== null && Math.abs(px - x) <= (right - left) / 8) this.overlay.append(make("circle", {cx: px, cy: this.toY(y), r: 3, fill: curve.color}));
    }
    this.overlay.append(make("text", {class: "label", x, y: bottom + 15, "text-anchor": anchor}, count(iteration)));
  },

  positionOf(event) {
    const {left, right} = this.frame;
    return Math.max(left, Math.min(right, event.clientX - this.svg.getBoundingClientRect().left));
  },

  toIteration(x) {
    const {left, right, domain} = this.frame;
    return domain[0] + (domain[1] - domain[0]) * (x - left) / (right - left);
  },

  listen() {
    const {svg} = this;
    svg.addEventListener("pointermove", (event) => {
      if (!this.frame) return;
      const x = this.positionOf(event);
      if (this.drag) this.drag.to = x;
      setCursor(this.toIteration(x));
    });
    svg.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !this.frame) return;
      svg.setPointerCapture(event.pointerId);
      this.drag = {from: this.positionOf(event), to: this.positionOf(event)};
    });
    svg.addEventListener("pointerup", () => this.endDrag());
    svg.addEventListener("pointercancel", () => {
      this.drag = null;
      setCursor(null);
    });
    svg.addEventListener("pointerleave", () => this.drag || setCursor(null));
    svg.addEventListener("dblclick", () => setRange(null));
    svg.addEventListener("keydown", (event) => this.onKey(event));
  },

  endDrag() {
    const drag = this.drag;
    this.drag = null;
    if (!drag) return;
    const [from, to] = [drag.from, drag.to].sort((a, b) => a - b);
    if (to - from < 5) return setCursor(view.cursor);
    setRange([this.toIteration(from), this.toIteration(to)]);
  },

  // Arrows move the cursor, + and - zoom, Escape resets.
  onKey(event) {
    const [low, high] = this.domain, span = high - low;
    const at = view.cursor ?? (event.key === "ArrowLeft" ? high : low);
    const zoom = (factor) => setRange([Math.max(at - span * factor / 2, 0), at + span * factor / 2]);
    const actions = {
      ArrowLeft: () => setCursor(Math.max(low, at - span / 100)),
      ArrowRight: () => setCursor(Math.min(high, at + span / 100)),
      "+": () => zoom(0.5),
      "-": () => zoom(2),
      Escape: () => setRange(null),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  },
});
