"""Token by Token's inference engine: small enough to read, real enough to serve.

One step reads aloud as ``decide -> forward -> commit -> record``. Start at ``engine/runtime/engine.py``; the policies
that decide are in ``engine/scheduling/``, the records that every page reads are in ``engine/lab/records.py``.

Shape letters used in comments everywhere: T tokens in a step, R requests in a step, L layers, C hidden size, Hq query
heads, Hk KV heads, D head dimension, B block size, N blocks in the pool, S context length, V vocabulary. Intervals are
half-open: [start, end).
"""
