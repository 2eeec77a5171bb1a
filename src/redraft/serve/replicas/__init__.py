"""Copies of one model behind one address, each in its own process and, if there are GPUs, on its own GPU."""
