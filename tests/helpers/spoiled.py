"""`bwt` under torchrun in which the weights of one process are spoiled before a step:
spoiled.py RANK STEP [arguments of bwt]"""

import math
import sys

import torch

from bwt import train
from bwt.cli import main
from bwt.train import distributed

rank, step = map(int, sys.argv[1:3])
update = train.Trainer.update


def spoiled(self, stop):
    if (distributed.rank(), self.step) == (rank, step - 1):
        with torch.no_grad():
            self.parameters[0].fill_(math.nan)
    return update(self, stop)


train.Trainer.update = spoiled
sys.exit(main(sys.argv[3:]))
