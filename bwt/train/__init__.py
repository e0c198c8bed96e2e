"""Training: `train(config, out)` starts a run, `resume(out)` continues one bit for bit,
`resume_together(outs)` trains several in one program, `load(run)` gives back what has been
trained.

Small runs take one CPU thread, large ones as many as `torch.get_num_threads()` and a container's
quota allow. Where other processes use the CPUs, set GOMP_SPINCOUNT=1000 before torch is imported,
as the `bwt` command does: threads that wait for each other then sleep instead of spinning.

>>> import bwt, tempfile
>>> settings = dict(steps=2, evaluations=1, eval_sequences=8)
>>> config = bwt.train.TrainConfig("bijection", task_options={"num_symbols": 4}, **settings)
>>> result = bwt.train.train(config, tempfile.mkdtemp() + "/run", quiet=True)
>>> result.step, result.evaluation.floors["uniform"].overall["tvd"].mean > 0
(2, True)
"""

from bwt.runs.config import TrainConfig
from bwt.runs.loading import load
from bwt.train.run import resume, train
from bwt.train.stacking import resume_together
from bwt.train.trainer import Result, Trainer

__all__ = ["Result", "TrainConfig", "Trainer", "load", "resume", "resume_together", "train"]
