// The board: controls make a setting's text, the server answers, the page shows it. No state but the address.

import { drawCurve } from "./curve.js";
import { cell, clear, element, interval, number, table, track } from "./draw.js";
import { makeSide } from "./side.js";

const byId = (id) => document.getElementById(id);
const sides = {};
let options = null;
let receiptText = null;
const inFlight = {};

async function ask(path, parameters, init = {}) {
  // A newer question of the same kind makes the older one pointless.
  inFlight[path]?.abort();
  const controller = (inFlight[path] = new AbortController());
  const response = await fetch(`${path}?${parameters}`, { ...init, signal: controller.signal });
  const type = response.headers.get("content-type") ?? "";
  if (!type.startsWith("application/json")) throw new Error(await response.text());
  const answer = await response.json();
  if (answer.error) throw new Error(answer.error);
  return answer;
}

function query() {
  const parameters = new URLSearchParams({ a: sides.a.spec() });
  if (byId("compare").checked) parameters.set("b", sides.b.spec());
  return parameters;
}

function showError(error) {
  if (error.name === "AbortError") return;
  const text = error instanceof TypeError ? "The board's server does not answer; is `twin board` still running?" : error.message;
  byId("error").textContent = text;
  byId("error").hidden = false;
  for (const id of ["cards", "steps", "why", "curve"]) byId(id).classList.add("stale");
}

function clearError() {
  byId("error").hidden = true;
  for (const id of ["cards", "steps", "why", "curve"]) byId(id).classList.remove("stale");
}

let waiting = 0;
function changed() {
  const parameters = query();
  history.replaceState(null, "", `?${parameters}`);
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(() => refresh(parameters));
}

async function refresh(parameters) {
  try {
    const started = performance.now();
    const answer = await ask("/api/answer", parameters);
    clearError();
    show(answer);
    byId("timing").textContent = `Answered in ${number(performance.now() - started)} ms.`;
    later(parameters);
  } catch (error) {
    showError(error);
  }
}

let slower = 0;
function later(parameters) {
  // What need not follow every pixel of a slider waits until it rests.
  clearTimeout(slower);
  slower = setTimeout(async () => {
    try {
      const curves = await ask("/api/curve", parameters);
      drawCurve(byId("curve"), byId("curve-table"), curves, { a: sides.a.k(), b: sides.b.k() });
      if (!byId("export").hidden) await showExport(parameters);
      if (receiptText !== null) await showResiduals(parameters);
    } catch (error) {
      showError(error);
    }
  }, 60);
}

function show(answer) {
  const names = answer.b ? ["a", "b"] : ["a"];
  clear(byId("cards")).append(...names.map((side) => card(side, answer[side])));
  const warnings = new Set(names.flatMap((side) => answer[side].prediction.cells[0].warnings));
  clear(byId("warnings")).append(...[...warnings].map((text) => element("li", { text })));
  const longest = Math.max(...names.map((side) => answer[side].prediction.cells[0].step_ms.mean));
  clear(byId("steps")).append(...names.map((side) => breakdown(side, answer[side], longest)));
  byId("why").hidden = !answer.b;
  if (answer.b) showExplanation(answer.explanation);
  byId("brief").textContent = names.map((side) => `${side.toUpperCase()} ${number(answer[side].prediction.cells[0].tok_s_per_stream.mean)}`).join("  ·  ") + " tok/s a stream";
  byId("said").textContent = names.map((side) => summary(answer[side])).join(" ");
  for (const side of names) sides[side].accept(answer[side].resolved);
}

function summary(one) {
  const first = one.prediction.cells[0];
  return `${one.title}: ${number(first.tok_s_per_stream.mean)} tokens per second a stream, ${number(first.step_ms.mean)} milliseconds a step.`;
}

