"""`bwt` under torchrun in which one process gets a SIGTERM after a step:
interrupted.py RANK STEP [arguments of bwt]"""

import os
import signal
import sys

from bwt import train
from bwt.cli import main
from bwt.train import distributed

rank, step = map(int, sys.argv[1:3])
update = train.Trainer.update


def interrupted(self, stop):
    done = update(self, stop)
    if (distributed.rank(), self.step) == (rank, step):
        os.kill(os.getpid(), signal.SIGTERM)
    return done


train.Trainer.update = interrupted
sys.exit(main(sys.argv[3:]))
