"""Who runs in the next step, and in which blocks. No torch, no clock, no model: it can be read and run on its own.

Read ``requests`` (what is scheduled), ``blocks`` (what it is scheduled into), the ``policies`` in the order static,
orca, paged, chunked, cache_aware (who decides; each mends what the one before costs), ``scheduler`` (the door).
``prefix`` finds work that others have done, ``speculation`` guesses work ahead. ``invariants`` says what must hold
after every step; ``tests/unit/test_one_request.py`` follows one request through all of it.
"""
