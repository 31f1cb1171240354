// Accuracy of every client and class: a row each, a dot for each method, or for each rule of a single run.
function parts() {
  const single = new Set(data.runs.map((run) => run.slot)).size === 1;
  const form = { population: byId("parts-population"), rule: byId("parts-rule"), seed: byId("parts-seed"), order: byId("parts-order"), reported: byId("parts-reported"), round: byId("parts-round") };
  const seeds = [...new Set(data.runs.map((run) => run.seed))];
  options(form.population, data.populations.map((population) => [population.name, population.name]), true);
  options(form.rule, [["", "each method’s headline"], ...data.rules.map((rule) => [rule, rule])]);
  form.rule.closest("label").hidden = single;
  options(form.seed, seeds.map((seed) => [seed, String(seed)]), true);
  let rounds = [];
  let hidden = new Set();
  const names = () => (single ? data.rules.map((rule, slot) => ({ name: rule, slot })) : [...new Map(data.runs.map((run) => [run.slot, { name: run.method, slot: run.slot }])).values()]);

  const here = () => data.runs.filter((run) => run.population === form.population.value && (seeds.length < 2 || String(run.seed) === form.seed.value));
  const series = () => here().flatMap((run) => (single ? data.rules : [form.rule.value || run.headline])
    .filter((rule) => run.rules[rule]).map((rule) => ({ run, rule, name: single ? rule : run.name, slot: single ? data.rules.indexOf(rule) : run.slot })))
    .map((one) => ({ ...one, index: chosen(one.run, one.rule) }))
    .filter((one) => one.index >= 0 && !hidden.has(single ? one.name : one.run.method));
  const chosen = (run, rule) => {
    let index = -1; // the reported round, or the last available round up to the selected round
    if (form.reported.checked) index = run.rounds.indexOf(run.reported);
    else run.rounds.forEach((round, i) => { if (round <= rounds[form.round.value]) index = i; });
    return index >= 0 && run.rules[rule].clients[index] ? index : -1;
  };

  const draws = ["clients", "classes"].map((part) => dotChart(byId(`parts-${part}`), part, () => ({
    population: data.populations.find((population) => population.name === form.population.value), series: series(), order: form.order.value })));
  const draw = () => {
    const told = form.reported.checked ? "reported" : String(rounds[form.round.value] ?? "–");
    byId("parts-shown").value = told;
    form.round.setAttribute("aria-valuetext", form.reported.checked ? "reported round of each" : `round ${told}`);
    draws.forEach((one) => one());
  };
  const restart = () => {
    rounds = [...new Set(here().flatMap((run) => run.rounds))].sort((a, b) => a - b);
    form.round.max = Math.max(0, rounds.length - 1);
    form.round.value = form.round.max;
    form.round.disabled = !rounds.length;
    draw();
  };
  hidden = legend(byId("parts-legend"), names(), draw);
  form.round.addEventListener("input", () => { form.reported.checked = false; draw(); });
  for (const one of [form.rule, form.order, form.reported]) one.addEventListener("change", draw);
  for (const one of [form.population, form.seed]) one.addEventListener("change", restart);
  byId("parts-controls").addEventListener("submit", (event) => event.preventDefault());
  restart();
}

const LANE = 10; // pixels between dots that would overlap

// Assign each dot of a row to the first lane without overlap.
function lanes(dots, x) {
  const taken = [];
  return dots.map(([one, value]) => {
    let lane = 0;
    while (taken.some(([place, other]) => other === lane && Math.abs(place - x(value)) < LANE)) lane += 1;
    taken.push([x(value), lane]);
    return [one, value, lane];
  });
}

