// Lists the operations of /openapi.json, each with a form to try it.

import { bytes, element, key, send } from "/shared.js";

const main = document.querySelector("main");

function table(rows) {
  return element("table", {}, ...rows.map(([name, text]) => element("tr", {}, element("th", { textContent: name }), element("td", { textContent: text }))));
}

function fields(schema) {
  if (!schema) return [];
  if (schema.type === "array") return fields(schema.items);
  return Object.entries(schema.properties || {}).flatMap(([name, value]) => {
    const inner = value.items ? fields(value.items).map(([key, text]) => [`${name}[].${key}`, text]) : [];
    const kind = [value.type || "object"].flat().join(" or ");
    return [[name, value.description ? `${kind} – ${value.description}` : kind], ...inner];
  });
}

function operation(path, verb, about) {
  const answers = about.responses || {};
  const good = answers["200"] && answers["200"].content && answers["200"].content["application/json"];
  const taken = about.requestBody ? Object.keys(about.requestBody.content).join(", ") : "";
  const parts = [
    element("h3", {}, element("span", { className: `verb ${verb}`, textContent: verb.toUpperCase() }), path),
    element("p", { textContent: about.description || about.summary || "" }),
  ];
  if (taken) parts.push(element("p", { textContent: `Accepts ${taken}. ${about.requestBody.description}` }));
  const queries = (about.parameters || []).map((each) => [`${each.in}: ${each.name}`, each.description || each.schema.type || ""]);
  const rows = good ? fields(good.schema) : [];
  if (queries.length) parts.push(table(queries));
  if (rows.length) parts.push(element("p", {}, element("strong", { textContent: "Response" })), table(rows));
  const bad = Object.entries(answers).filter(([code]) => code !== "200" && about.requestBody).map(([code, each]) => [code, each.description]);
  if (bad.length) parts.push(element("p", {}, element("strong", { textContent: "Errors" })), table(bad));
  return element("article", {}, ...parts, trial(path, verb, about));
}

function field(label, input) {
  return element("label", {}, element("span", { textContent: label }), input);
}

// A form that sends one request and shows the response.
function trial(path, verb, about) {
  const inputs = (about.parameters || []).map((each) => {
    const kind = (each.schema.anyOf || [each.schema])[0].type;
    const input = element("input", kind === "boolean" ? { type: "checkbox" } : { type: kind === "integer" ? "number" : "text", value: each.schema.default ?? (each.in === "path" ? 0 : "") });
    return { ...each, input };
  });
  const files = about.requestBody ? element("input", { type: "file", multiple: true, required: true }) : null;
  const answer = element("div", { className: "answer", hidden: true, ariaLive: "polite" });
  const form = element("form", {},
    ...inputs.map((each) => field(each.name, each.input)), ...(files ? [field("images", files)] : []), element("button", { textContent: "Send" }));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    let address = path;
    const query = new URLSearchParams();
    for (const { name, input, in: place } of inputs) {
      const value = input.type === "checkbox" ? String(input.checked) : input.value;
      if (place === "path") address = address.replace(`{${name}}`, encodeURIComponent(value));
      else if (value !== "") query.set(name, value);
    }
    const options = { method: verb.toUpperCase() };
    if (files) {
      options.body = new FormData();
      for (const file of files.files) options.body.append("images", file, file.name);
    }
    answer.replaceChildren(...await outcome(query.size ? `${address}?${query}` : address, options).catch((error) => [element("p", { textContent: error.message })]));
    answer.hidden = false;
  });
  return element("details", { className: "try" }, element("summary", { textContent: "Try it" }), form, answer);
}

async function outcome(address, options) {
  const came = await send(address, options), kind = came.headers.get("content-type") || "";
  const line = element("p", {}, element("strong", { textContent: `${came.status} ${came.statusText}`.trim() }), ` ${options.method} ${address}`);
  const content = await came.blob();
  if (kind.startsWith("image/")) return [line, element("img", { src: URL.createObjectURL(content), alt: "The returned image" })];
  const text = await content.text();
  const shown = kind.includes("json") ? JSON.stringify(JSON.parse(text), (_, value) => typeof value === "string" && value.length > 300 ? `${value.slice(0, 60)}… (${bytes(value.length)})` : value, 2) : text;
  return [line, element("pre", { textContent: shown, tabIndex: 0 })];
}

function askForKey() {
  const input = element("input", { type: "password", autocomplete: "current-password", value: key.get() || "" });
  input.addEventListener("change", () => key.set(input.value));
  const form = element("form", { onsubmit: (event) => event.preventDefault() },
    element("input", { autocomplete: "username", value: "idness", hidden: true }), field("Sent with every request below, if the server requires one", input));
  return element("article", {}, element("h2", { textContent: "API key" }), form);
}

document.getElementById("short").textContent = [
  `curl -F images=@photo.jpg ${location.origin}/v1/score`,
  `curl -F images=@one.jpg -F images=@two.jpg ${location.origin}/v1/score`,
  `curl -H 'Content-Type: image/jpeg' --data-binary @photo.jpg ${location.origin}/v1/score`,
  "# with an API key, add  -H \"X-API-Key: $IDNESS_API_KEY\"",
].join("\n");

main.append(askForKey());
const api = await (await fetch("/openapi.json")).json();
for (const [path, verbs] of Object.entries(api.paths)) {
  for (const [verb, about] of Object.entries(verbs)) main.append(operation(path, verb, about));
}
