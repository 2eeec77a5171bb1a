"""Kernels for Hopper in Gluon, Triton's lower level, for cases that gain from giving each warp group its own part."""
