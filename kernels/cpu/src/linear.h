// y = x W^T for a few rows of x or for many: the product that reads nearly every byte of a forward pass.
//
// At one row it is a memory read with some arithmetic attached, so everything here serves one goal: each byte of W is read
// once, in order, and used for all rows while it is in registers.
//
//   * W is packed in blocks of 32 outputs. Inside a block the inputs run outermost, so that a block is one contiguous
//     stream: for each pair of inputs 2 x 64 bytes hold the weights of 32 outputs. The hardware prefetcher follows one
//     stream perfectly (measured: two streams side by side reach three quarters of the bandwidth of one).
//   * The inputs of a row are broadcast, one pair to all lanes, so no lane has to be added to another at the end.
//   * A tile is up to 12 rows x 32 outputs: 24 accumulators, 2 weights, and the broadcast comes with the load. That fills
//     the 32 registers of AVX-512. Up to about 10 rows the tile waits for memory; beyond, the multiplier is the limit, and
//     at 500 rows (a prompt) the same loop runs at the multiplier's rate, because a block (36 to 98 KB) stays in the L2
//     cache while the rows pass over it.
//   * Narrow weights are widened in registers, between the load and the multiplication. int8 and int4 values are whole
//     numbers up to 127, which bfloat16 holds exactly; their scales are applied to float32 sums.
//
// Bytes per weight: float32 4, bfloat16 2, int8 1 (+ 4 per output), int4 0.5 (+ 4 per group and output).
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "simd.h"
#include "unpack.h"

namespace tbt {

constexpr int kBlock = 32;  // outputs per block: two vectors
#if defined(__AVX512F__)
constexpr int kTileRows = 12;
#elif defined(__aarch64__)
constexpr int kTileRows = 3;
#else
constexpr int kTileRows = 2;
#endif

enum class Kind : int32_t { kFloat32 = 0, kBfloat16 = 1, kInt8 = 2, kInt4 = 3 };

// A packed weight [outputs, inputs]; the layouts are made by kernels/cpu/pack.py.
struct Weight {
  const uint8_t* data;  // blocks one after another
  const float* scale;   // int8: [outputs]
  const float* bias;    // [outputs] or null
  int32_t kind;
  int32_t outputs;  // a multiple of 32, rows of zeros at the end
  int32_t inputs;
  int32_t group;  // int4: inputs that share a scale and a minimum

  size_t block_bytes() const {
    const size_t weights = static_cast<size_t>(inputs) * kBlock;
    switch (static_cast<Kind>(kind)) {
      case Kind::kFloat32: return weights * 4;
      case Kind::kBfloat16: return weights * 2;
      case Kind::kInt8: return weights;
      default: return weights / 2 + static_cast<size_t>(inputs / group) * kBlock * 4;
    }
  }
  const uint8_t* block(int index) const { return data + static_cast<size_t>(index) * block_bytes(); }
  int blocks() const { return outputs / kBlock; }
};

// ---- tiles: out[m][0..31] = x[m] . block, for M rows ---------------------------------------------------------------

// The unroll pragmas are not for speed of the loops: a compiler keeps an array in registers only where every index is a
// constant before it decides what lives where.
template <int M>
struct Sums {
  f32x16 value[M][2];
  TBT_INLINE void clear() {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) value[m][0] = value[m][1] = f32x16{};
  }
  TBT_INLINE void store_to(float* out, int out_stride) const {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      store(out + m * out_stride, value[m][0]);
      store(out + m * out_stride + kLanes, value[m][1]);
    }
  }
};

TBT_INLINE uint32_t load_pair(const bf16* from) {
  uint32_t pair;
  std::memcpy(&pair, from, sizeof(pair));
  return pair;
}

template <int M>
TBT_INLINE void add_pair(Sums<M>& sums, u32x16 w0, u32x16 w1, const bf16* x, int x_stride) {
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    const uint32_t pair = load_pair(x + m * x_stride);
    sums.value[m][0] = dot_pairs(sums.value[m][0], w0, pair);
    sums.value[m][1] = dot_pairs(sums.value[m][1], w1, pair);
  }
}

// What to fetch from memory while a tile is being computed. With one tile per block the hardware prefetcher is ahead of
// us anyway; with more, the block is in the cache for all but the first, and memory would be idle until the next block.
struct Ahead {
  const uint8_t* next;  // null: nothing
  int lines_per_pair;
  TBT_INLINE void step() {
    if (!next) return;
    fetch(next);
    if (lines_per_pair == 2) fetch(next + 64);
    next += 64 * lines_per_pair;
  }
};

