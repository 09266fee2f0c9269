// Attention of one query row (decoding) against a tile of keys, straight from the cache.
//
// With one row and a few query heads per KV head there is too little work per key to transpose the keys first, as
// attention_tile.h does. Scores: four keys are turned by 4 x 4 words inside each quarter of a vector, which takes half the
// shuffles of a whole transposition and leaves four sums per key to add at the end. Values are multiplied as they lie,
// two keys at a time. That is about 30 instructions per key and KV head of three query heads, so that reading the cache
// (4 * head_dim bytes per key and head) takes longer than computing on it.
//
// A word is 32 bits of a row: a pair of bfloat16 or one float32.
#pragma once

#include "paged.h"

namespace tbt {

constexpr int kRowHeads = 4;  // query heads treated at once: their sums stay in registers

// acc + w * x of the words in each lane.
template <class T>
TBT_INLINE f32x16 dot_words(f32x16 acc, u32x16 w, u32x16 x) {
  if constexpr (sizeof(T) == 2) {
    return dot_pairs(acc, w, x);
  } else {
    return acc + (f32x16)w * (f32x16)x;
  }
}

// ---- scores --------------------------------------------------------------------------------------------------------------

#if defined(__AVX512F__)
constexpr int kSpread = 4;

// A query for score_keys: of each 16 words four vectors, in which quarter l holds word 4 l + t in all its lanes.
inline void spread_query(const uint32_t* q, int words, uint32_t* to) {
  for (int w = 0; w < words; w += kLanes, to += 4 * kLanes) {
    const __m512i all = _mm512_loadu_si512(q + w);
    _mm512_storeu_si512(to, _mm512_shuffle_epi32(all, _MM_PERM_AAAA));
    _mm512_storeu_si512(to + kLanes, _mm512_shuffle_epi32(all, _MM_PERM_BBBB));
    _mm512_storeu_si512(to + 2 * kLanes, _mm512_shuffle_epi32(all, _MM_PERM_CCCC));
    _mm512_storeu_si512(to + 3 * kLanes, _mm512_shuffle_epi32(all, _MM_PERM_DDDD));
  }
}

// r[0..3] of four rows -> vector t holds in quarter l word 4 l + t of the four rows.
TBT_INLINE void turn(__m512i r[4]) {
  const __m512i a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]);
  const __m512i c = _mm512_unpacklo_epi32(r[2], r[3]), d = _mm512_unpackhi_epi32(r[2], r[3]);
  r[0] = _mm512_unpacklo_epi64(a, c);
  r[1] = _mm512_unpackhi_epi64(a, c);
  r[2] = _mm512_unpacklo_epi64(b, d);
  r[3] = _mm512_unpackhi_epi64(b, d);
}

// The quarters of s[i] added up, as quarter i of the result.
TBT_INLINE f32x16 add_quarters(const f32x16 s[4]) {
  __m512 t[2];
  for (int i = 0; i < 2; ++i) {
    const __m512 a = (__m512)s[2 * i], b = (__m512)s[2 * i + 1];
    t[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  }
  return (f32x16)_mm512_add_ps(_mm512_shuffle_f32x4(t[0], t[1], 0x88), _mm512_shuffle_f32x4(t[0], t[1], 0xdd));
}

// scores[g][0..keys) of G query heads; q: [G][words * 4] from spread_query.
template <class T, int G, class Ahead>
void score_keys(const T* base, const int64_t* offsets, int keys, const uint32_t* q, int words, float* scores,
                Ahead&& fetch_ahead) {
  for (int k = 0; k < keys; k += kLanes) {
    f32x16 sums[G][4];
#pragma GCC unroll 4
    for (int four = 0; four < 4; ++four) {
      const uint32_t* rows[4];
      for (int i = 0; i < 4; ++i) {
        rows[i] = reinterpret_cast<const uint32_t*>(base + offsets[std::min(k + 4 * four + i, keys - 1)]);
        fetch_ahead();
      }
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) sums[g][four] = f32x16{};
      for (int w = 0; w < words; w += kLanes) {
        __m512i r[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) r[i] = _mm512_loadu_si512(rows[i] + w);
        turn(r);
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g) {
#pragma GCC unroll 4
          for (int t = 0; t < 4; ++t) {
            const u32x16 x = load<u32x16>(q + (g * words + w) * 4 + t * kLanes);
            sums[g][four] = dot_words<T>(sums[g][four], (u32x16)r[t], x);
          }
        }
      }
    }
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) store(scores + g * kKeyTile + k, add_quarters(sums[g]));
  }
}
#else
constexpr int kSpread = 1;

