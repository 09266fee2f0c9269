"""The ``bench`` command without its options: what is asked, checked before anything is measured; then the tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from engine.bench.plan import PEERS, SUITES, Plan, chosen
from engine.bench.results import Results
from engine.bench.session import Session, machine
from engine.bench.table import render


def measure(
    peers: str,
    only: str,
    json_file: Path | None,
    repeats: int,
    quick: bool,
    minutes: float,
    command: str,
    say: Callable[[str], None],
) -> str:
    """The tables of everything the file holds afterwards. Raises: BenchError.

    Effect: measures, for at most so many minutes; writes the file after every round, so an end by force loses little.
    """
    suites, wanted_peers = chosen("--only", only, SUITES) or SUITES, chosen("--peers", peers, PEERS)
    name, device = machine()
    results = (Results.load(json_file, name) if json_file else None) or Results(name, device)
    plan = Plan.quick(repeats) if quick else Plan(repeats)
    session = Session(plan, suites, wanted_peers, command, say, 60 * minutes)
    session.run(results, lambda: results.save(json_file) if json_file is not None else None)
    return render(results)