function dotChart(figure, part, state) {
  const place = figure.querySelector(".plot");
  const held = (population, i) => part === "classes" ? population.held[i] :
    [population.train, population.validation, population.test].reduce((sum, counts) => sum + counts[i].reduce((a, b) => a + b, 0), 0);
  const values = (one, i) => one.run.rules[one.rule][part][one.index][i];
  const name = (population, i) => population[part][i];
  const table = numbers(figure, () => {
    const { population, series } = state();
    return [[part === "clients" ? "client" : "class", ...(part === "clients" ? ["network"] : []), "samples", ...series.map((one) => `${one.name} (${one.name === one.rule ? "" : `${one.rule}, `}round ${one.run.rounds[one.index]})`), "majority"],
      ...rowsOf(population, series, "number").map((i) => [name(population, i), ...(part === "clients" ? [population.networks[i]] : []), population.known ? held(population, i) : "–", ...series.map((one) => percent(values(one, i))), percent(population.majority[part]?.[i])])];
  });
  const rowsOf = (population, series, order) => {
    const rows = [...(part === "clients" ? population.networks : population.classes).keys()];
    const lowest = (i) => Math.min(101, ...series.map((one) => values(one, i)).filter((value) => value !== null));
    if (order === "lowest") rows.sort((a, b) => lowest(a) - lowest(b));
    if (order === "size") rows.sort((a, b) => held(population, b) - held(population, a));
    return rows;
  };
  const told = (population, series) => {
    const lines = series.map((one) => {
      const known = one.run.rules[one.rule][part][one.index].map((value, i) => [value, i]).filter(([value]) => value !== null);
      if (!known.length) return `${one.name} has none`;
      const [low, i] = known.reduce((a, b) => (b[0] < a[0] ? b : a));
      const mean = known.reduce((sum, [value]) => sum + value, 0) / known.length;
      return `${one.name} (${one.name === one.rule ? "" : `${one.rule}, `}round ${one.run.rounds[one.index]}): mean ${percent(mean)}, lowest ${name(population, i)} with ${percent(low)}`;
    });
    const { clients, whole } = population;
    const some = part === "clients" && whole > clients.length ? `${clients.length} of ${whole} clients, evenly chosen. ` : "";
    return lines.length ? `${some}${lines.join("; ")}. Grey bars: guessing the majority class. Dots that would lie on each other stand below each other.` : "There is nothing to show for this choice.";
  };
  const draw = sized(place, (width) => {
    const { population, series, order } = state();
    const rows = rowsOf(population, series, order);
    const least = rows.length > 40 ? 19 : 24;
    const longest = Math.max(...rows.map((i) => name(population, i).length));
    const left = Math.min(Math.round(width * 0.36), 14 + 7 * longest);
    const x = (value) => left + 10 + (value / 100) * (width - left - 38);
    const lines = rows.map((i) => lanes(series.map((one) => [one, values(one, i)]).filter(([, value]) => value !== null), x));
    const tall = lines.map((dots) => Math.max(least, LANE * Math.max(0, ...dots.map(([, , lane]) => lane)) + 16));
    const tops = [];
    const height = tall.reduce((top, one) => (tops.push(top), top + one), 22) + 12;
    const words = told(population, series);
    figure.querySelector("figcaption p").textContent = words;
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${figure.querySelector("h3").textContent}. ${words}` });
    for (const value of width < 330 ? [0, 50, 100] : [0, 25, 50, 75, 100]) {
      svg.append(shape("line", { class: "grid", x1: x(value), x2: x(value), y1: 22, y2: height - 6 }),
        shape("text", { x: x(value), y: 14, "text-anchor": "middle" }, value === 100 ? "100 %" : String(value)));
    }
    rows.forEach((i, n) => {
      const y = tops[n] + tall[n] / 2;
      const dots = lines[n];
      const middle = Math.max(0, ...dots.map(([, , lane]) => lane)) / 2;
      const reach = dots.map(([, value]) => value);
      const guess = population.majority[part]?.[i];
      svg.append(shape("text", { class: "strong", x: left, y: y + 4, "text-anchor": "end" }, shorten(name(population, i), Math.floor((left - 8) / 6.6))));
      if (reach.length > 1) svg.append(shape("line", { class: "span", x1: x(Math.min(...reach)), x2: x(Math.max(...reach)), y1: y, y2: y }));
      if (guess !== null && guess !== undefined) svg.append(shape("line", { class: "guess", x1: x(guess), x2: x(guess), y1: y - tall[n] / 2 + 5, y2: y + tall[n] / 2 - 5 }));
      for (const [one, value, lane] of dots) svg.append(marker(one.slot, x(value), y + LANE * (lane - middle), 4.8));
    });
    svg.addEventListener("pointermove", (event) => {
      const down = event.clientY - svg.getBoundingClientRect().top;
      const i = rows[tops.findIndex((top, n) => down >= top && down < top + tall[n])];
      if (i === undefined) return hideTip();
      const title = `${name(population, i)}${part === "clients" ? `, ${population.networks[i]}` : ""}${population.known ? `, ${held(population, i)} samples` : ""}`;
      showTip(event.clientX, event.clientY, title, [...series.map((one) => [`${one.name}, round ${one.run.rounds[one.index]}`, percent(values(one, i)), one.slot]), ["majority (bar)", percent(population.majority[part]?.[i])]]);
    });
    svg.addEventListener("pointerleave", hideTip);
    place.replaceChildren(svg);
  });
  return () => { draw(); table(); };
}
