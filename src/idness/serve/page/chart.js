// Draws the score of one image in the histogram of the calibration scores.

import { number } from "/shared.js";

const WIDTH = 640, BASE = 190, TOP = 30, SIDE = 8;
const SPACE = "http://www.w3.org/2000/svg";

function shape(name, attributes, text) {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// The score below which an image is flagged at the given recall.
export function limitAt(info, recall) {
  const rank = Math.floor((1 - recall) * (info.images + 1) + 1e-9);
  if (rank < 1) return null;
  const place = (rank - 1) / Math.max(1, info.images - 1) * (info.quantiles.length - 1);
  return info.quantiles[Math.min(info.quantiles.length - 1, Math.round(place))];
}

function domain(info, score) {
  const span = info.high - info.low;
  let [low, high] = [info.low, info.high];
  if (score !== null) {
    // An extreme score would squeeze the histogram, so it is shown as an arrow at the edge.
    low = Math.max(Math.min(low, score - 0.04 * span), low - 0.7 * span);
    high = Math.min(Math.max(high, score + 0.04 * span), high + 0.4 * span);
  }
  return [low, high];
}

function bars(info, at, className, clip) {
  const group = shape("g", { class: className, "clip-path": `url(#${clip})` });
  const most = Math.max(...info.counts), step = (info.high - info.low) / info.counts.length;
  info.counts.forEach((count, index) => {
    if (!count) return;
    const left = at(info.low + index * step), right = at(info.low + (index + 1) * step);
    const height = Math.max(1.5, (BASE - TOP - 14) * count / most);
    group.append(shape("rect", { x: left + 0.5, y: BASE - height, width: Math.max(0.8, right - left - 1), height, rx: 1 }));
  });
  return group;
}

function clips(edge) {
  const defs = shape("defs", {});
  const parts = { "clip-out": [0, edge], "clip-in": [edge, WIDTH - edge] };
  for (const [id, [x, width]] of Object.entries(parts)) {
    const clip = shape("clipPath", { id });
    clip.append(shape("rect", { x, y: 0, width: Math.max(0, width), height: 240 }));
    defs.append(clip);
  }
  const pattern = shape("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
  pattern.append(shape("line", { class: "hatch", x1: 0, y1: 0, x2: 0, y2: 6 }));
  defs.append(pattern);
  return defs;
}

function ticks(low, high) {
  const raw = (high - low) / 5, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((each) => each * power >= raw) * power;
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) found.push(value);
  const digits = Math.min(6, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
  return found.map((value) => [value, Math.abs(value) >= 1e5 ? value.toExponential(1) : (value + 0).toFixed(digits).replace(/^-0$/, "0")]);
}

function anchored(x, text, y, className) {
  const anchor = x < 90 ? "start" : x > WIDTH - 90 ? "end" : "middle";
  return shape("text", { class: className, x: Math.min(Math.max(x, 2), WIDTH - 2), y, "text-anchor": anchor }, text);
}

function marker(at, low, high, score) {
  const group = shape("g", {});
  const beyond = score < low ? -1 : score > high ? 1 : 0;
  const x = beyond < 0 ? SIDE : beyond > 0 ? WIDTH - SIDE : at(score);
  if (beyond) {
    const tip = x + 2 * beyond, back = tip - 14 * beyond;
    group.append(shape("path", { class: "head", d: `M${tip} ${BASE - 30}L${back} ${BASE - 39}V${BASE - 21}Z` }));
  } else {
    group.append(shape("line", { class: "here", x1: x, y1: TOP, x2: x, y2: BASE }));
    group.append(shape("path", { class: "head", d: `M${x} ${BASE - 1}l7 12h-14Z` }));
  }
  group.append(anchored(x, beyond ? `this image: ${number(score)}, off the scale` : "this image", BASE + 30, "here-text"));
  return [group, x];
}

export function draw(svg, info, recall, result) {
  const score = result ? result.score : null;
  const [low, high] = domain(info, score);
  const at = (value) => SIDE + (WIDTH - 2 * SIDE) * (value - low) / (high - low);
  const limit = limitAt(info, recall);
  const edge = limit === null ? 0 : Math.min(WIDTH, Math.max(0, at(limit)));
  svg.replaceChildren(clips(edge), bars(info, at, "out", "clip-out"));
  const hatched = bars(info, at, "", "clip-out");
  hatched.setAttribute("fill", "url(#hatch)");
  svg.append(hatched, bars(info, at, "in", "clip-in"), shape("line", { class: "axis", x1: 0, y1: BASE, x2: WIDTH, y2: BASE }));
  const [mark, here] = score === null ? [null, -1e9] : marker(at, low, high, score);
  const room = score !== null && (score < low || score > high) ? 320 : 150;
  for (const [value, text] of ticks(low, high)) {
    // Skip ticks that would overlap the label of the image.
    if (Math.abs(at(value) - here) > room) svg.append(anchored(at(value), text, BASE + 30, "tick"));
  }
  if (limit !== null) {
    const right = edge < WIDTH - 190;
    svg.append(shape("line", { class: "limit", x1: edge, y1: 2, x2: edge, y2: BASE }));
    svg.append(shape("text", { class: "limit-text", x: edge + (right ? 7 : -7), y: 18, "text-anchor": right ? "start" : "end" }, `threshold ${number(limit)}`));
  }
  if (mark) svg.append(mark);
  const where = limit === null ? "no threshold at this recall" : `threshold at ${number(limit)}`;
  const place = score === null ? "" : `; this image at ${number(score)}`;
  svg.setAttribute("aria-label", `Histogram of ${info.images} calibration images from ${number(info.low)} to ${number(info.high)}; ${where}${place}`);
}
