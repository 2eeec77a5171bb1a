"""Benchmarks: measurements with the physical limit beside them. They compute; the command line prints."""
