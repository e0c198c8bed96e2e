// Small helpers: elements, controls, numbers.

const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function draw(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  return element;
}

function labelled(text, control) {
  return make("label", {}, make("span", {}, text), control);
}

// A select; `changed` is called with the index of the choice.
function choice(text, name, options, changed) {
  const select = make("select", {name});
  options.forEach((option, i) => select.append(make("option", {value: i}, option)));
  select.addEventListener("change", () => changed(Number(select.value)));
  return {element: labelled(text, select), select};
}

function slider(text, name, count, changed) {
  const input = make("input", {type: "range", name, min: 0, max: count - 1, step: 1, value: 0});
  input.addEventListener("input", () => changed(Number(input.value)));
  return {element: labelled(text, input), input};
}

function button(text, pressed, meaning = text) {
  const element = make("button", {type: "button", title: meaning}, text);
  element.addEventListener("click", pressed);
  return element;
}

function number(x) {
  if (x === null || x === undefined) return "–";
  if (x === 0) return "0";
  return Math.abs(x) >= 1e-3 && Math.abs(x) < 1e5 ? String(Number(x.toPrecision(3))) :
                                                    x.toExponential(1);
}

function share(thousandths) {
  return (thousandths / 10).toFixed(1) + " %";
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function counted(count, first) {
  return Array.from({length: count}, (_, i) => String(i + first));
}

// A curve or several over 0 .. n-1, with a marker that can be moved. places: names of 0 .. n-1.
function curves(rows, names, places) {
  const width = 600, height = 110, all = rows.flat().filter((y) => y !== null);
  const top = Math.max(...all, 1e-9), last = Math.max(1, rows[0].length - 1);
  const at = (i) => 8 + (i / last) * (width - 16),
        up = (y) => height - 8 - (y / top) * (height - 16);
  const picture = draw("svg", {
    viewBox: `0 0 ${width} ${height}`,
    class: "curves",
    "aria-hidden": "true",
    "data-x": `0 ${last} 8 ${width - 8} even`,
    "data-y": `0 ${top} ${height - 8} 8 even`,
    "data-names": places.join("|")
  });
  const marker = draw("path", {class: "marker"});
  picture.append(marker);
  rows.forEach((row, k) => {
    const d = row.map((y, i) => (y === null ? "" : `${at(i).toFixed(1)} ${up(y).toFixed(1)}`))
                  .filter(Boolean);
    picture.append(draw(
        "path",
        {class: `line c${k}${k ? " dash" : ""}`, d: "M" + d.join("L"), "data-name": names[k]}));
  });
  return {picture, move: (i) => marker.setAttribute("d", `M${at(i).toFixed(1)} 4V${height - 4}`)};
}

function legend(entries) {
  const list = make("p", {class: "legend"});
  for (const [kind, text] of entries) list.append(make("span", {class: kind}), " " + text + "   ");
  return list;
}
