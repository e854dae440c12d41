// The page of a reviewer: one label at a time. Texts are only ever set as text.
"use strict";

const at = (id) => document.getElementById(id);
const make = (tag, attributes, text) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.textContent = text;
  return node;
};

const QUESTIONS = {
  pairs: ["Does the labelled passage answer the query?", "right: it answers", "wrong: it does not"],
  negatives: ["Is the candidate rightly labelled as no answer?", "right: it is no answer", "wrong: it answers the query"],
};
const KEYS = { r: "right", w: "wrong", u: "unsure", z: "undo" };
const KINDS = { a: "all", p: "pairs", n: "negatives" };

let reviewer = "";
let item = null;
let busy = false;

async function ask(path, body) {
  // A second click during a request would be about a label that nobody has seen.
  if (busy) return;
  busy = true;
  try {
    const post = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
    const answer = await fetch(path, body ? post : {});
    const content = await answer.json();
    if (!answer.ok) throw new Error(content.error);
    at("trouble").textContent = "";
    draw(content);
  } catch (error) {
    at("trouble").textContent = `${body ? "Not saved" : "Not loaded"} (${error.message}). Is raydr review running?`;
  } finally {
    busy = false;
  }
}

const load = () => ask(`/state?${new URLSearchParams({ reviewer, kind: at("kind").value })}`);
const undo = () => ask("/undo", { reviewer, kind: at("kind").value });
const decide = (verdict) => {
  if (item) ask("/decide", { reviewer, kind: at("kind").value, label: item.id, verdict });
};

function draw(state) {
  item = state.item;
  const { right, wrong, unsure } = state.decided;
  at("done").max = Math.max(1, state.total);
  at("done").value = right + wrong + unsure;
  at("counts").textContent = `${right + wrong + unsure} of ${state.total}: ${right} right, ${wrong} wrong, ${unsure} unsure`;
  at("undo").disabled = !state.can_undo;
  at("findings").replaceChildren(...state.findings.map((sentence) => make("li", {}, sentence)));
  const [question, yes, no] = item ? QUESTIONS[item.kind] : ["Everything in this list is decided.", "", ""];
  at("question").textContent = question;
  at("facts").textContent = item ? item.facts : "raydr review --limit shows more.";
  at("right").replaceChildren(make("kbd", {}, "r"), ` ${yes}`);
  at("wrong").replaceChildren(make("kbd", {}, "w"), ` ${no}`);
  for (const verdict of ["right", "wrong", "unsure"]) at(verdict).hidden = !item;
  at("texts").replaceChildren(...(item ? item.texts : []).map((text) => {
    const box = make("section", { tabindex: "0", "aria-label": text.role }, "");
    box.append(make("h3", {}, `${text.role} (${text.id})`));
    if (text.title) box.append(make("h4", {}, text.title));
    // Code: a line is indented.
    box.append(make("p", /\n[ \t]+\S/.test(text.text) ? { class: "code" } : {}, text.text));
    return box;
  }));
}

at("who").addEventListener("submit", (event) => {
  event.preventDefault();
  reviewer = at("name").value.trim();
  if (!reviewer) return;
  localStorage.setItem("reviewer", reviewer);
  at("who").hidden = true;
  at("bar").hidden = at("desk").hidden = false;
  document.activeElement.blur();
  load();
});
at("kind").addEventListener("change", load);
at("undo").addEventListener("click", undo);
for (const verdict of ["right", "wrong", "unsure"]) at(verdict).addEventListener("click", () => decide(verdict));

document.addEventListener("keydown", (event) => {
  const typed = ["INPUT", "SELECT"].includes(event.target.tagName);
  if (typed || !reviewer || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
  if (KEYS[event.key] === "undo") undo();
  else if (KEYS[event.key]) decide(KEYS[event.key]);
  else if (KINDS[event.key]) {
    at("kind").value = KINDS[event.key];
    load();
  }
});

const named = new URLSearchParams(location.search).get("reviewer");
at("name").value = named || localStorage.getItem("reviewer") || "";
if (named) at("who").requestSubmit();
else at("name").focus();
