// Judges images that are dropped, pasted or chosen, and explains the verdict.

import { draw } from "/chart.js";
import { List } from "/list.js";
import { bytes, element, key, number, send, told } from "/shared.js";

const one = (id) => document.getElementById(id);
const state = { guard: null, calibration: new Map(), recall: 0.95, fdr: null, shown: null, turn: 0 };

// Without a valid key nothing else works, so only the key form is shown.
function lock(answer) {
  const locked = answer.status === 401;
  one("key-form").hidden = !locked;
  document.body.classList.toggle("locked", locked);
}

async function ask(path, options = {}) {
  const answer = await send(path, options);
  lock(answer);
  if (answer.status === 401 && !key.get()) throw new Error("");  // the form is explanation enough
  if (!answer.ok) throw new Error(await told(answer));
  return answer;
}

const getJson = async (path) => (await ask(path)).json();

// Image URLs of the API may require the key, so images are fetched rather than linked.
const getBlob = async (path) => (await ask(path)).blob();

const sentenceOf = (text) => text.charAt(0).toUpperCase() + text.slice(1).replace(/\.?$/, ".");

function fail(error) {
  if (!error.message) return;
  one("error").textContent = sentenceOf(error.message);
  one("error").hidden = false;
}

const groupOf = (result) => state.guard.per_class && result && result.label >= 0 ? result.label : null;

async function calibrationFor(result) {
  const label = groupOf(result);
  if (!state.calibration.has(label)) {
    state.calibration.set(label, await getJson(label === null ? "/v1/calibration" : `/v1/calibration?label=${label}`));
  }
  return state.calibration.get(label);
}

// The verdict at any recall follows from the p-value.
const flagged = (p_value) => p_value <= (1 - state.recall) * (1 + 1e-6) + 1e-12;

function verdict(entry) {
  if (!entry.result) return "bad";
  if (state.fdr !== null && entry.q !== undefined) return entry.q <= state.fdr * (1 + 1e-6) ? "out" : "in";
  return entry.result.reason !== null || flagged(entry.result.p_value) ? "out" : "in";
}

// With n calibration images, p-values have steps of 1 / (n + 1); more digits would be meaningless.
const digitsOf = (images) => Math.max(2, Math.ceil(Math.log10(images)));

const percent = (share) => `${number(Math.round(share * 1e4) / 100)} %`;

function sentence(result, calibration, out) {
  if (result.reason) return `Flagged: ${result.reason}.`;
  const images = calibration.images, lower = Math.round(result.p_value * (images + 1)) - 1;
  const among = groupOf(result) === null ? `${images.toLocaleString("en")} calibration images` : `${images.toLocaleString("en")} calibration images classified as “${result.class}”`;
  const rarity = lower === 0 ? `It scores lower than all ${among}` : `Of the ${among}, ${lower.toLocaleString("en")} ${lower === 1 ? "scores" : "score"} as low or lower`;
  return `${rarity}. The network predicts “${result.class}”${out ? "; do not rely on it" : ""}.`;
}

// A sample may be known to be ID or OOD, so that a wrong verdict can be pointed out.
const REMARKS = {
  "id out": "This sample is an ID image, so this is a false alarm.",
  "near in": "This sample is an OOD image that is not flagged. Near-OOD images are often missed.",
  "far in": "This sample is an OOD image that is not flagged. Some far-OOD images are missed.",
};

function remark(entry, verdict) {
  const frame = entry.result.first_frame_only ? "The file has more than one frame or page; only the first was judged." : "";
  return [frame, REMARKS[`${entry.role} ${verdict}`]].filter(Boolean).join(" ");
}

function say(card, headline, text, note = "") {
  one("card").dataset.state = card;
  one("headline").textContent = headline;
  one("sentence").textContent = text;
  one("note").textContent = note;
  one("note").hidden = !note;
}

