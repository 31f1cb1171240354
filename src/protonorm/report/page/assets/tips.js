// Tooltip with the numbers under the pointer or the keyboard focus.
const tip = byId("tip");

function showTip(x, y, title, rows) {
  tip.replaceChildren(
    element("b", {}, title),
    ...rows.map(([name, value, slot]) =>
      element("div", {},
        element("span", {}, slot === undefined ? null : element("i", { class: `swatch ${slotClass(slot)}` }), name),
        element("span", {}, value))),
  );
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 14 + box.width > innerWidth ? x - box.width - 14 : x + 14;
  const top = y + 14 + box.height > innerHeight ? y - box.height - 14 : y + 14;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, top)}px`;
}

function hideTip() {
  tip.hidden = true;
}

addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
addEventListener("scroll", hideTip, { passive: true });

// Move between the points of a chart by keyboard, and hide the tooltip when the focus is lost.
function listen(svg, chosen, last, point, leave) {
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: chosen() - 1, ArrowRight: chosen() + 1, Home: 0, End: last };
    if (!(event.key in moves)) return;
    event.preventDefault();
    point(moves[event.key]);
  });
}

// Legend whose keys show and hide their series.
function legend(place, names, change) {
  const hidden = new Set();
  const keys = names.map(({ name, slot, dashed }) => {
    const sample = shape("svg", { viewBox: "0 0 32 16", "aria-hidden": "true", class: slot === null ? null : slotClass(slot) },
      slot === null
        ? shape("line", { class: "reference", x1: 1, x2: 31, y1: 8, y2: 8 })
        : shape("path", { class: "line", d: dashed ? "M1 8H31" : "", "stroke-dasharray": dashes(slot) }),
      slot === null ? null : marker(slot, 16, 8, 4.5));
    const key = element("button", { type: "button", class: "key", "aria-pressed": "true" }, sample, name);
    key.addEventListener("click", () => {
      if (!hidden.delete(name)) hidden.add(name);
      key.setAttribute("aria-pressed", String(!hidden.has(name)));
      change();
    });
    return key;
  });
  place.replaceChildren(...keys);
  return hidden;
}
