"""Kernels in Triton, each in the file of its eager twin. `language` decides which of the two a tensor goes to."""
