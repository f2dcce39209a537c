// The table of results, which can be sorted and downloaded as CSV; a click on a row opens its image.

import { element, number } from "/shared.js";

const WORDS = { in: "in distribution", out: "out of distribution", bad: "not judged" };
const MARKS = { in: "✓", out: "!", bad: "–" };

// The value to sort by; the verdict depends on the slider, so it is computed each time.
function value(entry, column, verdict) {
  if (column === "name") return entry.name;
  if (column === "verdict") return WORDS[verdict(entry)];
  return entry.result ? entry.result[column] : null;
}

function compare(one, other) {
  if (one === null || other === null) return (one === null) - (other === null);
  return typeof one === "number" ? one - other : one.localeCompare(other, undefined, { numeric: true });
}

function quoted(field) {
  const text = field === null || field === undefined ? "" : String(field);
  // A spreadsheet would evaluate a name that starts like a formula.
  const safe = /^[=+@\t\r]/.test(text) || (/^-/.test(text) && Number.isNaN(Number(text))) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

export class List {
  constructor(section, verdict, digits, open) {
    Object.assign(this, { section, verdict, digits, open, entries: [], column: null, rising: true });
    for (const button of section.querySelectorAll("thead button")) button.onclick = () => this.sort(button);
    section.querySelector("#csv").onclick = () => this.save();
  }

  add(entries) {
    for (const entry of entries) entry.row = this.row(entry);
    this.entries.unshift(...entries);
    this.section.hidden = this.entries.length < 2;
    this.arrange();
  }

  row(entry) {
    const result = entry.result;
    const picture = result && result.picture ? element("img", { src: result.picture, alt: "", width: 40, height: 40 }) : "";
    return element("tr", { onclick: () => this.open(entry) },
      element("td", { className: "thumb" }, picture),
      element("td", { className: "name" }, element("button", { type: "button", textContent: entry.name })),
      element("td", { className: "verdict" }),
      element("td", { className: "more", textContent: result ? result.class : "" }),
      element("td", { className: "more", textContent: result ? number(result.score) : "" }),
      element("td", { textContent: result ? result.p_value.toFixed(this.digits(entry)) : "" }));
  }

  sort(button) {
    this.rising = this.column === button.dataset.key ? !this.rising : true;
    this.column = button.dataset.key;
    for (const head of this.section.querySelectorAll("thead th")) {
      if (head.contains(button)) head.setAttribute("aria-sort", this.rising ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    }
    this.arrange();
  }

  ordered() {
    if (this.column === null) return this.entries;
    const sign = this.rising ? 1 : -1;
    const at = (entry) => value(entry, this.column, this.verdict);
    return [...this.entries].sort((one, other) => sign * compare(at(one), at(other)));
  }

  arrange() {
    this.section.querySelector("tbody").replaceChildren(...this.ordered().map((entry) => entry.row));
  }

  // The q-value of each file: the smallest false discovery rate at which Benjamini and Hochberg flag it.
  screen() {
    const judged = this.entries.filter((entry) => entry.result);
    for (const entry of judged) entry.q = 0;  // stays 0 if it was flagged without a score
    const tested = judged.filter((entry) => entry.result.reason === null).sort((one, other) => other.result.p_value - one.result.p_value);
    let least = 1;
    tested.forEach((entry, place) => {
      least = Math.min(least, entry.result.p_value * tested.length / (tested.length - place));
      entry.q = least;
    });
  }

  // Update every verdict after the slider has moved.
  refresh(shown) {
    const count = { in: 0, out: 0, bad: 0 };
    for (const entry of this.entries) {
      const state = this.verdict(entry);
      count[state] += 1;
      const cell = entry.row.querySelector(".verdict");
      cell.replaceChildren(element("span", { className: `badge ${state}`, ariaHidden: "true", textContent: MARKS[state] }), ` ${WORDS[state]}`);
      cell.title = entry.problem || "";
      entry.row.querySelector("button").setAttribute("aria-pressed", String(entry === shown));
      entry.row.classList.toggle("shown", entry === shown);
    }
    const bad = count.bad ? `, ${count.bad} not judged` : "";
    this.section.querySelector("#tally").textContent = `${this.entries.length} files: ${count.in} in distribution, ${count.out} out of distribution${bad}.`;
  }

  csv() {
    const rows = this.ordered().map((entry) => {
      const result = entry.result || {};
      return [entry.name, WORDS[this.verdict(entry)], result.class, result.score, result.p_value, entry.q, entry.problem || result.reason];
    });
    return [["image", "verdict", "class", "score", "p_value", "q_value", "error"], ...rows].map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";
  }

  save() {
    const link = element("a", { href: URL.createObjectURL(new Blob([this.csv()], { type: "text/csv" })), download: "idness.csv" });
    link.click();
    URL.revokeObjectURL(link.href);
  }
}
