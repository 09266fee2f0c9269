// Attention of many query rows against a tile of keys: two products of the kind that linear.h makes.
//
// Transposed, 64 keys of a head are a packed block (scores = q K^T), and 64 values are another (output += p V). Making the
// blocks costs about 25 instructions per key, the products 4 per key and row; up to 32 rows of a chunk times the query
// heads of the KV head share it. Weights p are rounded to the cache's type, as in FlashAttention-2 (arXiv 2307.08691).
#pragma once

#include "paged.h"

namespace tbt {

#if defined(__AVX512F__)
// Transpose 16 rows of 16 words.
TBT_INLINE void transpose(__m512i r[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
    t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
    r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
    r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
  }
}
#endif

// Up to 16 rows of `words` words (a word is a pair of bfloat16 or one float32) become 16 columns of [words][32].
template <class T>
void transpose_rows(const T* base, const int64_t* offsets, int rows, int words, uint32_t* to) {
  const uint32_t* from[16];
  for (int i = 0; i < 16; ++i) from[i] = reinterpret_cast<const uint32_t*>(base + offsets[std::min(i, rows - 1)]);
  int w = 0;
#if defined(__AVX512F__)
  for (; w + 16 <= words; w += 16) {
    __m512i r[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(from[i] + w);
    transpose(r);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) _mm512_storeu_si512(to + (w + i) * kBlock, r[i]);
  }
#endif
  for (; w < words; ++w) {
    for (int i = 0; i < 16; ++i) std::memcpy(to + w * kBlock + i, from[i] + w, sizeof(uint32_t));
  }
}

// Keys as weights [key][head_dim]: one packed block per 32 keys. Columns beyond `keys` repeat a key and are masked later.
template <class T>
void pack_keys(const T* base, const int64_t* offsets, int keys, int head_dim, uint32_t* to) {
  const int words = head_dim * static_cast<int>(sizeof(T)) / 4;
  for (int k = 0; k < keys; k += 16) {
    transpose_rows(base, offsets + k, std::min(16, keys - k), words,
                   to + static_cast<size_t>(k / kBlock) * words * kBlock + k % kBlock);
  }
}

// Values as weights [d][key]: one packed block per 32 dimensions, pairs of keys. The partner of a last odd key is zero.
inline void pack_values(const bf16* base, const int64_t* offsets, int keys, int head_dim, uint32_t* to) {
  static const bf16 zeros[kMaxHeadDim] = {};
  const int block_words = (keys + 1) / 2 * kBlock;
  for (int k = 0; k < keys; k += 2) {
    const bf16* even = base + offsets[k];
    const bf16* odd = k + 1 < keys ? base + offsets[k + 1] : zeros;
    for (int d = 0; d < head_dim; d += kLanes) {
      const u32x16 low = __builtin_convertvector(load<u16x16>(even + d), u32x16);
      const u32x16 high = __builtin_convertvector(load<u16x16>(odd + d), u32x16);
      store(to + d / kBlock * block_words + k / 2 * kBlock + d % kBlock, low | (high << 16));
    }
  }
}

inline void pack_values(const float* base, const int64_t* offsets, int keys, int head_dim, uint32_t* to) {
  const int block_words = (keys + 1) / 2 * 2 * kBlock;
  for (int k = 0; k < (keys + 1) / 2 * 2; ++k) {
    for (int d = 0; d < head_dim; d += kLanes) {
      const u32x16 words = k < keys ? load<u32x16>(base + offsets[k] + d) : u32x16{};
      store(to + d / kBlock * block_words + k * kBlock + d % kBlock, words);
    }
  }
}

// Buffers of one thread.
template <class T>
struct TileScratch {
  Buffer<uint32_t> keys, values;
  Buffer<T> weights;
  Buffer<float> scores, product, factors;
};

// One KV head's tile of `keys` rows against `rows` query rows; visible(i) says how many of the keys row i sees.
// q: [rows, head_dim]; the state's rows begin at `at`.
template <class T, class Visible>
void attend_tile(const HeadShape& shape, const T* key_base, const T* value_base, const int64_t* offsets, int keys,
                 const T* q, int rows, SoftmaxState& state, int at, TileScratch<T>& s, Visible&& visible) {
  const int dim = shape.head_dim, padded = shape.padded_dim();
  const int words = dim * static_cast<int>(sizeof(T)) / 4;
  uint32_t* packed = s.keys.fit(static_cast<size_t>(kKeyTile) * words);
  float* scores = s.scores.fit(static_cast<size_t>(rows) * kKeyTile);
  pack_keys(key_base, offsets, keys, dim, packed);
  for (int b = 0; b < keys; b += kBlock) {
    const T* block = reinterpret_cast<const T*>(packed + static_cast<size_t>(b) * words);
    multiply_block(block, q, dim, rows, dim, scores + b, kKeyTile);
  }
  T* weights = s.weights.fit(static_cast<size_t>(rows) * kKeyTile);
  float* factors = s.factors.fit(rows);
  for (int i = 0; i < rows; ++i) {
    factors[i] = softmax_step(scores + i * kKeyTile, std::min(keys, visible(i)), shape.scale, weights + i * kKeyTile,
                              state.maximum[at + i], state.total[at + i]);
  }
  const int even_keys = (keys + 1) / 2 * 2;
  const int block_words = even_keys * static_cast<int>(sizeof(T)) / 4 * kBlock;
  packed = s.values.fit(static_cast<size_t>(padded / kBlock) * block_words);
  pack_values(value_base, offsets, keys, dim, packed);
  float* product = s.product.fit(static_cast<size_t>(rows) * padded);
  for (int b = 0; b < padded / kBlock; ++b) {
    const T* block = reinterpret_cast<const T*>(packed + static_cast<size_t>(b) * block_words);
    multiply_block(block, weights, kKeyTile, rows, even_keys, product + b * kBlock, padded);
  }
  for (int i = 0; i < rows; ++i) {
    float* o = state.output.data() + static_cast<size_t>(at + i) * padded;
    for (int d = 0; d < padded; d += kLanes) {
      store(o + d, load<f32x16>(o + d) * factors[i] + load<f32x16>(product + static_cast<size_t>(i) * padded + d));
    }
  }
}

}  // namespace tbt
