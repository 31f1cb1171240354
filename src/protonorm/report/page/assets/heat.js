// Samples by client and class.
const LEVELS = 24; // shades: one path each, for any number of cells
const TURN_OVER = 18; // the level above which the inverse text colour has more contrast

function heatMap() {
  const figure = byId("samples-map");
  const place = figure.querySelector(".plot");
  const form = { population: byId("samples-population"), part: byId("samples-part") };
  options(form.population, data.populations.map((population) => [population.name, population.name]), true);
  const population = () => data.populations.find((one) => one.name === form.population.value);
  const names = { train: "to train on", validation: "to validate on", test: "to test on" };
  const count = (client, kind) => (form.part.value === "all" ? Object.keys(names) : [form.part.value]).reduce((sum, part) => sum + population()[part][client][kind], 0);
  const table = numbers(figure, () => [["class", ...population().clients], ...population().classes.map((name, k) => [name, ...population().networks.map((_, i) => count(i, k))])]);
  const told = (most) => {
    const { classes, networks, whole, known } = population();
    if (!known) return "Who holds what is not on record: each client knows it of itself alone.";
    const some = whole > networks.length ? ` of ${whole}` : "";
    const sizes = networks.map((_, i) => classes.reduce((sum, _, k) => sum + count(i, k), 0));
    const kinds = networks.map((_, i) => classes.filter((_, k) => count(i, k)).length);
    return `${networks.length}${some} clients${some && ", evenly chosen,"} hold ${sizes.reduce((a, b) => a + b, 0)} samples of ${classes.length} classes: from ${Math.min(...sizes)} to ${Math.max(...sizes)} samples and from ${Math.min(...kinds)} to ${Math.max(...kinds)} classes a client. The fullest cell holds ${most}.`;
  };
  const draw = sized(place, (width) => {
    const { classes, networks } = population();
    const [clients, kinds] = [networks.length, classes.length];
    const left = Math.min(Math.round(width * 0.3), 16 + 7 * Math.max(...classes.map((name) => name.length)));
    const wide = Math.min(58, (width - left - 6) / clients);
    const tall = Math.max(5, Math.min(26, 620 / kinds));
    const height = tall * kinds + 46;
    let most = 1;
    for (let i = 0; i < clients; i++) for (let k = 0; k < kinds; k++) most = Math.max(most, count(i, k));
    const words = told(most);
    figure.querySelector("figcaption p").textContent = words;
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `Samples of each class at each client. ${words}` });
    const levels = Array.from({ length: LEVELS + 1 }, () => "");
    const texts = [];
    for (let i = 0; i < clients; i++) {
      for (let k = 0; k < kinds; k++) {
        const value = count(i, k);
        if (!value) continue;
        const level = Math.max(2, Math.round(LEVELS * Math.sqrt(value / most)));
        const [x, y] = [left + i * wide, k * tall];
        levels[level] += `M${(x + 0.5).toFixed(1)},${(y + 0.5).toFixed(1)}h${(wide - 1).toFixed(1)}v${(tall - 1).toFixed(1)}h${(1 - wide).toFixed(1)}Z`;
        if (wide >= 26 && tall >= 15) texts.push(shape("text", { class: `count ${level > TURN_OVER ? "over" : ""}`, x: x + wide / 2, y: y + tall / 2 + 4 }, String(value)));
      }
    }
    levels.forEach((d, level) => d && svg.append(shape("path", { class: "cell", d, "fill-opacity": (level / LEVELS).toFixed(3) })));
    svg.append(shape("rect", { class: "frame", x: left, y: 0, width: wide * clients, height: tall * kinds }), ...texts);
    const skip = Math.ceil(13 / tall);
    classes.forEach((name, k) => k % skip === 0 && svg.append(shape("text", { class: "strong", x: left - 7, y: (k + 0.5) * tall + 4, "text-anchor": "end" }, shorten(name, Math.floor((left - 8) / 6.6)))));
    const short = population().clients.map((name, i) => (name === `client ${i}` ? String(i) : name));
    const gap = Math.ceil(Math.max(24, ...short.map((name) => Math.min(7 * name.length, 90) + 8)) / wide);
    short.forEach((name, i) => i % gap === 0 && svg.append(shape("text", { x: left + (i + 0.5) * wide, y: tall * kinds + 16, "text-anchor": "middle" }, shorten(name, 13))));
    svg.append(shape("text", { x: left + (wide * clients) / 2, y: height - 6, "text-anchor": "middle" }, "client"));
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const [i, k] = [Math.floor((event.clientX - box.left - left) / wide), Math.floor((event.clientY - box.top) / tall)];
      if (i < 0 || i >= clients || k < 0 || k >= kinds) return hideTip();
      showTip(event.clientX, event.clientY, `${population().clients[i]}, ${classes[k]}`, [...Object.keys(names).map((part) => [names[part], String(population()[part][i][k])]), ["network", networks[i]]]);
    });
    svg.addEventListener("pointerleave", hideTip);
    place.replaceChildren(svg);
  });
  const redraw = () => { draw(); table(); };
  for (const one of [form.population, form.part]) one.addEventListener("change", redraw);
  byId("samples-controls").addEventListener("submit", (event) => event.preventDefault());
}
