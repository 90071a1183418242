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
const retry = document.querySelector("[data-retry]");
if (retry) setTimeout(() => location.reload(), retry.dataset.retry * 1000);
document.addEventListener("click", (e) => {
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(e.target)) menu.open = false;
});
