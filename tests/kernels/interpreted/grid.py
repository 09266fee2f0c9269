"""Which combinations to try: the full grid when TBT_FULL_GRID=1, else a few in which every pair of values meets."""

import os
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, cycle, product

IS_FULL = os.environ.get("TBT_FULL_GRID", "0") == "1"


def grid(
    cost: Callable[[dict], float] = lambda case: 1, cycled: Sequence[str] = (), **axes: Sequence[object]
) -> list[dict[str, object]]:
    """A small, cheap set that holds every pair of values of every two axes; or the full grid. Deterministic.

    The full grid has every combination of all axes but the ``cycled`` ones; those take their combinations in turn.
    """
    names = list(axes)
    if not IS_FULL:
        return _pairwise([dict(zip(names, values, strict=True)) for values in product(*axes.values())], cost)
    fixed = {name: values for name, values in axes.items() if name not in cycled}
    in_turn = cycle(_shuffled(list(product(*(axes[name] for name in cycled)))))
    combined = (
        {**dict(zip(fixed, values, strict=True)), **dict(zip(cycled, next(in_turn), strict=True))}
        for values in product(*fixed.values())
    )
    return [{name: case[name] for name in names} for case in combined]


def _shuffled(values: list) -> list:
    """In an order that has nothing to do with that of the other axes."""
    return random.Random(0).sample(values, len(values))


def ids(cases: Iterable[dict[str, object]]) -> list[str]:
    return ["-".join(f"{name}={str(value).removeprefix('torch.')}" for name, value in case.items()) for case in cases]


def _pairwise(everything: list[dict[str, object]], cost: Callable[[dict], float]) -> list[dict[str, object]]:
    """Greedy: always the combination with the most pairs that have not met yet, for what it costs."""

    def pairs(case: dict[str, object]) -> frozenset:
        return frozenset(combinations(((name, str(value)) for name, value in case.items()), 2))

    by_case = [(case, pairs(case)) for case in everything]
    missing = set().union(*(found for _, found in by_case))
    chosen = []
    while missing:
        case, found = max(by_case, key=lambda entry: len(entry[1] & missing) / cost(entry[0]))
        chosen.append(case)
        missing -= found
    return chosen
