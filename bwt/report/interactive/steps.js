// One sequence, step by step: the exact posterior, the model's and the attention of a head.

function stepsView(place, data) {
  const state = {sequence: 0, ...data.start};
  const now = () => data.sequences[state.sequence];
  const tokens = make("div", {class: "tokens"}), bars = make("div", {class: "outcomes"});
  const said = make("p", {class: "said", "aria-live": "polite"}), line = make("div", {});
  let marker = null;

  const set = (name) => (value) => {
    state[name] = value;
    if (name === "sequence") fill();
    show();
  };
  const sequence =
      choice("sequence ", "sequence", counted(data.sequences.length, 1), set("sequence"));
  const step = slider("step ", "step", now().asked.length, set("step"));
  const controls = make("div", {class: "controls"}, sequence.element);
  const attention = now().attention;
  if (attention) {
    for (const [name, count] of [["layer", attention.length], ["head", attention[0].length]]) {
      const chosen = choice(`${name} `, name, counted(count, 0), set(name));
      chosen.select.value = state[name];
      controls.append(chosen.element);
    }
  }
  controls.append(
      step.element, button("◀", () => go(-1), "step back"), button("▶", () => go(1), "step on"),
      player());

  function go(by) {
    state.step = Math.min(now().asked.length - 1, Math.max(0, state.step + by));
    show();
  }

  function player() {
    let timer = null;
    const element = button("play", () => {
      if (timer) {
        clearInterval(timer);
        timer = null;
        element.textContent = "play";
        return;
      }
      if (state.step === now().asked.length - 1) state.step = -1;
      element.textContent = "stop";
      timer = setInterval(() => {
        go(1);
        if (state.step === now().asked.length - 1) element.click();
      }, 700);
    });
    return element;
  }

  // What belongs to a sequence and not to a step.
  function fill() {
    const x = now();
    tokens.replaceChildren(...x.tokens.map((text) => make("span", {class: "token"}, text)));
    bars.replaceChildren(...x.exact[0].map(
        (_, outcome) => make(
            "div", {class: "outcome"}, make("i", {class: "exact"}), make("i", {class: "model"}),
            make("small", {}, x.exact[0].length <= 40 ? String(outcome) : ""))));
    const curve = curves(
        [x.modelEntropy, x.exactEntropy], ["model", "exact"],
        counted(x.asked.length, 1).map((i) => `step ${i}`));
    line.replaceChildren(curve.picture);
    marker = curve;
  }

  function weights() {
    const layers = now().attention;
    return layers ? layers[state.layer][state.head][state.step] : null;
  }

  function showTokens() {
    const x = now(), row = weights(), asked = x.asked[state.step];
    [...tokens.children].forEach((token, i) => {
      const weight = row && i < row.length ? row[i] : 0;
      token.className = "token" + (i === asked ? " asked" : i > asked ? " ahead" : "");
      token.style.setProperty("--share", Math.sqrt(weight / 1000).toFixed(3));
      token.dataset.tip = `position ${i}, ${x.tokens[i]}` +
          (row && i <= asked ? `: ${share(weight)} of the attention` : "");
    });
  }

  function showBars() {
    const x = now(), exact = x.exact[state.step], model = x.model[state.step];
    [...bars.children].forEach((bar, outcome) => {
      [exact, model].forEach((row, k) => {
        bar.children[k].style.height = `${100 * Math.sqrt(row[outcome] / 1000)}%`;
      });
      bar.classList.toggle("true", outcome === x.targets[state.step]);
      bar.dataset.tip =
          `outcome ${outcome}: exact ${share(exact[outcome])}, model ${share(model[outcome])}`;
    });
  }

  function show() {
    const x = now(), i = state.step;
    step.input.value = i;
    showTokens();
    showBars();
    marker.move(i);
    said.textContent =
        `Step ${i + 1} of ${x.asked.length} (${x.tokens[x.asked[i]]}). Entropy: exact ` +
        `${number(x.exactEntropy[i])}, model ${number(x.modelEntropy[i])} bits. ` +
        `Distance (KL): ${number(x.kl[i])} bits.`;
  }

  place.tabIndex = 0;
  place.addEventListener("keydown", (event) => {
    const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!by || event.target.tagName === "SELECT") return;
    event.preventDefault();
    go(by);
  });
  place.append(
      controls, tokens, bars, said, legend([["key exact", "exact"], ["key model", "model"]]), line,
      make("p", {class: "note"}, "The curve: entropy of this sequence by step, exact dashed."));
  fill();
  show();
}
