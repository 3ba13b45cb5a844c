// What a reader would object to on a page, for tests/whole/test_report_browser.py: every function returns faults.
"use strict";
globalThis.facts = (() => {
const seen = (element) => element.getClientRects().length > 0 && getComputedStyle(element).visibility !== "hidden";
const words = (element) => element.textContent.replace(/\s+/g, " ").trim().slice(0, 60);
const name = (element) => `${element.tagName.toLowerCase()}.${element.getAttribute("class") ?? ""} '${words(element)}'`;
const scrolls = (element) => ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
const ancestors = (element) => element.parentElement ? [element.parentElement, ...ancestors(element.parentElement)] : [];
const inSvg = (element) => element.closest("svg") !== null;

// Nothing is wider than the page but what scrolls in a region of its own, and that is program text only.
const tooWide = (width) => {
  const faults = [];
  if (document.documentElement.scrollWidth > width) faults.push(`the page is ${document.documentElement.scrollWidth} wide`);
  for (const element of document.body.querySelectorAll("*")) {
    if (inSvg(element) && element.tagName !== "svg" || !seen(element)) continue;
    const box = element.getBoundingClientRect();
    if ((box.right > width + 1 || box.left < -1) && !ancestors(element).some((region) => region.matches("pre") && scrolls(region)))
      faults.push(`beyond the page: ${name(element)}`);
    if (scrolls(element) && element.scrollWidth > element.clientWidth + 2 && !element.matches("pre"))
      faults.push(`columns out of sight: ${name(element)}`);
    if (!inSvg(element) && getComputedStyle(element).overflowX === "hidden" && element.scrollWidth > element.clientWidth + 1)
      faults.push(`cut: ${name(element)}`);
  }
  return faults;
};

// Text that a reader can read: large enough, and apart from what is under it (WCAG's contrast of 4.5).
const channel = (value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const luminance = ([red, green, blue]) =>
  0.2126 * channel(red / 255) + 0.7152 * channel(green / 255) + 0.0722 * channel(blue / 255);
const colour = (text) => (text.match(/[\d.]+/g) ?? []).map(Number);
const paper = (element) => {
  for (const layer of [element, ...ancestors(element)]) {
    const [red, green, blue, alpha] = colour(getComputedStyle(layer).backgroundColor);
    if (alpha === undefined || alpha > 0.5) return [red, green, blue];
  }
  return [255, 255, 255];
};
const unreadable = (least) => {
  const faults = [];
  for (const element of document.body.querySelectorAll("*")) {
    const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (inSvg(element) || !hasText || !seen(element) || element.matches("script, option, [disabled]")) continue;
    const style = getComputedStyle(element);
    if (parseFloat(style.fontSize) < least) faults.push(`${style.fontSize}: ${name(element)}`);
    const [light, dark] = [luminance(colour(style.color)), luminance(paper(element))].sort((a, b) => b - a);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < 4.5) faults.push(`contrast ${contrast.toFixed(1)}: ${name(element)}`);
  }
  return faults;
};

// Texts do not run over each other: no two cells of a row, no heading over its button, no label out of its picture.
const overlap = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
  Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
const lines = (element) => {
  const range = document.createRange();
  range.selectNodeContents(element);
  return [...range.getClientRects()];
};
const collisions = () => {
  const faults = [];
  const groups = [...document.querySelectorAll("tr, .tiles > div, .command, figure, dl > div")].filter(seen);
  for (const group of groups) {
    const parts = [...group.children].filter(seen).map((part) => [part, lines(part)]);
    parts.forEach(([part, ours], place) => {
      for (const [other, theirs] of parts.slice(place + 1))
        if (ours.some((a) => theirs.some((b) => overlap(a, b)))) faults.push(`${name(part)} over ${name(other)}`);
    });
  }
  for (const picture of document.querySelectorAll("figure > svg")) {
    const frame = picture.getBoundingClientRect();
    for (const glyph of picture.querySelectorAll("use, text, path")) {
      const box = glyph.getBoundingClientRect();
      const isClipped = glyph.closest("[clip-path]") || glyph.closest("defs");
      if (!isClipped && box.width && (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1))
        faults.push(`out of its picture: ${picture.getAttribute("aria-label")?.slice(0, 40)}`);
    }
  }
  return [...new Set(faults)];
};

const nameless = () => {
  const pictures = [...document.querySelectorAll("svg, img")].filter((picture) => !picture.closest("dialog"));
  const spoken = (picture) => picture.getAttribute("aria-label") || picture.alt || "";
  const faults = pictures.filter((picture) => spoken(picture).length < 20).map(name);
  for (const button of document.querySelectorAll("button, input"))
    if (!(button.textContent.trim() || button.getAttribute("aria-label") || button.labels?.length)) faults.push(name(button));
  for (const cell of document.querySelectorAll("td:not([data-heading])")) faults.push(`no heading: ${name(cell)}`);
  return faults;
};

// The number that a reader sees first in a cell, in its base unit; none where there is no number.
const UNITS = {"%": 0.01, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "min": 60, "h": 3600, "kB": 1e3, "MB": 1e6, "GB": 1e9,
  "KiB": 2 ** 10, "MiB": 2 ** 20, "GiB": 2 ** 30, "GB/s": 1e9, "MB/s": 1e6};
const shown = (cell) => {
  const copy = cell.cloneNode(true);
  for (const note of copy.querySelectorAll("small")) note.remove();
  const text = copy.textContent.replace(/\s+/g, " ").trim();
  const number = text.match(/^([+-]|\u2212)?([\d,]*\.?\d+(?:e[+-]?\d+)?) ?(\S*)/);
  if (!number) return null;
  const sign = number[1] === "-" || number[1] === "\u2212" ? -1 : 1;
  return sign * Number(number[2].replaceAll(",", "")) * (UNITS[number[3]] ?? 1);
};
const isSorted = (values) => values.every((value, place) => place === 0 || value >= values[place - 1] - 1e-12 * Math.abs(value));
const unsorted = () => {
  const faults = [];
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...[...table.tHead.rows].at(-1).cells];
    heads.forEach((head, column) => {
      const button = head.querySelector("button");
      if (!button) { faults.push(`does not sort: ${name(head)}`); return; }
      for (const order of ["ascending", "descending"]) {
        button.click();
        if (head.getAttribute("aria-sort") !== order) faults.push(`not ${order}: ${name(head)}`);
        const cells = [...table.tBodies[0].rows].map((row) => row.cells[column]);
        const isText = head.classList.contains("text");
        const values = cells.map(shown).filter((value) => value !== null);
        if (isText && values.length < cells.length) continue;
        if (!isSorted(order === "ascending" ? values : values.reverse()))
          faults.push(`${order} is no order: ${name(head)}: ${cells.map(words).join(" | ")}`);
      }
    });
  }
  return faults;
};

const copies = async () => {
  const faults = [];
  const copied = [];
  Object.defineProperty(navigator, "clipboard", {value: {writeText: async (text) => copied.push(text)}, configurable: true});
  for (const button of document.querySelectorAll(".command")) {
    const press = button.querySelector("button.copy");
    if (!seen(button)) continue;
    press.click();
    await null;
    if (press.hidden || copied.at(-1) !== button.querySelector("pre").textContent) faults.push(`not copied: ${name(button)}`);
  }
  return faults;
};

const figures = () => [...document.querySelectorAll("figure")];
const enlarge = (place) => {
  const drawn = figures()[place].querySelector("svg").getBoundingClientRect();
  figures()[place].querySelector(".enlarge").click();
  const viewer = document.querySelector("dialog.viewer");
  const large = viewer.querySelector("svg").getBoundingClientRect();
  const fits = large.right <= innerWidth && large.bottom <= innerHeight;
  return {open: viewer.open, larger: large.width / drawn.width, fits};
};
const isOpen = () => document.querySelector("dialog.viewer").open;
return {tooWide, unreadable, collisions, nameless, unsorted, copies, figures, enlarge, isOpen};
})();
