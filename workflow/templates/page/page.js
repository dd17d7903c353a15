// What the page says about the case, copy buttons, j and k for the next and the previous case, and quantities that the scorecard leads to.
// On a wide screen it stands beside the beginning, elsewhere below the text.
const [about, text, wide] = [document.getElementById("about"), document.querySelector(".page > div"), matchMedia("screen and (min-width: 1250px)")];
const place = () => (wide.matches ? text.prepend(about) : text.after(about));
wide.addEventListener("change", place);
place();
for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const code = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "copied";
    } catch {
      // Not allowed here: selected, for the keyboard to copy.
      getSelection().selectAllChildren(code);
    }
  });
}
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /INPUT|TEXTAREA|SELECT/.test(event.target.tagName)) return;
  document.querySelector({ j: "a[rel=next]", k: "a[rel=prev]" }[event.key] || "none")?.click();
});
// A quantity may be in a folded table, or, where the page has no row of it, among the claims.
const lead = () => {
  const name = decodeURIComponent(location.hash.slice(1));
  if (!name.startsWith("q-")) return;
  const found = document.getElementById(name) || document.querySelector(`[data-quantity="${CSS.escape(name.slice(2))}"]`);
  for (let folded = found?.closest("details"); folded; folded = folded.parentNode.closest("details")) folded.open = true;
  found?.scrollIntoView({ block: "center" });
};
addEventListener("hashchange", lead);
lead();
