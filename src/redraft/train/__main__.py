"""`python -m redraft.train RECIPE`, the same as `redraft train RECIPE`; torchrun starts modules."""

import os
import sys

from redraft.cli.main import main

code = main(["train", *sys.argv[1:]])
sys.stdout.flush()
sys.stderr.flush()
# Python's normal exit occasionally aborted one of several processes after a finished run: their group's threads seem to
# outlive the run and then need the interpreter.
os._exit(code)
