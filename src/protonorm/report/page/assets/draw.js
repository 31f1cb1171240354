// Drawing helpers: elements, axes, markers, tables. External texts only ever become text nodes.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const SLOTS = 20; // colours; ten marker shapes, filled and then hollow; ten dash patterns
const DASHES = ["", "7 4", "2 4", "10 3 2 3", "14 4", "6 3 1 3 1 3", "1 3", "10 3 5 3", "16 3 2 3 2 3", "4 2"];
const dashes = (slot) => DASHES[slot % DASHES.length] || null;
const still = matchMedia("(prefers-reduced-motion: reduce)");

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
const element = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const shape = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const slotClass = (slot) => `s${slot % SLOTS}`;
const plain = (value) => (value === null || value === undefined ? "–" : String(value));
const percent = (value) => (value === null || value === undefined ? "–" : `${value.toFixed(2)} %`);

function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit < 4) [count, unit] = [count / 1000, unit + 1];
  return `${unit ? Number(count.toPrecision(3)) : count} ${units[unit]}`;
}

// Round steps (1, 2, 5 × a power of ten) that cover [low, high] in about `count` parts.
function ticks(low, high, count, whole) {
  const raw = (high - low) / Math.max(1, count) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  let step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= raw * 0.999);
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-6; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

function shorten(text, most) {
  return text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text;
}

// Draw a marker of the slot's shape at (x, y).
function marker(slot, x, y, r) {
  const corners = (points) => `M${points.map(([a, b]) => `${(x + a * r).toFixed(1)},${(y + b * r).toFixed(1)}`).join("L")}Z`;
  const forms = [
    null,
    [[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]],
    [[0, -1.2], [1.1, 0.9], [-1.1, 0.9]],
    [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]],
    [[0, 1.2], [1.1, -0.9], [-1.1, -0.9]],
    [[-0.4, -1.2], [0.4, -1.2], [0.4, -0.4], [1.2, -0.4], [1.2, 0.4], [0.4, 0.4], [0.4, 1.2], [-0.4, 1.2], [-0.4, 0.4], [-1.2, 0.4], [-1.2, -0.4], [-0.4, -0.4]],
    [[-1.2, 0], [-0.6, -1], [0.6, -1], [1.2, 0], [0.6, 1], [-0.6, 1]],
    [[0, -1.3], [0.4, -0.4], [1.3, 0], [0.4, 0.4], [0, 1.3], [-0.4, 0.4], [-1.3, 0], [-0.4, -0.4]],
    [[-1.2, -1.2], [0, -0.5], [1.2, -1.2], [0.5, 0], [1.2, 1.2], [0, 0.5], [-1.2, 1.2], [-0.5, 0]],
    [[-1.2, 0], [0.9, -1.1], [0.9, 1.1]],
  ];
  const form = forms[slot % forms.length];
  const common = { class: `mark ${slotClass(slot)}${slot % SLOTS >= forms.length ? " hollow" : ""}` };
  return form ? shape("path", { ...common, d: corners(form) }) : shape("circle", { ...common, cx: x, cy: y, r });
}

// Return for each position the number of earlier positions that it overlaps.
function layers(places, near) {
  return places.map(([x, y], i) => places.slice(0, i).filter(([a, b]) => Math.hypot(a - x, b - y) < near).length);
}

// Fill the data table of a figure when it is opened, and again when its data change while open.
function numbers(figure, rows) {
  const details = figure.querySelector("details.numbers");
  const place = details.querySelector(".scroll");
  const write = () => {
    if (!details.open) return;
    const [head, ...body] = rows();
    place.replaceChildren(
      element("table", {},
        element("thead", {}, element("tr", {}, ...head.map((name, i) => element("th", { scope: "col", class: i ? "number" : null }, name)))),
        element("tbody", {}, ...body.map((row) =>
          element("tr", {}, ...row.map((value, i) => (i ? element("td", { class: "number" }, plain(value)) : element("th", { scope: "row" }, plain(value))))))),
      ),
    );
  };
  details.addEventListener("toggle", write);
  return write;
}

// Draw now and whenever the container's width changes.
function sized(place, draw) {
  let width = 0;
  const redraw = () => {
    const now = Math.floor(place.clientWidth);
    if (now && now !== width) draw((width = now));
  };
  new ResizeObserver(redraw).observe(place);
  redraw();
  return () => width && draw(width);
}

function options(select, names, label) {
  select.replaceChildren(...names.map(([value, name]) => element("option", { value }, name)));
  select.closest("label").hidden = names.length < 2 && Boolean(label);
}
