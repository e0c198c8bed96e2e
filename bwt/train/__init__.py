"""Training: `train(config, out)` starts a run, `resume(out)` continues one bit for bit, `load(run)`
gives back what has been trained."""

from bwt.runs.config import TrainConfig
from bwt.runs.loading import load
from bwt.train.loop import Result, Trainer
from bwt.train.run import resume, train

__all__ = ["Result", "TrainConfig", "Trainer", "load", "resume", "train"]
