"use strict";
// Without this script the page reads the same: tables keep their order and figures their size.
// A cell is sorted by its exact value where it has one, else by the number that it begins with, in its base unit.
const UNITS = {"%": 0.01, ns: 1e-9, "µs": 1e-6, ms: 1e-3, min: 60, h: 3600, kB: 1e3, MB: 1e6, GB: 1e9,
  KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, "MB/s": 1e6, "GB/s": 1e9};
const key = (row, column) => {
  const cell = row.cells[column];
  const text = (cell.dataset.v ?? cell.textContent).trim();
  const number = text.match(/^([+\-\u2212]?)([\d,]*\.?\d+(?:e[+-]?\d+)?)(?: to [\d.,]+)?(?![\d.x-])\s*([^\s(;]*)/i);
  if (!number) return text;
  const size = Number(number[2].replaceAll(",", "")) * (UNITS[number[3]] ?? 1);
  return number[1] && number[1] !== "+" ? -size : size;
};
const compare = (a, b) => {
  if (typeof a === typeof b) return typeof a === "number" ? a - b : a.localeCompare(b);
  return typeof a === "number" ? -1 : 1;
};
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
// A table that is wider than the page is set tightly, and where it is still wider, row by row, each cell beside its
// heading: no column is out of sight.
const tables = [...document.querySelectorAll(".scroll > table")].filter((table) => table.tHead);
for (const table of tables) {
  const headings = [...[...table.tHead.rows].at(-1).cells].map((head) => head.innerText.replace(/\s+/g, " ").trim());
  for (const body of table.tBodies) for (const row of body.rows)
    [...row.cells].forEach((cell, column) => { cell.dataset.heading = headings[column] ?? ""; });
}
const isTooWide = (table) => table.parentElement.scrollWidth > table.parentElement.clientWidth + 2;
const fit = () => {
  for (const table of tables) {
    table.classList.remove("tight", "stacked");
    for (const setting of ["tight", "stacked"]) {
      if (!isTooWide(table)) break;
      table.classList.add(setting);
    }
  }
};
addEventListener("resize", fit);
fit();
const copy = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
    return;
  } catch { /* a page from a disk may have no clipboard */ }
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
};
for (const button of document.querySelectorAll(".copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    await copy(button.parentElement.querySelector("pre").textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}
// A word of a line to paste, as Python's shlex.quote writes it.
const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);
const studies = document.querySelector("table#studies");
if (studies) {
  const rows = [...studies.tBodies[0].rows];
  document.querySelector("#search").addEventListener("input", (event) => {
    const words = event.target.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  });
  const pick = document.querySelector("#pick > div");
  const page = document.querySelector("#picked-page");
  studies.addEventListener("change", () => {
    const names = [...studies.querySelectorAll("input:checked")].map((box) => box.value);
    for (const box of studies.querySelectorAll("input")) box.disabled = names.length === 2 && !box.checked;
    pick.hidden = names.length < 2;
    pick.querySelector("pre").textContent = ["harness", "compare", ...names].map(quoted).join(" ");
    const drawn = rows.find((row) => row.dataset.sides === [...names].sort().join("|"));
    page.replaceChildren();
    if (drawn) {
      const link = document.createElement("a");
      link.href = drawn.dataset.link;
      link.textContent = "Its page is drawn";
      page.append(link);
    }
  });
}
