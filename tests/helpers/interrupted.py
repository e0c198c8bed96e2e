"""`bwt` under torchrun in which one process gets a SIGTERM after a step:
interrupted.py RANK STEP [arguments of bwt]"""

import os
import signal
import sys

from bwt import train
from bwt.cli import main
from bwt.train import distributed

rank, step = map(int, sys.argv[1:3])
update = train.TrainStep.update


def interrupted(self, batch=None):
    update(self, batch)
    if (distributed.rank(), self.count) == (rank, step):
        os.kill(os.getpid(), signal.SIGTERM)


train.TrainStep.update = interrupted
sys.exit(main(sys.argv[3:]))
