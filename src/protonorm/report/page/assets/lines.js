// Curves over rounds.
const EDGE = { top: 12, right: 14, bottom: 40 };

function lineGroup(group) {
  const charts = data.charts[group.dataset.group];
  const names = new Map();
  for (const chart of charts) {
    for (const line of chart.lines) names.set(line.name, { name: line.name, slot: line.slot, dashed: true });
    for (const one of chart.reference || []) names.set(one.name, { name: one.name, slot: null });
  }
  const redraw = [];
  const several = names.size > 1 ? [...names.values()].sort((a, b) => (a.slot ?? 999) - (b.slot ?? 999)) : [];
  const hidden = legend(group.querySelector(".legend"), several, () => redraw.forEach((draw) => draw()));
  const shared = "shared" in group.dataset ? charts : null;
  for (const chart of charts) {
    const figure = group.querySelector(`[data-chart="${CSS.escape(chart.id)}"]`);
    redraw.push(lineChart(figure, chart, hidden, shared || [chart]));
  }
}

function domain(charts) {
  const values = charts.flatMap((chart) => [
    ...chart.lines.flatMap((line) => [...line.y, ...(line.low || []), ...(line.high || []), ...(line.reported || []).map((one) => one[1])]),
    ...(chart.reference || []).map((one) => one.y),
  ]).filter((value) => value !== null);
  if (!values.length) return [0, 1];
  const { zero, log, most } = charts[0];
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (log) return [Math.min(...values.filter((value) => value > 0)) * 0.8, high * 1.25];
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  low = zero ? 0 : Math.max(low >= 0 ? 0 : -Infinity, low - room);
  high = most === undefined ? high + room : Math.min(most, high + room);
  return [low, high];
}

