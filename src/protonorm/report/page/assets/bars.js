// Bytes sent in all rounds: upload in full colour, download in a lighter shade.
function trafficBars() {
  const figure = byId("traffic");
  const rows = data.traffic.rows;
  const place = figure.querySelector(".plot");
  numbers(figure, () => [["method", "up, last round", "down, last round", "up, all rounds", "down, all rounds"], ...rows.map((row) => [row.name, bytes(row.round_up), bytes(row.round_down), bytes(row.up), bytes(row.down)])]);
  sized(place, (width) => {
    const step = 52;
    const most = Math.max(1, ...rows.map((row) => row.up + row.down));
    const x = (value) => (value / most) * (width - 4);
    const svg = shape("svg", { viewBox: `0 0 ${width} ${rows.length * step}`, height: rows.length * step, role: "img", "aria-label": `Bytes in all rounds. ${data.traffic.conclusion}` });
    rows.forEach((row, n) => {
      const y = n * step;
      const group = shape("g", { class: slotClass(row.slot) });
      group.append(shape("text", { class: "strong", x: 0, y: y + 14 }, shorten(row.name, 24)),
        shape("text", { x: width, y: y + 14, "text-anchor": "end" }, row.up + row.down ? `↑ ${bytes(row.up)}   ↓ ${bytes(row.down)}` : "sends nothing"),
        shape("rect", { x: 0, y: y + 22, width: x(row.up), height: 14, fill: "currentColor" }),
        shape("rect", { x: x(row.up), y: y + 22, width: x(row.down), height: 14, fill: "currentColor", "fill-opacity": 0.4 }),
        shape("line", { class: "axis", x1: 0, x2: 0, y1: y + 19, y2: y + 39 }));
      svg.append(group);
    });
    svg.addEventListener("pointermove", (event) => {
      const row = rows[Math.floor((event.clientY - svg.getBoundingClientRect().top) / step)];
      if (row) showTip(event.clientX, event.clientY, row.name, [["up, all rounds", bytes(row.up)], ["down, all rounds", bytes(row.down)], ["up, last round", bytes(row.round_up)], ["down, last round", bytes(row.round_down)]]);
    });
    svg.addEventListener("pointerleave", hideTip);
    place.replaceChildren(svg);
  });
}
