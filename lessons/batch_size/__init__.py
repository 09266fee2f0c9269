"""The lesson on batching: what a batch of 1 to 32 requests gains, where it stops, and what it costs."""
