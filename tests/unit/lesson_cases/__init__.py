"""What the tests of every lesson need to know of each: Runs of its situations, and an independent checker of its items.

A lesson ``<id>`` brings ``lesson_cases/<id>.py`` with

* ``RUNS``: ``{situation: () -> runs}``; every section with placeholders is reached by one of them, and no note is idle
* ``ITEM_RUNS``: ``() -> list of runs``; from these (20 or more) its items are made, under several seeds
* ``CHECKS``: ``{kind: (item, runs) -> the right answer}``, recomputed from the raw records, sharing no code with the
  generator. A number item is answered by a number; of a choice every option is asked: ``(item, runs, option) -> bool``
* ``REACHED_ELSEWHERE``: sections that only a real disturbance reaches (optional)
"""