// Remove everything of the previous image.
function clear() {
  for (const id of ["class", "score", "p-value"]) one(id).textContent = "–";
  for (const id of ["preview", "seen", "neighbours"]) one(id).hidden = true;
  one("preview").onload = null;
  one("preview").removeAttribute("src");
  one("neighbours").querySelector("ol").replaceChildren();
  one("drop").classList.remove("filled");
}

// With n calibration images, the lowest p-value is 1 / (n + 1), so several files must have it before any can be flagged.
function explainScreening() {
  const files = list.entries.filter((entry) => entry.q > 0).length, images = state.guard.calibration_images;
  const needed = state.fdr === null ? 0 : Math.ceil(files / (state.fdr * (images + 1)) - 1e-9);
  const short = needed > 1 && !list.entries.some((entry) => entry.q > 0 && entry.q <= state.fdr);
  const text = "FDR is the expected share of false alarms among the flagged files.";
  one("screening").hidden = state.fdr === null;
  one("screening").textContent = short ? `${text} With ${images.toLocaleString("en")} calibration images, at least ${needed} of ${files} files must score below all of them before any is flagged.` : text;
}

async function refresh() {
  list.screen();
  const entry = state.shown, result = entry ? entry.result : null;
  const calibration = await calibrationFor(result);
  if (entry !== state.shown) return;
  if (entry && result) {
    const is = verdict(entry), digits = digitsOf(calibration.images);
    say(is, is === "out" ? "Out of distribution" : "In distribution", sentence(result, calibration, is === "out"), remark(entry, is));
    one("class").textContent = result.label < 0 ? "none" : result.class;
    one("score").textContent = number(result.score);
    one("p-value").textContent = result.p_value.toFixed(digits);
    one("p-title").title = `Fraction of ID images that score as low or lower, in steps of 1/${calibration.images + 1}`;
  } else if (entry) {
    say("bad", `Not judged: ${entry.name}`, `The file ${entry.problem}.`);
  }
  one("count").textContent = calibration.images.toLocaleString("en");
  one("kept").textContent = percent(state.recall);
  one("recall").disabled = state.fdr !== null;
  one("alarms").textContent = state.fdr !== null ? "Verdicts are decided for all files together; see the results." : `At most ${percent(1 - state.recall)} false alarms. Moving right flags fewer images, both ID and OOD.`;
  draw(one("chart"), calibration, state.recall, result);
  list.refresh(entry);
  explainScreening();
}

function picture(result, name) {
  const preview = one("preview");
  preview.onload = () => {
    const [width, height] = [preview.naturalWidth, preview.naturalHeight];
    preview.classList.toggle("tiny", Math.max(width, height) <= 96);
    one("seen").textContent = `As the network saw it: ${width} × ${height} pixels`;
    one("seen").hidden = false;
  };
  preview.src = result.picture;
  preview.alt = `The image that was judged: ${name}`;
  preview.hidden = false;
  one("drop").classList.add("filled");
}

async function show(entry) {
  state.shown = entry;
  clear();
  await refresh();
  if (!entry.result || state.shown !== entry) return;
  picture(entry.result, entry.name);
  const items = await Promise.all(entry.result.neighbours.map(async (near) => element("li", {},
    element("img", { src: URL.createObjectURL(await getBlob(`/v1/calibration/${near.index}`)), alt: `Calibration image of ${near.class}` }),
    element("b", { textContent: near.class, title: near.class }), element("span", { textContent: `ID-ness ${number(near.score)}` }))));
  if (state.shown !== entry) return;
  one("neighbours").querySelector("ol").replaceChildren(...items);
  one("neighbours").hidden = !items.length;
}

const list = new List(one("list"), verdict, (entry) => digitsOf((state.calibration.get(groupOf(entry.result)) || { images: state.guard.calibration_images }).images),
  (entry) => show(entry).then(reveal).catch(fail));

// Split files into requests within the server's limits on files and bytes.
function* parcels(files) {
  let part = [], size = 0;
  for (const file of files) {
    const more = file.size + 1000 + 3 * file.name.length;
    if (part.length && (part.length === state.guard.max_images || size + more > state.guard.max_bytes)) {
      yield part;
      [part, size] = [[], 0];
    }
    part.push(file);
    size += more;
  }
  if (part.length) yield part;
}

