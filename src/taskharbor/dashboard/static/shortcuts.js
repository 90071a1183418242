// Keyboard shortcuts. They move and select, and never change anything. They can be switched off in the ? dialog.
import { show } from "./dialog.js";

const KEY = "taskharbor-shortcuts";
const off = () => localStorage.getItem(KEY) === "off";
const rows = () => [...document.querySelectorAll("main tr[data-key]")];
let at = -1, go = 0;

export function listen() {
  for (const b of document.querySelectorAll("[data-shortcuts]")) {
    b.hidden = false;
    b.addEventListener("click", () => help(b));
  }
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.target.closest("input, textarea, select, dialog") || off()) return;
    if (Date.now() - go < 1000) {
      go = 0;
      const link = document.querySelector(`[data-go="${CSS.escape(e.key)}"]`);
      if (link) link.click();
      return;
    }
    const found = { "/": search, j: () => step(1), k: () => step(-1), x: tick, ".": open, g: () => (go = Date.now()), "?": () => help() }[e.key];
    if (!found) return;
    e.preventDefault();
    found();
  });
}

const search = () => document.querySelector(".palette input")?.focus();

function step(by) {
  const all = rows();
  if (!all.length) return;
  all[at]?.classList.remove("at");
  at = Math.max(0, Math.min(all.length - 1, at + by));
  all[at].classList.add("at");
  all[at].querySelector("a, input")?.focus();
}

const tick = () => rows()[at]?.querySelector("input[type=checkbox]")?.click();
const open = () => rows()[at]?.querySelector("a")?.click();

function help(opener) {
  const keys = [["/", "search"], ["j k", "next and previous row"], ["x", "tick the row"], [".", "open the row"], ["?", "this list"]];
  for (const a of document.querySelectorAll("[data-go]")) keys.push([`g ${a.dataset.go}`, a.firstChild.textContent]);
  const list = keys.map(([k, t]) => `<dt><kbd>${k}</kbd></dt><dd>${t}</dd>`).join("");
  const box = show(
    `<h2>Shortcuts</h2><dl>${list}</dl><p><label><input type="checkbox"${off() ? "" : " checked"}> Shortcuts are on</label></p><p class="buttons"><button class="button" data-close>Close</button></p>`,
    opener,
  );
  box.querySelector("input").addEventListener("change", (e) => localStorage.setItem(KEY, e.target.checked ? "on" : "off"));
}