// bfloat16: [inputs/2][32] pairs.
template <int M>
void tile(const bf16* w, const bf16* x, int x_stride, int inputs, float* out, int out_stride, Ahead ahead = {}) {
  Sums<M> sums;
  sums.clear();
  for (int k = 0; k < inputs; k += 2, w += 2 * kBlock) {
    ahead.step();
    add_pair(sums, load<u32x16>(w), load<u32x16>(w + kBlock), x + k, x_stride);
  }
  sums.store_to(out, out_stride);
}

// float32: [inputs][32].
template <int M>
void tile(const float* w, const float* x, int x_stride, int inputs, float* out, int out_stride, Ahead ahead = {}) {
  Sums<M> sums;
  sums.clear();
  for (int k = 0; k < inputs; ++k, w += kBlock) {
    ahead.step();
    const f32x16 w0 = load<f32x16>(w), w1 = load<f32x16>(w + kLanes);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      sums.value[m][0] += w0 * x[m * x_stride + k];
      sums.value[m][1] += w1 * x[m * x_stride + k];
    }
  }
  sums.store_to(out, out_stride);
}

// int8: [inputs/2][64] bytes, see unpack.h. The scale of an output is applied once, at the end.
template <int M>
void tile_int8(const uint8_t* w, const float* scale, const bf16* x, int x_stride, int inputs, float* out,
               int out_stride) {
  Sums<M> sums;
  sums.clear();
  const Int8Table table;
  for (int k = 0; k < inputs; k += 2, w += 2 * kBlock) {
    u32x16 w0, w1;
    table.widen(w, w0, w1);
    add_pair(sums, w0, w1, x + k, x_stride);
  }
  const f32x16 s0 = load<f32x16>(scale), s1 = load<f32x16>(scale + kLanes);
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    sums.value[m][0] *= s0;
    sums.value[m][1] *= s1;
  }
  sums.store_to(out, out_stride);
}

// int4 in groups: weight = scale * q + minimum with q in 0..15. The inner loop multiplies by 128 + q, which costs one
// instruction to make (unpack.h); 128 * (sum of x) is taken off again together with the minimum:
//   sum(w x) = scale * sum((128 + q) x) + (minimum - 128 * scale) * sum(x),   summed over the groups in float32.
// group_sums: [M][inputs / group], the sums of x.
template <int M>
void tile_int4(const uint8_t* w, int group, const bf16* x, int x_stride, const float* group_sums, int inputs,
               float* out, int out_stride) {
  Sums<M> total;
  total.clear();
  const int groups = inputs / group;
  for (int g = 0; g < groups; ++g) {
    const Int4Group head(w);
    w += Int4Group::kBytes;
    Sums<M> sums;
    sums.clear();
    for (int k = 0; k < group; k += 8, w += 4 * kBlock) {  // 8 inputs = 4 pairs per 32-bit word
      const u32x16 w0 = load<u32x16>(w), w1 = load<u32x16>(w + 64);
      const bf16* at = x + g * group + k;
#pragma GCC unroll 4
      for (int p = 0; p < 4; ++p) add_pair(sums, int4_pair(w0, p), int4_pair(w1, p), at + 2 * p, x_stride);
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const f32x16 scale = head.scale(half), offset = head.minimum(half) - scale * kInt4Bias;
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        total.value[m][half] += scale * sums.value[m][half] + offset * group_sums[m * groups + g];
      }
    }
  }
  total.store_to(out, out_stride);
}

// ---- from a runtime number of rows to a tile -------------------------------------------------------------------------

// Call f(integral_constant M) for M = rows.
template <int M = kTileRows, class F>
TBT_INLINE void with_rows(int rows, F&& f) {
  if constexpr (M == 1) {
    f(std::integral_constant<int, 1>{});
  } else if (rows == M) {
    f(std::integral_constant<int, M>{});
  } else {
    with_rows<M - 1>(rows, f);
  }
}

// Rows per tile so that all tiles are about equal: 16 rows are 8 + 8 and not 12 + 4.
inline int tile_height(int rows, int limit = kTileRows) {
  const int tiles = (rows + limit - 1) / limit;
  return tiles ? (rows + tiles - 1) / tiles : 1;
}

// out[m][0..31] for every row, from one block of weights in the type of x.
template <class T>
void multiply_block(const T* block, const T* x, int x_stride, int rows, int inputs, float* out, int out_stride) {
  const int height = tile_height(rows);
  for (int m = 0; m < rows; m += height) {
    with_rows(std::min(height, rows - m), [&](auto count) {
      tile<count()>(block, x + static_cast<size_t>(m) * x_stride, x_stride, inputs, out + m * out_stride, out_stride);
    });
  }
}

inline void scale_columns(float* out, int rows, int stride, const float* scale) {
  for (int m = 0; m < rows; ++m) {
    for (int n = 0; n < kBlock; ++n) out[m * stride + n] *= scale[n];
  }
}

