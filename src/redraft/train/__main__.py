"""`python -m redraft.train RECIPE`, which is `redraft train RECIPE`; torchrun starts modules."""

import os
import sys

from redraft.cli.main import main

code = main(["train", *sys.argv[1:]])
sys.stdout.flush()
sys.stderr.flush()
# Python's own way out now and then aborted one of several processes behind a finished run: the threads of their group,
# it seems, outlive it and then want the interpreter.
os._exit(code)
