"""Copies of one model behind one address, each in a process and, where there are GPUs, on a GPU of its own."""
