"""Who runs in the next step, and in which blocks. No torch, no clock, no model: it can be read and run on its own.

Read ``requests`` (what is scheduled), ``blocks`` (what it is scheduled into), ``policies/chunked`` beside
``policies/static`` (who decides), ``scheduler`` (the door). ``invariants`` says what must hold after every step.
"""