function card(side, one) {
  const first = one.prediction.cells[0];
  const rows = [
    ["tok/s of all streams", first.tok_s_aggregate],
    ["tokens per step", first.tokens_per_step],
    ["step, ms", first.step_ms],
    ["unique experts a layer", first.unique_experts_per_layer],
    ["of them cold", first.cold_experts_per_layer],
    ["time to first token, ms", first.ttft_ms],
  ];
  const node = element("article", { class: `card ${side}`, "aria-label": `Prediction ${side.toUpperCase()}` });
  node.append(element("h2", { text: `${side.toUpperCase()}  ${one.title}` }));
  const big = element("p", { class: "big", text: number(first.tok_s_per_stream.mean) });
  big.dataset.value = first.tok_s_per_stream.mean;
  big.append(" ", element("small", { text: `tok/s a stream (${number(first.tok_s_per_stream.p05)} to ${number(first.tok_s_per_stream.p95)})` }));
  const facts = table(`k = ${first.k}, ${first.verification}, ${first.traffic}`, null, rows.map(([name, value]) => [name, interval(value)]));
  facts.querySelectorAll("tbody td").forEach((td, i) => (td.dataset.value = rows[i][1].mean));
  const reach = `${number(100 * one.roofline.fraction)} % of the bandwidth ceiling (${number(one.roofline.step_ms)} ms a step)`;
  node.append(big, facts, element("p", { class: "hint", text: `Reaches ${reach}.` }));
  return node;
}

function breakdown(side, one, longest) {
  const first = one.prediction.cells[0];
  const parts = Object.entries(first.breakdown_ms).filter(([, ms]) => ms > 0).sort((x, y) => y[1] - x[1]);
  let at = 0;
  const rows = parts.map(([name, ms]) => {
    const bar = track([{ from: at / longest, to: (at + ms) / longest }]);
    at += ms;
    return [one.labels[name], `${number(ms)} ms`, `${number((100 * ms) / first.step_ms.mean, 2)} %`, cell(bar, "bar")];
  });
  const found = table(`${side.toUpperCase()}: ${number(first.step_ms.mean)} ms a step`, ["part", "time", "share", ""], rows);
  found.classList.add(side);
  return found;
}

function showExplanation(why) {
  clear(byId("sentences")).append(...why.sentences.map((text) => element("p", { text })));
  const ends = [why.a.step_ms, why.b.step_ms, ...why.parts.flatMap((p) => [p.bar.from, p.bar.to])];
  const high = Math.max(...ends);
  const low = Math.max(0, Math.min(...ends) - 0.6 * (high - Math.min(...ends)));
  const at = (ms) => (high > low ? (ms - low) / (high - low) : 0);
  const whole = (name, ms) => [name, `${number(ms)} ms`, "", "", cell(track([{ from: 0, to: at(ms), kind: "end" }]), "bar")];
  const rows = why.parts.map((part) => {
    const kind = part.difference_ms <= 0 ? "less" : "more";
    const sign = part.difference_ms > 0 ? "+" : part.difference_ms < 0 ? "−" : "";
    const spread = `(${part.difference_ms_p05.toFixed(2)} to ${part.difference_ms_p95.toFixed(2)})`;
    const change = element("span", { text: `${sign}${Math.abs(part.difference_ms).toFixed(2)} ms ` });
    change.append(element("span", { class: "range", text: spread }));
    const bar = track([{ from: at(part.bar.from), to: at(part.bar.to), kind }]);
    return [part.label, `${number(part.a_ms)} → ${number(part.b_ms)}`, change, `× ${part.factor.factor.toFixed(3)}`, cell(bar, "bar")];
  });
  const header = ["", "A → B, ms", "change", "steps/s", `${number(low)} to ${number(high)} ms`];
  const body = [whole("step of A", why.a.step_ms), ...rows, whole("step of B", why.b.step_ms)];
  byId("parts").replaceChildren(...table("Step time by mechanism, Shapley values", header, body).childNodes);
}

async function showExport(parameters) {
  const found = await ask("/api/export", parameters);
  byId("command").textContent = found.command;
  byId("toml").textContent = found.toml;
}

