// Shared by both pages: elements, requests, number formats.

export const key = {
  get: () => sessionStorage.getItem("idness-key"),
  set: (value) => sessionStorage.setItem("idness-key", value),
};

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// The server's response, whatever its status; throws only if there is none.
export async function send(path, options = {}) {
  const headers = key.get() ? { "X-API-Key": key.get() } : {};
  try {
    return await fetch(path, { ...options, headers });
  } catch {
    throw new Error("the server does not respond");
  }
}

export async function told(answer) {
  const found = await answer.json().catch(() => ({}));
  return found.error || `the server responded with status ${answer.status}`;
}

export function number(value) {
  if (value === null || value === undefined) return "none";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2);
  return value.toLocaleString("en", { maximumSignificantDigits: size >= 1000 ? 6 : 4 });
}

export const bytes = (size) => size < 1e6 ? `${Math.ceil(size / 1e3)} kB` : `${number(Math.round(size / 1e5) / 10)} MB`;
