// Fills the places that the page has left for views.

const VIEWS = {
  steps: stepsView,
  states: statesView,
  training: trainingView
};

function start() {
  document.documentElement.classList.add("js");
  const read = new Map();
  for (const place of document.querySelectorAll(".view")) {
    const id = `data-run${place.dataset.run}`;
    if (!read.has(id)) read.set(id, JSON.parse(document.getElementById(id).textContent));
    VIEWS[place.dataset.view](place, read.get(id));
  }
  watchPointer();
  navigate();
}

start();