async function sent(files) {
  const form = new FormData();
  for (const file of files) form.append("images", file, file.name || "pasted image");
  const answer = await send("/v1/score?neighbours=6&picture=true", { method: "POST", body: form });
  lock(answer);
  const content = await answer.json().catch(() => ({}));
  if (content.results) return content.results;
  throw new Error(content.error || `the server responded with status ${answer.status}`);
}

// One entry per file, with a result or a problem.
async function judged(files, role) {
  const named = (file, rest) => ({ name: file.name || "pasted image", role, ...rest });
  const fits = (file) => file.size + 1000 + 3 * file.name.length <= state.guard.max_bytes;
  const entries = new Map(files.filter((file) => !fits(file)).map((file) => [file, named(file, { problem: `is too large: ${bytes(file.size)}, and the server accepts at most ${bytes(state.guard.max_bytes)}` })]));
  for (const part of parcels(files.filter(fits))) {
    try {
      const results = await sent(part);
      part.forEach((file, index) => entries.set(file, named(file, results[index].error ? { problem: results[index].error } : { result: results[index] })));
    } catch (error) {
      for (const file of part) entries.set(file, named(file, { problem: `could not be judged: ${error.message}` }));
    }
  }
  return files.map((file) => entries.get(file));
}

async function judge(given, role = null) {
  const files = [...given];
  if (!files.length) return;
  const turn = ++state.turn;
  one("error").hidden = true;
  one("drop").setAttribute("aria-busy", "true");
  state.shown = null;
  clear();
  say("none", "Judging …", files.length > 1 ? `${files.length} files` : files[0].name);
  try {
    if (!state.guard) await begin();
    const entries = await judged(files, role);
    for (const entry of entries) if (entry.result) await calibrationFor(entry.result);
    list.add(entries);
    list.screen();
    if (turn !== state.turn) return list.refresh(state.shown);
    await show(entries[0]);
    reveal();
  } catch (error) {
    say("bad", `Not judged: ${files.length > 1 ? `${files.length} files` : files[0].name}`, sentenceOf(error.message));
    reveal();
  } finally {
    if (turn === state.turn) one("drop").removeAttribute("aria-busy");
    one("file").value = "";
  }
}

// On a narrow screen the verdict is below the samples. No smooth scrolling: the page changes while it runs.
function reveal() {
  const box = one("card").getBoundingClientRect();
  if (box.top < 0 || box.bottom > innerHeight) one("verdict").scrollIntoView({ behavior: "instant", block: "start" });
}

const GROUPS = { id: "ID images", near: "Near OOD", far: "Far OOD", picture: "Images" };

async function offerSamples() {
  const listed = await getJson("/v1/samples");
  for (const [role, title] of Object.entries(GROUPS)) {
    const own = listed.filter((sample) => sample.role === role);
    if (!own.length) continue;
    const tiles = await Promise.all(own.map(async (sample) => {
      const blob = await getBlob(`/v1/samples/${sample.index}`);
      const pick = () => judge([new File([blob], sample.title, { type: blob.type })], role);
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
  one("error").hidden = true;
  one("about").textContent = `${guard.network} · ${guard.method}`;
  one("promise").textContent = guard.promise;
  const slider = one("recall"), most = 100 * (1 - 1 / (guard.calibration_images + 1));
  slider.max = String(Math.min(99.9, Math.floor(most * 10) / 10));
  slider.step = "0.1";
  state.recall = guard.recalls[0];
  slider.value = String(100 * state.recall);
  await refresh();
  offerSamples().catch(fail);
}

one("file").addEventListener("change", (event) => judge(event.target.files));
one("recall").addEventListener("input", (event) => {
  state.recall = Math.round(event.target.value * 10) / 1000;
  refresh().catch(fail);
});
one("fdr").addEventListener("change", (event) => {
  state.fdr = event.target.value === "" ? null : Number(event.target.value);
  refresh().catch(fail);
});
one("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set(one("key").value);
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
