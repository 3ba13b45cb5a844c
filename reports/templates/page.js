"use strict";
// Without this script the page reads the same: tables keep their order and figures their size.
const key = (row, column) => {
  const cell = row.cells[column];
  const text = cell.dataset.v ?? cell.textContent.trim();
  const number = Number(text);
  return text !== "" && !Number.isNaN(number) ? number : text;
};
const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows].at(-1).cells;
  [...heads].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows].sort((a, b) => compare(key(a, column), key(b, column)));
      table.tBodies[0].append(...(down ? rows.reverse() : rows));
    });
  });
}
const viewer = document.querySelector("dialog.viewer");
if (viewer && viewer.showModal) {
  for (const figure of document.querySelectorAll("figure")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "enlarge";
    button.setAttribute("aria-label", "Enlarge: " + figure.querySelector("h3").textContent);
    button.textContent = "⤢";
    button.addEventListener("click", () => {
      viewer.querySelector("h3").textContent = figure.querySelector("h3").textContent;
      viewer.querySelector("div").replaceChildren(figure.querySelector("svg").cloneNode(true));
      viewer.showModal();
    });
    figure.prepend(button);
  }
  viewer.addEventListener("click", (event) => { if (event.target === viewer || event.target.closest("a")) viewer.close(); });
}
