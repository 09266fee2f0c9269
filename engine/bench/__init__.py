"""``python -m engine bench``: this engine beside its peers, on the same weights, in the same minutes, on this machine.

``plan`` says what is measured, ``session`` runs it round after round, each system in a fresh process (``process``),
``samples`` turns what came back into medians, spreads and ratios, ``table`` prints them, ``results`` keeps them in a
file. The systems are ``ours`` and the scripts in ``peers/``, which run with interpreters of their own and know nothing
of this package. ``tests/bench/README.md`` tells how to set the peers up.
"""
