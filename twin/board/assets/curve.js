// tok/s of a stream against k: a line and a band a side, dashed for the second, with the numbers in a table beside it.

import { clear, number, shape, table } from "./draw.js";

const [HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [300, 52, 14, 12, 40];

export function drawCurve(place, numbers, curves, now) {
  // One unit is one pixel where there is room, so that the text stays readable on a phone.
  const width = Math.min(900, Math.max(300, place.clientWidth || 640));
  const sides = Object.keys(curves);
  const points = sides.flatMap((side) => curves[side].points);
  const mostK = Math.max(1, ...points.map((p) => p.k));
  const step = niceStep(Math.max(...points.map((p) => p.p95)) / 5);
  const top = step * Math.ceil(Math.max(...points.map((p) => p.p95)) / step);
  const x = (k) => LEFT + (k / mostK) * (width - LEFT - RIGHT);
  const y = (v) => HEIGHT - BOTTOM - (v / top) * (HEIGHT - TOP - BOTTOM);
  const said = sides.map((side) => `${side.toUpperCase()} is best at k = ${best(curves[side]).k} with ${number(best(curves[side]).mean)} tok/s`).join("; ");
  const svg = shape("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `Throughput of a stream against k. ${said}.` });
  for (let v = 0; v <= top; v += step) {
    svg.append(shape("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(v), y2: y(v) }));
    svg.append(shape("text", { x: LEFT - 8, y: y(v) + 4, "text-anchor": "end", text: number(v) }));
  }
  for (let k = 0; k <= mostK; k += 1) svg.append(shape("text", { x: x(k), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle", text: k }));
  svg.append(shape("text", { x: (LEFT + width) / 2, y: HEIGHT - 4, "text-anchor": "middle", text: "k, drafted tokens a step" }));
  for (const side of sides) {
    const line = curves[side].points;
    const band = [...line.map((p) => [p.k, p.p95]), ...line.toReversed().map((p) => [p.k, p.p05])];
    svg.append(shape("polygon", { class: `band ink-${side}`, points: path(band, x, y) }));
    svg.append(shape("polyline", { class: `line ink-${side} dash-${side}`, points: path(line.map((p) => [p.k, p.mean]), x, y) }));
    const here = line.find((p) => p.k === Number(now[side]));
    if (here) svg.append(shape("circle", { class: `now ink-${side}`, cx: x(here.k), cy: y(here.mean), r: 5 }));
    const end = line[line.length - 1];
    svg.append(shape("text", { x: x(end.k) - 4, y: y(end.mean) - 10, "text-anchor": "end", text: side.toUpperCase() }));
  }
  clear(place).append(svg);
  const ks = [...new Set(points.map((p) => p.k))];
  const rows = ks.map((k) => [String(k), ...sides.map((side) => spread(curves[side].points.find((p) => p.k === k)))]);
  numbers.replaceChildren(...table(`tok/s of a stream. ${said}.`, ["k", ...sides.map((s) => `${s.toUpperCase()} ${curves[s].title}`)], rows).childNodes);
}

const best = (curve) => curve.points.reduce((a, b) => (b.mean > a.mean ? b : a));
const spread = (p) => (p ? `${number(p.mean)} (${number(p.p05)} to ${number(p.p95)})` : "");
const path = (pairs, x, y) => pairs.map(([k, v]) => `${x(k).toFixed(1)},${y(v).toFixed(1)}`).join(" ");

function niceStep(rough) {
  const size = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((m) => m * size).find((s) => s >= rough);
}
