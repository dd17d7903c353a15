// Search, facets with live counts, the state in the address, and sorting; without it, the page shows everything.
(() => {
  const form = document.querySelector(".filter");
  const items = [...document.querySelectorAll(".version, tr[data-study]")];
  for (const item of document.querySelectorAll(".version")) {
    const [dataset, study, name] = item.getAttribute("href").split("/");
    Object.assign(item.dataset, { dataset, study, kind: item.querySelector(".kind").classList[1] });
    item.id = `${dataset}-${study}-${name}`;
    const frame = item.querySelector("span:empty");
    if (frame) frame.append(Object.assign(new Image(), { loading: "lazy", alt: "", src: `${dataset}/${study}/${name}/figure.png` }));
  }
  for (const row of document.querySelectorAll("tr[data-study]"))
    Object.assign(row.dataset, { verdict: row.querySelector(".verdict").textContent, kind: row.querySelector(".kind").classList[1] });
  const texts = new Map(items.map((item) => [item, item.textContent.toLowerCase()]));
  const facets = [...new Set([...form.elements].map((control) => control.name).filter((name) => name && name !== "q"))];

  // An item may have several values of a facet.
  const values = (item, name) => (item.dataset[name] || "").split("|");

  // Versions of one case share a card, which shows one of those that fit; a switch chooses it.
  const cards = [...document.querySelectorAll(".study article")];
  const sections = [...document.querySelectorAll("section.study")];
  for (const card of cards) {
    const opener = document.createElement("button");
    opener.type = "button";
    opener.className = "files";
    opener.textContent = "files";
    opener.setAttribute("aria-expanded", false);
    opener.addEventListener("click", () => list(card, opener));
    card.append(opener);
    const versions = [...card.querySelectorAll(".version")];
    if (versions.length < 2) continue;
    const bar = document.createElement("div");
    bar.className = "switch";
    bar.setAttribute("role", "group");
    bar.setAttribute("aria-label", "version");
    for (const version of versions) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = version.dataset.dataset;
      button.version = version;
      button.addEventListener("click", () => ((card.chosen = version), apply()));
      bar.append(button);
    }
    card.append(bar);
  }
  // What was made of the version that a card shows.
  const list = (card, opener) => {
    const open = card.querySelector(".made");
    opener.setAttribute("aria-expanded", !open);
    if (open) return open.remove();
    const folder = card.querySelector(".version:not([hidden])").getAttribute("href").replace(/notebook.html$/, "");
    const files = ["figure.pdf", "figure.svg", "figure.png", "table.csv", "table.md", "table.tex"];
    const made = document.createElement("p");
    made.className = "made";
    for (const name of [...files, "data.parquet", "summary.json", "provenance.json", "notebook.ipynb"]) {
      const link = document.createElement("a");
      link.href = folder + name;
      link.textContent = name;
      made.append(link, " ");
    }
    card.append(made);
  };
  const choose = (card, shown) => {
    const before = card.querySelector(".version:not([hidden])");
    const fitting = [...card.querySelectorAll(".version")].filter((version) => shown.has(version));
    const chosen = fitting.includes(card.chosen) ? card.chosen : fitting[0];
    for (const version of fitting) version.hidden = version !== chosen;
    for (const button of card.querySelectorAll(".switch button")) {
      button.setAttribute("aria-pressed", button.version === chosen);
      button.disabled = !fitting.includes(button.version);
    }
    card.hidden = !fitting.length;
    if (before !== chosen && card.querySelector(".made")) list(card, card.querySelector(".files"));
  };

  const wanted = () => {
    const state = new FormData(form);
    return Object.fromEntries(facets.map((name) => [name, state.getAll(name).filter(Boolean)]));
  };
  const apply = () => {
    const words = form.q.value.toLowerCase().split(/\s+/).filter(Boolean);
    const state = wanted();
    const fits = (item, name) => !state[name].length || values(item, name).some((value) => state[name].includes(value));
    const found = items.filter((item) => words.every((word) => texts.get(item).includes(word)));
    const shown = new Set(found.filter((item) => facets.every((name) => fits(item, name))));
    for (const item of items) item.hidden = !shown.has(item);
    for (const card of cards) choose(card, shown);
    for (const section of sections) section.hidden = !section.querySelector("article:not([hidden])");
    for (const name of facets) {
      // What each choice would give, with the other facets as they are.
      const counts = {};
      for (const item of found)
        if (facets.every((other) => other === name || fits(item, other)))
          for (const value of values(item, name)) counts[value] = (counts[value] || 0) + 1;
      for (const choice of form.querySelectorAll(`[name="${name}"][type=checkbox]`)) {
        choice.parentNode.querySelector("output").value = counts[choice.value] || 0;
        choice.parentNode.classList.toggle("none", !counts[choice.value]);
      }
      for (const choice of form.querySelectorAll(`select[name="${name}"] option[value]:not([value=""])`))
        choice.textContent = `${choice.dataset.words} (${counts[choice.value] || 0})`;
    }
    keep();
    if (!cards.some((card) => !card.hidden && card.querySelector("[tabindex='0']"))) reach(cards.find((card) => !card.hidden));
    form.querySelector(".shown").value = `${shown.size} of ${items.length}`;
    document.documentElement.style.setProperty("--bar", `${form.offsetHeight - 1}px`);
  };
  const write = () => {
    const state = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    history.replaceState(null, "", state.size ? `#${state}` : location.pathname + location.search);
  };
  const read = () => {
    const state = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
    for (const control of form.elements) {
      if (control.type === "checkbox") control.checked = state.getAll(control.name).includes(control.value);
      else if (control.name) control.value = state.get(control.name) || "";
    }
    const named = state.size ? null : document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (named?.closest(".version")) named.closest("article").chosen = named.closest(".version");
    apply();
    if (state.size) form.scrollIntoView();
    else named?.scrollIntoView();
  };

  form.addEventListener("input", () => (apply(), write()));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(() => (apply(), write())));
  addEventListener("hashchange", read);
  addEventListener("resize", apply);
  addEventListener("keydown", (event) => {
    const typing = /INPUT|SELECT|TEXTAREA/.test(event.target.tagName);
    if (event.key === "/" && !typing) {
      event.preventDefault();
      form.q.focus();
    }
    const card = event.target.closest?.(".study article");
    if (!card || typing || !event.key.startsWith("Arrow")) return;
    const open = cards.filter((other) => !other.hidden);
    const here = card.getBoundingClientRect();
    const places = new Map(open.map((other) => [other, other.getBoundingClientRect()]));
    const across = (other) => Math.abs(places.get(other).left - here.left);
    const beyond = {
      ArrowDown: (a, b) => places.get(a).top - places.get(b).top,
      ArrowUp: (a, b) => places.get(b).top - places.get(a).top,
    }[event.key];
    // Beside it, or in the nearest row above or below the one that is most nearly in its column.
    const next = beyond
      ? open.filter((other) => beyond(other, card) > 1).sort((a, b) => beyond(a, b) || across(a) - across(b))[0]
      : open[open.indexOf(card) + (event.key === "ArrowRight" ? 1 : -1)];
    if (next) {
      event.preventDefault();
      next.querySelector(".version:not([hidden])").focus();
    }
  });

  // Hundreds of links are one tab stop, in which arrow keys move. Without a script, every link is one.
  const rove = (area, lines) => {
    const stops = (line) => [...line.querySelectorAll("a, summary")];
    const enter = (stop) => {
      for (const other of area.querySelectorAll("[tabindex='0']")) other.tabIndex = -1;
      if (stop) stop.tabIndex = 0;
    };
    const reachable = () => lines().filter((line) => !line.hidden && stops(line).length);
    for (const stop of stops(area)) stop.tabIndex = -1;
    area.addEventListener("focusin", (event) => event.target.matches("a, summary") && enter(event.target));
    area.addEventListener("keydown", (event) => {
      const open = reachable(), place = open.findIndex((line) => line.contains(event.target));
      if (place < 0 || !event.key.startsWith("Arrow")) return;
      const here = stops(open[place]).indexOf(event.target);
      const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key];
      const line = open[place + down] ?? open[place];
      event.preventDefault();
      stops(line)[Math.max(0, Math.min(here + right, stops(line).length - 1))].focus();
    });
    // What a filter hides is no stop.
    const keep = () => {
      const stop = area.querySelector("[tabindex='0']");
      if (!stop || stop.closest("[hidden]")) enter(stops(reachable()[0] ?? area)[0]);
    };
    keep();
    return keep;
  };
  const table = document.querySelector(".scorecard");
  const keep = table ? rove(table, () => [...table.tBodies[0].rows]) : () => {};
  for (const counts of document.querySelectorAll(".counts"))
    rove(counts, () => [...counts.querySelectorAll("td > div, tr:not(:has(td > div))")]);
  for (const list of document.querySelectorAll(".plain")) rove(list, () => [...list.children]);
  const reach = (card) => {
    for (const other of cards) for (const stop of other.querySelectorAll("a, button")) stop.tabIndex = other === card ? 0 : -1;
  };
  for (const card of cards) card.addEventListener("focusin", () => reach(card));
  for (const hint of document.querySelectorAll(".keys")) hint.hidden = false;

  const sort = (head) => {
    const column = head.cellIndex;
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = head.closest("table").tBodies[0];
    const key = (row) => {
      const words = row.cells[column].textContent.trim();
      const number = parseFloat(words.replace(/,/g, "").replace(/^(at (most|least) |\+)/, ""));
      // A difference counts by its size.
      return Number.isNaN(number) ? words : head.dataset.size === undefined ? number : Math.abs(number);
    };
    const order = (a, b) => {
      if (a[0] === "" || b[0] === "") return (a[0] === "") - (b[0] === "");
      if (typeof a[0] !== typeof b[0]) return typeof a[0] === "number" ? -1 : 1;
      return (typeof a[0] === "number" ? a[0] - b[0] : a[0].localeCompare(b[0])) * (down ? -1 : 1);
    };
    body.append(...[...body.rows].map((row) => [key(row), row]).sort(order).map((pair) => pair[1]));
  };
  for (const head of document.querySelectorAll(".scorecard thead th")) {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => sort(head));
  }
  form.hidden = false;
  read();
})();
