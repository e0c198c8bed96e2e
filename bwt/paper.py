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

GEOMETRY: dict[str, str] = {
    "key_cosine": "0.052 (random 0.082); vectors not stated",
    "attention_entropy_last": "85-90% below the first layer's",
    "pc1": "84-90% (bijection)",
    "clusters": "5, by eye (Mamba, HMM)",
}
ABLATION: dict[str, str] = {
    "layer_least": "> 10 for any layer",
    "head_most": "one head of layer 0 above all others",
}
