// The slowest ranks, the expert loads, the rounding of operands and the configuration.
const kReasons = [["own work", 0], ["waits", 1], ["link", 2], ["host", 3]];
const reasonOf = (why) => kReasons.find(([word]) => why.startsWith(word)) || ["other", 7];

function slowestStrip(slowest) {
  const low = slowest.strip[0].from, high = slowest.strip.at(-1).to + 1;
  const svg = make("svg", {class: "strip", viewBox: "0 0 1000 26", preserveAspectRatio: "none", height: 26, role: "img",
                           "aria-label": "Reason of the slowest rank by iteration"});
  for (const part of slowest.strip) {
    const x = 1000 * (part.from - low) / (high - low), end = 1000 * (part.to + 1 - low) / (high - low);
    const rect = make("rect", {x, y: 0, width: Math.max(0.5, end - x), height: 26, style: `fill: ${color(reasonOf(part.why)[1])}`});
    rect.append(svgTitle(`iterations ${count(part.from)}\u2013${count(part.to)}: rank ${part.rank}, ${part.why}, ${seconds(part.seconds)}`));
    svg.append(rect);
  }
  return svg;
}

function svgTitle(text) {
  const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
  title.textContent = text;
  return title;
}

function slowestSection() {
  data.slowest.forEach((slowest, i) => {
    if (!slowest) return;
    const used = [...new Set(slowest.strip.map((part) => reasonOf(part.why)[0]))];
    const legend = used.map((name) => make("span", {}, make("i", {class: "block", style: `background: ${color(reasonOf(name)[1])}`}),
      name === "waits" ? "waits for another rank" : name));
    const rows = slowest.rows.map((row) => make("tr", {}, make("td", {class: "nowrap"}, `${count(row.from)}\u2013${count(row.to)}`),
      make("td", {class: "number"}, String(row.rank)), make("td", {class: "nowrap"}, row.why), make("td", {class: "number"}, seconds(row.seconds)), make("td", {}, row.text)));
    const head = ["iterations", "rank", "reason", "time lost", "explanation"].map((name, k) => make("th", {scope: "col", class: k === 1 || k === 3 ? "number" : null}, name));
    const shown = slowest.rows.length < slowest.count ? `last ${slowest.rows.length} of ${count(slowest.count)} intervals` : `${count(slowest.count)} intervals`;
    body("slowest").append(make("figure", {class: "card"},
      make("div", {class: "head"}, make("h3", {}, several ? runs[i].name : "Reason by iteration"), make("span", {class: "unit"}, shown)),
      make("div", {class: "legend"}, ...legend), slowestStrip(slowest),
      make("div", {class: "scroll", tabindex: 0, style: "margin-top: 8px"}, make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)))));
  });
}

// A row per layer, a column per group of iterations.
function drawHeat(svg, load, largest) {
  const left = 62, right = Math.floor(svg.clientWidth), step = (right - left) / load.from.length;
  const rowHeight = Math.max(4, Math.min(18, Math.round(360 / load.layers.length))), height = rowHeight * load.layers.length + 18;
  const labelled = Math.ceil(13 / rowHeight);
  const nodes = load.rows.flatMap((row, r) => row.map((value, c) => {
    const box = {x: left + step * c, y: rowHeight * r, width: step + 0.2, height: rowHeight - (rowHeight > 8 ? 1 : 0)};
    if (value === null) return make("rect", {...box, class: "void"});
    const share = largest > 1 ? (value - 1) / (largest - 1) : 0;
    return make("rect", {...box, "fill-opacity": (0.05 + 0.95 * share).toFixed(3),
                         "data-text": `layer ${load.layers[r]}, from iteration ${count(load.from[c])}: ${format(value, 4)}`});
  }));
  for (let r = 0; r < load.rows.length; r += labelled)
    nodes.push(make("text", {x: left - 6, y: rowHeight * r + rowHeight / 2 + 4, "text-anchor": "end"}, `layer ${load.layers[r]}`));
  nodes.push(make("text", {x: left, y: height - 4}, count(load.from[0])), make("text", {x: right, y: height - 4, "text-anchor": "end"}, count(load.last)));
  svg.setAttribute("height", height);
  svg.replaceChildren(...nodes);
}

