"""The ceilings of this machine, measured anew in every round: how fast it reads memory and multiplies matrices.

``python -m engine.bench.roofs`` reads a job and answers like every measured system. It measures as the lab does
(``engine.lab.ceilings``), only shorter, since the bench does it again in each round.
"""

from __future__ import annotations

import json
import sys

from engine.bench.peers.common import say
from engine.lab.ceilings import measure_matmul, measure_read
from engine.lab.device import describe_device

READ_SECONDS = 1.0  # for each number of threads
MATMUL_SECONDS = 0.35  # for each size
DTYPE = "bfloat16"


def main() -> None:
    json.load(sys.stdin)
    info = describe_device("cpu")
    say("result", case="read", value=measure_read(info, READ_SECONDS).value, unit="GB/s")
    say("result", case="matmul", value=measure_matmul(info, DTYPE, MATMUL_SECONDS).value, unit="TFLOP/s")


if __name__ == "__main__":
    main()
