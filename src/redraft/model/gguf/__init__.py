"""DiffusionGemma in a GGUF file, as llama.cpp's conversion (`diffusion-gemma`) writes it: described as a model folder.

`folder.py` writes what the file's metadata says as the small files of a folder, so that only reading a tensor
(`container.py`, `names.py`, `decoding.py`) is of a different kind.
"""
