// Global prototypes inside the unit ball, rotated by dragging, arrow keys or buttons.
const TURN = Math.PI / 18;
const FEW = 20; // maximum classes whose names are shown initially

function sphere() {
  const ball = byId("sphere-ball");
  if (!ball) return;
  const form = { run: byId("sphere-run"), round: byId("sphere-round"), labels: byId("sphere-labels"), play: byId("sphere-play") };
  options(form.run, data.spheres.map((one, i) => [i, one.name]), true);
  let [yaw, pitch, hovered, playing] = [0.5, 0.35, -1, null];
  let between = null; // points of the animation between two rounds
  let last = null; // points of the displayed round
  let pick = () => null; // the point under the pointer
  const shown = () => data.spheres[form.run.value];
  const names = () => data.populations.find((population) => population.name === shown().population).classes;
  const view = () => shown().views[form.round.value];
  const told = () => {
    const known = view().points.map((point, k) => [point, k]).filter(([point]) => point);
    const [close, k] = known.reduce((a, b) => ((b[0][4] ?? 999) < (a[0][4] ?? 999) ? b : a));
    const pair = close[4] === null ? "" : ` The closest two are ${names()[k]} and ${names()[close[3]]}, ${close[4]}° apart.`;
    return `${shown().name}, round ${shown().rounds[form.round.value]}: ${known.length} prototypes.${pair}`;
  };
  const share = () => {
    const [short, long] = view().lengths;
    const lengths = short === 1 && long === 1 ? "" : `Before they were brought to unit length, they were ${short} to ${long} long.`;
    if (shown().flat) return `The prototypes lie in the plane (d = 2); nothing is left out. ${lengths}`;
    return `Of ${shown().dimension} dimensions, the three are shown in which the last round’s prototypes differ most: ${(100 * view().share).toFixed(0)} % of the variance of this round. A point inside the ball also points to dimensions that are not shown. Angles in words and table are the true ones. ${lengths}`;
  };
  const table = numbers(byId("sphere"), () => [["class", "x", "y", "z", "nearest class", "angle to it"],
    ...names().map((name, k) => { const point = view().points[k]; return point ? [name, ...point.slice(0, 3).map((value) => (value / 1000).toFixed(3)), point[3] < 0 ? "–" : names()[point[3]], point[4] === null ? "–" : `${point[4]}°`] : [name, "–", "–", "–", "–", "–"]; })]);

  const labels = (points, at, middle, width) => {
    const taken = [];
    return points.flatMap(({ k, place }) => {
      const [x, y] = at(place);
      const name = shorten(names()[k], 18);
      const side = x < middle[0] ? -1 : 1;
      const start = side > 0 ? Math.min(x + 10, width - 6.9 * name.length) : Math.max(x - 10, 6.9 * name.length);
      const box = [side > 0 ? start : start - 6.9 * name.length, y - 9, 6.9 * name.length, 16];
      if (taken.some((one) => box[0] < one[0] + one[2] && one[0] < box[0] + box[2] && box[1] < one[1] + one[3] && one[1] < box[1] + box[3])) return [];
      taken.push(box);
      return [shape("text", { class: "label", x: start, y: y + 4, "text-anchor": side > 0 ? "start" : "end", opacity: shown().flat ? 1 : (0.6 + 0.2 * (place[2] + 1)).toFixed(2) }, name)];
    });
  };

  const begin = () => {
    form.round.max = shown().rounds.length - 1;
    form.round.value = form.round.max;
    form.labels.checked = names().length <= FEW;
  };
  begin();

  const draw = sized(ball, (width) => {
    const size = Math.min(width, 560);
    const radius = size * 0.43;
    const middle = [width / 2, size / 2];
    const flat = shown().flat;
    const [a, b] = flat ? [0, 0] : [yaw, pitch];
    const turned = ([x, y, z]) => {
      const [u, w] = [x * Math.cos(a) + z * Math.sin(a), z * Math.cos(a) - x * Math.sin(a)];
      return [u, y * Math.cos(b) - w * Math.sin(b), y * Math.sin(b) + w * Math.cos(b)];
    };
    const at = ([x, y]) => [middle[0] + radius * x, middle[1] - radius * y];
    const svg = shape("svg", { viewBox: `0 0 ${width} ${size}`, height: size, role: "img", "aria-label": told(), "data-yaw": yaw.toFixed(3), "data-pitch": pitch.toFixed(3) });
    svg.append(shape("circle", { class: "globe", cx: middle[0], cy: middle[1], r: radius }));
    if (!flat) svg.append(...graticule(turned, at));
    const points = (between || view().points).map((point, k) => point && { k, place: turned(point.slice(0, 3).map((value) => value / 1000)), near: point[3], angle: point[4] })
      .filter(Boolean).sort((one, other) => one.place[2] - other.place[2]);
    const few = names().length <= FEW;
    for (const { k, place } of points) {
      const [x, y] = at(place);
      const depth = flat ? 1 : (place[2] + 1) / 2;
      const group = shape("g", { class: slotClass(k), opacity: (0.5 + 0.5 * depth).toFixed(2) });
      if (few) group.append(shape("line", { class: "stem", x1: middle[0], y1: middle[1], x2: x, y2: y, opacity: 0.5 }));
      group.append(marker(k, x, y, (few ? 5 : 3.5) + 2 * depth));
      svg.append(group);
    }
    const lit = points.find((point) => point.k === hovered);
    const other = lit && points.find((point) => point.k === lit.near);
    if (lit && other) {
      const [[x1, y1], [x2, y2]] = [at(lit.place), at(other.place)];
      svg.append(shape("line", { class: "tie", x1, y1, x2, y2 }));
    }
    if (lit) svg.append(shape("circle", { class: "ring", cx: at(lit.place)[0], cy: at(lit.place)[1], r: 11 }));
    if (form.labels.checked) svg.append(...labels([...points].reverse(), at, middle, width));
    else if (lit) svg.append(...labels([lit, other].filter(Boolean), at, middle, width));
    ball.replaceChildren(svg);
    pick = (event) => {
      const box = svg.getBoundingClientRect();
      const near = points.map((point) => [Math.hypot(at(point.place)[0] - event.clientX + box.left, at(point.place)[1] - event.clientY + box.top), point]).sort((one, two) => one[0] - two[0])[0];
      return near && near[0] < 18 ? near[1] : null;
    };
  });

  const tell = () => {
    byId("sphere-conclusion").textContent = told();
    byId("sphere-share").textContent = share();
    byId("sphere-shown").value = `${shown().rounds[form.round.value]} of ${shown().rounds[shown().rounds.length - 1]}`;
    form.round.setAttribute("aria-valuetext", `round ${shown().rounds[form.round.value]}`);
    for (const button of document.querySelectorAll("[data-turn]")) button.disabled = shown().flat;
    draw();
    table();
  };
  const glide = (from) => { // animate from the previous round, unless reduced motion is preferred
    const goal = (last = view().points);
    if (still.matches) return tell();
    const begin = performance.now();
    const step = (now) => {
      const part = Math.min(1, (now - begin) / 260);
      between = part < 1 ? goal.map((point, k) => point && from[k] && [...[0, 1, 2].map((i) => from[k][i] + part * (point[i] - from[k][i])), point[3], point[4]]) : null;
      draw();
      if (part < 1 && view().points === goal) requestAnimationFrame(step);
    };
    tell();
    requestAnimationFrame(step);
  };
  const turn = (direction) => {
    if (shown().flat) return;
    const [right, up] = { left: [-1, 0], right: [1, 0], up: [0, -1], down: [0, 1] }[direction] || [0, 0];
    if (direction === "reset") [yaw, pitch] = [0.5, 0.35];
    yaw += right * TURN;
    pitch = Math.max(-Math.PI / 2, Math.min(Math.PI / 2, pitch + up * TURN));
    draw();
  };
  const stop = () => {
    clearInterval(playing);
    playing = null;
    form.play.setAttribute("aria-pressed", "false");
    form.play.textContent = "Play rounds";
  };
  const play = () => {
    if (playing) return stop();
    form.play.setAttribute("aria-pressed", "true");
    form.play.textContent = "Stop";
    playing = setInterval(() => {
      const before = view().points;
      form.round.value = (Number(form.round.value) + 1) % shown().rounds.length;
      glide(before);
      if (Number(form.round.value) === shown().rounds.length - 1) stop();
    }, still.matches ? 1200 : 450);
  };

  let dragged = null;
  ball.addEventListener("pointerdown", (event) => {
    dragged = [event.clientX, event.clientY];
    ball.setPointerCapture(event.pointerId);
  });
  ball.addEventListener("pointermove", (event) => {
    if (dragged && !shown().flat) {
      yaw += (event.clientX - dragged[0]) / 160;
      pitch = Math.max(-Math.PI / 2, Math.min(Math.PI / 2, pitch + (event.clientY - dragged[1]) / 160));
      dragged = [event.clientX, event.clientY];
      hideTip();
      return draw();
    }
    const found = pick(event);
    if ((found ? found.k : -1) !== hovered) {
      hovered = found ? found.k : -1;
      draw();
    }
    if (!found) return hideTip();
    showTip(event.clientX, event.clientY, names()[found.k], found.near < 0 ? [] : [[`nearest: ${names()[found.near]}`, `${found.angle}°`]]);
  });
  for (const end of ["pointerup", "pointercancel"]) ball.addEventListener(end, () => (dragged = null));
  ball.addEventListener("pointerleave", () => { hovered = -1; hideTip(); draw(); });
  ball.addEventListener("keydown", (event) => {
    const direction = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down", Home: "reset" }[event.key];
    if (!direction) return;
    event.preventDefault();
    turn(direction);
  });
  for (const button of document.querySelectorAll("[data-turn]")) button.addEventListener("click", () => turn(button.dataset.turn));
  form.play.addEventListener("click", play);
  form.labels.addEventListener("change", draw);
  form.round.addEventListener("input", () => { stop(); glide(last); });
  const restart = () => {
    stop();
    begin();
    last = view().points;
    tell();
  };
  form.run.addEventListener("change", restart);
  ball.closest("figure").querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  restart();
}

// Circles of latitude and longitude, front and back separately.
function graticule(turned, at) {
  const paths = { front: "", back: "" };
  const trace = (place) => {
    let before = "";
    for (let i = 0; i <= 72; i++) {
      const point = turned(place((i * Math.PI) / 36));
      const side = point[2] >= 0 ? "front" : "back";
      const [x, y] = at(point);
      paths[side] += `${side === before ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`;
      before = side;
    }
  };
  for (const height of [-0.5, 0, 0.5]) {
    const r = Math.cos(Math.asin(height));
    trace((t) => [r * Math.cos(t), height, r * Math.sin(t)]);
  }
  for (const across of [0, 1, 2, 3]) {
    const angle = (across * Math.PI) / 4;
    trace((t) => [Math.cos(t) * Math.cos(angle), Math.sin(t), Math.cos(t) * Math.sin(angle)]);
  }
  return ["back", "front"].map((side) => shape("path", { class: side, d: paths[side] }));
}
