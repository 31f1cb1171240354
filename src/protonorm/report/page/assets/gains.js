// Gains and losses: a point for each client and seed, by training samples, with the colour and marker of its network.
function gains() {
  for (const group of document.querySelectorAll("[data-gains]")) {
    const panels = data.gains.panels.filter((panel) => panel.kind === group.dataset.gains);
    const used = new Set(panels.flatMap((panel) => panel.cases.map((one) => one[3])));
    const names = data.gains.networks.map((name, slot) => ({ name, slot })).filter((one) => used.has(one.slot));
    const redraw = [];
    const hidden = legend(group.querySelector(".legend"), names.length > 1 ? names : [], () => redraw.forEach((draw) => draw()));
    const same = group.querySelector("[data-same]");
    const beside = (panel) => (same?.checked ? panels : [panel]);
    for (const panel of panels) redraw.push(gainChart(group.querySelector(`[data-chart="${CSS.escape(panel.id)}"]`), panel, hidden, beside, names.length < 2));
    same?.addEventListener("change", () => redraw.forEach((draw) => draw()));
  }
}

const signed = (value) => (value > 0 ? `+${value}` : String(value).replace("-", "−"));
const inPoints = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;

// Spread overlapping points a few pixels around their common position.
function apart(places) {
  const held = new Map();
  return places.map(([x, y]) => {
    const key = `${Math.round(x / 2)} ${Math.round(y / 2)}`;
    const n = held.get(key) ?? 0;
    held.set(key, n + 1);
    const [far, angle] = [n ? Math.min(12, 2 + 2.6 * Math.sqrt(n)) : 0, 2.4 * n];
    return [x + far * Math.cos(angle), y + far * Math.sin(angle)];
  });
}

function gainChart(figure, panel, hidden, beside, alike) {
  const place = figure.querySelector(".plot");
  const seeds = new Set(panel.cases.map((one) => one[1])).size > 1;
  const network = (one) => data.gains.networks[one[3]];
  const client = (one) => panel.clients[one[0]] ?? `client ${one[0]}`;
  const held = (one) => one[2] ?? "–"; // in a real federation only the client knows its sample count
  const slot = (one) => (alike ? panel.slot : one[3]); // the method's colour if all clients have the same network
  numbers(figure, () => [
    ["client", ...(seeds ? ["seed"] : []), "network", "samples to train on", "accuracy", "in the reference", "gain (points)"],
    ...panel.cases.map((one) => [client(one), ...(seeds ? [one[1]] : []), network(one), held(one), percent(one[4]), percent(one[5]), inPoints(one[6])]),
  ]);
  let chosen = -1;
  return sized(place, (width) => {
    const every = beside(panel).flatMap((one) => one.cases);
    const heights = [0, ...every.map((one) => one[6]), ...beside(panel).flatMap((one) => one.interval || [])];
    const room = (Math.max(...heights) - Math.min(...heights)) * 0.07 || 1;
    const [low, high] = [Math.min(...heights) - room, Math.max(...heights) + room];
    const sizes = every.map((one) => one[2] ?? 0);
    const known = every.some((one) => one[2] !== null);
    const [least, most] = [Math.min(...sizes), Math.max(...sizes)];
    const log = least > 0 && most > 10 * least;
    const scale = log ? Math.log10 : (value) => value;
    const margin = (scale(most) - scale(least)) * 0.05 || (log ? 0.1 : 1);
    const [from, to] = [scale(least) - margin, scale(most) + margin];
    const height = Math.round(Math.max(235, Math.min(320, width * 0.62)));
    const marks = ticks(low, high, Math.max(3, height / 34));
    const left = 28 + 7.2 * Math.max(...marks.map((value) => signed(value).length));
    const base = height - EDGE.bottom;
    const x = (value) => left + ((scale(value) - from) / (to - from)) * (width - left - EDGE.right);
    const y = (value) => base - ((value - low) / (high - low)) * (base - EDGE.top);
    const shown = panel.cases.filter((one) => !hidden.has(network(one))).sort((a, b) => (a[2] ?? 0) - (b[2] ?? 0) || a[0] - b[0] || a[1] - b[1]);
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", tabindex: 0, "aria-label": `${panel.title}: gain of each client by its samples to train on. ${panel.sentence} ${panel.judged}` });
    svg.append(shape("rect", { class: "harm", x: left, y: y(0), width: width - left - EDGE.right, height: Math.max(0, base - y(0)) }));
    for (const value of marks) {
      svg.append(shape("line", { class: value ? "grid" : "zero", x1: left, x2: width - EDGE.right, y1: y(value), y2: y(value) }),
        shape("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, signed(value)));
    }
    const steps = log ? decades(10 ** from, 10 ** to) : ticks(from, to, Math.max(2, (width - left) / 60), true).filter((value) => value >= 0);
    let free = -99; // start of the free space for the next number
    for (const value of known ? steps : []) {
      svg.append(shape("line", { class: "axis", x1: x(value), x2: x(value), y1: base, y2: base + 4 }));
      const half = 4 * String(value).length;
      if (x(value) - half < free) continue;
      free = x(value) + half + 6;
      svg.append(shape("text", { x: x(value), y: base + 17, "text-anchor": "middle" }, String(value)));
    }
    svg.append(shape("line", { class: "axis", x1: left, x2: width - EDGE.right, y1: base, y2: base }),
      shape("text", { x: (left + width - EDGE.right) / 2, y: height - 5, "text-anchor": "middle" }, known ? "samples to train on" : "samples to train on: not on record"),
      shape("text", { x: -(EDGE.top + base) / 2, y: 11, transform: "rotate(-90)", "text-anchor": "middle" }, "gain (points)"));
    if (panel.interval) {
      svg.append(shape("rect", { class: "between", x: left, y: y(panel.interval[1]), width: width - left - EDGE.right, height: Math.max(1, y(panel.interval[0]) - y(panel.interval[1])) }));
    }
    svg.append(shape("line", { class: "reference", x1: left, x2: width - EDGE.right, y1: y(panel.mean), y2: y(panel.mean) }));
    const places = apart(shown.map((one) => [x(one[2] ?? 0), y(one[6])]));
    shown.forEach((one, i) => {
      const mark = marker(slot(one), ...places[i], 4.4);
      mark.classList.add("case");
      svg.append(mark);
    });
    const cursor = shape("g", {});
    svg.append(cursor);
    place.replaceChildren(svg);

    const point = (index, clientX, clientY) => {
      chosen = Math.max(0, Math.min(shown.length - 1, index));
      const one = shown[chosen];
      if (!one) return;
      cursor.replaceChildren(shape("circle", { class: "ring", cx: places[chosen][0], cy: places[chosen][1], r: 9 }));
      const box = svg.getBoundingClientRect();
      showTip(clientX ?? box.left + x(one[2] ?? 0), clientY ?? box.top + y(one[6]), `${client(one)}${seeds ? `, seed ${one[1]}` : ""}`, [
        ["gain", `${inPoints(one[6])} points`], ["accuracy", percent(one[4])], ["in the reference", percent(one[5])],
        ["samples to train on", String(held(one))], ["network", network(one), slot(one)]]);
    };
    const leave = () => (cursor.replaceChildren(), hideTip());
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const far = (i) => Math.hypot(places[i][0] - (event.clientX - box.left), places[i][1] - (event.clientY - box.top));
      let near = -1;
      places.forEach((_, i) => { if (near < 0 || far(i) < far(near)) near = i; });
      if (near < 0 || far(near) > 24) return leave();
      point(near, event.clientX, event.clientY);
    });
    listen(svg, () => chosen, shown.length - 1, point, leave);
  });
}
