// Lists the operations of /openapi.json.

const main = document.querySelector("main");

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function table(rows) {
  return element("table", {}, ...rows.map(([name, text]) => element("tr", {}, element("th", { textContent: name }), element("td", { textContent: text }))));
}

function fields(api, schema) {
  if (!schema) return [];
  if (schema.type === "array") return fields(api, schema.items);
  const found = schema.$ref ? api.components.schemas[schema.$ref.split("/").pop()] : schema;
  return Object.entries(found.properties || {}).flatMap(([name, value]) => {
    const inner = value.type === "array" && value.items && value.items.$ref ? fields(api, value.items).map(([key, text]) => [`${name}[].${key}`, text]) : [];
    const kind = value.type || (value.anyOf || []).map((each) => each.type).filter(Boolean).join(" or ") || "object";
    return [[name, value.description ? `${kind} – ${value.description}` : kind], ...inner];
  });
}

function operation(api, path, verb, about) {
  const answers = about.responses || {};
  const good = answers["200"] && answers["200"].content && answers["200"].content["application/json"];
  const taken = about.requestBody ? Object.keys(about.requestBody.content).join(", ") : "";
  const parts = [
    element("h3", {}, element("span", { className: `verb ${verb}`, textContent: verb.toUpperCase() }), path),
    element("p", { textContent: about.description || about.summary || "" }),
  ];
  if (taken) parts.push(element("p", { textContent: `Takes ${taken}. ${about.requestBody.description}` }));
  const queries = (about.parameters || []).map((each) => [`${each.in}: ${each.name}`, each.description || each.schema.type || ""]);
  const rows = good ? fields(api, good.schema) : [];
  if (queries.length) parts.push(table(queries));
  if (rows.length) parts.push(element("p", {}, element("strong", { textContent: "Answer" })), table(rows));
  const bad = Object.entries(answers).filter(([code]) => code !== "200" && about.requestBody).map(([code, each]) => [code, each.description]);
  if (bad.length) parts.push(element("p", {}, element("strong", { textContent: "Otherwise" })), table(bad));
  return element("article", {}, ...parts);
}

document.getElementById("short").textContent = [
  `curl -F images=@photo.jpg ${location.origin}/v1/score`,
  `curl -F images=@one.jpg -F images=@two.jpg ${location.origin}/v1/score`,
  `curl -H 'Content-Type: image/jpeg' --data-binary @photo.jpg ${location.origin}/v1/score`,
  "# with a key: add  -H \"X-API-Key: $IDNESS_API_KEY\"",
].join("\n");

const api = await (await fetch("/openapi.json")).json();
for (const [path, verbs] of Object.entries(api.paths)) {
  for (const [verb, about] of Object.entries(verbs)) main.append(operation(api, path, verb, about));
}
