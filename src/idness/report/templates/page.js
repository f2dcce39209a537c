"use strict";
(() => {
  const button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  button.hidden = false;
  button.addEventListener("click", () => {
    const root = document.documentElement;
    const now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
  });

  const valueOf = (row, column) => {
    const cell = row.cells[column];
    const number = parseFloat(cell.dataset.value);
    return Number.isNaN(number) ? cell.textContent.trim().toLowerCase() : number;
  };
  const compare = (a, b) => {
    if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
    return typeof a === "number" ? -1 : 1;
  };
  const sort = (table, header) => {
    const column = header.cellIndex;
    const best = header.dataset.best || "ascending";
    const current = header.getAttribute("aria-sort");
    const other = best === "ascending" ? "descending" : "ascending";
    const next = current === best ? other : best;
    for (const each of table.tHead.querySelectorAll("th")) each.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", next);
    const body = table.tBodies[0];
    const sign = next === "ascending" ? 1 : -1;
    const rows = Array.from(body.rows, (row, place) => [valueOf(row, column), place, row]);
    rows.sort((a, b) => sign * compare(a[0], b[0]) || a[1] - b[1]);
    body.append(...rows.map((entry) => entry[2]));
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    for (const header of table.tHead.querySelectorAll("th[data-best]")) {
      const control = document.createElement("button");
      control.type = "button";
      control.append(...header.childNodes);
      header.append(control);
      control.addEventListener("click", () => sort(table, header));
    }
  }
})();
