"""`python -m redraft.train RECIPE`."""

import sys

from redraft.cli.train import main

sys.exit(main())
