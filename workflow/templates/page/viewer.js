// A view of reduced data that zooms, pans and answers the pointer, in the place of the figure. Without it, the figure stays.
(() => {
  const data = JSON.parse(document.getElementById("view").textContent);
  // A column is a list, or its distinct values and one or two bytes a mark that say which.
  const column = (packed) => {
    if (!packed || Array.isArray(packed)) return packed;
    const bytes = Uint8Array.from(atob(packed.at), (letter) => letter.charCodeAt(0));
    const places = packed.wide ? bytes.filter((_, at) => at % 2 === 0) : bytes;
    return Array.from(places, (low, at) => packed.of[packed.wide ? low + 256 * bytes[2 * at + 1] : low]);
  };
  const columns = (all) => Object.fromEntries(Object.entries(all).map(([name, packed]) => [name, column(packed)]));
  const panel = document.getElementById("look");
  const picture = document.getElementById("figure");
  const toggle = document.getElementById("closer");
  const canvas = panel.querySelector("canvas");
  const tip = panel.querySelector(".tip");
  const spoken = panel.querySelector("[aria-live]");
  const pen = canvas.getContext("2d");
  const { x: X, y: Y, x_end: XE, y_end: YE, depth: DEPTH } = columns(data.marks);
  const group = column(data.group), fields = columns(data.fields);
  const boxes = data.kind === "boxes";
  const count = X.length;
  const off = new Set(); // groups that the legend has switched off
  let width, height, left, chosen = -1, drag = null;
  const top = 10, bottom = 44, right = 12;

  // A window in the coordinates of an axis, logarithms where it is logarithmic.
  const scale = (axis) => (axis.log ? Math.log10 : (value) => value);
  const fx = scale(data.x), fy = scale(data.y);
  const range = (first, last, f, guides, log) => {
    const values = [...first, ...(last || []), ...guides].filter((value) => value !== null && (!log || value > 0)).map(f);
    let low = Infinity, high = -Infinity;
    for (const value of values) (low = Math.min(low, value)), (high = Math.max(high, value));
    // Of points at nearly one place, their surroundings; of a logarithmic axis, half a decade to each side.
    const least = boxes ? 0 : log ? 0.5 : 1e-9;
    const margin = high - low < least ? (log ? 0.5 : 0.5 * Math.abs(high) || 1) : boxes ? 0 : 0.04 * (high - low);
    return [low - margin, high + margin];
  };
  const home = {
    x: range(X, XE, fx, [], data.x.log),
    y: range(Y, YE, fy, data.guides.filter((guide) => guide.y[0] === guide.y[1]).flatMap((guide) => guide.y), data.y.log),
  };
  let view = { x: [...home.x], y: [...home.y] };
  const sx = (value) => left + ((fx(value) - view.x[0]) / (view.x[1] - view.x[0])) * (width - left - right);
  const sy = (value) => height - bottom - ((fy(value) - view.y[0]) / (view.y[1] - view.y[0])) * (height - top - bottom);

  const written = (value) => {
    if (value === null) return "–";
    const size = Math.abs(value);
    if (size && (size < 1e-3 || size >= 1e12)) return value.toExponential(2);
    return value.toLocaleString("en", size >= 1e4 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 4 });
  };
  const short = (value) =>
    Math.abs(value) >= 1e6 ? value.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 4 }).replace("B", "G") : written(value);
  const ticks = (axis, [low, high], most) => {
    const found = [];
    if (axis.log && high - low > 0.7) {
      const step = Math.max(1, Math.ceil((high - low) / most));
      for (let power = Math.ceil(low); power <= high; power += step) found.push(10 ** power);
      if (found.length < 3)
        for (let power = Math.floor(low); power <= high; power++)
          for (const digit of [2, 5]) if (Math.log10(digit * 10 ** power) >= low && Math.log10(digit * 10 ** power) <= high) found.push(digit * 10 ** power);
      return found;
    }
    if (axis.log) [low, high] = [10 ** low, 10 ** high];
    const rough = (high - low) / most, unit = 10 ** Math.floor(Math.log10(rough));
    const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= rough);
    for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) found.push(Math.abs(at) < step * 1e-6 ? 0 : at);
    return found;
  };

  const colour = data.groups.map(([, value]) => value);
  const draw = () => {
    const ratio = devicePixelRatio || 1;
    width = canvas.clientWidth;
    height = canvas.clientHeight;
    left = data.y.bands.length ? Math.min(150, width * 0.3) : 70;
    if (canvas.width !== width * ratio || canvas.height !== height * ratio) (canvas.width = width * ratio), (canvas.height = height * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = "#fff";
    pen.fillRect(0, 0, width, height);
    pen.font = '12px system-ui, "DejaVu Sans", sans-serif';
    const plot = [left, top, width - left - right, height - top - bottom];

    pen.strokeStyle = "#e4e4e4";
    pen.fillStyle = "#333";
    pen.lineWidth = 1;
    pen.textAlign = "center";
    pen.textBaseline = "top";
    for (const at of ticks(data.x, view.x, plot[2] / 90)) {
      line([sx(at), sx(at)], [top, height - bottom]);
      const words = short(at);
      pen.fillText(words, Math.min(sx(at), width - pen.measureText(words).width / 2), height - bottom + 6);
    }
    pen.fillText(data.x.label, left + plot[2] / 2, height - 17);
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    if (data.y.bands.length) {
      pen.save();
      pen.beginPath();
      pen.rect(0, top, width, plot[3]);
      pen.clip();
      for (const [name, from, to, shade] of data.y.bands) {
        const low = Math.min(sy(from), height - bottom), high = Math.max(sy(to), top);
        if (low - high < 3) continue;
        line([left, width - right], [sy(to), sy(to)]);
        pen.fillStyle = shade;
        pen.fillRect(left - 6, sy(to), 4, sy(from) - sy(to));
        pen.fillStyle = "#333";
        if (low - high >= 11) pen.fillText(fitted(name, left - 14), left - 10, (low + high) / 2);
      }
      pen.restore();
    } else {
      for (const at of ticks(data.y, view.y, plot[3] / 50)) {
        line([left, width - right], [sy(at), sy(at)]);
        pen.fillText(short(at), left - 6, sy(at));
      }
      pen.save();
      pen.translate(12, top + plot[3] / 2);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "center";
      pen.fillText(data.y.label, 0, 0);
      pen.restore();
    }

    pen.save();
    pen.beginPath();
    pen.rect(...plot);
    pen.clip();
    pen.lineWidth = 1.5;
    if (data.kind === "lines")
      data.groups.forEach((_, one) => {
        if (off.has(one)) return;
        pen.strokeStyle = colour[one];
        pen.beginPath();
        for (let mark = 0; mark < count; mark++) if (group[mark] === one) pen.lineTo(sx(X[mark]), sy(Y[mark]));
        pen.stroke();
      });
    else
      for (let mark = 0; mark < count; mark++) {
        if (off.has(group[mark])) continue;
        pen.fillStyle = colour[group[mark]];
        if (boxes) {
          const [x, y, w, h] = box(mark);
          if (x > width || x + w < left || y > height || y + h < 0) continue;
          pen.globalAlpha = DEPTH ? DEPTH[mark] : 1;
          pen.fillRect(x, y, Math.max(w, 0.7), h);
        } else {
          const x = sx(X[mark]), y = sy(Y[mark]);
          if (!(x > left - 5 && x < width && y > 0 && y < height)) continue;
          pen.globalAlpha = count > 500 ? 0.6 : 0.9;
          pen.beginPath();
          pen.arc(x, y, count > 500 ? 2.2 : 4.5, 0, 7);
          pen.fill();
        }
      }
    pen.globalAlpha = 1;
    pen.textAlign = "left";
    pen.textBaseline = "bottom";
    const rise = (guide) => (guide.y[0] < guide.y[1] ? guide.y[0] / guide.x[0] : Infinity);
    const lowest = Math.min(1e300, ...data.guides.map(rise));
    for (const guide of data.guides) {
      pen.strokeStyle = pen.fillStyle = guide.color;
      pen.setLineDash(guide.dashed ? [5, 4] : []);
      line(guide.x.map(sx), guide.y.map(sy));
      // The name is where the line enters the plot.
      const [from, to] = [guide.x.map(sx), guide.y.map(sy)];
      const slope = (to[1] - to[0]) / (from[1] - from[0] || 1);
      const at = Math.max(from[0], left, slope < 0 ? from[0] + (height - bottom - to[0]) / slope : left);
      // Along the line and above it; below the lowest of those that rise, which may have another just above it.
      pen.save();
      pen.translate(at, to[0] + slope * (at - from[0]));
      pen.rotate(Math.atan(slope));
      pen.fillText(guide.name, ...(rise(guide) === lowest ? [20, 16] : [6, -3]));
      pen.restore();
    }
    pen.setLineDash([]);
    if (chosen >= 0) {
      pen.strokeStyle = "#000";
      pen.lineWidth = 2;
      pen.beginPath();
      if (boxes) pen.rect(...box(chosen));
      else pen.arc(sx(X[chosen]), sy(Y[chosen]), 7, 0, 7);
      pen.stroke();
    }
    pen.restore();
    pen.strokeStyle = "#666";
    pen.lineWidth = 1;
    pen.strokeRect(...plot);
    canvas.style.touchAction = zoomed() ? "none" : "pan-y";
  };
  const line = (xs, ys) => {
    pen.beginPath();
    xs.forEach((x, at) => pen.lineTo(x, ys[at]));
    pen.stroke();
  };
  const fitted = (words, space) => {
    if (pen.measureText(words).width <= space) return words;
    while (words && pen.measureText(`${words}…`).width > space) words = words.slice(0, -1);
    return `${words}…`;
  };
  const box = (mark) => {
    const x = sx(X[mark]), y = sy(YE[mark]);
    return [x, y, sx(XE[mark]) - x, sy(Y[mark]) - y];
  };
  const zoomed = () => ["x", "y"].some((name) => view[name][0] !== home[name][0] || view[name][1] !== home[name][1]);

  // What is at a place, and what is said of it.
  const find = (px, py) => {
    let best = -1, least = boxes ? 4 : 14 ** 2;
    for (let mark = 0; mark < count; mark++) {
      if (off.has(group[mark])) continue;
      if (boxes) {
        const [x, y, w, h] = box(mark);
        if (py < y || py > y + h) continue;
        const away = Math.max(x - px, px - x - w, 0);
        if (away <= 0 || away < least) (best = mark), (least = away || 1e-9);
      } else {
        const away = (sx(X[mark]) - px) ** 2 + (sy(Y[mark]) - py) ** 2;
        if (away < least) (best = mark), (least = away);
      }
    }
    return best;
  };
  const answers = (mark) =>
    Object.entries(fields).map(([name, values]) => [name, typeof values[mark] === "string" ? values[mark] : written(values[mark])]);
  const choose = (mark, say) => {
    chosen = mark;
    tip.hidden = mark < 0;
    if (mark >= 0) {
      const list = document.createElement("dl");
      for (const pair of answers(mark))
        pair.forEach((words, place) => list.appendChild(document.createElement(place ? "dd" : "dt")).append(words));
      tip.replaceChildren(list);
      const [x, y] = boxes ? [sx(X[mark]) / 2 + sx(XE[mark]) / 2, sy(YE[mark])] : [sx(X[mark]), sy(Y[mark])];
      const across = Math.min(Math.max(x, left), width - right);
      tip.style.left = `${across > width / 2 ? Math.max(0, across - tip.offsetWidth - 14) : Math.min(across + 14, width - tip.offsetWidth)}px`;
      tip.style.top = `${Math.min(Math.max(0, y - tip.offsetHeight / 2), Math.max(0, height - tip.offsetHeight))}px`;
      if (say) spoken.textContent = answers(mark).map((pair) => pair.join(" ")).join(", ");
    }
    draw();
  };

  const hold = (name) => {
    // No further out than the whole, no further in than six digits.
    const [from, to] = home[name], whole = to - from;
    const span = Math.min(whole, Math.max(view[name][1] - view[name][0], whole * 1e-5));
    const start = Math.min(Math.max(view[name][0], from), to - span);
    view[name] = span >= whole * 0.9999 ? [from, to] : [start, start + span];
  };
  const moved = () => {
    hold("x");
    hold("y");
    if (chosen >= 0) choose(-1);
    else draw();
    clearTimeout(moved.later);
    moved.later = setTimeout(() => {
      const state = [...view.x, ...view.y].map((value) => +value.toPrecision(6));
      history.replaceState(null, "", zoomed() ? `#look=${state}` : "#look");
    }, 200);
  };
  const zoom = (factor, px = left + (width - left - right) / 2, py = top + (height - top - bottom) / 2) => {
    const shares = { x: (px - left) / (width - left - right), y: (height - bottom - py) / (height - top - bottom) };
    for (const name of ["x", "y"]) {
      const [from, to] = view[name], at = from + shares[name] * (to - from);
      view[name] = [at - (at - from) / factor, at + (to - at) / factor];
    }
    moved();
  };
  const pan = (dx, dy) => {
    const across = (dx / (width - left - right)) * (view.x[1] - view.x[0]);
    const up = (dy / (height - top - bottom)) * (view.y[1] - view.y[0]);
    view = { x: view.x.map((value) => value - across), y: view.y.map((value) => value + up) };
    moved();
  };
  const reset = () => {
    view = { x: [...home.x], y: [...home.y] };
    moved();
  };
  // The next mark in sight, from left to right.
  const step = (by) => {
    const inside = ([low, high], value, f) => f(value) >= low && f(value) <= high;
    const order = [...X.keys()]
      .filter((mark) => !off.has(group[mark]) && inside(view.x, X[mark], fx) && inside(view.y, Y[mark], fy))
      .sort((a, b) => X[a] - X[b] || Y[a] - Y[b]);
    const at = order.indexOf(chosen);
    if (order.length) choose(order[at < 0 ? (by > 0 ? 0 : order.length - 1) : (at + by + order.length) % order.length], true);
  };

  const keys = {
    "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5), 0: reset,
    ArrowLeft: () => pan(60, 0), ArrowRight: () => pan(-60, 0), ArrowUp: () => pan(0, 60), ArrowDown: () => pan(0, -60),
    "[": () => step(-1), "]": () => step(1), Escape: () => choose(-1),
  };
  canvas.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  canvas.addEventListener("wheel", (event) => {
    // The page scrolls past it until it has been clicked.
    if (document.activeElement !== canvas) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * 0.002), event.offsetX, event.offsetY);
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => zoom(2, event.offsetX, event.offsetY));
  const fingers = new Map();
  const apart = () => {
    const [a, b] = [...fingers.values()];
    return Math.hypot(a[0] - b[0], a[1] - b[1]) || 1;
  };
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, [event.offsetX, event.offsetY]);
    drag = [event.offsetX, event.offsetY];
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = [event.offsetX, event.offsetY];
    if (!drag) return choose(find(x, y));
    const before = fingers.size === 2 && apart();
    fingers.set(event.pointerId, [x, y]);
    if (before) zoom(apart() / before, x, y);
    else if (zoomed()) pan(x - drag[0], y - drag[1]);
    drag = [x, y];
  });
  for (const name of ["pointerup", "pointercancel"])
    canvas.addEventListener(name, (event) => {
      fingers.delete(event.pointerId);
      drag = null;
      if (name === "pointerup") choose(find(event.offsetX, event.offsetY));
    });
  canvas.addEventListener("pointerleave", () => drag || choose(-1));
  const acts = { in: () => zoom(1.5), out: () => zoom(1 / 1.5), whole: reset };
  for (const button of panel.querySelectorAll("button[data-act]")) button.addEventListener("click", acts[button.dataset.act]);

  const legend = panel.querySelector(".legend");
  if (data.groups.length > 1 && data.groups.length <= 16)
    data.groups.forEach(([name, shade], one) => {
      const button = legend.appendChild(document.createElement("button"));
      button.type = "button";
      button.style.setProperty("--shade", shade);
      button.textContent = name;
      button.setAttribute("aria-pressed", true);
      button.addEventListener("click", () => {
        off[off.has(one) ? "delete" : "add"](one);
        button.setAttribute("aria-pressed", !off.has(one));
        choose(-1);
      });
    });
  panel.querySelector(".said").textContent = data.said;

  const show = (open) => {
    panel.hidden = !open;
    picture.hidden = open;
    toggle.setAttribute("aria-expanded", open);
    toggle.textContent = open ? "Back to the figure" : "Look closer";
    if (open) draw();
  };
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    show(panel.hidden);
    history.replaceState(null, "", panel.hidden ? location.pathname + location.search : "#look");
    if (!panel.hidden) canvas.focus();
  });
  addEventListener("resize", () => panel.hidden || draw());
  const read = () => {
    const [name, state] = location.hash.slice(1).split("=");
    if (name !== "look") return;
    show(true);
    const [a, b, c, d] = (state || "").split(",").map(Number);
    if (b > a && d > c) (view = { x: [a, b], y: [c, d] }), hold("x"), hold("y"), draw();
  };
  addEventListener("hashchange", read);
  read();
})();
