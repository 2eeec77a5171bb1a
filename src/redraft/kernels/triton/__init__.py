"""Kernels in Triton, each in the same file as its eager twin. `language` decides which of the two a tensor goes to."""
