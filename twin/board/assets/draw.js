// Small builders of elements. Text goes in as text, never as markup.

export function element(tag, attributes = {}) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") node.textContent = value;
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  return node;
}

export function shape(tag, attributes = {}) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") node.textContent = value;
    else node.setAttribute(name, value);
  }
  return node;
}

export function clear(node) {
  node.replaceChildren();
  return node;
}

// Three significant digits, thousands separated, never scientific: as the command line prints.
export function number(value, digits = 3) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1) {
    const decimals = Math.max(0, digits - String(Math.trunc(size)).length);
    return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  }
  return String(Number(value.toPrecision(digits)));
}

export function interval(value) {
  const node = element("span", { text: `${number(value.mean)} ` });
  node.append(element("span", { class: "range", text: `(${number(value.p05)} to ${number(value.p95)})` }));
  return node;
}

// A cell of a table with a class: text or a node.
export function cell(inside, kind) {
  const node = element("td", { class: kind });
  node.append(inside);
  return node;
}

export function table(caption, header, rows) {
  const node = element("table");
  node.append(element("caption", { text: caption }));
  if (header !== null) {
    const head = element("tr");
    for (const name of header) head.append(name === "" ? element("td") : element("th", { scope: "col", text: name }));
    const section = element("thead");
    section.append(head);
    node.append(section);
  }
  const body = element("tbody");
  for (const [first, ...rest] of rows) {
    const row = element("tr");
    row.append(element("th", { scope: "row", text: first }));
    for (const inside of rest) row.append(inside instanceof HTMLTableCellElement ? inside : cell(inside, null));
    body.append(row);
  }
  node.append(body);
  return node;
}

// Bars on a track, each from and to as a share of its width. The numbers beside them say the same to those who cannot see.
export function track(bars) {
  const node = element("div", { class: "track", "aria-hidden": "true" });
  for (const { from, to, kind } of bars) {
    const [left, right] = [Math.min(from, to), Math.max(from, to)];
    const fill = element("div", { class: `fill ${kind ?? ""}`.trim() });
    fill.style.left = `${100 * left}%`;
    fill.style.width = `${100 * (right - left)}%`;
    node.append(fill);
  }
  return node;
}
