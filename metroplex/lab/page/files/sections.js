// Sections of the page, built from the numbers of page_data.cpp.
const data = JSON.parse(document.getElementById("data").textContent);
const runs = data.runs, several = runs.length > 1;
const color = (i) => `var(--c${i % 8})`;

const kCharts = {
  "learning-rate": {section: "training", title: "Learning rate"},
  "grad-norm": {section: "training", title: "Gradient norm", canLog: true},
  "loss-scale": {section: "training", title: "Loss scale", canLog: true, log: true, hidesConstant: true},
  "batch-size": {section: "training", title: "Global batch size", unit: "samples", hidesConstant: true},
  "params-norm": {section: "training", title: "Parameter norm"},
  "num-zeros": {section: "training", title: "Zero gradients"},
  "tokens-per-second": {section: "speed", title: "Throughput", unit: "tokens/s"},
  "throughput": {section: "speed", title: "Compute", unit: "TFLOP/s per GPU"},
  "iteration-time": {section: "speed", title: "Time of a step", unit: "s", canLog: true},
};

function body(section) {
  const node = document.getElementById(section);
  node.hidden = false;
  return node.querySelector(".body");
}

// The curves of a metric: single values thin, their average on top.
function curvesOf(metric, label, paint = color) {
  return (data.metrics[metric] || []).flatMap((curve, i) => {
    if (!curve) return [];
    const name = several ? runs[i].name : label;
    if (!curve.smooth) return [{label: name, color: paint(i), x: curve.x, y: curve.y}];
    const single = {label: several ? null : "single steps", color: paint(i), x: curve.x, y: curve.y, style: "raw"};
    return [single, {label: several ? name : `average of ${count(curve.window)}`, color: paint(i), ...curve.smooth}];
  });
}

function marksOf(withSkipped) {
  return {restarts: runs.flatMap((run) => run.restarts), skipped: withSkipped ? runs.flatMap((run) => run.skipped.x) : []};
}

function lossChart() {
  const splits = ["validation", "test"].flatMap((split, k) =>
    curvesOf(split + " loss", split, (i) => color(several ? i : k + 1))
      .map((curve) => ({...curve, label: several ? `${curve.label} ${split}` : split, style: "dashed"})));
  const training = curvesOf("lm loss", "training");
  if (training.length + splits.length === 0) return;
  new Chart(body("training"), {title: "Loss", unit: "per token", curves: [...training, ...splits], marks: marksOf(true), height: 300,
                               full: true, canLog: true});
}

function isConstant(metric) {
  const values = data.metrics[metric].flatMap((curve) => curve ? curve.y : []);
  return values.every((value) => value === values[0]);
}

function curveSections() {
  lossChart();
  const losses = ["lm loss", "validation loss", "test loss", "consumed_samples"];
  const others = Object.keys(data.metrics).filter((name) => !losses.includes(name) && !kCharts[name]);
  const known = Object.keys(kCharts).filter((name) => data.metrics[name]);
  const hidden = (name) => kCharts[name]?.hidesConstant && isConstant(name) && !(name === "loss-scale" && runs.some((run) => run.skipped.count));
  for (const name of [...known, ...others].filter((candidate) => !hidden(candidate))) {
    const spec = kCharts[name] || {section: "training", title: name, canLog: true};
    new Chart(body(spec.section), {...spec, curves: curvesOf(name, ""), marks: marksOf(name === "loss-scale")});
  }
}

function summaryCells(run) {
  const start = run.start || {};
  return [
    ["Iteration", run.iteration === null ? "\u2013" : count(run.iteration)],
    ["Loss", format(run.loss, 5)],
    run.validation !== null && ["Validation loss", format(run.validation, 5)],
    ["Tokens/s", format(run.tokens_per_second, 4)],
    ["TFLOP/s/GPU", format(run.tflops, 4)],
    run.samples !== null && ["Samples", format(run.samples, 6)],
    ["Skipped steps", count(run.skipped.count)],
    run.not_finite > 0 && ["Loss not finite", count(run.not_finite)],
    ["Restarts", count(run.restarts.length)],
    start.world_size && ["Ranks", `${count(start.world_size)}`, [start.launch, start.device].filter(Boolean).join(", ")],
  ];
}

