// Shows each <time> in the form that the user has chosen; its title has all three.
const two = (n) => String(n).padStart(2, "0");
const clock = (d, u) => u
  ? `${d.getUTCFullYear()}-${two(d.getUTCMonth() + 1)}-${two(d.getUTCDate())} ${two(d.getUTCHours())}:${two(d.getUTCMinutes())}:${two(d.getUTCSeconds())}`
  : `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;

export function span(s) {
  if (s < 60) return `${Math.round(s)} s`;
  if (s < 3600) return `${Math.round(s / 60)} min`;
  if (s < 86400) return `${(s / 3600).toFixed(1).replace(".0", "")} h`;
  return `${(s / 86400).toFixed(1).replace(".0", "")} d`;
}

function ago(d) {
  const s = (Date.now() - d) / 1000;
  return Math.abs(s) < 1 ? "now" : s > 0 ? `${span(s)} ago` : `in ${span(-s)}`;
}

export function showTimes(root) {
  const form = document.documentElement.dataset.times;
  for (const el of root.querySelectorAll("time[datetime]")) {
    const d = new Date(el.dateTime);
    if ("clock" in el.dataset) {
      if (form === "local") el.textContent = clock(d).slice(11, 16);
      continue;
    }
    const all = { ago: ago(d), utc: clock(d, true), local: clock(d) };
    el.textContent = all[form];
    el.title = `${all.utc} UTC · ${all.local} local · ${all.ago}`;
  }
}
