"""Opening a trained model: diagnostics of its attention, its states, and what depends on them.

`examine(run)` fills geometry.json, `ablate(run)` adds what happens when parts are taken out.

>>> import bwt, tempfile
>>> out = tempfile.mkdtemp() + "/run"
>>> task, sizes = {"num_symbols": 4, "replacement": True}, {"layers": 1, "width": 8}
>>> settings = dict(steps=2, evaluations=1, eval_sequences=8)
>>> config = bwt.train.TrainConfig("bijection", "transformer", task, sizes, **settings)
>>> result = bwt.train.train(config, out)
>>> found = bwt.geometry.examine(out, sequences=16, quiet=True)
>>> len(found.attention.layers), sorted(found.attention.uniform_mass)
(1, ['evidence', 'irrelevant', 'matching', 'self'])
"""

from bwt.geometry.examine import ablate, examine

__all__ = ["ablate", "examine"]
