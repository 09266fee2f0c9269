"""Which combinations to try: all of them when TBT_FULL_GRID=1, else a few in which every pair of values meets."""

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, product

IS_FULL = os.environ.get("TBT_FULL_GRID", "0") == "1"


def grid(cost: Callable[[dict], float] = lambda case: 1, **axes: Sequence[object]) -> list[dict[str, object]]:
    """Every combination, or a small, cheap set that holds every pair of values of every two axes. Deterministic."""
    names = list(axes)
    everything = [dict(zip(names, values, strict=True)) for values in product(*axes.values())]
    return everything if IS_FULL else _pairwise(everything, cost)


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
