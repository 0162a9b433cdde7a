"use strict";
// Everything from the server goes into the page as text, never as HTML.

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const DASHES = ["", "6 3", "2 2", "8 3 2 3", "1 3"];
const percent = (p) => (100 * p).toFixed(1) + " %";
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

async function ask(path, body, type) {
  const headers = type ? { "Content-Type": type } : {};
  if ($("key").value) headers.Authorization = "Bearer " + $("key").value;
  const answer = await fetch(path, { method: body === undefined ? "GET" : "POST", headers, body });
  if (answer.status === 401) $("locked").hidden = false;
  if (!answer.ok) throw new Error((await answer.json()).error);
  return answer;
}

async function start() {
  try {
    about = await (await ask("playground/about")).json();
    $("models").textContent = about.models.length > 1 ? about.models[0] + " beside " + about.models[1] : about.models[0];
    $("second").hidden = !about.is_pair;
    $("locked").hidden = true;
  } catch (error) {
    say($("status"), error.message, true);
  }
}

function say(place, text, isError = false) {
  place.textContent = text;
  place.className = isError && text ? "error" : "muted";
}

// A text

async function look(event) {
  event.preventDefault();
  const button = $("ask").querySelector("button");
  button.disabled = true;
  say($("status"), "…");
  try {
    if (!about.models.length) await start();
    const body = { text: $("text").value };
    if (about.is_pair) body.text_pair = $("pair").value;
    show(await (await ask("playground/look", JSON.stringify(body), "application/json")).json(), body.text);
    say($("status"), "");
  } catch (error) {
    $("found").hidden = true;
    say($("status"), error.message, true);
  } finally {
    button.disabled = false;
  }
}

function show(found, text) {
  $("found").hidden = false;
  $("posteriors").replaceChildren(...found.models.map(posterior));
  $("decision").replaceChildren(...decision(found.models[0]));
  $("energy").replaceChildren(...energy(found.models[0]));
  $("words").replaceChildren(...words(found, text));
}

function posterior(model) {
  const box = make("div");
  box.append(make("h3", model.name));
  const table = make("table");
  const caption = make("caption");
  if (model.calibrator) {
    caption.append(swatch("before"), "before and ", swatch("after"), "after calibration (" + model.calibrator + ")");
  } else {
    caption.append(swatch("after"), "not calibrated: no calibrator is kept with this model");
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
  if (model.is_cut) box.append(make("p", "The text is longer than the model reads; the rest was cut.", { class: "muted" }));
  return box;
}

function swatch(kind) {
  return make("span", null, { class: "key bar " + kind });
}

function bar(kind, p) {
  const node = make("div", null, { class: "bar " + kind });
  node.style.width = (100 * p).toFixed(1) + "%";
  return node;
}

function decision(model) {
  const found = [];
  if (model.decision === null) {
    found.push(make("p", "The model has no rule to decide by: “" + model.label + "” is its best guess. " +
      "ebmcal decide fits a rule with a promise.", { class: "muted" }));
  } else {
    const verdict = model.decision === "abstain" ? "Abstain" : "Answer “" + model.label + "”";
    found.push(make("p", verdict + ": " + model.why + ".", { class: "verdict " + model.decision }));
  }
  if (model.label_set) found.push(make("p", "Label set: " + (model.label_set.join(", ") || "empty")));
  if (model.rule.length) {
    const more = make("details");
    more.append(make("summary", "What the rule promises"), ...model.rule.map((line) => make("p", line, { class: "muted" })));
    found.push(more);
  }
  return found;
}

// Its energy

function energy(model) {
  const found = [];
  let said = "Energy " + model.energy.toFixed(2) + "; low is like the training texts.";
  if (model.unusual !== null) {
    said += model.unusual ? " Unusual: " : " Not unusual: ";
    said += percent(model.unusual_p) + " of calibration texts have " + model.unusual_by + " as high (p-value).";
  }
  found.push(make("p", said, model.unusual ? { class: "verdict abstain" } : {}));
  if (!about.histogram) {
    found.push(make("p", "There are no histograms: no run has kept them with this model.", { class: "muted" }));
    return found;
  }
  found.push(legend(), histogram(about.histogram, model.energy));
  return found;
}

function legend() {
  const list = make("ul", null, { class: "legend" });
  Object.keys(about.histogram.shares).forEach((name, i) => {
    const item = make("li");
    const line = draw("svg", { viewBox: "0 0 28 10", "aria-hidden": "true" });
    line.append(draw("path", { d: "M0 5H28", ...lookOf(i) }));
    item.append(line, name.replace(/^ood_/, "other: ").replaceAll("_", " "));
    list.append(item);
  });
  return list;
}

function lookOf(i) {
  return { class: "s" + (i % 5), "stroke-dasharray": DASHES[i % 5], "stroke-width": 2, fill: "none" };
}

function histogram(data, energy) {
  const width = Math.max(280, Math.min(900, $("energy").clientWidth));  // letters keep their size in a narrow window
  const [height, left, bottom, top] = [220, 8, 34, 22];
  const low = Math.min(data.edges[0], energy), high = Math.max(data.edges.at(-1), energy);
  const most = Math.max(...Object.values(data.shares).flat());
  const x = (e) => left + ((e - low) / (high - low || 1)) * (width - 2 * left);
  const y = (share) => height - bottom - (share / most) * (height - bottom - top);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": "Histograms of energies; this text is at " + energy.toFixed(2) });
  svg.append(draw("path", { d: `M${left} ${y(0)}H${width - left}`, class: "axis", fill: "none" }));
  Object.values(data.shares).forEach((shares, i) => {
    let path = `M${x(data.edges[0])} ${y(0)}`;
    shares.forEach((share, b) => { path += `V${y(share).toFixed(1)}H${x(data.edges[b + 1]).toFixed(1)}`; });
    svg.append(draw("path", { d: path + `V${y(0)}`, ...lookOf(i) }));
  });
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const at = low + share * (high - low);
    const anchor = share === 0 ? "start" : share === 1 ? "end" : "middle";
    svg.append(draw("text", { x: x(at), y: height - bottom + 15, "text-anchor": anchor }, at.toFixed(1)));
  }
  svg.append(draw("text", { x: width / 2, y: height - 4, "text-anchor": "middle" }, "energy, low = like the training texts"));
  const place = x(energy), side = place > width * 0.8 ? "end" : place < width * 0.2 ? "start" : "middle";
  svg.append(draw("path", { d: `M${place} ${top - 6}V${y(0)}`, class: "mark", fill: "none" }));
  svg.append(draw("text", { x: place, y: top - 10, "text-anchor": side, class: "mark-text" }, "this text"));
  return svg;
}

