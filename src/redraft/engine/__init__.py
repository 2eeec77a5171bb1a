"""Many requests share one model: scheduling, pages, forwards, and the synchronous and asynchronous front."""
