"""Chunked prefill: a long prompt among decoders, whole and in chunks of several sizes (Sarathi-Serve)."""
