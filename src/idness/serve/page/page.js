// Judges images that are dropped, pasted, chosen or picked, and shows why.

import { draw, number } from "/chart.js";

const one = (id) => document.getElementById(id);
const state = { guard: null, calibration: new Map(), recall: 0.95, shown: null, count: 0, key: sessionStorage.getItem("idness-key") };

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

async function ask(path, options = {}) {
  const headers = state.key ? { "X-API-Key": state.key } : {};
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch {
    throw new Error("The server does not answer.");
  }
  if (answer.status === 401) one("key-form").hidden = false;
  if (!answer.ok) {
    const told = await answer.json().catch(() => ({}));
    throw new Error(told.error || `The server answered ${answer.status}.`);
  }
  return answer;
}

const getJson = async (path) => (await ask(path)).json();

// An image of the API may need the key, so it is fetched and not linked.
const getBlob = async (path) => (await ask(path)).blob();

function fail(error) {
  one("error").textContent = error.message || String(error);
  one("error").hidden = false;
}

async function calibrationFor(result) {
  const label = state.guard.per_class && result && result.label >= 0 ? result.label : null;
  if (!state.calibration.has(label)) {
    state.calibration.set(label, await getJson(label === null ? "/v1/calibration" : `/v1/calibration?label=${label}`));
  }
  return state.calibration.get(label);
}

// p-values are exact, so the verdict at any recall follows from them.
const isOut = (result) => result.reason !== null || result.p_value <= (1 - state.recall) * (1 + 1e-6) + 1e-12;

const percent = (share) => `${number(Math.round(share * 1e4) / 100)} %`;

function sentence(result, out) {
  if (result.reason) return `Rejected: ${result.reason}.`;
  const share = percent(result.p_value);
  const floor = result.p_value <= 1.01 / (state.guard.calibration_images + 1);
  const rarity = floor && !state.guard.per_class ? "It scores below every calibration image" : `${share} of ID images score as low or lower`;
  return out ? `${rarity}. The network says “${result.class}”; better not to trust it.` : `${rarity}. The network says “${result.class}”.`;
}

async function refresh() {
  const result = state.shown ? state.shown.result : null;
  const out = result ? isOut(result) : false;
  const calibration = await calibrationFor(result);
  if (result) {
    one("card").dataset.state = out ? "out" : "in";
    one("headline").textContent = out ? "Out of distribution" : "In distribution";
    one("sentence").textContent = sentence(result, out);
    one("class").textContent = result.label < 0 ? "none" : result.class;
    one("score").textContent = number(result.score);
    one("p-value").textContent = result.p_value < 0.001 ? result.p_value.toExponential(1) : result.p_value.toFixed(3);
  }
  one("count").textContent = calibration.images.toLocaleString("en");
  one("kept").textContent = percent(state.recall);
  one("alarms").textContent = `At most ${percent(1 - state.recall)} false alarms. Further right flags fewer images, ID and OOD alike.`;
  draw(one("chart"), calibration, state.recall, result);
  for (const item of one("recent").querySelectorAll(".tile")) badge(item, item.entry);
}

function badge(tile, entry) {
  const out = isOut(entry.result);
  const mark = tile.querySelector(".badge");
  mark.className = out ? "badge out" : "badge";
  mark.textContent = out ? "!" : "✓";
  tile.setAttribute("aria-label", `${entry.name}: ${out ? "out of" : "in"} distribution`);
  tile.setAttribute("aria-pressed", String(entry === state.shown));
}

async function show(entry) {
  state.shown = entry;
  const preview = one("preview");
  preview.onload = () => preview.classList.toggle("tiny", Math.max(preview.naturalWidth, preview.naturalHeight) <= 96);
  preview.src = entry.url;
  preview.alt = `The image that was judged: ${entry.name}`;
  preview.hidden = false;
  one("drop").classList.add("filled");
  await refresh();
  const list = one("neighbours").querySelector("ol");
  const items = await Promise.all(entry.result.neighbours.map(async (near) => element("li", {},
    element("img", { src: URL.createObjectURL(await getBlob(`/v1/calibration/${near.index}`)), alt: `Calibration image of ${near.class}` }),
    element("b", { textContent: near.class, title: near.class }), element("span", { textContent: `${Math.round(100 * near.similarity)} % alike` }))));
  if (state.shown !== entry) return;
  list.replaceChildren(...items);
  one("neighbours").hidden = !items.length;
}