inline void add_to_columns(float* out, int rows, int stride, const float* bias) {
  for (int m = 0; m < rows; ++m) {
    for (int n = 0; n < kBlock; ++n) out[m * stride + n] += bias[n];
  }
}

// ---- one unit of work: some blocks of a weight, all rows ---------------------------------------------------------------

// Narrow weights are widened anew for each tile up to so many tiles; with more rows it is cheaper to widen a block once,
// into the L2 cache, and multiply by that.
constexpr int kInt4TileRows = kTileRows >= 6 ? 6 : kTileRows;  // two sets of sums must fit the registers
constexpr int kInt4DirectRows = 4 * kInt4TileRows;
constexpr int kInt8DirectRows = 2 * kTileRows;

// What a thread needs beside the weights.
struct Scratch {
  Buffer<float> out;      // [tile rows][blocks * 32]
  Buffer<uint8_t> block;  // widened weights of one unit
};

// What the tile of rows [m, m + height) fetches of a block that comes later: where many tiles pass over a block, the last
// two bring half of it each, so that memory is busy all the time; of a block of narrow weights the last brings the whole.
inline Ahead ahead_of(const Weight& w, int block, int m, int height, int rows) {
  if (height >= rows) return {nullptr, 0};
  const bool last = m + height >= rows, wide = w.kind <= static_cast<int32_t>(Kind::kBfloat16);
  if (!wide) return {last ? w.block(block) : nullptr, 1};
  if (last) return {w.block(block) + w.block_bytes() / 2, 1};
  return {m + 2 * height >= rows ? w.block(block) : nullptr, 1};
}

// For blocks [first, first + count) of w and all rows of x, tile by tile, call
//   done(m, rows, out, stride)   with out[i][j] = (x W^T + bias)[m + i][first * 32 + j].
// group_sums is read for int4 only (see sum_groups).
template <class T, class Done>
void linear(const Weight& w, int first, int count, const T* x, int x_stride, int rows, const float* group_sums,
            Scratch& scratch, Done&& done) {
  const Kind kind = static_cast<Kind>(w.kind);
  constexpr bool kWide = std::is_same<T, float>::value;
  const bool direct_int4 = !kWide && kind == Kind::kInt4 && rows <= kInt4DirectRows;
  const bool direct_int8 = !kWide && kind == Kind::kInt8 && rows <= kInt8DirectRows;
  const bool widened = (kind == Kind::kInt4 && !direct_int4) || (kind == Kind::kInt8 && !direct_int8);
  const size_t elements = static_cast<size_t>(w.inputs) * kBlock;
  T* wide = nullptr;
  if (widened) {
    wide = reinterpret_cast<T*>(scratch.block.fit(count * elements * sizeof(T)));
    for (int b = 0; b < count; ++b) {
      if (kind == Kind::kInt8) {
        widen_int8(w.block(first + b), w.inputs, wide + b * elements);
      } else {
        widen_int4(w.block(first + b), w.inputs, w.group, wide + b * elements);
      }
    }
  }
  const int height = tile_height(rows, direct_int4 ? kInt4TileRows : kTileRows);
  const int stride = count * kBlock;
  float* out = scratch.out.fit(static_cast<size_t>(height) * stride);
  for (int m = 0; m < rows; m += height) {
    const int m_rows = std::min(height, rows - m);
    const T* xm = x + static_cast<size_t>(m) * x_stride;
    for (int b = 0; b < count; ++b) {
      float* to = out + b * kBlock;
      const float* scale = w.scale ? w.scale + (first + b) * kBlock : nullptr;
      with_rows(m_rows, [&](auto M) {
        if constexpr (!kWide) {
          if (direct_int4) {
            if constexpr (M() <= kInt4TileRows) {
              tile_int4<M()>(w.block(first + b), w.group, xm, x_stride, group_sums + m * (w.inputs / w.group), w.inputs,
                             to, stride);
            }
            return;
          }
          if (direct_int8) {
            tile_int8<M()>(w.block(first + b), scale, xm, x_stride, w.inputs, to, stride);
            return;
          }
        }
        const T* from = widened ? wide + b * elements : reinterpret_cast<const T*>(w.block(first + b));
        tile<M()>(from, xm, x_stride, w.inputs, to, stride, ahead_of(w, first + count + b, m, height, rows));
        if (kind == Kind::kInt8) scale_columns(to, m_rows, stride, scale);
      });
      if (w.bias) add_to_columns(to, m_rows, stride, w.bias + (first + b) * kBlock);
    }
    done(m, m_rows, out, stride);
  }
}

}  // namespace tbt
