"""The roof of this machine, measured: how fast it reads memory, and how fast it multiplies matrices in each dtype.

It decides how a ceiling is measured and when one is too noisy to draw; it never takes a number from a datasheet. Decode
reads weights and writes next to nothing, so the memory roof is a read rate, not a copy (a read-only variant of STREAM,
as likwid's load kernel); the compute roof is what a large matmul achieves, not a peak. This is the one module of
``engine.lab`` that uses torch, and only inside the functions that measure: cached ceilings can be read without it.

Invariant: a ceiling is the best median over ``WINDOW`` passes in a row, so one lucky pass never makes a roof, and one
busy neighbour for a while never lowers it; ``noisy`` says when even the best window was uneven.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING

import psutil

from engine.lab.device import cpu_sample, describe_device, noise
from engine.lab.metrics import NOISY_SPREAD, percentile
from engine.lab.records import DeviceInfo
from engine.lab.roof import Ceilings, Rate, load_cached, save_cached, torch_version

if TYPE_CHECKING:
    import torch

WINDOW = 10  # passes in a row over which a median is taken
PIECE_BYTES = 16 * 2**20  # what a reading thread takes at a time
READ_BYTES = {"cpu": 512 * 2**20, "cuda": 2 * 2**30}  # far beyond any last-level cache
LEAST_READ_BYTES = 64 * 2**20
READ_SECONDS = 3.0  # for each number of threads
MATMUL_SECONDS = 0.7  # for each size and dtype
LONGEST_PASS_S = 1.0
MATMUL_SIZES = {"cpu": (256, 512, 1024, 2048), "cuda": (2048, 4096, 8192)}
MATMUL_DTYPES = ("float32", "bfloat16", "float16")

Progress = Callable[[float, str], None]  # share done in [0, 1], what is being measured


def calibrate(info: DeviceInfo | None = None, refresh: bool = False, progress: Progress | None = None) -> Ceilings:
    """The cached ceilings of the device if they are quiet, else measured now (under 20 s on 2 free cores) and cached.

    Effect: may write ``ceilings.json`` in the lab's home. Where it cannot be written, the next start measures again.
    ``refresh`` measures anew and forgets what was known.
    """
    info = info or describe_device()
    cached = load_cached(info)
    if cached is not None and not refresh and not (cached.noisy or cached.disturbed):
        return cached
    measured = measure_ceilings(info, progress)
    if cached is not None and not refresh:
        measured = measured.merge(cached)
    with contextlib.suppress(OSError):
        save_cached(measured)
    return measured


# ------------------------------------------------------------------------------------------------- measuring
def measure_ceilings(info: DeviceInfo | None = None, progress: Progress | None = None) -> Ceilings:
    """Measure the device now. Effect: keeps all its cores, or the GPU, busy for some seconds. Raises: RuntimeError."""
    info = info or describe_device()
    tell = progress or (lambda share, what: None)
    before, begin = cpu_sample(), time.perf_counter()
    tell(0.0, "read")
    read = measure_read(info)
    matmul = {}
    for index, dtype in enumerate(MATMUL_DTYPES):
        tell(0.4 + 0.6 * index / len(MATMUL_DTYPES), dtype)
        matmul[dtype] = measure_matmul(info, dtype)
    tell(1.0, "done")
    disturbed = noise(before)
    return Ceilings(
        device=info.name,
        device_type=info.type,
        threads=info.threads,
        torch_version=torch_version(),
        measured_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(time.perf_counter() - begin, 2),
        read=read,
        matmul=matmul,
        steal_share=disturbed.steal_share,
        others_share=disturbed.others_share,
    )


def measure_read(info: DeviceInfo, seconds: float | None = None) -> Rate:
    """Sum a buffer of ones that no cache holds. Ones, not zeros: untouched zero pages are never read from memory.

    ``seconds``: for each number of threads, by default ``READ_SECONDS``.
    """
    import torch

    seconds = seconds or READ_SECONDS
    num_bytes = READ_BYTES[info.type]
    if info.type == "cpu":
        num_bytes = max(min(num_bytes, psutil.virtual_memory().available // 4), LEAST_READ_BYTES)
    buffer = torch.ones(num_bytes // 4, dtype=torch.float32, device=info.type)
    how = f"sum over a float32 buffer of {num_bytes / 1e6:.0f} MB"
    if info.type == "cuda":
        passes = _timed(lambda: buffer.sum(), seconds, torch.cuda.synchronize)
        return _rate([num_bytes / 1e9 / s for s in passes], "GB/s", how)
    found = []
    for threads in sorted({1, info.threads}):  # one thread can suffice, and two can get in each other's way
        with _reader(buffer, threads) as read_all:
            rates = [num_bytes / 1e9 / s for s in _timed(read_all, seconds)]
        found.append(_rate(rates, "GB/s", f"{how}, in {threads} {'thread' if threads == 1 else 'threads'}"))
    return max(found, key=lambda rate: rate.value)


@contextlib.contextmanager
def _reader(buffer: torch.Tensor, threads: int) -> Iterator[Callable[[], None]]:
    """A function that reads the whole buffer once, each thread taking the next piece when it is done with its last.

    torch's own threads split a sum in equal parts and wait for the slowest; taking pieces reaches a higher rate.
    """
    import torch

    pieces = buffer.split(PIECE_BYTES // buffer.element_size())
    own = torch.get_num_threads()

    def drain(shared: Iterator[torch.Tensor]) -> None:
        for piece in shared:  # torch lets go of the interpreter while it sums
            piece.sum()

    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:

            def read_all() -> None:
                shared = iter(pieces)
                list(pool.map(drain, [shared] * threads))

            yield read_all
    finally:
        torch.set_num_threads(own)


def measure_matmul(info: DeviceInfo, dtype: str, seconds: float | None = None) -> Rate:
    """Square matmuls of growing size; the best size counts. A size that would take too long is left out.

    ``seconds``: for each size, by default ``MATMUL_SECONDS``.
    A dtype without instructions of its own (float16 on most CPUs) is hundreds of times slower than its neighbours.
    """
    import torch

    own = torch.get_num_threads()
    if info.type == "cpu":
        torch.set_num_threads(info.threads)
    sync = torch.cuda.synchronize if info.type == "cuda" else None
    found = []
    try:
        for size in MATMUL_SIZES[info.type]:
            a, b = (torch.randn(size, size, device=info.type).to(getattr(torch, dtype)) for _ in range(2))
            out = torch.empty_like(a)
            with torch.inference_mode():
                passes = _timed(lambda a=a, b=b, out=out: torch.matmul(a, b, out=out), seconds or MATMUL_SECONDS, sync)
            rates = [2 * size**3 / 1e12 / s for s in passes]
            found.append(_rate(rates, "TFLOP/s", f"{size} x {size} matmul in {dtype}"))
            if 8 * min(passes) > LONGEST_PASS_S:  # twice the size is eight times the work
                break
    finally:
        torch.set_num_threads(own)
    return max(found, key=lambda rate: rate.value)


def _timed(once: Callable[[], object], seconds: float, sync: Callable[[], None] | None = None) -> list[float]:
    """Durations of passes repeated for about so many seconds, after one to warm up; at least 3, at most 500."""
    wait = sync or (lambda: None)
    once()
    wait()
    stamps = [time.perf_counter()]
    while len(stamps) <= 3 or (stamps[-1] - stamps[0] < seconds and len(stamps) <= 500):
        once()
        wait()
        stamps.append(time.perf_counter())
    return [end - begin for begin, end in pairwise(stamps)]


def _rate(rates: list[float], unit: str, how: str) -> Rate:
    """The best window of the passes, in the order in which they were made. Pure."""
    windows = [rates[i : i + WINDOW] for i in range(max(len(rates) - WINDOW, 0) + 1)]
    best = max(windows, key=lambda window: (percentile(window, 50), percentile(window, 10)))
    low, value, high = (percentile(best, q) or 0.0 for q in (10, 50, 90))
    noisy = len(best) < 3 or (high - low) > NOISY_SPREAD * value
    return Rate(
        value=value,
        unit=unit,
        low=low,
        high=high,
        median=percentile(rates, 50) or 0.0,
        count=len(rates),
        noisy=noisy,
        how=how,
    )
