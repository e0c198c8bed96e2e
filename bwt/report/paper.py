"""What "The Bayesian Geometry of Transformer Attention" (arXiv 2512.22471) reports, in the words of
our report. Most of it is known from notes by its readers, not from its own tables."""

from bwt.paper import HEADLINE


def headline(task: str, model: str) -> str:
    """Its entropy error in bits, or its accuracy for recall."""
    figures = HEADLINE.get((task, model))
    if figures is None:
        return "–"
    if task == "recall":
        return f"{100 * figures[0]:.3g} %"
    versions = ("",) if len(figures) == 1 else (" (v1)", " (v3)")
    return ", ".join(f"{x:g}{v}" for x, v in zip(figures, versions, strict=True)) + " bits"


KEYS = (
    "The paper gives 0.052 against 0.082 at random for layer 0, without saying which vectors are "
    "compared; its code takes raw token embeddings and a signed mean. Ours are the keys attention "
    "really uses, so the two are not the same quantity."
)
ENTROPY = (
    "The follow-up paper reports that attention entropy falls by 85-90 % from first to last layer."
)
MANIFOLD = (
    "The paper finds 84-90 % of the variance in the first component (bijection without repeated "
    "keys, where entropy and position cannot be told apart)."
)
DISSOCIATION = (
    "The paper describes this with two pictures (steps 100k and 150k) and no number; a later "
    "retraining by its authors has the frame done at step 2.5k of 50k and 35 times better "
    "calibration after it."
)
PROBES = "The paper gives no probe numbers."
ABLATION = (
    "The paper says that removing any layer makes the error more than 10 times larger, and that "
    "one head of layer 0 matters more than all others; its authors' later check found several."
)
CLUSTERS = (
    "The paper sees five clusters in Mamba's states for the HMM, by colour; none is measured."
)
LENGTHS = (
    "The paper (HMM, trained on 20): entropy error 7.5e-5 at 20, 0.012 at 30, 0.029 at 50; read "
    "off its figure, the error rises at once behind the trained length and then stays level."
)
