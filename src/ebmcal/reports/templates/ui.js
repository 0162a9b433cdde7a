"use strict";
// Everything from the server is inserted as text, never as HTML.

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const DASHES = ["", "6 3", "2 2", "8 3 2 3", "1 3"];
const percent = (p) => (100 * p).toFixed(1) + "%";
const short = (x) => Number(x.toPrecision(4)).toString().replace("-", "−");
const signed = (x, digits) => (x >= 0 ? "+" : "−") + Math.abs(x).toFixed(digits);
let about = { models: [], histogram: null, is_pair: false };

function make(tag, text, attributes = {}) {
  const node = document.createElement(tag);
  if (text !== null && text !== undefined) node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function draw(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

// A header holds bytes: the key is sent as UTF-8.
const asBytes = (text) => String.fromCharCode(...new TextEncoder().encode(text));

async function request(path, body, type) {
  const headers = type ? { "Content-Type": type } : {};
  if ($("key").value) headers.Authorization = "Bearer " + asBytes($("key").value);
  const response = await fetch(path, { method: body === undefined ? "GET" : "POST", headers, body });
  if (response.status === 401) $("locked").hidden = false;
  if (!response.ok) throw new Error((await response.json()).error);
  return response.json();
}

function report(place, text, isError = false) {
  place.textContent = text;
  place.className = isError && text ? "error" : "muted";
}

// Runs an action of a form: its button is disabled and its status line shows progress and errors.
async function run(form, status, progress, action) {
  const button = $(form).querySelector("button");
  button.disabled = true;
  report($(status), progress);
  try {
    await action();
    report($(status), "");
  } catch (error) {
    report($(status), error.message, true);
  } finally {
    button.disabled = false;
  }
}

async function start() {
  try {
    about = await request("ui/about");
    $("models").textContent = about.models.join(" compared with ");
    $("second").hidden = $("pair-choice").hidden = !about.is_pair;
    $("locked").hidden = true;
  } catch (error) {
    report($("status"), error.message, true);
  }
}

// One text

async function classify() {
  if (!about.models.length) await start();
  const inputs = { text: $("text").value };
  if (about.is_pair) inputs.text_pair = $("pair").value;
  $("result").hidden = true;
  const result = await request("ui/explain", JSON.stringify({ inputs }), "application/json");
  $("result").hidden = false;
  const model = result.models[0];
  $("probabilities").replaceChildren(...result.models.map(probabilities));
  $("decision").replaceChildren(...decision(model));
  $("energy").replaceChildren(...energy(model));
  $("words").replaceChildren(...words(result, inputs.text));
  $("lines").hidden = !/\S\s*\n\s*\S/.test(inputs.text);
}

function probabilities(model) {
  const box = make("div");
  box.append(make("h3", model.label + ", " + percent(model.probabilities[model.label]) + " sure"));
  box.append(make("p", model.name, { class: "muted" }));
  const table = make("table");
  const caption = make("caption");
  if (model.calibrator) {
    caption.append(swatch("before"), "before and ", swatch("after"), "after calibration (" + model.calibrator + ")");
  } else {
    caption.append(swatch("after"), "not calibrated: this model has no calibrator");
  }
  table.append(caption);
  for (const [label, p] of Object.entries(model.probabilities)) {
    const row = table.insertRow();
    row.append(make("th", label, { scope: "row", class: label === model.label ? "best" : "" }));
    const bars = make("td", null, { class: "bars" });
    if (model.calibrator) bars.append(bar("before", model.before[label]));
    bars.append(bar("after", p));
    const number = make("td", percent(p), { class: "number" });
    if (model.calibrator) number.prepend(make("span", percent(model.before[label]) + " → ", { class: "small" }));
    row.append(bars, number);
  }
  box.append(table);
  if (model.is_truncated) {
    box.append(make("p", "The text reaches the maximum length of the model; its end may be ignored.", { class: "muted" }));
  }
  return box;
}

function swatch(kind) {
  return make("span", null, { class: "key bar " + kind });
}

function bar(kind, p) {
  const track = make("div", null, { class: "track" }), node = make("div", null, { class: "bar " + kind });
  node.style.width = (100 * p).toFixed(1) + "%";
  track.append(node);
  return track;
}

function decision(model) {
  const nodes = [];
  if (model.decision === null) {
    nodes.push(make("p", "The model has no abstention rule: “" + model.label + "” is its most probable label. " +
      "Fit a rule with ebmcal abstain.", { class: "muted" }));
  } else {
    const verdict = model.decision === "abstain" ? "Abstain" : "Answer “" + model.label + "”";
    nodes.push(make("p", verdict + ": " + model.explanation + ".", { class: "verdict " + model.decision }));
  }
  if (model.label_set) nodes.push(make("p", "Label set: " + (model.label_set.join(", ") || "empty")));
  if (model.abstention.length) {
    const more = make("details");
    more.append(make("summary", "Guarantees of the rule"), ...model.abstention.map((line) => make("p", line, { class: "muted" })));
    nodes.push(more);
  }
  return nodes;
}

// Energy and out-of-distribution score

function energy(model) {
  const nodes = [];
  if (model.is_ood !== null) {
    const verdict = (model.is_ood ? "Out-of-distribution" : "Not out-of-distribution") + ": " + model.ood_score_name + " is " +
      short(model.ood_score) + " (p = " + Number(model.ood_p_value.toPrecision(2)) +
      ", about the share of held-out texts with one at least as high).";
    nodes.push(make("p", verdict, { class: "verdict" + (model.is_ood ? " abstain" : "") }));
  }
  const energy = model.ood_score_name === "the energy" ? "Low energy" : "Energy " + short(model.energy) + "; low";
  const meaning = about.is_energy_trained ? " = like the training data; noise are generated texts that are not data." :
    " = like the training data, but only as far as its logits tell: this model was not trained with noise.";
  nodes.push(make("p", energy + meaning, { class: "muted" }));
  if (model.is_ood !== null && model.ood_score_name !== "the energy") {
    nodes.push(make("p", "The energy did not decide: out-of-distribution or not is by " + model.ood_score_name + "."));
  }
  if (!about.histogram) {
    nodes.push(make("p", "The model directory has no energy histograms to compare with.", { class: "muted" }));
    return nodes;
  }
  nodes.push(legend(), histogram(about.histogram, model.energy));
  return nodes;
}

function legend() {
  const list = make("ul", null, { class: "legend" });
  Object.keys(about.histogram.shares).forEach((name, i) => {
    const item = make("li");
    const line = draw("svg", { viewBox: "0 0 28 10", "aria-hidden": "true" });
    line.append(draw("path", { d: "M0 5H28", ...lineStyle(i) }));
    item.append(line, name.replace(/^ood_/, "OOD: ").replaceAll("_", " "));
    list.append(item);
  });
  return list;
}

function lineStyle(i) {
  return { class: "s" + (i % 5), "stroke-dasharray": DASHES[i % 5], "stroke-width": 2, fill: "none" };
}

// Round numbers (1, 2 or 5 times a power of ten) between low and high, with as many decimals as they need.
function ticks(low, high, most) {
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * (1 - 1e-9));
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) {
    found.push({ at: i * step, text: (i === 0 ? 0 : i * step).toFixed(digits).replace("-", "−") });
  }
  return found;
}

