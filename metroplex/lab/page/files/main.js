// Builds the page, and reloads it while the report follows a run.
const kState = "metroplex report " + location.pathname;

function header() {
  const unreadable = runs.reduce((sum, run) => sum + run.unreadable, 0);
  const lines = runs.map((run) => `${run.path}: ${run.steps === 0 ? "no steps yet" : count(run.steps) + (run.steps === 1 ? " step" : " steps")}` +
    (run.start?.started ? `, started ${run.start.started.replace("T", " ").replace("Z", " UTC")}` : ""));
  const state = document.getElementById("state");
  state.textContent = lines.slice(0, 4).join("; ") + (lines.length > 4 ? "; \u2026" : "");
  if (data.reload) state.append(` \u00b7 updates every ${data.reload} s`);
  if (unreadable > 0) state.after(make("p", {class: "notice"}, `${count(unreadable)} lines of the file are not JSON objects and are left out.`));
  const shortened = Object.values(data.metrics).flat().some((curve) => curve && curve.of > curve.x.length);
  document.getElementById("notes").textContent = "The horizontal axis shows iterations. Drag to zoom, double-click or press Escape to reset. " +
    (shortened ? `Each curve has at most ${count(data.points)} points: the smallest and the largest value of each group of steps. ` : "") +
    "Tokens/s and TFLOP/s in the summary are medians of the last tenth of the steps. Red marks: skipped steps at the bottom, values that are not finite at the top.";
}

function links() {
  const list = document.getElementById("links");
  for (const section of document.querySelectorAll("main > section:not([hidden])")) {
    const heading = section.querySelector("h2");
    list.append(make("li", {}, make("a", {href: "#" + section.id}, heading.textContent)));
  }
  const reset = document.getElementById("reset");
  reset.addEventListener("click", () => setRange(null));
  view.onRange = () => {
    reset.hidden = !view.range;
    if (view.range) reset.textContent = `${count(Math.round(view.range[0]))}\u2013${count(Math.round(view.range[1]))} \u2715 reset zoom`;
  };
}

// The zoom, log scales and position survive a reload.
function restore() {
  const state = JSON.parse(sessionStorage.getItem(kState) || "null");
  if (!state) return;
  view.charts.forEach((chart) => {
    if ((state.log[chart.title] ?? chart.log) !== chart.log) chart.card.querySelector("button")?.click();
  });
  setRange(state.range);
  scrollTo({top: state.top, behavior: "instant"});
}

function reload() {
  if (document.hidden || view.cursor !== null || document.activeElement?.tagName === "INPUT") return;
  const log = Object.fromEntries(view.charts.map((chart) => [chart.title, chart.log]));
  sessionStorage.setItem(kState, JSON.stringify({range: view.range, log, top: scrollY}));
  location.reload();
}

summarySection();
curveSections();
barSections();
slowestSection();
expertSection();
roundingSection();
document.getElementById("layout").hidden = !document.querySelector("#layout svg");
configSection();
header();
links();
redraw();
if (data.reload) {
  restore();
  setInterval(reload, 1000 * data.reload);
}
document.documentElement.dataset.drawn = "yes";
