// Opens preview pages in a dialog. The form inside posts as on the page of its own.
export function openDialogs() {
  document.addEventListener("click", async (e) => {
    const link = e.target.closest("a[data-dialog]");
    if (!link || e.ctrlKey || e.metaKey || e.shiftKey || e.button) return;
    e.preventDefault();
    const answer = await fetch(link.href, { headers: { "X-Part": "main" } }).catch(() => null);
    if (!answer || answer.status === 401) return (location.href = link.href);
    show(await answer.text(), link);
  });
}

export function show(html, opener) {
  const box = document.createElement("dialog");
  box.innerHTML = html;
  const title = box.querySelector("h1, h2");
  if (title) {
    title.id = "dialog-title";
    box.setAttribute("aria-labelledby", title.id);
  }
  box.addEventListener("click", (e) => {
    if (e.target.closest("[data-close]")) {
      e.preventDefault();
      box.close();
    }
  });
  box.addEventListener("close", () => {
    box.remove();
    if (opener) opener.focus();
  });
  document.body.append(box);
  box.showModal();
  return box;
}
