import os
import sys

from bwt.cli import main

code = main()
if "RANK" in os.environ:
    # Under torchrun a process may abort in the interpreter's shutdown, on threads of gloo.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
sys.exit(code)