// Its words

function words(found, text) {
  if (!found.words.length) return [make("p", "It takes two words or more.", { class: "muted" })];
  const most = Math.max(...found.words.map((word) => Math.abs(word.rise)), 1e-9);
  const marked = make("p", null, { class: "marked" });
  let done = 0;
  const characters = [...text];  // the server counts characters, JavaScript counts half of some
  for (const word of found.words) {
    marked.append(characters.slice(done, word.start).join(""));
    const rise = (word.rise >= 0 ? "+" : "−") + Math.abs(word.rise).toFixed(2);
    const span = make("span", word.word, { title: rise, "data-rise": word.rise });
    const colour = word.rise >= 0 ? "--raise" : "--lower";
    span.style.backgroundColor = `rgba(var(${colour}), ${(0.55 * Math.abs(word.rise) / most).toFixed(2)})`;
    marked.append(span);
    done = word.end;
  }
  marked.append(characters.slice(done).join(""));
  const note = make("p", "Orange words raise the energy, blue words lower it: the energy of the text minus that of the text " +
    "without the word." + (found.n_words > found.words.length ? ` The first ${found.words.length} words.` : ""), { class: "muted" });
  const more = make("details");
  const table = make("table");
  table.append(make("caption", "What each word adds to the energy"));
  for (const word of [...found.words].sort((a, b) => b.rise - a.rise)) {
    const row = table.insertRow();
    row.append(make("th", word.word, { scope: "row" }), make("td", word.rise.toFixed(3), { class: "number" }));
  }
  more.append(make("summary", "As a table"), table);
  return [marked, note, more];
}

// A file

async function report(event) {
  event.preventDefault();
  const button = $("file-form").querySelector("button");
  button.disabled = true;
  say($("file-status"), "Working; a thousand rows may take a minute …");
  try {
    const content = $("file").files.length ? await $("file").files[0].text() : $("pasted").value;
    if (!content.trim()) throw new Error("Choose a file or paste its text.");
    const made = await (await ask("playground/report", content, "text/csv")).json();
    $("report").src = $("save").href = made.report;
    $("report").hidden = $("save").hidden = false;
    say($("file-status"), "");
    $("report").scrollIntoView({ block: "nearest" });
  } catch (error) {
    $("report").hidden = $("save").hidden = true;
    say($("file-status"), error.message, true);
  } finally {
    button.disabled = false;
  }
}

$("ask").addEventListener("submit", look);
$("file-form").addEventListener("submit", report);
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("ask").requestSubmit();
});
start();
