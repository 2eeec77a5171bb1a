"""Kernels for Hopper in Gluon, Triton's lower level, where it pays that each group of warps has a part of its own."""
