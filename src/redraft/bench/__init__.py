"""Benchmarks: measurements next to the physical limit. They compute; the command line prints."""
