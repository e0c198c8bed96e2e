"""Training: `train(config, out)` starts a run, `resume(out)` continues one bit for bit,
`resume_together(outs)` trains several in one program, `load(run)` gives back what has been
trained."""

from bwt.runs.config import TrainConfig
from bwt.runs.loading import load
from bwt.train.run import resume, train
from bwt.train.stacking import resume_together
from bwt.train.trainer import Result, Trainer

__all__ = ["Result", "TrainConfig", "Trainer", "load", "resume", "resume_together", "train"]
