// Attention over a paged cache, for one-token and for many-token chunks, without gathering the cache.
//
// Keys are read where they lie, a tile of 64 slots at a time, and put through the same product as the weights: a tile of
// keys, transposed, is a packed block (scores = q K^T), a tile of values is another (output = p V). Transposing costs
// about as much per key as the two products of one KV head's query group; a prompt's rows share it. All query heads of a
// KV head are rows of one product, so a key is read once for the whole group. The softmax runs online over the tiles.
//
// Which positions a row sees: row i of a chunk of n rows in a context of c keys sees the first c - n + i + 1. Slots beyond
// the context are never read, whatever they hold. A row without context gives zeros.
//
// One long context and several threads: the keys are split, each part leaves an unnormalized output with its maximum and
// sum (FlashDecoding), and whichever thread finishes a row's last part puts the parts together.
// Reads per key: 2 * head_dim * num_kv_heads elements. Follows FlashAttention-2 (arXiv 2307.08691) and PagedAttention.
#pragma once

#include <atomic>
#include <cmath>
#include <limits>
#include <memory>

#include "linear.h"

namespace tbt {

constexpr int kKeyTile = 64;
constexpr int kQueryRows = 16;      // rows of a chunk that share one transposed tile
constexpr int kMinKeysPerPart = 128;  // below, splitting costs more than it brings

constexpr int kMaxHeadDim = 512;

// The rows of one request in this pass.
struct Chunk {
  int32_t first_row;
  int32_t num_rows;
  int32_t context;      // keys after this chunk; 0: padding
  int32_t block_table;  // index of the first block id in block_ids
};

struct HeadShape {
  int query_heads, kv_heads, head_dim;
  float scale;
  int group() const { return query_heads / kv_heads; }
  int padded_dim() const { return (head_dim + kBlock - 1) / kBlock * kBlock; }
};

// Where keys and values lie: element [slot][head][d] at base + slot * slot_stride + head * head_stride + d.
template <class T>
struct Cache {
  T* keys;
  T* values;
  int64_t slot_stride, head_stride;
  int32_t block_size;
};

// A piece of work for one thread.
struct AttentionItem {
  int chunk;
  int row_begin, row_end;  // within the chunk
  int head_begin, head_end;
  int key_begin, key_end;
  int part, num_parts, parts_at;  // parts_at: index of the row's first part; -1 where the item is the whole row
};

class AttentionPlan {
 public:
  std::vector<AttentionItem> items;
  int num_parts = 0;  // partial results to keep, each for all query heads of one row

  void make(const Chunk* chunks, int num_chunks, const HeadShape& shape, int num_threads) {
    items.clear();
    num_parts = 0;
    int one_row_chunks = 0;
    for (int c = 0; c < num_chunks; ++c) one_row_chunks += chunks[c].num_rows == 1;
    for (int c = 0; c < num_chunks; ++c) {
      if (chunks[c].num_rows == 1) {
        add_row(c, chunks[c], shape, one_row_chunks >= 4 * num_threads ? 1 : 2 * num_threads);
      } else {
        add_rows(c, chunks[c], shape);
      }
    }
  }

 private:
  void add_row(int index, const Chunk& chunk, const HeadShape& shape, int max_parts) {
    const int parts = std::max(1, std::min(max_parts, chunk.context / kMinKeysPerPart));
    const int tiles = (chunk.context + kKeyTile - 1) / kKeyTile;
    for (int p = 0; p < parts; ++p) {
      const int begin = tiles * p / parts * kKeyTile;
      const int end = std::min(chunk.context, tiles * (p + 1) / parts * kKeyTile);
      items.push_back({index, 0, 1, 0, shape.kv_heads, begin, end, p, parts, parts > 1 ? num_parts : -1});
    }
    if (parts > 1) num_parts += parts;
  }

  // Longest first would balance best; later rows see more keys, so count from the end.
  void add_rows(int index, const Chunk& chunk, const HeadShape& shape) {
    for (int end = chunk.num_rows; end > 0; end -= kQueryRows) {
      const int begin = std::max(0, end - kQueryRows);
      const int keys = chunk.context ? chunk.context - chunk.num_rows + end : 0;
      for (int h = 0; h < shape.kv_heads; ++h) items.push_back({index, begin, end, h, h + 1, 0, keys, 0, 1, -1});
    }
  }
};

// ---- tiles of keys and values as packed blocks ---------------------------------------------------------------------------

#if defined(__AVX512F__)
// Transpose 16 rows of 16 words.
TBT_INLINE void transpose(__m512i r[16]) {
  __m512i t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
    t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
    r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
    r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
  }
}
#endif

