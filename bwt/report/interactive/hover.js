// Values under the pointer: of elements that carry a text, and of the figures by their scales.

const tip = make("div", {class: "tip", role: "status", hidden: ""});

function place(event, text) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 6);
  const below = event.clientY + 18 + tip.offsetHeight > innerHeight;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${below ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18}px`;
}

function scale(text) {
  const [low, high, start, end] = text.split(" ").slice(0, 4).map(Number);
  const log = text.endsWith("log");
  return (p) => {
    const part = (p - start) / (end - start);
    return log ? low * Math.pow(high / low, part) : low + part * (high - low);
  };
}

function inside(element, event) {
  return new DOMPoint(event.clientX, event.clientY)
      .matrixTransform(element.getScreenCTM().inverse());
}

// Vertices of "M1 2L3 4" and of "M1 2h0M3 4h0".
function vertices(path) {
  return [...path.getAttribute("d").matchAll(/[ML](-?[\d.]+) (-?[\d.]+)/g)].map(
      (m) => [Number(m[1]), Number(m[2])]);
}

function nearest(figure, event) {
  const point = inside(figure, event);
  let best = null;
  for (const path of figure.querySelectorAll("path.line[data-name], path.dot")) {
    for (const [x, y] of vertices(path)) {
      const distance = Math.hypot(x - point.x, y - point.y);
      if (distance < 16 && (!best || distance < best.distance))
        best = {distance, x, y, name: path.dataset.name || ""};
    }
  }
  return best;
}

function ofFigure(figure, event) {
  const found = nearest(figure, event);
  if (!found) return "";
  const x = scale(figure.dataset.x)(found.x), names = figure.dataset.names;
  const where = names ? names.split("|")[Math.round(x)] : number(x);
  return `${found.name ? found.name + ": " : ""}${number(scale(figure.dataset.y)(found.y))} at ${
      where}`;
}

// "step in the sequence 1" -> the name of an axis, and the number of its first cell.
function axis(text, cell) {
  const cut = text.lastIndexOf(" ");
  return `${text.slice(0, cut)} ${Number(text.slice(cut + 1)) + Math.floor(cell)}`;
}

function ofMap(path, event) {
  const map = path.parentNode, at = inside(map, event), data = map.dataset;
  const value = Math.pow(Number(path.getAttribute("stroke-opacity")), 2) * Number(data.top);
  return `${data.name}, ${axis(data.row, at.y + 0.5)}, ${axis(data.column, at.x)}: about ${
      number(value)}`;
}

function textAt(event) {
  const element = event.target;
  if (!(element instanceof Element)) return "";
  const own = element.closest("[data-tip]");
  if (own) return own.dataset.tip;
  if (element.matches("g.heat > path")) return ofMap(element, event);
  const figure = element.closest("svg[data-x]");
  return figure ? ofFigure(figure, event) : "";
}

function watchPointer() {
  document.body.append(tip);
  for (const kind of ["pointermove", "pointerdown"]) {
    document.addEventListener(kind, (event) => place(event, textAt(event)), {passive: true});
  }
  document.addEventListener("scroll", () => place(null, ""), {passive: true});
}
