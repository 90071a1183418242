// Shows what the palette finds while one types. Enter without scripts opens the page of results.
export function suggest() {
  const input = document.querySelector(".palette input");
  if (!input) return;
  document.addEventListener("keydown", (e) => {
    if ((e.ctrlKey || e.metaKey) && e.key.toLowerCase() === "k") {
      e.preventDefault();
      input.focus();
      input.select();
    }
  });
  const box = document.createElement("div");
  box.className = "sheet results";
  box.hidden = true;
  input.form.append(box);
  let timer, asked = "";
  const close = () => (box.hidden = true);
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(look, 150);
  });
  input.form.addEventListener("keydown", (e) => {
    const links = [...box.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    if (e.key === "Escape") {
      close();
      input.focus();
    } else if (e.key === "ArrowDown" || e.key === "ArrowUp") {
      e.preventDefault();
      const next = at + (e.key === "ArrowDown" ? 1 : -1);
      (links[next] || input).focus();
    } else if (e.key === "Enter" && e.target === input && links.length && !box.hidden && asked === input.value) {
      e.preventDefault();
      links[0].click();
    }
  });
  document.addEventListener("focusin", (e) => {
    if (!input.form.contains(e.target)) close();
  });
  async function look() {
    const text = input.value;
    if (!text.trim()) return close();
    const url = new URL(input.form.action);
    url.searchParams.set("q", text);
    const answer = await fetch(url, { headers: { "X-Part": "found" } }).catch(() => null);
    if (!answer || !answer.ok || input.value !== text) return;
    box.innerHTML = await answer.text();
    asked = text;
    box.hidden = false;
  }
}