// rows: up to 16 pointers to head_dim elements; to: [words][32 words], 16 columns of it from `to` on. A row that is null
// becomes zeros. A word is a pair of bfloat16 or one float32.
template <class T>
void transpose_rows(const T* const* rows, int words, uint32_t* to) {
  int w = 0;
#if defined(__AVX512F__)
  for (; w + 16 <= words; w += 16) {
    __m512i r[16];
    for (int i = 0; i < 16; ++i) {
      r[i] = rows[i] ? _mm512_loadu_si512(reinterpret_cast<const uint32_t*>(rows[i]) + w) : _mm512_setzero_si512();
    }
    transpose(r);
    for (int i = 0; i < 16; ++i) _mm512_storeu_si512(to + (w + i) * kBlock, r[i]);
  }
#endif
  for (; w < words; ++w) {
    for (int i = 0; i < 16; ++i) {
      uint32_t word = 0;
      if (rows[i]) std::memcpy(&word, reinterpret_cast<const uint32_t*>(rows[i]) + w, sizeof(word));
      to[w * kBlock + i] = word;
    }
  }
}

// Keys as weights [key][head_dim]: one packed block per 32 keys.
template <class T>
void pack_keys(const T* const* rows, int keys, int head_dim, uint32_t* to) {
  const int words = head_dim * static_cast<int>(sizeof(T)) / 4;
  for (int k = 0; k < keys; k += 16) {
    transpose_rows(rows + k, words, to + static_cast<size_t>(k / kBlock) * words * kBlock + k % kBlock);
  }
}

// Values as weights [d][key]: one packed block per 32 dimensions, pairs of keys. `keys` is even; null rows are zeros.
inline void pack_values(const bf16* const* rows, int keys, int head_dim, uint32_t* to) {
  static const bf16 zeros[kMaxHeadDim] = {};
  const int block_words = keys / 2 * kBlock;
  for (int k = 0; k < keys; k += 2) {
    const bf16* even = rows[k] ? rows[k] : zeros;
    const bf16* odd = rows[k + 1] ? rows[k + 1] : zeros;
    for (int d = 0; d < head_dim; d += kLanes) {
      const u32x16 low = __builtin_convertvector(load<u16x16>(even + d), u32x16);
      const u32x16 high = __builtin_convertvector(load<u16x16>(odd + d), u32x16);
      store(to + d / kBlock * block_words + k / 2 * kBlock + d % kBlock, low | (high << 16));
    }
  }
}

inline void pack_values(const float* const* rows, int keys, int head_dim, uint32_t* to) {
  const int block_words = keys * kBlock;
  for (int k = 0; k < keys; ++k) {
    for (int d = 0; d < head_dim; d += kLanes) {
      const u32x16 words = rows[k] ? load<u32x16>(rows[k] + d) : u32x16{};
      store(to + d / kBlock * block_words + k * kBlock + d % kBlock, words);
    }
  }
}

// ---- online softmax --------------------------------------------------------------------------------------------------------

// scores [kKeyTile] of one row, of which the first `visible` count -> probabilities relative to the running maximum.
// Returns the factor for what was summed before.
template <class T>
float softmax_step(const float* scores, int visible, float scale, T* probabilities, float& maximum_so_far,
                   float& sum_so_far) {
  const f32x16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const f32x16 minus_infinity = splat(-std::numeric_limits<float>::infinity());
  f32x16 masked[kKeyTile / kLanes];
  f32x16 largest = minus_infinity;
  for (int i = 0; i < kKeyTile / kLanes; ++i) {
    const f32x16 s = load<f32x16>(scores + i * kLanes) * scale;
    masked[i] = lane + static_cast<float>(i * kLanes) < splat(static_cast<float>(visible)) ? s : minus_infinity;
    largest = maximum(largest, masked[i]);
  }
  const float new_maximum = std::max(maximum_so_far, maximum(largest));
  if (new_maximum == -std::numeric_limits<float>::infinity()) {  // nothing visible yet
    for (int i = 0; i < kKeyTile / kLanes; ++i) store_narrow(probabilities + i * kLanes, f32x16{});
    return 1.0f;
  }
  f32x16 total{};
  for (int i = 0; i < kKeyTile / kLanes; ++i) {
    const f32x16 p = masked[i] == minus_infinity ? f32x16{} : exp(masked[i] - new_maximum);
    total += p;
    store_narrow(probabilities + i * kLanes, p);
  }
  const float factor = std::exp(maximum_so_far - new_maximum);
  sum_so_far = sum_so_far * factor + sum(total);
  maximum_so_far = new_maximum;
  return factor;
}

// ---- one item ----------------------------------------------------------------------------------------------------------------

