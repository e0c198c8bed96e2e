// One sequence as the model saw it at each checkpoint, beside the exact posterior.

// Cells [step][outcome] in thousandths; steps from left to right. `fill` gives them other values.
function cellMap(name) {
  const picture = draw("svg", {class: "cells", role: "img", preserveAspectRatio: "none"});
  const frame = make("div", {}, make("small", {}, name), picture);
  function fill(rows, targets) {
    picture.setAttribute("viewBox", `0 0 ${rows.length} ${rows[0].length}`);
    picture.replaceChildren();
    rows.forEach((row, step) => row.forEach((value, outcome) => {
      const tip = `${name}, step ${step + 1}, outcome ${outcome}: ${share(value)}`;
      picture.append(draw("rect", {
        x: step,
        y: outcome,
        width: 1,
        height: 1,
        class: "heat",
        "data-tip": tip,
        "fill-opacity": Math.sqrt(value / 1000).toFixed(3),
      }));
    }));
    targets.forEach((outcome, step) => picture.append(draw("rect", {
      x: step + 0.35,
      y: outcome + 0.35,
      width: 0.3,
      height: 0.3,
      class: "target",
      "pointer-events": "none",
    })));
  }
  return {frame, fill};
}

// Mean over steps of half the sum of differences.
function variation(exact, model) {
  const rows =
      exact.map((p, i) => p.reduce((sum, x, k) => sum + Math.abs(x - model[i][k]), 0) / 2000);
  return rows.reduce((a, b) => a + b, 0) / rows.length;
}

function trainingView(place, data) {
  const last = data.checkpoints.length - 1, state = {sequence: 0, checkpoint: last};
  const exact = cellMap("exact posterior"), model = cellMap("model");
  const said = make("p", {class: "said", "aria-live": "polite"}), line = make("div", {});
  let distances = [], marker = null;

  const count = data.sequences.length;
  const sequence = choice("sequence ", "sequence", counted(count, 1), (i) => {
    state.sequence = i;
    fill();
  });
  const checkpoint = slider("checkpoint ", "checkpoint", last + 1, (i) => {
    state.checkpoint = i;
    show();
  });
  place.append(
      make("div", {class: "controls"}, sequence.element, checkpoint.element),
      make("div", {class: "pair"}, exact.frame, model.frame), said, line,
      make(
          "p", {class: "note"},
          "The curve: total variation from the exact posterior, by checkpoint. Steps run from " +
              "left to right, outcomes from top to bottom; a dot is what was really the case."));

  function fill() {
    const x = data.sequences[state.sequence];
    exact.fill(x.exact, x.targets);
    distances = data.checkpoints.map((row) => variation(x.exact, row.model[state.sequence]));
    marker = curves(
        [distances], ["total variation"],
        data.checkpoints.map((row) => `training step ${row.step}`));
    line.replaceChildren(marker.picture);
    show();
  }

  function show() {
    const row = data.checkpoints[state.checkpoint];
    checkpoint.input.value = state.checkpoint;
    model.fill(row.model[state.sequence], data.sequences[state.sequence].targets);
    marker.move(state.checkpoint);
    said.textContent =
        `Training step ${row.step}: total variation ${number(distances[state.checkpoint])} ` +
        "from the exact posterior, mean over the steps of this sequence.";
  }

  fill();
}