function lineChart(figure, chart, hidden, together) {
  const place = figure.querySelector(".plot");
  const rounds = [...new Set(chart.lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const text = (value) => (value === null ? "–" : chart.most === 100 ? `${value.toFixed(2)} %` : String(Number(value.toPrecision(4))));
  numbers(figure, () => [
    ["round", ...chart.lines.flatMap((line) => (line.low ? [line.name, `${line.name}, band`] : [line.name]))],
    ...rounds.map((round) => [round, ...chart.lines.flatMap((line) => {
      const i = line.x.indexOf(round);
      const value = i < 0 ? null : text(line.y[i]);
      return line.low ? [value, i < 0 ? null : `${text(line.low[i])} to ${text(line.high[i])}`] : [value];
    })]),
  ]);
  let chosen = -1;
  return sized(place, (width) => {
    const height = Math.round(Math.max(235, Math.min(320, width * 0.62)));
    const [low, high] = domain(together);
    const scale = chart.log ? Math.log10 : (value) => value;
    const marks = chart.log ? decades(low, high) : ticks(low, high, Math.max(3, height / 55));
    const left = 28 + 7.2 * Math.max(...marks.map((value) => String(value).length));
    const [first, last] = rounds.length ? [rounds[0], rounds[rounds.length - 1]] : [0, 1];
    const x = (round) => left + ((round - first) / (last - first || 1)) * (width - left - EDGE.right);
    const base = height - EDGE.bottom;
    const y = (value) => base - ((scale(value) - scale(low)) / (scale(high) - scale(low) || 1)) * (base - EDGE.top);
    const shown = chart.lines.filter((line) => !hidden.has(line.name));
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", tabindex: 0, "aria-label": `${chart.title}. ${chart.conclusion}` });
    for (const value of marks) {
      svg.append(shape("line", { class: "grid", x1: left, x2: width - EDGE.right, y1: y(value), y2: y(value) }),
        shape("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, String(value)));
    }
    for (const round of ticks(first, last, Math.max(2, (width - left) / 70), true)) {
      svg.append(shape("line", { class: "axis", x1: x(round), x2: x(round), y1: base, y2: base + 4 }),
        shape("text", { x: x(round), y: base + 17, "text-anchor": "middle" }, String(round)));
    }
    svg.append(shape("line", { class: "axis", x1: left, x2: width - EDGE.right, y1: base, y2: base }),
      shape("text", { x: (left + width - EDGE.right) / 2, y: height - 5, "text-anchor": "middle" }, "round"),
      shape("text", { x: -(EDGE.top + base) / 2, y: 11, transform: "rotate(-90)", "text-anchor": "middle" }, chart.label));
    for (const one of chart.reference || []) {
      if (!hidden.has(one.name)) svg.append(shape("line", { class: "reference", x1: left, x2: width - EDGE.right, y1: y(one.y), y2: y(one.y) }));
    }
    const at = (line, values, i) => `${x(line.x[i]).toFixed(1)},${y(Math.max(values[i], chart.log ? low : -Infinity)).toFixed(1)}`;
    for (const line of shown.filter((one) => one.low)) {
      const there = line.x.map((_, i) => i).filter((i) => line.low[i] !== null && line.high[i] !== null);
      const upper = there.map((i) => at(line, line.high, i));
      const lower = there.map((i) => at(line, line.low, i)).reverse();
      svg.append(shape("path", { class: `band ${slotClass(line.slot)}`, d: `M${[...upper, ...lower].join("L")}Z` }));
    }
    for (const line of shown) { // dashes are drawn over earlier lines, so that equal lines both stay visible
      const there = line.x.map((_, i) => i).filter((i) => line.y[i] !== null);
      svg.append(shape("path", { class: `line ${slotClass(line.slot)}`, d: `M${there.map((i) => at(line, line.y, i)).join("L")}`, "stroke-dasharray": dashes(line.slot) }));
    }
    const marked = [];
    for (const line of shown) {
      const there = line.x.map((_, i) => i).filter((i) => line.y[i] !== null);
      const every = Math.ceil(there.length / Math.max(2, width / 45));
      const first = line.slot % every; // stagger the markers of different lines
      there.filter((_, n) => (there.length - 1 - n) % every === first).forEach((i) => marked.push([x(line.x[i]), y(line.y[i]), line.slot]));
    }
    const below = layers(marked, 2); // a covered marker is larger, so that its edge stays visible
    marked.map((one, i) => [...one, below[i]]).reverse().forEach(([a, b, slot, n]) => svg.append(marker(slot, a, b, 3.6 + 2.2 * Math.min(n, 5))));
    const rings = shown.flatMap((line) => (line.reported || []).map(([round, value]) => [x(round), y(value), line.slot]));
    const under = layers(rings, 3); // overlapping rings are drawn concentrically
    rings.forEach(([cx, cy, slot], i) => svg.append(shape("circle", { class: `reported ${slotClass(slot)}`, cx, cy, r: 7 + 3 * Math.min(under[i], 6) })));
    const cursor = shape("g", {});
    svg.append(cursor);
    place.replaceChildren(svg);

    const point = (index, clientX, clientY) => {
      chosen = Math.max(0, Math.min(rounds.length - 1, index));
      const round = rounds[chosen];
      if (round === undefined) return;
      const found = shown.map((line) => [line, line.x.indexOf(round)]).filter(([line, i]) => i >= 0 && line.y[i] !== null)
        .sort(([a, i], [b, j]) => b.y[j] - a.y[i]);
      cursor.replaceChildren(shape("line", { class: "cursor", x1: x(round), x2: x(round), y1: EDGE.top, y2: base }),
        ...found.map(([line, i]) => marker(line.slot, x(round), y(line.y[i]), 5)));
      const box = svg.getBoundingClientRect();
      showTip(clientX ?? box.left + x(round), clientY ?? box.top + EDGE.top, `Round ${round}`, found.map(([line, i]) =>
        [line.name + ((line.reported || []).some((one) => one[0] === round) ? " (reported)" : ""), text(line.y[i]) + (line.low ? ` (${text(line.low[i])} to ${text(line.high[i])})` : ""), line.slot]));
    };
    const leave = () => (cursor.replaceChildren(), hideTip());
    svg.addEventListener("pointermove", (event) => {
      const round = first + ((event.clientX - svg.getBoundingClientRect().left - left) / (width - left - EDGE.right)) * (last - first);
      let near = 0;
      rounds.forEach((one, i) => { if (Math.abs(one - round) < Math.abs(rounds[near] - round)) near = i; });
      point(near, event.clientX, event.clientY);
    });
    listen(svg, () => chosen, rounds.length - 1, point, leave);
  });
}

function decades(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const factor of [1, 2, 5]) found.push(Number((factor * 10 ** power).toPrecision(3)));
  }
  return found.filter((value) => value >= low && value <= high);
}
