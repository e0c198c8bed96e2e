"""The page in a real browser: its controls change what is shown, and it complains of nothing."""

import pytest
from helpers import browser

from bwt.cli import main

PROGRAM = browser.find()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium or Chrome here")
PHONE = 390


@pytest.fixture(scope="module")
def chromium():
    opened = browser.Browser(PROGRAM)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def page(examined, tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "page.html"
    assert main(["report", str(examined / "pairs"), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def many(examined, tmp_path_factory):
    out = tmp_path_factory.mktemp("many") / "page.html"
    paths = [str(examined / name) for name in ("pairs", "hmm")] * 5
    assert main(["report", *paths, "--out", str(out)]) == 0
    return out


@pytest.fixture(autouse=True)
def no_complaints(chromium):
    chromium.complaints.clear()
    yield
    assert chromium.complaints == []


def view(name, rest=""):
    return f"document.querySelector('.view[data-view={name}]{rest}')"


def choose(chromium, name, control, value):
    """As a user does: the value changes, and then the page is told."""
    chromium.run(
        f"(c => {{ c.value = {value}; c.dispatchEvent(new Event('input')); "
        f"c.dispatchEvent(new Event('change')); }})({view(name, f' [name={control}]')})"
    )


def told(chromium, name):
    return chromium.run(f"{view(name, ' .said')}.textContent")


def attended(chromium):
    return chromium.run(
        "[...document.querySelectorAll('.view[data-view=steps] .token')]"
        ".map(t => t.style.getPropertyValue('--share'))"
    )


def heights(chromium):
    return chromium.run(
        "[...document.querySelectorAll('.view[data-view=steps] .outcome i')]"
        ".map(i => i.style.height)"
    )


def test_stepping_moves_posterior_model_and_attention_together(chromium, page):
    chromium.open(page)
    choose(chromium, "steps", "step", 0)
    before = told(chromium, "steps"), heights(chromium), attended(chromium)
    assert before[0].startswith("Step 1 of 6 ")
    choose(chromium, "steps", "step", 4)
    after = told(chromium, "steps"), heights(chromium), attended(chromium)
    assert after[0].startswith("Step 5 of 6 ") and all(
        a != b for a, b in zip(before, after, strict=True)
    )
    # Nothing is attended to behind the question, the ninth of eleven tokens.
    assert [float(x) for x in after[2][9:]] == [0, 0] and float(after[2][8]) > 0


@pytest.mark.parametrize("control", ["layer", "head"])
def test_another_head_looks_elsewhere_and_the_posterior_stays(chromium, page, control):
    chromium.open(page)
    choose(chromium, "steps", "step", 5)
    choose(chromium, "steps", control, 0)
    bars, first = heights(chromium), attended(chromium)
    choose(chromium, "steps", control, 1)
    assert attended(chromium) != first and heights(chromium) == bars


def test_another_sequence_is_another_posterior(chromium, page):
    chromium.open(page)
    tokens = f"[...{view('steps')}.querySelectorAll('.token')].map(t => t.textContent).join()"
    choose(chromium, "steps", "step", 5)
    before = chromium.run(tokens)
    choose(chromium, "steps", "sequence", 1)
    assert chromium.run(tokens) != before


def test_a_model_without_attention_is_stepped_through_without_heads(chromium, tmp_path):
    run, out = str(tmp_path / "run"), tmp_path / "page.html"
    flags = "--model lstm --width 8 --length 4 --steps 4 --evaluations 2 --eval-sequences 16"
    assert main(["train", "hmm", *flags.split(), "--out", run, "--batch-size", "2", "--json"]) == 0
    assert main(["geometry", run, "--sequences", "16", "--json"]) == 0
    assert main(["report", run, "--out", str(out)]) == 0
    chromium.open(out)
    choose(chromium, "steps", "step", 3)
    assert told(chromium, "steps").startswith("Step 4 of 4 ")
    assert not chromium.run(f"!!{view('steps', ' [name=head]')}")
    assert {float(x) for x in attended(chromium)} == {0}


def test_arrow_keys_step(chromium, page):
    chromium.open(page)
    choose(chromium, "steps", "step", 2)
    chromium.run(f"{view('steps')}.focus()")
    chromium.press("ArrowRight")
    assert told(chromium, "steps").startswith("Step 4 of ")
    chromium.press("ArrowLeft")
    chromium.press("ArrowLeft")
    assert told(chromium, "steps").startswith("Step 2 of ")


def test_states_turn_by_drag_and_by_key_and_change_colour(chromium, page):
    chromium.open(page)
    canvas = view("states", " canvas")
    chromium.show(canvas)
    turn, picture = f"{canvas}.dataset.turn", f"{canvas}.toDataURL()"
    before, drawn = chromium.run(turn), chromium.run(picture)
    x, y = chromium.run(f"(b => [b.left + 60, b.top + 60])({canvas}.getBoundingClientRect())")
    chromium.mouse("mousePressed", x, y, held=True)
    chromium.mouse("mouseMoved", x + 60, y + 24, held=True)
    chromium.mouse("mouseReleased", x + 60, y + 24)
    dragged = chromium.run(turn)
    assert dragged != before and chromium.run(picture) != drawn
    chromium.mouse("mouseMoved", x, y)
    assert chromium.run(turn) == dragged  # it was let go
    chromium.run(f"{canvas}.focus()")
    chromium.press("ArrowLeft")
    assert chromium.run(turn) != dragged
    drawn = chromium.run(picture)
    choose(chromium, "states", "by", 1)
    assert chromium.run(picture) != drawn
    choose(chromium, "states", "cloud", 0)
    assert len({drawn, chromium.run(picture)}) == 2


def test_a_checkpoint_can_be_chosen(chromium, page):
    chromium.open(page)
    cells = (
        f"[...{view('training')}.querySelectorAll('.cells')].map(s => s.innerHTML.length + "
        "s.querySelector('rect').getAttribute('fill-opacity') + s.innerHTML)"
    )
    choose(chromium, "training", "checkpoint", 0)
    exact, model = chromium.run(cells)
    assert told(chromium, "training").startswith("Training step 0: ")
    last = chromium.run(f"{view('training', ' [name=checkpoint]')}.max")
    choose(chromium, "training", "checkpoint", last)
    assert told(chromium, "training").startswith("Training step 8: ")
    now = chromium.run(cells)
    assert now[0] == exact and now[1] != model


def test_the_pointer_is_told_values(chromium, page):
    chromium.open(page)
    told = "document.querySelector('.tip:not([hidden])')?.textContent"
    for place, want in (
        (view("steps", " .token"), "position 0, x"),
        (view("steps", " .outcome"), "outcome 0: exact "),
        ("document.querySelector('g.heat > path')", "exact, sequence 1, outcome "),
        ("document.querySelector('circle[data-tip]')", "this model (transformer): "),
    ):
        chromium.show(place)
        x, y = chromium.run(_middle(place))
        chromium.mouse("mouseMoved", x, y)
        assert (chromium.run(told) or "").startswith(want), place


def test_the_pointer_is_told_where_a_line_goes(chromium, page):
    chromium.open(page)
    line = "document.querySelector('#run0-belief .grid svg[data-x] path.line[data-name=model]')"
    chromium.show(line)
    x, y = chromium.run(
        f"(p => {{ const at = p.getPointAtLength(0).matrixTransform(p.getScreenCTM()); "
        f"return [at.x, at.y]; }})({line})"
    )
    chromium.mouse("mouseMoved", x, y)
    text = chromium.run("document.querySelector('.tip:not([hidden])')?.textContent")
    assert text.startswith("model: 2 at 1") or text.startswith("model: 1.")  # 4 values: 2 bits


def _middle(place):
    """Of the first piece of a path, or of an element."""
    return (
        f"(e => {{ if (e.tagName !== 'path') {{ const b = e.getBoundingClientRect(); "
        "return [b.left + b.width / 2, b.top + b.height / 2]; } "
        "const at = e.getPointAtLength(0.5).matrixTransform(e.getScreenCTM()); "
        f"return [at.x, at.y]; }})({place})"
    )


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_paper_and_ink_follow_the_wish_of_the_reader(chromium, page, dark):
    chromium.open(page, dark=dark)
    colors = chromium.run(
        "(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))"
        ".map(c => c.match(/\\d+/g).reduce((a, b) => a + Number(b), 0))"
    )
    assert (colors[0] < colors[1]) == dark


def overflow(chromium):
    return chromium.run(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )


@pytest.mark.parametrize("width", [PHONE, 768, 1280])
@pytest.mark.parametrize("kind", ["one", "many"])
def test_no_page_scrolls_sideways(chromium, page, many, kind, width):
    chromium.open(page if kind == "one" else many, width=width)
    chromium.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert overflow(chromium) <= 0


def test_on_a_phone_the_table_is_a_list_and_the_contents_are_folded(chromium, many):
    chromium.open(many, width=PHONE)
    assert not chromium.run("document.querySelector('.contents > details').open")
    wide = "document.querySelector('table.stacks').scrollWidth"
    assert chromium.run(wide) <= PHONE
    label = "getComputedStyle(document.querySelector('table.stacks td'), '::before').content"
    assert chromium.run(label) == '"run"'


def test_a_link_unfolds_the_run_it_leads_to(chromium, many):
    chromium.open(many)
    opened = "document.getElementById('run7').open"
    assert not chromium.run(opened)
    chromium.run("document.querySelector('.contents a[href=\"#run7-training\"]').click()")
    chromium.run("0")  # a round of the loop, in which the page notices
    assert chromium.run(opened)
    chromium.open(many, fragment="#run6-belief")
    assert chromium.run("document.getElementById('run6').open")


def test_without_its_script_the_page_shows_its_figures(chromium, page):
    chromium.open(page, script=False)
    assert chromium.run("getComputedStyle(document.querySelector('.live')).display") == "none"
    seen = "[...document.querySelectorAll('svg')].filter(s => s.clientHeight > 20).length"
    assert chromium.run(seen) >= 12
    assert overflow(chromium) <= 0


def test_on_paper_there_are_only_figures(chromium, page):
    chromium.open(page, dark=True)
    chromium.call("Emulation.setEmulatedMedia", media="print")
    shown = "['.contents', '.live'].map(s => getComputedStyle(document.querySelector(s)).display)"
    assert chromium.run(shown) == ["none", "none"]
    assert chromium.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    chromium.call("Emulation.setEmulatedMedia", media="")