function summarySection() {
  const cells = runs.map(summaryCells);
  if (!several) {
    const tiles = cells[0].filter(Boolean).map(([name, value, note]) =>
      make("div", {}, make("dt", {}, name), make("dd", {}, value, ...(note ? [make("small", {}, " " + note)] : []))));
    body("summary").append(make("dl", {class: "card tiles"}, ...tiles));
    return;
  }
  const used = cells[0].map((_, i) => i).filter((i) => cells.some((row) => row[i]));
  const titles = used.map((i) => cells.find((row) => row[i])[i][0]);
  const rows = runs.map((run, r) => make("tr", {},
    make("th", {scope: "row"}, make("i", {class: "swatch", style: `color: ${color(r)}`}), run.name),
    ...used.map((i) => make("td", {class: "number"}, cells[r][i] ? cells[r][i][1] : "\u2013"))));
  const head = ["Run", ...titles].map((title, i) => make("th", {scope: "col", class: i ? "number" : null}, title));
  body("summary").append(make("div", {class: "card scroll"},
    make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows))));
}

function seconds(value) {
  if (value === null) return "\u2013";
  return value >= 1 ? format(value, 3) + " s" : value >= 1e-3 ? format(value * 1e3, 3) + " ms" : format(value * 1e6, 3) + " \u00b5s";
}

function bytes(value) {
  if (value === null) return "\u2013";
  const [unit, name] = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]].find(([size]) => value >= size) || [1, "B"];
  return format(value / unit, 3) + " " + name;
}

function barsCard(title, run, where, bars, text, total) {
  const shown = bars.filter((bar) => bar.predicted || bar.measured);
  const largest = Math.max(...shown.flatMap((bar) => [bar.predicted || 0, bar.measured || 0]));
  const track = (kind, value) => value === null ? [] : [make("div", {class: kind, style: `width: ${100 * value / largest}%`})];
  const hasMeasured = shown.some((bar) => bar.measured !== null);
  const rows = shown.map((bar) => {
    const both = bar.predicted && bar.measured !== null;
    const difference = both ? `${bar.measured >= bar.predicted ? "+" : "\u2212"}${format(Math.abs(100 * (bar.measured / bar.predicted - 1)), 2)} %` : "";
    return make("tr", {class: bar.name === total ? "total" : null}, make("th", {scope: "row"}, bar.name),
      make("td", {class: "track"}, ...track("predicted-bar", bar.predicted), ...track("measured-bar", bar.measured)),
      make("td", {class: "number"}, text(bar.predicted)), ...(hasMeasured ? [text(bar.measured), difference] : []).map((words) => make("td", {class: "number"}, words)));
  });
  const legend = make("div", {class: "legend"}, make("span", {}, make("i", {class: "block predicted-bar", style: "border: 1px solid var(--c0); background: none"}), "predicted"),
    ...(hasMeasured ? [make("span", {}, make("i", {class: "block", style: "background: var(--c1)"}), "measured")] : []));
  const head = ["", "", "predicted", ...(hasMeasured ? ["measured", "difference"] : [])].map((name, i) => make("th", {scope: "col", class: i > 1 ? "number" : null}, name));
  const name = make("h3", {}, title + (several ? " of " + runs[run].name : ""));
  body("prediction").append(make("figure", {class: "card"}, make("div", {class: "head"}, name, make("span", {class: "unit"}, where)), legend,
    make("table", {class: "bars"}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows))));
}

function barSections() {
  data.memory.forEach((memory, i) => {
    if (!memory) return;
    const where = memory.rank === undefined ? "" : `rank ${memory.rank}, the largest peak of ${count(memory.ranks)}, iteration ${count(memory.iteration)}`;
    barsCard("Memory", i, where, memory.bars, bytes, "peak");
  });
  data.time.forEach((time, i) => {
    if (!time) return;
    barsCard("Time of a step", i, time.iteration === undefined ? "" : `iteration ${count(time.iteration)}`, time.bars, seconds, "step");
  });
}