function histogram(data, energy) {
  const width = Math.max(280, Math.min(900, $("energy").clientWidth));  // letters keep their size in a narrow window
  const [height, left, right, bottom, top] = [240, 46, 12, 40, 24];
  let low = Math.min(data.edges[0], energy), high = Math.max(data.edges.at(-1), energy);
  if (high - low < 1e-9) [low, high] = [low - 0.5, high + 0.5];
  const most = Math.max(...Object.values(data.shares).flat(), 1e-9);
  const x = (e) => left + ((e - low) / (high - low)) * (width - left - right);
  const y = (share) => height - bottom - (share / most) * (height - bottom - top);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": "Histograms of energies; this text has " + energy.toFixed(2) });
  svg.append(draw("path", { d: `M${left} ${top}V${y(0)}H${width - right}`, class: "axis", fill: "none" }));
  for (const tick of ticks(low, high, width / 90)) {
    svg.append(draw("path", { d: `M${x(tick.at)} ${y(0)}v5`, class: "axis tick", "data-energy": tick.at }));
    svg.append(draw("text", { x: x(tick.at), y: y(0) + 18, "text-anchor": "middle" }, tick.text));
  }
  for (const tick of ticks(0, 100 * most, 4)) {
    svg.append(draw("path", { d: `M${left} ${y(tick.at / 100)}h-5`, class: "axis" }));
    svg.append(draw("text", { x: left - 8, y: y(tick.at / 100) + 4, "text-anchor": "end" }, tick.text + "%"));
  }
  Object.values(data.shares).forEach((shares, i) => {
    let path = `M${x(data.edges[0])} ${y(0)}`;
    shares.forEach((share, b) => { path += `V${y(share).toFixed(1)}H${x(data.edges[b + 1]).toFixed(1)}`; });
    svg.append(draw("path", { d: path + `V${y(0)}`, ...lineStyle(i) }));
  });
  svg.append(draw("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, about.is_energy_trained ? "energy (low = like the training data)" : "energy"));
  const place = x(energy), side = place > width * 0.8 ? "end" : place < width * 0.2 ? "start" : "middle";
  svg.append(draw("path", { d: `M${place} ${top - 6}V${y(0)}`, class: "mark", fill: "none" }));
  svg.append(draw("text", { x: place, y: top - 10, "text-anchor": side, class: "mark-text" }, "this text"));
  return svg;
}

// Words

function words(result, text) {
  if (!result.words.length) return [make("p", "This needs a text of at least two words.", { class: "muted" })];
  const most = Math.max(...result.words.map((word) => Math.abs(word.effect)), 1e-9);
  const marked = make("p", null, { class: "marked" });
  let done = 0;
  const characters = [...text];  // the server counts characters, JavaScript counts UTF-16 units
  for (const word of result.words) {
    marked.append(characters.slice(done, word.start).join(""));
    const span = make("span", word.word, { title: signed(100 * word.effect, 1) + " points", "data-effect": word.effect });
    const colour = word.effect >= 0 ? "--for" : "--against";
    span.style.backgroundColor = `rgba(var(${colour}), ${(0.55 * Math.abs(word.effect) / most).toFixed(2)})`;
    marked.append(span);
    done = word.end;
  }
  marked.append(characters.slice(done).join(""));
  const limit = result.n_words > result.words.length ? ` Only the first ${result.words.length} words were tested.` : "";
  const label = result.models[0].label;
  const note = make("p", "Without a blue word, “" + label + "” would be less probable; without an orange word, more probable." + limit,
    { class: "muted" });
  const more = make("details");
  const table = make("table");
  table.append(make("caption", "The text minus the text without the word"));
  const head = table.createTHead().insertRow();
  for (const name of ["word", "probability of “" + label + "”, points", "energy"]) head.append(make("th", name, { scope: "col" }));
  const body = table.createTBody();
  for (const word of [...result.words].sort((a, b) => b.effect - a.effect)) {
    const row = body.insertRow();
    row.append(make("th", word.word, { scope: "row" }), make("td", signed(100 * word.effect, 1), { class: "number" }),
      make("td", signed(word.energy_effect, 3), { class: "number" }));
  }
  more.append(make("summary", "As a table"), table);
  return [marked, note, more];
}

// A file

let described = null;  // the content that the shown columns belong to

async function fileContent() {
  const text = $("file").files.length ? await $("file").files[0].text() : $("pasted").value;
  if (!text.trim()) throw new Error("Choose a file or paste its content.");
  return text;
}

async function showColumns(text) {
  const found = await request("ui/columns", text, "text/csv");
  described = text;
  const fill = (id, chosen, isOptional) => {
    const names = isOptional ? ["", ...found.columns] : found.columns;
    $(id).replaceChildren(...names.map((name) => make("option", name || "(none)", { value: name })));
    $(id).value = chosen ?? "";
  };
  fill("text-column", found.text, false);
  fill("pair-column", found.text_pair, true);
  fill("label-column", found.label, true);
  $("text-choice").hidden = found.is_predictions;
  $("pair-choice").hidden = found.is_predictions || !about.is_pair;
  $("columns").hidden = false;
}

async function createReport() {
  $("report").hidden = $("save").hidden = true;
  const text = await fileContent();
  if (text !== described) await showColumns(text);
  const columns = new URLSearchParams({ label: $("label-column").value });
  if (!$("text-choice").hidden) columns.set("text", $("text-column").value);
  if (!$("pair-choice").hidden && $("pair-column").value) columns.set("text_pair", $("pair-column").value);
  const created = await request("ui/report?" + columns, text, "text/csv");
  $("report").src = $("save").href = created.report;
  $("report").hidden = $("save").hidden = false;
  $("report").scrollIntoView({ block: "nearest" });
}

function submitted(form, status, progress, action) {
  $(form).addEventListener("submit", (event) => {
    event.preventDefault();
    run(form, status, progress, action);
  });
}

submitted("text-form", "status", "…", classify);
submitted("file-form", "file-status", "Working; a thousand rows may take a minute …", createReport);
for (const id of ["file", "pasted"]) {
  $(id).addEventListener("change", () => run("file-form", "file-status", "…", async () => showColumns(await fileContent())));
}
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("text-form").requestSubmit();
});
start();
