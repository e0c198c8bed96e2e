// States in three dimensions, turned by the pointer or by arrow keys.

const RAMP = [
  [47, 109, 181], [107, 99, 184], [164, 86, 159], [209, 84, 111], [232, 113, 74], [237, 162, 60]
];

function ramp(part) {
  const at = Math.min(0.9999, Math.max(0, part)) * (RAMP.length - 1), i = Math.floor(at);
  const mixed = RAMP[i].map((c, k) => Math.round(c + (at - i) * (RAMP[i + 1][k] - c)));
  return `rgb(${mixed.join(",")})`;
}

function turned(point, yaw, pitch) {
  const [x, y, z] = point;
  const a = x * Math.cos(yaw) + z * Math.sin(yaw), b = -x * Math.sin(yaw) + z * Math.cos(yaw);
  return [a, y * Math.cos(pitch) - b * Math.sin(pitch), y * Math.sin(pitch) + b * Math.cos(pitch)];
}

// Centred, with nearly all points within 1 of the centre; all three axes in one scale, or distances
// would lie.
function centred(cloud) {
  const axes = [cloud.x, cloud.y, cloud.z];
  const means = axes.map((axis) => axis.reduce((a, b) => a + b, 0) / Math.max(1, axis.length));
  const points = cloud.x.map((_, i) => axes.map((axis, k) => axis[i] - means[k]));
  const lengths = points.map((p) => Math.hypot(...p)).sort((a, b) => a - b);
  const spread = lengths[Math.floor(0.97 * (lengths.length - 1))] || 1;
  return points.map((p) => p.map((v) => v / spread));
}

function statesView(place, data) {
  const names = Object.keys(data.clouds);
  const start = {yaw: 0.6, pitch: 0.45}, state = {cloud: names.length - 1, by: "entropy", ...start};
  const canvas = make("canvas", {tabindex: 0, "aria-label": "States in three dimensions"});
  const bar = make("p", {class: "ramp"});
  let points = [], shown = [];

  const clouds = choice("states ", "cloud", names, (i) => {
    state.cloud = i;
    load();
  });
  clouds.select.value = state.cloud;
  const by = choice("colour ", "by", ["entropy", "step"], (i) => {
    state.by = ["entropy", "step"][i];
    load();
  });
  const reset = button("reset", () => {
    Object.assign(state, start);
    paint();
  });
  place.append(make("div", {class: "controls"}, clouds.element, by.element, reset), canvas, bar);

  function load() {
    points = centred(data.clouds[names[state.cloud]]);
    const values = data.clouds[names[state.cloud]][state.by];
    const unit = state.by === "entropy" ? " bits" : "";
    bar.replaceChildren(
        `${state.by}: ${number(Math.min(...values))}${unit} `, make("span", {}),
        ` ${number(Math.max(...values))}${unit}`);
    paint();
  }

  function paint() {
    const width = place.clientWidth, height = Math.min(460, Math.max(260, width * 0.6)),
          ratio = devicePixelRatio || 1;
    if (!width) return;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d"), size = Math.min(width * 0.4, height * 0.55);
    const at = (p) => {
      const [x, y, z] = turned(p, state.yaw, state.pitch);
      return [width / 2 + size * x, height / 2 - size * y, z];
    };
    context.scale(ratio, ratio);
    axes(context, at);
    dots(context, at);
    canvas.dataset.turn = `${state.yaw.toFixed(2)} ${state.pitch.toFixed(2)}`;
  }

  function axes(context, at) {
    const centre = at([0, 0, 0]);
    context.strokeStyle = color("--rule");
    context.fillStyle = color("--soft");
    context.font = "12px system-ui, sans-serif";
    [[0.8, 0, 0], [0, 0.8, 0], [0, 0, 0.8]].forEach((axis, k) => {
      const end = at(axis);
      context.beginPath();
      context.moveTo(centre[0], centre[1]);
      context.lineTo(end[0], end[1]);
      context.stroke();
      context.fillText(`component ${k + 1}`, end[0] + 4, end[1]);
    });
  }

  function dots(context, at) {
    const values = data.clouds[names[state.cloud]][state.by];
    const low = Math.min(...values), high = Math.max(...values);
    shown = points.map((p, i) => ({i, at: at(p)})).sort((a, b) => a.at[2] - b.at[2]);
    for (const {i, at: [x, y, z]} of shown) {
      context.globalAlpha = 0.55 + 0.2 * z;
      context.fillStyle = ramp(high > low ? (values[i] - low) / (high - low) : 0);
      context.beginPath();
      context.arc(x, y, 2.6 + 0.8 * z, 0, 2 * Math.PI);
      context.fill();
    }
    context.globalAlpha = 1;
  }

  function turn(yaw, pitch) {
    state.yaw += yaw;
    state.pitch = Math.min(1.57, Math.max(-1.57, state.pitch + pitch));
    paint();
  }

  function describe(event) {
    const box = canvas.getBoundingClientRect(), cloud = data.clouds[names[state.cloud]];
    const near = (p) =>
        Math.hypot(p.at[0] - event.clientX + box.left, p.at[1] - event.clientY + box.top);
    const best = shown.reduce((a, b) => (a && near(a) <= near(b) ? a : b), null);
    if (best && near(best) < 10)
      canvas.dataset.tip =
          `entropy ${number(cloud.entropy[best.i])} bits, step ${cloud.step[best.i]}`;
    else
      delete canvas.dataset.tip;
  }

  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    held = event;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => {
    held = null;
  });
  canvas.addEventListener("pointercancel", () => {
    held = null;
  });
  canvas.addEventListener("pointermove", (event) => {
    describe(event);
    if (!held) return;
    turn((event.clientX - held.clientX) / 120, (event.clientY - held.clientY) / 120);
    held = event;
  });
  canvas.addEventListener("keydown", (event) => {
    const by = {ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [
                  0, 0.1
                ]}[event.key];
    if (!by) return;
    event.preventDefault();
    turn(...by);
  });
  new ResizeObserver(paint).observe(place);
  matchMedia("(prefers-color-scheme:dark)").addEventListener("change", paint);
  load();
}
