// Follows the stream of changes and fetches the parts of the page whose topics have changed.
import { showTimes, span } from "./times.js";

const base = new URL("../../", import.meta.url);
const marks = new Map();
const LEAVE_MS = 10000;
let stream, failures = 0, seen = Date.now(), waiting = new Set(), busy = false, left = 0;
let kept = false, behind = new Set(); // whether focus kept something as it was, and in which parts

const held = () =>
  document.hidden || document.querySelector("dialog[open], tr input:checked") || String(getSelection()).length > 0;

export function follow() {
  if (!document.querySelector("main [data-part]") || !window.EventSource) return;
  connect();
  setInterval(show, 1000);
  setInterval(update, 500);
  setInterval(() => mark(["time"]), 10000);
  addEventListener("beforeunload", () => (left = Date.now()));
  document.addEventListener("focusout", () => {
    behind.forEach((name) => waiting.add(name));
    behind.clear();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else {
      all();
      connect();
    }
  });
}

const all = () => document.querySelectorAll("[data-part]").forEach((el) => waiting.add(el.dataset.part));

function mark(topics) {
  for (const el of document.querySelectorAll("[data-part]"))
    if (el.dataset.topics.split(" ").some((t) => topics.includes(t))) waiting.add(el.dataset.part);
}

function close() {
  if (stream) stream.close();
  stream = null;
}

function connect() {
  if (stream || document.hidden || failures > 2) return;
  stream = new EventSource(new URL("events", base));
  stream.addEventListener("changed", (e) => {
    if (failures) all();
    failures = 0;
    seen = Date.now();
    const detail = JSON.parse(e.data);
    mark(detail.topics);
    update();
    document.dispatchEvent(new CustomEvent("changes", { detail }));
  });
  stream.onerror = () => {
    close();
    failures += 1;
    setTimeout(connect, 1000 * failures);
  };
}

function show() {
  const mark = document.getElementById("live");
  if (!mark) return;
  const age = (Date.now() - seen) / 1000;
  const old = age > 4;
  const text = old ? `data is ${span(age)} old` : held() ? "held" : "live";
  mark.hidden = false;
  mark.toggleAttribute("data-old", old);
  if (mark.dataset.text !== text) {
    mark.dataset.text = text;
    mark.textContent = (old ? "▲ " : "● ") + text;
    if (old && failures > 2) {
      const again = document.createElement("a");
      again.href = location.href;
      again.textContent = "Reload";
      mark.append(" · ", again);
    }
  }
}

async function update() {
  if (busy || !waiting.size || held()) return;
  busy = true;
  const names = [...waiting];
  waiting.clear();
  for (const name of names) await refresh(name).catch(() => waiting.add(name));
  busy = false;
}

async function refresh(name) {
  const part = document.querySelector(`[data-part="${name}"]`);
  if (!part) return;
  part.setAttribute("aria-busy", "true");
  try {
    const headers = { "X-Part": name };
    if (marks.has(name)) headers["If-None-Match"] = marks.get(name);
    // A list of jobs keeps its rows, and only learns how many came since.
    if ("keys" in part.dataset) headers["X-Keys"] = [...part.querySelectorAll("[data-key]")].map((row) => row.dataset.key).join();
    const answer = await fetch(part.dataset.from || location.href, { headers, cache: "no-store" });
    // While another page is on its way, as after a logout, a reload would cancel that.
    if (answer.status === 401) return Date.now() - left < LEAVE_MS || location.reload();
    if (!answer.ok || held()) {
      if (answer.ok) waiting.add(name);
      return;
    }
    marks.set(name, answer.headers.get("ETag"));
    const made = document.createElement("div");
    made.innerHTML = await answer.text();
    showTimes(made);
    kept = false;
    replace(part, made);
    if (kept) {
      marks.delete(name); // otherwise the next answer would be 304
      behind.add(name);
    }
  } finally {
    part.removeAttribute("aria-busy");
  }
}

const hasFocus = (el) => el.contains(document.activeElement);

// Changes as little as possible. Rows are replaced by their key, never one with focus; what is open stays open.
export function replace(old, made) {
  const before = [...old.childNodes], after = [...made.childNodes];
  if (made.tagName === "TBODY" && made.querySelector("[data-key]")) return rows(old, after.filter((n) => n.tagName));
  if (before.length === after.length) before.forEach((n, i) => morph(n, after[i]));
  else if (hasFocus(old)) kept = true;
  else old.replaceChildren(...after);
}

function morph(a, b) {
  if (a.isEqualNode(b) || (a.nodeType === 1 && "shown" in a.dataset)) return;
  if (a.nodeType !== 1 || a.tagName !== b.tagName) {
    if (hasFocus(a)) kept = true;
    else a.replaceWith(b);
    return;
  }
  for (const { name } of [...a.attributes]) if (name !== "open" && !b.hasAttribute(name)) a.removeAttribute(name);
  for (const { name, value } of b.attributes) if (a.getAttribute(name) !== value) a.setAttribute(name, value);
  replace(a, b);
}

function rows(body, fresh) {
  const focused = document.activeElement;
  const old = new Map([...body.children].map((row) => [row.dataset.key, row]));
  const wanted = fresh.map((row) => {
    const before = old.get(row.dataset.key);
    if (!before) row.classList.add("flash");
    if (before && before.innerHTML === row.innerHTML) return before;
    if (!before || !before.contains(focused)) return row;
    kept = true;
    return before;
  });
  for (const row of [...body.children]) if (!wanted.includes(row)) row.remove();
  wanted.forEach((row, i) => row !== body.children[i] && body.insertBefore(row, body.children[i] || null));
  if (body.contains(focused)) focused.focus({ preventScroll: true }); // a row that was moved has lost it
}
