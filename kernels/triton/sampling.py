"""Draw a token from each row of logits: argmax(logits / temperature + Gumbel noise), or the plain argmax at temperature
0.

What moves: the logits once, ``4 * R * V`` bytes. The usual way (softmax, cumulative sum, search) reads and writes
them several times; adding Gumbel noise turns drawing from a distribution into a maximum, which needs one pass and no
normalisation. The noise is not stored anywhere: it is Philox, a function of (seed, column), computed where it is
used. So a request's tokens do not depend on its neighbours, its row or the number of programs.

A row of 128 thousand columns is cut into pieces, or a single request would occupy one processor; a second small
kernel takes the best of the pieces. Of equal scores the lowest column wins, in both.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.launch import check_rows, next_power_of_2

COLUMNS_PER_PROGRAM = 2048


def sample(logits: torch.Tensor, temperatures: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
    """logits: [R, V] float32; temperatures: [R] float32, 0 is greedy; seeds: [R] int64 -> token ids [R] int64. Pure.

    A row's seed must be new for every token drawn: the same seed gives the same noise.
    """
    check_rows("logits", logits, 2)
    num_rows, num_columns = logits.shape
    assert logits.dtype == temperatures.dtype == torch.float32 and seeds.dtype == torch.int64, "float32, float32, int64"
    assert temperatures.shape == seeds.shape == (num_rows,), "a temperature and a seed for every row"
    assert temperatures.is_contiguous() and seeds.is_contiguous(), "temperatures and seeds are packed"
    num_pieces = triton.cdiv(num_columns, COLUMNS_PER_PROGRAM)
    best = torch.empty((num_rows, num_pieces), dtype=torch.float32, device=logits.device)
    where = torch.empty((num_rows, num_pieces), dtype=torch.int32, device=logits.device)
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    _best_of_piece[(num_rows, num_pieces)](
        logits,
        temperatures,
        seeds,
        best,
        where,
        logits.stride(0),
        num_columns,
        BLOCK=COLUMNS_PER_PROGRAM,
        num_warps=4,
        enable_fp_fusion=True,
    )
    _best_of_row[(num_rows,)](
        best, where, token_ids, num_pieces, BLOCK=next_power_of_2(num_pieces), num_warps=1, enable_fp_fusion=True
    )
    return token_ids


@triton.jit
def _best_of_piece(
    logits_ptr, temperature_ptr, seed_ptr, best_ptr, where_ptr, logits_stride, num_columns, BLOCK: tl.constexpr
):
    """Program (row, piece)."""
    row = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    column = piece * BLOCK + tl.arange(0, BLOCK)
    scores = tl.load(logits_ptr + row * logits_stride + column, mask=column < num_columns, other=float("-inf"))
    temperature = tl.load(temperature_ptr + row)
    if temperature > 0.0:
        bits = tl.randint(tl.load(seed_ptr + row), column).to(tl.uint32)
        # 23 bits and a half: strictly between 0 and 1 in float32, so that neither logarithm is infinite.
        uniform = ((bits >> 9).to(tl.float32) + 0.5) * (1.0 / 8388608.0)
        scores = scores / temperature - tl.log(-tl.log(uniform))
    at = row * tl.num_programs(1) + piece
    tl.store(best_ptr + at, tl.max(scores, axis=0))
    tl.store(where_ptr + at, piece * BLOCK + tl.argmax(scores, axis=0, tie_break_left=True))


@triton.jit
def _best_of_row(best_ptr, where_ptr, token_ptr, num_pieces, BLOCK: tl.constexpr):
    """Program (row)."""
    row = tl.program_id(0).to(tl.int64)
    piece = tl.arange(0, BLOCK)
    best = tl.load(best_ptr + row * num_pieces + piece, mask=piece < num_pieces, other=float("-inf"))
    winner = tl.argmax(best, axis=0, tie_break_left=True)
    tl.store(token_ptr + row, tl.load(where_ptr + row * num_pieces + winner).to(tl.int64))
