// The contents: folded on a narrow screen, and what a link leads to is unfolded.

function unfold(element) {
  for (let at = element; at; at = at.parentElement)
    if (at.tagName === "DETAILS") at.open = true;
}

function follow() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  unfold(target);
  target.scrollIntoView();
}

function markPlace(links) {
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const link = links.get(entry.target.id);
      if (entry.isIntersecting && link) {
        for (const other of links.values()) other.classList.toggle("here", other === link);
      }
    }
  }, {rootMargin: "-10% 0px -80% 0px"});
  for (const id of links.keys()) seen.observe(document.getElementById(id));
}

function navigate() {
  const contents = document.querySelector(".contents > details");
  const narrow = matchMedia("(max-width:1000px)");
  const fold = () => {
    contents.open = !narrow.matches;
  };
  const anchors = [...contents.querySelectorAll("a")];
  const links = new Map(anchors.map((a) => [a.getAttribute("href").slice(1), a]));
  fold();
  narrow.addEventListener("change", fold);
  for (const a of anchors) {
    a.addEventListener("click", () => {
      if (narrow.matches) contents.open = false;
    });
  }
  addEventListener("hashchange", follow);
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((x) => {
    x.open = true;
  }));
  markPlace(links);
  follow();
}
