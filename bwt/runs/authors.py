"""Tasks, sizes and recipes of the authors' code (vishalmisra/bayesian-wind-tunnel), and of the
paper where the code is silent. Their models are alike in depth and width, not in parameters.
"""

from typing import Any

# Told beside results.
DEPARTURES = (
    "Not as in the authors' code: no dropout (theirs is 0.1 in the HMM transformer and the LSTMs), "
    "fresh HMM sequences in each step instead of a fixed set, an LSTM whose head is not tied, and "
    "Mamba as published instead of their simplified one."
)

# The HMM as in their generator, at the paper's length. Recall has a generator in the code, and no
# training.
TASKS: dict[str, dict[str, Any]] = {
    "hmm": dict(header="tokens", floor=0.05, length=20),
    "recall": dict(num_pairs=64, num_keys=256, num_values=256, num_queries=3, filler=32),
}

_MAMBA = dict(state=16, kernel=4, expansion=2)
# The paper: 18-20 layers, 384-400 wide, residual, as many parameters as the transformer. 192 units
# in each make the weights of a layer 384 x 384, as that number needs. Whether it saw the prefix or
# its own position only is not known: `prefix` has further weights for each position.
_MLP = dict(layers=18, width=384, hidden=192, norm="layer", context="prefix")
_SMALL: dict[str, dict[str, Any]] = {
    "transformer": dict(layers=6, heads=6, width=192, tied=True),
    "mamba": dict(layers=6, width=192, **_MAMBA),
    "lstm": dict(layers=6, width=192),
    "mlp": _MLP,
}
SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "bijection": _SMALL,
    "hmm": {
        "transformer": dict(layers=9, heads=8, width=256, norm="layer", position_table=1024),
        "mamba": dict(layers=9, width=256, **_MAMBA),
        "lstm": dict(layers=9, width=256),
        "mlp": _MLP,
    },
    "recall": _SMALL,
}

_ADAMW = dict(optimizer="adamw", beta2=0.999, clip=1.0, warmup=0.0, average=0.0)
_BIJECTION: dict[str, dict[str, Any]] = {
    "transformer": dict(
        _ADAMW,
        steps=100_000,
        batch_size=128,
        lr=3e-4,
        beta2=0.95,
        weight_decay=0.1,
        warmup=0.02,
        decay="cosine",
    ),
    "mamba": dict(
        _ADAMW,
        steps=50_000,
        batch_size=256,
        lr=1e-4,
        weight_decay=0.01,
        clip=0.5,
        decay="cosine",
    ),
    "lstm": dict(_ADAMW, steps=50_000, batch_size=256, lr=3e-4, weight_decay=0.1, decay="none"),
}
_HMM = dict(_ADAMW, targets="posterior", batch_size=64, lr=3e-4, weight_decay=0.01)
# Baselines: 30 epochs of 50,000 sequences.
_HMM_BASELINE = dict(_HMM, steps=30 * 50_000 // 64, decay="none")
# A model that is not named is trained as the transformer.
RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "bijection": _BIJECTION,
    "hmm": {
        "transformer": dict(_HMM, steps=150_000, decay="cosine"),
        "mamba": dict(_HMM_BASELINE, lr=1e-4, clip=0.5),
        "lstm": _HMM_BASELINE,
    },
    "recall": _BIJECTION,
}
