// Tables that sort and filter, and the browser of queries. Texts are only ever set as text.
"use strict";

const make = (tag, attributes = {}, text = "") => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text) node.textContent = text;
  return node;
};

const SECONDS = { h: 3600, min: 60, s: 1 };

// The number that a cell begins with, or its duration in seconds; null for a date.
function numberIn(text) {
  const units = [...text.matchAll(/([\d.]+) (h|min|s)\b/g)];
  if (units.length && units[0].index === 0) return units.reduce((sum, [, of, unit]) => sum + of * SECONDS[unit], 0);
  const digits = text.replace(/[,\s]/g, "").replace("−", "-").match(/^[<+]?(-?[\d.]+(?:e[-+]?\d+)?)(?![-:.\d])/);
  return digits ? Number(digits[1]) : null;
}

function sortable(table) {
  const body = table.tBodies[0];
  if (!table.tHead || body.rows.length < 2) return;
  [...table.tHead.rows[0].cells].forEach((head, at) => {
    const button = make("button", { class: "sort", type: "button" }, head.textContent);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "descending";
      for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "ascending" : "descending");
      const keyed = [...body.rows].map((row) => [row.cells[at].textContent, row]);
      keyed.sort(([a], [b]) => {
        const [x, y] = [numberIn(a), numberIn(b)];
        // What is no number comes last, whichever way.
        if (x === null || y === null) return x === y ? (down ? 1 : -1) * a.localeCompare(b) : x === null ? 1 : -1;
        return down ? x - y : y - x;
      });
      body.append(...keyed.map(([, row]) => row));
    });
  });
  if (body.rows.length < 6) return;
  const filter = make("input", { type: "search", placeholder: "filter rows", "aria-label": "filter rows" });
  table.parentNode.before(filter);
  filter.addEventListener("input", () => {
    const wanted = filter.value.toLowerCase();
    for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
}

const SHOWN = 20;
const signed = (value) => `${value >= 0 ? "+" : "−"}${Math.abs(value).toFixed(3)}`;

function browser(root) {
  const data = JSON.parse(root.querySelector("script").textContent);
  const select = (label, options) => {
    const field = make("select", { "aria-label": label });
    options.forEach(([value, text]) => field.append(make("option", { value }, text)));
    return field;
  };
  const systems = data.systems.map((name, at) => [String(at), name]);
  const first = select("system", systems);
  const second = select("against", systems);
  first.value = String(systems.length - 1);
  const kind = select("which queries", [["all", "all queries"], ["win", "where the first wins"],
    ["loss", "where the first loses"], ["tie", "ties"]]);
  const words = make("input", { type: "search", placeholder: "words of the query", "aria-label": "words of the query" });
  const count = make("span", { class: "note count" });
  const list = make("div", { class: "queries" });
  const more = make("button", { type: "button", class: "more" }, "more");
  let shown = SHOWN;
  const bar = make("p", { class: "bar" });
  bar.append(first, make("span", {}, "against"), second, kind, words, count);
  root.append(bar, list, more);

  function passages(query, system) {
    const column = make("div");
    column.append(make("h4", {}, `${data.systems[system]}  ${query.values[system].toFixed(3)}`));
    for (const id of query.top[system]) {
      const right = query.positives.includes(id);
      const [title, text] = data.passages[id];
      // Code: a line is indented.
      const kinds = [right ? "right" : "", /\n[ \t]+\S/.test(text) ? "code" : ""].filter(Boolean).join(" ");
      const item = make("p", kinds ? { class: kinds } : {});
      item.append(make("b", {}, `${right ? "✓ " : ""}${title || id}`), make("br"), document.createTextNode(text));
      column.append(item);
    }
    return column;
  }

  function draw() {
    const [a, b] = [Number(first.value), Number(second.value)];
    const gain = (query) => query.values[a] - query.values[b];
    const fits = { all: () => true, win: (x) => x > 0, loss: (x) => x < 0, tie: (x) => x === 0 }[kind.value];
    const wanted = words.value.toLowerCase();
    const matches = data.queries.filter((query) => fits(gain(query)) && query.text.toLowerCase().includes(wanted));
    matches.sort((x, y) => Math.abs(gain(y)) - Math.abs(gain(x)));
    count.textContent = ` ${matches.length} of ${data.queries.length} queries, by ${data.measure}`;
    list.replaceChildren();
    for (const query of matches.slice(0, shown)) {
      const details = make("details");
      details.append(make("summary", {}, `${signed(gain(query))}  ${query.text}`));
      details.addEventListener("toggle", () => {
        if (details.children.length > 1) return;
        const beside = make("div", { class: "beside" });
        for (const system of a === b ? [a] : [a, b]) beside.append(passages(query, system));
        details.append(beside);
      });
      list.append(details);
    }
    more.hidden = matches.length <= shown;
  }

  for (const field of [first, second, kind, words]) field.addEventListener("input", () => { shown = SHOWN; draw(); });
  more.addEventListener("click", () => { shown += SHOWN; draw(); });
  draw();
}

document.querySelectorAll("table").forEach(sortable);
document.querySelectorAll(".browser").forEach(browser);
