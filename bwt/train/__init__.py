"""Training: `train(config, out)` starts a run, `resume(out)` continues one bit for bit, `load(run)`
returns the trained model.

step.py is one update of a model, run.py what is recorded of a run, loop.py connects the two.

Small runs take one CPU thread, large ones as many as `torch.get_num_threads()` and a container's
quota allow. Where other processes use the CPUs, set GOMP_SPINCOUNT=1000 before torch is imported,
as the `bwt` command does: threads that wait for each other then sleep instead of spinning.

>>> import bwt, tempfile
>>> settings = dict(steps=2, evaluations=1, eval_sequences=8)
>>> config = bwt.train.TrainConfig("bijection", task_options={"num_symbols": 4}, **settings)
>>> result = bwt.train.train(config, tempfile.mkdtemp() + "/run")
>>> result.step, result.evaluation.floors["uniform"].overall["tvd"].mean > 0
(2, True)
"""

from bwt.runs.config import TrainConfig
from bwt.runs.loading import load
from bwt.train.loop import build_step, no_progress, progress_bar, resume, train
from bwt.train.run import Result, Run
from bwt.train.step import TrainStep

__all__ = [
    "Result",
    "Run",
    "TrainConfig",
    "TrainStep",
    "build_step",
    "load",
    "no_progress",
    "progress_bar",
    "resume",
    "train",
]