inline void spread_query(const uint32_t* q, int words, uint32_t* to) { std::memcpy(to, q, sizeof(uint32_t) * words); }

template <class T, int G, class Ahead>
void score_keys(const T* base, const int64_t* offsets, int keys, const uint32_t* q, int words, float* scores,
                Ahead&& fetch_ahead) {
  for (int k = 0; k < keys; ++k) {
    fetch_ahead();
    const uint32_t* row = reinterpret_cast<const uint32_t*>(base + offsets[k]);
    for (int g = 0; g < G; ++g) {
      f32x16 partial{};
      for (int w = 0; w < words; w += kLanes) {
        partial = dot_words<T>(partial, load<u32x16>(row + w), load<u32x16>(q + g * words + w));
      }
      scores[g * kKeyTile + k] = sum(partial);
    }
  }
}
#endif

// ---- values --------------------------------------------------------------------------------------------------------------

// 32 dimensions of two neighbouring keys as pairs, for dot_pairs with a pair of weights.
TBT_INLINE void interleave(const bf16* even, const bf16* odd, u32x16& a, u32x16& b) {
#if TBT_BF16_DOT
  const __m512i e = _mm512_loadu_si512(even), o = _mm512_loadu_si512(odd);
  a = (u32x16)_mm512_unpacklo_epi16(e, o);
  b = (u32x16)_mm512_unpackhi_epi16(e, o);
#else
  a = __builtin_convertvector(load<u16x16>(even), u32x16) | __builtin_convertvector(load<u16x16>(odd), u32x16) << 16;
  b = __builtin_convertvector(load<u16x16>(even + kLanes), u32x16) |
      __builtin_convertvector(load<u16x16>(odd + kLanes), u32x16) << 16;
#endif
}

// The sums of 32 dimensions as add_values leaves them, brought into the order of the dimensions: `interleave` puts four
// dimensions into vector a, the next four into b, and so on.
template <class T>
void plain_order(float* values, int dim) {
#if TBT_BF16_DOT
  if constexpr (sizeof(T) == 2) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int d = 0; d < dim; d += kBlock) {
      const __m512 a = _mm512_loadu_ps(values + d), b = _mm512_loadu_ps(values + d + kLanes);
      _mm512_storeu_ps(values + d, _mm512_permutex2var_ps(a, first, b));
      _mm512_storeu_ps(values + d + kLanes, _mm512_permutex2var_ps(a, second, b));
    }
  }
#endif
}