async function showResiduals(parameters) {
  const init = { method: "POST", body: receiptText, headers: { "content-type": "text/csv" } };
  try {
    const found = await ask("/api/residuals", parameters, init);
    const covered = found.rows.filter((row) => row.covered).length;
    const left = found.left_out ? ` ${found.left_out} rows are ratios or excluded and left out.` : "";
    byId("receipts-said").textContent = `${found.rows.length} receipts; ${covered} within their 90 % interval.${left}`;
    const widest = Math.max(10, ...found.rows.map((row) => Math.abs(100 * row.error)));
    const rows = found.rows.map((row) => {
      const [low, high] = [row.p05, row.p95].map((v) => 100 * (v / row.measured - 1));
      const at = (percent) => Math.min(1, Math.max(0, 0.5 + percent / (3 * widest)));
      const error = 100 * row.error;
      const bar = track([{ from: at(low), to: at(high), kind: "spread" }, { from: at(error) - 0.008, to: at(error) + 0.008 }]);
      const said = `${row.lane} ${row.quantity}, k ${row.k}, C${row.concurrency}`;
      const measured = `${number(row.measured, 4)} ${row.unit}`;
      return [row.id, cell(said, "text"), measured, number(row.predicted, 4), `${error >= 0 ? "+" : "−"}${Math.abs(error).toFixed(1)} %`, row.in_fit ? "yes" : "no", cell(bar, "bar")];
    });
    const header = ["receipt", "quantity", "measured", "predicted", "error", "in the fit", "90 % of a repeat"];
    byId("residuals").replaceChildren(...table("Receipts against the model", header, rows).childNodes);
    byId("residuals-scroll").hidden = false;
  } catch (error) {
    if (error.name === "AbortError") return;
    byId("receipts-said").textContent = error.message;
    byId("residuals-scroll").hidden = true;
  }
}

async function copy(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed here";
  }
  setTimeout(() => (button.textContent = label), 1500);
}

function wire() {
  byId("compare").addEventListener("change", () => {
    byId("side-b").hidden = !byId("compare").checked;
    if (byId("compare").checked && !sides.b.touched) sides.b.load(sides.a.state());
    changed();
  });
  byId("share").addEventListener("click", (event) => copy(location.href, event.target));
  byId("export-open").addEventListener("click", () => {
    byId("export").hidden = !byId("export").hidden;
    byId("export-open").setAttribute("aria-expanded", String(!byId("export").hidden));
    if (!byId("export").hidden) showExport(query()).catch(showError);
  });
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", () => copy(byId(button.dataset.copy).textContent, button));
  }
  byId("download").addEventListener("click", () => {
    const link = element("a", { href: URL.createObjectURL(new Blob([byId("toml").textContent])), download: "scenario.toml" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  byId("receipts").addEventListener("change", async (event) => {
    const [file] = event.target.files;
    receiptText = null;
    byId("residuals-scroll").hidden = true;
    if (!file) return;
    if (file.size > 2 * 1024 * 1024) {
      byId("receipts-said").textContent = `${file.name} has ${number(file.size / 1e6)} MB; the board takes at most 2 MB.`;
      return;
    }
    receiptText = await file.text();
    await showResiduals(query());
  });
}

async function start() {
  try {
    options = await ask("/api/options", "");
    const address = new URLSearchParams(location.search);
    for (const side of ["a", "b"]) sides[side] = makeSide(byId(`side-${side}`), side, options, changed);
    const first = { lane: document.body.dataset.start };
    // What the address asks for is read by the server, with the parser of the command line.
    const asked = address.get("a") ? await ask("/api/answer", address) : null;
    sides.a.load(asked ? asked.a.setting : first);
    sides.b.load(asked?.b ? asked.b.setting : first);
    if (asked?.b) {
      byId("compare").checked = true;
      byId("side-b").hidden = false;
      sides.b.touched = true;
    }
    wire();
    changed();
  } catch (error) {
    // An address that is not a setting: say so, and start from the lane as it is.
    showError(error);
    if (options === null) return;
    for (const side of ["a", "b"]) sides[side].load({ lane: document.body.dataset.start });
    wire();
    const message = byId("error").textContent;
    await refresh(query());
    byId("error").textContent = message;
    byId("error").hidden = false;
  }
}

start();
