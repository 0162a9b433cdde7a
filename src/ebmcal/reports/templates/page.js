"use strict";
// Tables are sorted by a click on a heading: ascending, then descending. Empty cells are always last.
(() => {
  const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

  const keyOf = (row, index) => {
    const cell = row.cells[index];
    const text = cell.textContent.trim();
    if (cell.dataset.value !== undefined) return { number: Number(cell.dataset.value), text };
    return { number: null, text: text === "–" ? "" : text };
  };

  const compare = (a, b, sign) => {
    if (a.number !== null && b.number !== null) return sign * (a.number - b.number);
    if (a.number !== null || b.number !== null) return a.number !== null ? -1 : 1;
    if (!a.text || !b.text) return a.text ? -1 : b.text ? 1 : 0;
    return sign * collator.compare(a.text, b.text);
  };

  const sortBy = (table, heading) => {
    const index = heading.cellIndex;
    const descending = heading.getAttribute("aria-sort") === "ascending";
    for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const body = table.tBodies[0];
    const keyed = [...body.rows].map((row) => [keyOf(row, index), row]);
    keyed.sort((a, b) => compare(a[0], b[0], descending ? -1 : 1));
    body.append(...keyed.map((pair) => pair[1]));
    table.classList.add("sorted");
  };

  for (const table of document.querySelectorAll("table[data-sortable]")) {
    for (const heading of table.tHead.rows[0].cells) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      button.addEventListener("click", () => sortBy(table, heading));
      heading.append(button);
    }
  }

  // A link into a collapsed section opens it. For printing, everything but long texts is open.
  const openAround = (element) => {
    for (let node = element; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
  };
  const openTarget = () => openAround(document.getElementById(location.hash.slice(1)));
  addEventListener("hashchange", openTarget);
  openTarget();
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open]):not(.long)")];
    for (const part of closed) part.open = true;
  });
  addEventListener("afterprint", () => closed.forEach((part) => (part.open = false)));
})();
