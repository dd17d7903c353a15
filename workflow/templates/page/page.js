// Copy buttons, and j and k for the next and the previous case.
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
