"""`python -m ostinato` is the command `ostinato`."""

import sys

from .command import main

sys.exit(main())
