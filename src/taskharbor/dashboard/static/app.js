// Connects the parts of the page. Without scripts, everything works by links and forms.
import { showTimes } from "./times.js";
import { follow } from "./live.js";
import { openDialogs } from "./dialog.js";
import { suggest } from "./palette.js";
import { listen } from "./shortcuts.js";

showTimes(document);
setInterval(() => showTimes(document), 10000);
openDialogs();
suggest();
listen();
follow();
// A message without a button is read soon, and may be outdated soon.
const note = document.querySelector(".note:not(:has(button))");
if (note) setTimeout(() => note.remove(), 8000);
document.querySelector(".nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
const retry = document.querySelector("[data-retry]");
if (retry) setTimeout(() => location.reload(), retry.dataset.retry * 1000);
if (navigator.clipboard) document.documentElement.dataset.copies = "";
document.addEventListener("click", async (e) => {
  const copy = e.target.closest("[data-copy]");
  if (copy) {
    const source = copy.dataset.copy || copy.parentElement.querySelector("code").textContent;
    copy.dataset.shown = ""; // a refresh of this part leaves the button as it is
    copy.textContent = await navigator.clipboard.writeText(source).then(() => "Copied", () => "Not allowed");
    setTimeout(() => {
      copy.textContent = "Copy";
      delete copy.dataset.shown;
    }, 2000);
  }
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(e.target)) menu.open = false;
});