function remember(entry) {
  const tile = element("button", { type: "button", className: "tile", title: entry.name, onclick: () => show(entry).catch(fail) },
    element("img", { src: entry.url, alt: "" }), element("span", { className: "badge" }));
  tile.entry = entry;
  const list = one("recent").querySelector("ol");
  list.prepend(element("li", {}, tile));
  while (list.children.length > 18) list.lastElementChild.remove();
  one("recent").hidden = ++state.count < 2;
}

async function judge(files) {
  const images = [...files].slice(0, state.guard ? state.guard.max_images : 1);
  if (!images.length) return;
  one("error").hidden = true;
  one("drop").setAttribute("aria-busy", "true");
  try {
    if (!state.guard) await begin();
    const form = new FormData();
    for (const file of images) form.append("images", file, file.name || "pasted image");
    const { results } = await (await ask("/v1/score?neighbours=6", { method: "POST", body: form })).json();
    const entries = results.map((result, index) => ({ result, name: result.name, url: URL.createObjectURL(images[index]) }));
    entries.forEach(remember);
    await show(entries[entries.length - 1]);
    reveal();
  } catch (error) {
    fail(error);
  } finally {
    one("drop").removeAttribute("aria-busy");
    one("file").value = "";
  }
}

// On a narrow screen the verdict lies below the samples.
function reveal() {
  const box = one("card").getBoundingClientRect();
  if (box.top < 0 || box.bottom > innerHeight) one("verdict").scrollIntoView({ behavior: "smooth", block: "start" });
}

const GROUPS = { known: "Known", near: "Near misses", far: "Far away", picture: "Pictures" };

async function offerSamples() {
  const listed = await getJson("/v1/samples");
  for (const [role, title] of Object.entries(GROUPS)) {
    const own = listed.filter((sample) => sample.role === role);
    if (!own.length) continue;
    const tiles = await Promise.all(own.map(async (sample) => {
      const blob = await getBlob(`/v1/samples/${sample.index}`);
      const pick = () => judge([new File([blob], `${sample.title}.png`, { type: "image/png" })]);
      return element("button", { type: "button", className: "tile", title: sample.title, onclick: pick, ariaLabel: `Sample: ${sample.title}` },
        element("img", { src: URL.createObjectURL(blob), alt: "" }));
    }));
    one("samples").append(element("div", { className: "group" }, element("span", { textContent: title }), element("div", { className: "tiles" }, ...tiles)));
    one("samples").hidden = false;
  }
}

async function begin() {
  const guard = await getJson("/v1/guard");
  state.guard = guard;
  one("key-form").hidden = true;
  one("error").hidden = true;
  one("about").textContent = `${guard.network} · ${guard.method}`;
  one("promise").textContent = guard.promise;
  const slider = one("recall"), most = 100 * (1 - 1 / (guard.calibration_images + 1));
  slider.max = String(Math.min(99.9, Math.floor(most * 10) / 10));
  slider.step = "0.1";
  state.recall = guard.recalls[0];
  slider.value = String(100 * state.recall);
  await refresh();
  await offerSamples();
}

one("file").addEventListener("change", (event) => judge(event.target.files));
one("recall").addEventListener("input", (event) => {
  state.recall = Math.round(event.target.value * 10) / 1000;
  refresh().catch(fail);
});
one("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  state.key = one("key").value;
  sessionStorage.setItem("idness-key", state.key);
  begin().catch(fail);
});
for (const kind of ["dragover", "dragenter"]) {
  document.addEventListener(kind, (event) => { event.preventDefault(); one("drop").classList.add("over"); });
}
document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) one("drop").classList.remove("over"); });
document.addEventListener("drop", (event) => {
  event.preventDefault();
  one("drop").classList.remove("over");
  judge(event.dataTransfer.files);
});
document.addEventListener("paste", (event) => {
  const files = [...event.clipboardData.files];
  if (files.length) judge(files);
});

begin().catch(fail);