function expertSection() {
  data.experts.forEach((load, i) => {
    if (!load) return;
    const largest = Math.max(...load.rows.flat().map((value) => value ?? 1));
    const readout = make("b");
    const shown = load.layers.length < load.all_layers ? `, first ${load.layers.length} of ${load.all_layers} layers` : "";
    const svg = make("svg", {class: "heat", role: "img", "aria-label": "Imbalance of experts by layer and iteration"});
    svg.addEventListener("pointermove", (event) => readout.textContent = event.target.dataset?.text || "");
    new ResizeObserver(() => drawHeat(svg, load, largest)).observe(svg);
    body("experts").append(make("figure", {class: "card"},
      make("div", {class: "head"}, make("h3", {}, several ? runs[i].name : "Imbalance by layer"), make("span", {class: "unit"}, "tokens of an expert, max / mean of a step" + shown)),
      make("div", {class: "legend"}, make("span", {}, "1 (even)", make("i", {class: "scale"}), format(largest, 3)), readout), svg));
    drawHeat(svg, load, largest);
  });
}

function roundingSection() {
  const columns = [["error", "relative error"], ["saturated", "saturated"], ["flushed", "flushed"], ["nonfinite", "not finite"],
                   ["amax", "largest magnitude"], ["scale", "scale"]];
  data.rounding.forEach((rounding, i) => {
    if (!rounding) return;
    const head = ["layer", "operand", ...columns.map(([, title]) => title)].map((title, k) => make("th", {scope: "col", class: k > 1 ? "number" : null}, title));
    const rows = rounding.rows.map((row) => make("tr", {}, make("th", {scope: "row"}, row.layer), make("td", {}, row.operand),
      ...columns.map(([name]) => make("td", {class: "number"}, format(row[name], 3)))));
    const shown = rounding.rows.length < rounding.count ? `, ${rounding.rows.length} of ${count(rounding.count)}` : "";
    body("rounding").append(make("figure", {class: "card"},
      make("div", {class: "head"}, make("h3", {}, several ? runs[i].name : "Largest errors first"), make("span", {class: "unit"}, `iteration ${count(rounding.iteration)}, shares of elements${shown}`)),
      make("div", {class: "scroll", tabindex: 0}, make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)))));
  });
}

function configSection() {
  if (data.config.length === 0) return;
  const parent = body("config");
  const differing = data.config.filter((row) => row.differs);
  if (differing.length > 0) {
    const head = ["Keys that differ", ...runs.map((run) => run.name)].map((name) => make("th", {scope: "col"}, name));
    const rows = differing.map((row) => make("tr", {}, make("th", {scope: "row"}, row.key), ...row.values.map((value) => make("td", {}, value === "" ? "\u2013" : value))));
    parent.append(make("div", {class: "card scroll differs"}, make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows))));
  }
  const filter = make("input", {type: "search", placeholder: "Filter keys and values", "aria-label": "Filter keys and values"});
  const keys = make("div", {class: "keys"});
  const sections = new Map();
  for (const row of data.config.filter((candidate) => !candidate.differs)) {
    const [section, ...rest] = row.key.split(".");
    if (!sections.has(section)) sections.set(section, []);
    sections.get(section).push(make("tr", {"data-text": `${row.key} ${row.values[0]}`.toLowerCase()}, make("th", {scope: "row"}, rest.join(".")), make("td", {}, row.values[0])));
  }
  for (const [section, rows] of sections) keys.append(make("div", {class: "card"}, make("h3", {}, section), make("table", {}, make("tbody", {}, ...rows))));
  filter.addEventListener("input", () => {
    const word = filter.value.trim().toLowerCase();
    for (const row of keys.querySelectorAll("tr")) row.hidden = !row.dataset.text.includes(word);
    for (const card of keys.children) card.hidden = !card.querySelector("tr:not([hidden])");
  });
  parent.append(filter, keys);
}
