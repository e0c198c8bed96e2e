"""`bwt` under torchrun in which the weights of one process are spoiled before a step:
spoiled.py RANK STEP [arguments of bwt]"""

import math
import sys

import torch

from bwt import train
from bwt.cli import main
from bwt.train import distributed

rank, step = map(int, sys.argv[1:3])
update = train.TrainStep.update


def spoiled(self, batch=None):
    if (distributed.rank(), self.count) == (rank, step - 1):
        with torch.no_grad():
            next(iter(self.master.values())).fill_(math.nan)
    update(self, batch)


train.TrainStep.update = spoiled
sys.exit(main(sys.argv[3:]))