// out[g] = out[g] * factors[g] + sum of weights[g][key] * value[key], for G heads and C times 32 dimensions.
template <class T, int G, int C>
void add_values(const T* base, const int64_t* offsets, int keys, const T* weights, const float* factors, float* out,
                int out_stride) {
  f32x16 acc[G][C][2];
  auto for_all = [&](auto&& f) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
#pragma GCC unroll 2
      for (int c = 0; c < C; ++c) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) f(g, acc[g][c][h], out + g * out_stride + c * kBlock + h * kLanes);
      }
    }
  };
  for_all([&](int g, f32x16& sum, float* at) { sum = load<f32x16>(at) * factors[g]; });
  if constexpr (sizeof(T) == 2) {
    static const bf16 zeros[C * kBlock] = {};
    for (int k = 0; k < keys; k += 2) {
      const bf16* even = base + offsets[k];
      const bf16* odd = k + 1 < keys ? base + offsets[k + 1] : zeros;
#pragma GCC unroll 2
      for (int c = 0; c < C; ++c) {
        u32x16 a, b;
        interleave(even + c * kBlock, odd + c * kBlock, a, b);
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g) {
          const uint32_t pair = load_pair(weights + g * kKeyTile + k);
          acc[g][c][0] = dot_pairs(acc[g][c][0], a, pair);
          acc[g][c][1] = dot_pairs(acc[g][c][1], b, pair);
        }
      }
    }
  } else {
    for (int k = 0; k < keys; ++k) {
      const float* row = base + offsets[k];
#pragma GCC unroll 2
      for (int c = 0; c < C; ++c) {
        const f32x16 a = load<f32x16>(row + c * kBlock), b = load<f32x16>(row + c * kBlock + kLanes);
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g) {
          acc[g][c][0] += a * weights[g * kKeyTile + k];
          acc[g][c][1] += b * weights[g * kKeyTile + k];
        }
      }
    }
  }
  for_all([](int, f32x16& sum, float* at) { store(at, sum); });
}

// ---- both ----------------------------------------------------------------------------------------------------------------

template <class T>
struct RowScratch {
  Buffer<float> scores;
  Buffer<T> weights;
  Buffer<uint32_t> queries;

  // Prepare a row's queries [heads, dim] once for all tiles. dim is a multiple of 32.
  void start(const T* q, int heads, int dim) {
    const int words = dim * static_cast<int>(sizeof(T)) / 4;
    uint32_t* to = queries.fit(static_cast<size_t>(heads) * words * kSpread);
    for (int h = 0; h < heads; ++h) {
      spread_query(reinterpret_cast<const uint32_t*>(q + static_cast<size_t>(h) * dim), words, to + h * words * kSpread);
    }
    scores.fit(kRowHeads * kKeyTile);
    weights.fit(kRowHeads * kKeyTile);
  }
};

// One KV head's tile of `keys` rows against the query heads [first, first + group) of the row that s was started with.
// The dimensions of the state's outputs lie in the order that plain_order undoes.
// fetch_ahead() is called once per key, to spread over the tile what is to be fetched for the next one.
template <class T, class Ahead>
void attend_row(const HeadShape& shape, const T* key_base, const T* value_base, const int64_t* offsets, int keys,
                int first, SoftmaxState& state, RowScratch<T>& s, Ahead&& fetch_ahead) {
  const int dim = shape.head_dim, words = dim * static_cast<int>(sizeof(T)) / 4;
  float* scores = s.scores.data();
  T* weights = s.weights.data();
  for (int begin = first; begin < first + shape.group(); begin += kRowHeads) {
    const int heads = std::min(kRowHeads, first + shape.group() - begin);
    const bool first_pass = begin == first;
    with_rows<kRowHeads>(heads, [&](auto G) {
      score_keys<T, G()>(key_base, offsets, keys, s.queries.data() + begin * words * kSpread, words, scores,
                         [&] {
                           if (first_pass) fetch_ahead();
                         });
      float factors[G()];
      for (int i = 0; i < G(); ++i) {
        factors[i] = softmax_step(scores + i * kKeyTile, keys, shape.scale, weights + i * kKeyTile,
                                  state.maximum[begin + i], state.total[begin + i]);
      }
      float* out = state.output.data() + static_cast<size_t>(begin) * dim;
      int d = 0;
      for (; d + 2 * kBlock <= dim; d += 2 * kBlock) {
        add_values<T, G(), 2>(value_base + d, offsets, keys, weights, factors, out + d, dim);
      }
      if (d < dim) add_values<T, G(), 1>(value_base + d, offsets, keys, weights, factors, out + d, dim);
    });
  }
}

}  // namespace tbt