// Buffers of one thread, sized once for a head shape.
template <class T>
struct AttentionScratch {
  Buffer<uint32_t> keys, values;
  Buffer<T> queries, probabilities;
  Buffer<float> scores, product, output, maximum, total;

  void fit(const HeadShape& s) {
    const size_t rows = static_cast<size_t>(std::max(kQueryRows * s.group(), s.query_heads));
    const size_t tile_words = static_cast<size_t>(kKeyTile) * s.padded_dim() * sizeof(T) / 4;
    keys.fit(tile_words);
    values.fit(tile_words);
    queries.fit(rows * s.head_dim);
    probabilities.fit(rows * kKeyTile);
    scores.fit(rows * kKeyTile);
    product.fit(rows * s.padded_dim());
    output.fit(rows * s.padded_dim());
    maximum.fit(rows);
    total.fit(rows);
  }
};

// Partial results of split rows: per part and query head an output [head_dim], its maximum and its sum.
struct Parts {
  Buffer<float> output, maximum, total;
  std::unique_ptr<std::atomic<int>[]> finished;  // indexed by a row's first part
  int capacity = 0;

  void fit(int num_parts, const HeadShape& s) {
    if (num_parts <= capacity) return;
    capacity = num_parts;
    output.fit(static_cast<size_t>(num_parts) * s.query_heads * s.head_dim);
    maximum.fit(static_cast<size_t>(num_parts) * s.query_heads);
    total.fit(static_cast<size_t>(num_parts) * s.query_heads);
    finished.reset(new std::atomic<int>[num_parts]);
    for (int i = 0; i < num_parts; ++i) finished[i].store(0);
  }
};

template <class T>
class Attention {
 public:
  HeadShape shape;
  Cache<T> cache;
  const Chunk* chunks;
  const int32_t* block_ids;
  const T* queries;  // [rows, query_heads, head_dim]
  T* output;         // same shape
  Parts* parts;

  void run(const AttentionItem& item, AttentionScratch<T>& s) const {
    const Chunk& chunk = chunks[item.chunk];
    const int group = shape.group(), dim = shape.head_dim, padded = shape.padded_dim();
    const int rows_per_head = (item.row_end - item.row_begin) * group;
    const int rows = rows_per_head * (item.head_end - item.head_begin);
    std::fill_n(s.output.data(), static_cast<size_t>(rows) * padded, 0.0f);
    std::fill_n(s.maximum.data(), rows, -std::numeric_limits<float>::infinity());
    std::fill_n(s.total.data(), rows, 0.0f);
    gather_queries(item, chunk, s.queries.data());
    for (int key = item.key_begin; key < item.key_end; key += kKeyTile) {
      const int keys = std::min(kKeyTile, item.key_end - key);
      for (int head = item.head_begin; head < item.head_end; ++head) {
        const int at = (head - item.head_begin) * rows_per_head;
        add_tile(item, chunk, head, key, keys, at, rows_per_head, s.queries.data() + static_cast<size_t>(at) * dim, s);
      }
    }
    if (item.parts_at >= 0) {
      keep_part(item, chunk, s);
    } else {
      write_rows(item, chunk, s);
    }
  }

 private:
  T* row_head(T* base, int row, int head) const {
    return base + (static_cast<size_t>(row) * shape.query_heads + head) * shape.head_dim;
  }

  // Rows in the order KV head, row of the chunk, query head of the group.
  template <class F>
  void for_rows(const AttentionItem& item, const Chunk& chunk, F&& f) const {
    int index = 0;
    for (int head = item.head_begin; head < item.head_end; ++head) {
      for (int row = item.row_begin; row < item.row_end; ++row) {
        for (int g = 0; g < shape.group(); ++g) f(index++, chunk.first_row + row, head * shape.group() + g);
      }
    }
  }

  void gather_queries(const AttentionItem& item, const Chunk& chunk, T* to) const {
    for_rows(item, chunk, [&](int index, int row, int head) {
      std::memcpy(to + static_cast<size_t>(index) * shape.head_dim, row_head(const_cast<T*>(queries), row, head),
                  sizeof(T) * shape.head_dim);
    });
  }

