import sys

from bwt.cli import main

sys.exit(main())
