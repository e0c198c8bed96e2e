"""Figures of "The Bayesian Geometry of Transformer Attention" (arXiv 2512.22471), to stand beside
ours. Most are known from notes by its readers and from the authors' code, not from its tables; two
figures are of two versions of the paper."""

# (task, row of our table) -> entropy error in bits; recall: accuracy. The paper does not say what
# its MLP sees; the authors' later one sees a single position.
HEADLINE: dict[tuple[str, str], tuple[float, ...]] = {
    ("bijection", "transformer"): (0.003, 0.007),
    ("bijection", "mamba"): (0.010,),
    ("bijection", "lstm"): (0.009,),
    ("bijection", "mlp"): (1.85,),
    ("bijection", "mlp-position"): (1.85,),
    ("hmm", "transformer"): (7.5e-5, 0.049),
    ("hmm", "mamba"): (0.024,),
    ("hmm", "lstm"): (0.411,),
    ("hmm", "mlp"): (0.409,),
    ("hmm", "mlp-position"): (0.409,),
    ("recall", "transformer"): (1.0,),
    ("recall", "mamba"): (0.978,),
    ("recall", "lstm"): (0.005,),
}

# (primitive, row) -> what the paper says.
PRIMITIVES: dict[tuple[str, str], str] = {
    **{(p, "transformer"): "yes" for p in ("accumulation", "transport", "binding")},
    ("accumulation", "mamba"): "yes",
    ("transport", "mamba"): "yes",
    ("binding", "mamba"): "no, or half",
    ("accumulation", "lstm"): "yes",
    ("transport", "lstm"): "no",
    ("binding", "lstm"): "no",
    **{(p, "mlp"): "no" for p in ("accumulation", "transport", "binding")},
    **{(p, "mlp-position"): "no" for p in ("accumulation", "transport", "binding")},
}

# (row, factor of the trained length) -> entropy error in bits, HMM.
LENGTHS: dict[tuple[str, float], str] = {
    ("transformer", 1.0): "7.5e-5",
    ("transformer", 1.5): "0.012",
    ("transformer", 2.5): "0.029",
    ("mlp", 1.0): "0.409",
    ("mlp", 1.5): "as at 20",
    ("mlp", 2.5): "as at 20",
}

# Number of our diagnostics, as results.json names it -> what the paper says.
GEOMETRY: dict[str, str] = {
    "key_cosine": "0.052 (random 0.082); vectors not stated",
    "attention_entropy_last": "85-90% below the first layer's",
    "pc1": "84-90% (bijection)",
    "clusters": "5, by eye (Mamba, HMM)",
    "layer_least": "> 10 for any layer",
    "head_most": "one head of layer 0 above all others",
}

# What it says about each of our diagnostics, by its name in geometry.json.
NOTES: dict[str, str] = {
    "keys": (
        "The paper gives 0.052 against 0.082 at random for layer 0, without saying which vectors "
        "are compared; its code takes raw token embeddings and a signed mean. Ours are the keys "
        "attention really uses, so the two are not the same quantity."
    ),
    "attention": (
        "The follow-up paper reports that attention entropy falls by 85-90 % from first to last "
        "layer."
    ),
    "manifold": (
        "The paper finds 84-90 % of the variance in the first component (bijection without "
        "repeated keys, where entropy and position cannot be told apart)."
    ),
    "probes": "The paper gives no probe numbers.",
    "clusters": (
        "The paper sees five clusters in Mamba's states for the HMM, by colour; none is measured."
    ),
    "dissociation": (
        "The paper describes this with two pictures (steps 100k and 150k) and no number; a later "
        "retraining by its authors has the frame done at step 2.5k of 50k and 35 times better "
        "calibration after it."
    ),
    "formation": (
        "The paper does not tell how its look-up forms; its checkpoint of 0.0067 bits is of the "
        "task with repeated keys, so it did."
    ),
    "lengths": (
        "The paper (HMM, trained on 20): entropy error 7.5e-5 at 20, 0.012 at 30, 0.029 at 50; "
        "read off its figure, the error rises at once behind the trained length and then stays "
        "level."
    ),
    "ablation": (
        "The paper says that removing any layer makes the error more than 10 times larger, and "
        "that one head of layer 0 matters more than all others; its authors' later check found "
        "several."
    ),
}
