"""Settings of every test run: one thread (shared machines stall on more) and no network."""

import os

# Before any import that reads them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ.pop("REDRAFT_KERNELS", None)

import torch

torch.set_num_threads(1)
