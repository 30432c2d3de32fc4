// One side's controls: lane, policy, parts of the box. Its state is a setting; `spec` is the text the server parses.

import { clear, element } from "./draw.js";

const STREAMS = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96, 128, 192, 256];
const CONTEXTS = [128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1000000];

export function makeSide(form, name, options, changed) {
  const lanes = new Map(options.lanes.map((lane) => [lane.name, lane]));
  let state = { lane: options.lanes[0].name };
  const side = { touched: false };

  form.addEventListener("submit", (event) => event.preventDefault());

  side.state = () => structuredClone(state);
  side.k = () => state.k ?? lanes.get(state.lane).k;

  side.load = (setting) => {
    const lane = lanes.get(setting.lane) ?? options.lanes[0];
    state = { concurrency: 1, context_tokens: 2048, overrides: [], ...setting, lane: lane.name };
    build(lane);
  };

  // What the server chose where this side does not say: shown, not fixed.
  side.accept = ({ traffic, verification, k }) => {
    for (const [key, value] of Object.entries({ traffic, verification })) {
      if (state[key] == null) form.querySelector(`#${name}-${key}`).value = value;
    }
    if (state.k == null) for (const input of form.querySelectorAll(`[data-key="k"]`)) input.value = k;
  };

  side.spec = () => {
    const parts = [];
    for (const [key, word] of [["k", "k"], ["verification", "verification"], ["traffic", "traffic"], ["context_tokens", "context"], ["concurrency", "streams"]]) {
      if (state[key] != null && state[key] !== "") parts.push(`${word}=${state[key]}`);
    }
    return `${state.lane}:${[...parts, ...state.overrides].join(",")}`;
  };

  function touch(change) {
    side.touched = true;
    Object.assign(state, change);
    changed();
  }

  function override(control, text) {
    const rest = state.overrides.filter((line) => line.split("=")[0].trim() !== control.key);
    const same = Number(text) === control.value;
    touch({ overrides: same ? rest : [...rest, `${control.key}=${text}${control.unit ? ` ${control.unit}` : ""}`] });
    form.querySelector(`#${name}-more`).value = state.overrides.join("\n");
  }

  function build(lane) {
    clear(form);
    form.append(element("h2", { id: `head-${name}`, text: `Setting ${name.toUpperCase()}` }));
    form.append(choice("lane", "lane", options.lanes.map((one) => one.name), lane.name, (value) => {
      // Another box has other parts: keep the question, drop the what-ifs.
      side.touched = true;
      side.load({ ...state, lane: value, overrides: [], k: null, verification: null });
      changed();
      form.querySelector(`#${name}-lane`).focus();
    }));
    form.append(element("p", { class: "hint", text: lane.title }));
    form.append(choice("traffic", "traffic", options.traffic, state.traffic ?? lane.traffic, (traffic) => touch({ traffic })));
    form.append(slider({ id: "k", key: "k", label: "k, drafted tokens a step", low: 0, high: 16, step: 1, most: 64 }, state.k ?? lane.k, (text) => touch({ k: text })));
    form.append(steps("concurrency", "live streams", STREAMS, state.concurrency));
    form.append(steps("context_tokens", "context, tokens", CONTEXTS, state.context_tokens));
    form.append(choice("verification", "verification", options.rules, state.verification ?? lane.verification, (verification) => touch({ verification })));
    // On a phone the parts of the box are folded away until something in them is set.
    const box = element("details", { class: "box" });
    box.open = matchMedia("(min-width: 52rem)").matches || state.overrides.length > 0;
    box.append(element("summary", { text: "The box" }));
    lane.controls.forEach((control, index) => {
      const set = state.overrides.find((line) => line.split("=")[0].trim() === control.key);
      const value = set ? parseFloat(set.split("=")[1]) : control.value;
      box.append(slider({ ...control, id: `part-${index}` }, value, (text) => override(control, text)));
    });
    if (lane.controls.length) form.append(box);
    form.append(more());
    const reset = element("button", { type: "button", text: `Reset ${name.toUpperCase()}` });
    reset.addEventListener("click", () => {
      side.load({ lane: state.lane });
      changed();
      form.querySelector(`#${name}-lane`).focus();
    });
    form.append(reset);
  }

  function choice(key, label, values, value, act) {
    const row = element("div", { class: "row" });
    const select = element("select", { id: `${name}-${key}` });
    for (const one of values) select.append(element("option", { value: one, text: one }));
    select.value = value;
    select.addEventListener("change", () => act(select.value));
    row.append(element("label", { for: select.id, text: label }), select);
    return row;
  }

  // A slider and a number that move together. The number may go where the slider does not; the server says what it refuses.
  function slider(control, value, act) {
    const row = element("div", { class: "row" });
    const id = `${name}-${control.id}`;
    const box = element("input", { type: "number", id, step: "any", value, "data-key": control.key });
    const range = element("input", {
      type: "range", min: control.low, max: control.high, step: control.step, value, "data-key": control.key, "aria-label": `${control.label}, slider`,
    });
    const mark = (text) => row.classList.toggle("moved", control.value !== undefined && Number(text) !== control.value);
    const moved = (from, other) => () => {
      if (from.value === "") return;
      other.value = from.value;
      mark(from.value);
      act(from.value);
    };
    range.addEventListener("input", moved(range, box));
    box.addEventListener("input", moved(box, range));
    mark(value);
    const values = element("span", { class: "value" });
    values.append(box, element("span", { text: control.unit ?? "" }));
    row.append(element("label", { for: id, text: control.label }), values, range);
    return row;
  }

  // A slider over given values, with the number itself beside it.
  function steps(key, label, values, value) {
    const row = element("div", { class: "row" });
    const id = `${name}-${key}`;
    const box = element("input", { type: "number", id, step: "1", min: "1", value });
    const nearest = (n) => values.reduce((best, one, i) => (Math.abs(one - n) < Math.abs(values[best] - n) ? i : best), 0);
    const range = element("input", { type: "range", min: 0, max: values.length - 1, step: 1, value: nearest(value), "aria-label": `${label}, slider` });
    const say = () => range.setAttribute("aria-valuetext", values[range.value].toLocaleString("en-US"));
    range.addEventListener("input", () => {
      box.value = values[range.value];
      say();
      touch({ [key]: box.value });
    });
    box.addEventListener("input", () => {
      if (box.value === "") return;
      range.value = nearest(Number(box.value));
      say();
      touch({ [key]: box.value });
    });
    say();
    const values_ = element("span", { class: "value" });
    values_.append(box);
    row.append(element("label", { for: id, text: label }), values_, range);
    return row;
  }

  function more() {
    const fold = element("details", { class: "more" });
    fold.append(element("summary", { text: "More what-ifs" }));
    const area = element("textarea", { id: `${name}-more`, spellcheck: "false", rows: 3, "aria-describedby": `${name}-more-hint` });
    area.value = state.overrides.join("\n");
    area.addEventListener("change", () => {
      side.touched = true;
      side.load({ ...state, overrides: area.value.split("\n").map((line) => line.trim()).filter(Boolean) });
      form.querySelector("details.more").open = true;
      changed();
    });
    const hint = "One KEY=VALUE a line, as with --set, for example engine.moe_floor=10 us";
    fold.append(element("label", { for: area.id, text: "Catalogue values" }), area, element("p", { class: "hint", id: `${name}-more-hint`, text: hint }));
    return fold;
  }

  return side;
}
