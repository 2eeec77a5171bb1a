"""The diffusion process as pure functions on tensors; knows nothing of requests, text or rendering."""