  // Scores, softmax and weighted values of `rows` query rows against `keys` slots of one KV head.
  void add_tile(const AttentionItem& item, const Chunk& chunk, int head, int key, int keys, int at, int rows,
                const T* q, AttentionScratch<T>& s) const {
    const int dim = shape.head_dim, padded = shape.padded_dim();
    const int block_words = dim * static_cast<int>(sizeof(T)) / 4 * kBlock;
    const T *key_rows[kKeyTile], *value_rows[kKeyTile];
    find_rows(chunk, head, key, keys, key_rows, value_rows);
    pack_keys(key_rows, keys, dim, s.keys.data());
    for (int b = 0; b < keys; b += kBlock) {
      const T* block = reinterpret_cast<const T*>(s.keys.data() + static_cast<size_t>(b / kBlock) * block_words);
      multiply_block(block, q, dim, rows, dim, s.scores.data() + b, kKeyTile);
    }
    const int even_keys = (keys + 1) / 2 * 2;
    pack_values(value_rows, even_keys, dim, s.values.data());
    for (int i = 0; i < rows; ++i) {
      const int row = item.row_begin + i / shape.group();
      const int visible = std::min(keys, chunk.context - chunk.num_rows + row + 1 - key);
      const float factor = softmax_step(s.scores.data() + i * kKeyTile, visible, shape.scale,
                                        s.probabilities.data() + i * kKeyTile, s.maximum[at + i], s.total[at + i]);
      if (factor != 1.0f) {
        float* o = s.output.data() + static_cast<size_t>(at + i) * padded;
        for (int d = 0; d < dim; ++d) o[d] *= factor;
      }
    }
    const int value_words = even_keys * static_cast<int>(sizeof(T)) / 4 * kBlock;
    for (int b = 0; b < padded / kBlock; ++b) {
      const T* block = reinterpret_cast<const T*>(s.values.data() + static_cast<size_t>(b) * value_words);
      multiply_block(block, s.probabilities.data(), kKeyTile, rows, even_keys, s.product.data() + b * kBlock, padded);
    }
    float* o = s.output.data() + static_cast<size_t>(at) * padded;
    for (int i = 0; i < rows * padded; i += kLanes) {
      store(o + i, load<f32x16>(o + i) + load<f32x16>(s.product.data() + i));
    }
  }

  // Pointers to the keys and values of slots [key, key + keys) of the context; null up to the end of the tile.
  void find_rows(const Chunk& chunk, int head, int key, int keys, const T** key_rows, const T** value_rows) const {
    for (int i = 0; i < keys; ++i) {
      const int64_t block = block_ids[chunk.block_table + (key + i) / cache.block_size];
      const int64_t slot = block * cache.block_size + (key + i) % cache.block_size;
      const int64_t offset = slot * cache.slot_stride + head * cache.head_stride;
      key_rows[i] = cache.keys + offset;
      value_rows[i] = cache.values + offset;
    }
    for (int i = keys; i < kKeyTile; ++i) key_rows[i] = value_rows[i] = nullptr;
  }

  void write_rows(const AttentionItem& item, const Chunk& chunk, const AttentionScratch<T>& s) const {
    for_rows(item, chunk, [&](int index, int row, int head) {
      const float inverse = s.total[index] > 0 ? 1.0f / s.total[index] : 0.0f;
      const float* from = s.output.data() + static_cast<size_t>(index) * shape.padded_dim();
      T* to = row_head(output, row, head);
      for (int d = 0; d < shape.head_dim; ++d) narrow(from[d] * inverse, to + d);
    });
  }

  void keep_part(const AttentionItem& item, const Chunk& chunk, const AttentionScratch<T>& s) const {
    const int heads = shape.query_heads, dim = shape.head_dim;
    const size_t part = static_cast<size_t>(item.parts_at + item.part) * heads;
    for (int h = 0; h < heads; ++h) {
      std::memcpy(parts->output.data() + (part + h) * dim, s.output.data() + static_cast<size_t>(h) * shape.padded_dim(),
                  sizeof(float) * dim);
      parts->maximum[part + h] = s.maximum[h];
      parts->total[part + h] = s.total[h];
    }
    std::atomic<int>& finished = parts->finished[item.parts_at];
    if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 < item.num_parts) return;
    finished.store(0, std::memory_order_relaxed);  // for the next layer
    for (int h = 0; h < heads; ++h) merge_head(item, h, row_head(output, chunk.first_row, h));
  }

  void merge_head(const AttentionItem& item, int head, T* to) const {
    const int heads = shape.query_heads, dim = shape.head_dim;
    const size_t first = static_cast<size_t>(item.parts_at) * heads + head;
    float largest = -std::numeric_limits<float>::infinity(), total = 0;
    for (int p = 0; p < item.num_parts; ++p) largest = std::max(largest, parts->maximum[first + p * heads]);
    float merged[kMaxHeadDim];
    std::fill_n(merged, dim, 0.0f);
    for (int p = 0; p < item.num_parts; ++p) {
      const size_t at = first + static_cast<size_t>(p) * heads;
      const float weight = std::exp(parts->maximum[at] - largest);
      total += weight * parts->total[at];
      for (int d = 0; d < dim; ++d) merged[d] += weight * parts->output[at * dim + d];
    }
    for (int d = 0; d < dim; ++d) narrow(merged[d] / total, to + d);
  }
};

}  // namespace tbt
