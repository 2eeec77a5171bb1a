"""`python -m redraft` is the command `redraft`."""

import sys

from redraft.cli.main import main

sys.exit(main())
