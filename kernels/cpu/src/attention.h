// Attention over the paged cache for every chunk of a step: one-token rows and prompts, split and whole.
//
// Which positions a row sees: row i of a chunk of n rows in a context of c keys sees the first c - n + i + 1. A row without
// context gives zeros. All query heads of a KV head are treated together, so a key is read once for the whole group.
//
// One long context and several threads: the keys are split, each part leaves an unnormalized output with its maximum and
// sum (FlashDecoding), and whichever thread finishes a row's last part puts the parts together.
// Reads per row and key: 2 * head_dim * num_kv_heads elements. Follows FlashAttention-2 (arXiv 2307.08691) and
// PagedAttention (arXiv 2309.06180).
#pragma once

#include "attention_row.h"
#include "attention_tile.h"

namespace tbt {

template <class T>
struct AttentionScratch {
  SoftmaxState state;
  TileScratch<T> tile;
  RowScratch<T> row;
  Buffer<T> queries;
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

  // `next` is what this thread will probably do afterwards, or null.
  void run(const AttentionItem& item, const AttentionItem* next, AttentionScratch<T>& s) const {
    const Chunk& chunk = chunks[item.chunk];
    const int dim = shape.head_dim, heads = item.head_end - item.head_begin;
    const int rows_per_head = (item.row_end - item.row_begin) * shape.group();
    const bool by_row = is_by_row(item);
    s.state.start(rows_per_head * heads, shape.padded_dim());
    const T* q = gather_queries(item, chunk, rows_per_head * heads, s.queries);
    if (by_row) s.row.start(q, rows_per_head * heads, dim);
    int64_t buffers[2][kKeyTile];
    int64_t *offsets = buffers[0], *later = buffers[1];
    find(item, item.key_begin, offsets);
    for (int key = item.key_begin; key < item.key_end; key += kKeyTile, std::swap(offsets, later)) {
      const int keys = std::min(kKeyTile, item.key_end - key);
      const bool is_last = key + kKeyTile >= item.key_end;
      const AttentionItem* then = is_last ? next : &item;
      TileAhead<T> ahead = then ? tile_ahead(*then, is_last ? next->key_begin : key + kKeyTile, later) : TileAhead<T>();
      const int lines_per_key = (ahead.lines() + heads * keys - 1) / (heads * keys);
      for (int head = item.head_begin; head < item.head_end; ++head) {
        const int at = (head - item.head_begin) * rows_per_head;
        const T* head_keys = cache.keys + head * cache.head_stride;
        const T* head_values = cache.values + head * cache.head_stride;
        if (by_row) {
          attend_row(shape, head_keys, head_values, offsets, keys, at, s.state, s.row, [&] { ahead.step(lines_per_key); });
        } else {
          const int seen_by_first = chunk.context - chunk.num_rows + item.row_begin + 1 - key;
          attend_tile(shape, head_keys, head_values, offsets, keys, q + static_cast<size_t>(at) * dim, rows_per_head,
                      s.state, at, s.tile, [&](int i) { return seen_by_first + i / shape.group(); });
        }
      }
    }
    if (by_row) {
      for (int i = 0; i < rows_per_head * heads; ++i) {
        plain_order<T>(s.state.output.data() + static_cast<size_t>(i) * dim, dim);
      }
    }
    if (item.parts_at >= 0) {
      keep_part(item, chunk, s.state);
    } else {
      write_rows(item, chunk, s.state);
    }
  }

  // Fetch one of num_shares parts of an item's first tile, so that the item does not begin with waiting for memory.
  void fetch_first(const AttentionItem& item, int share, int num_shares) const {
    int64_t offsets[kKeyTile];
    TileAhead<T> ahead = tile_ahead(item, item.key_begin, offsets);
    ahead.narrow_to(share, num_shares);
    ahead.step(ahead.lines());
  }

 private:
  bool is_by_row(const AttentionItem& item) const {
    return item.row_end - item.row_begin == 1 && shape.head_dim % kBlock == 0;
  }

  void find(const AttentionItem& item, int key, int64_t* offsets) const {
    cache.find(block_ids + chunks[item.chunk].block_table, key, item.key_end, offsets);
  }

  // The tile at `key` of an item: its offsets, and what can be fetched of it (nothing where a tile is repacked anyway).
  TileAhead<T> tile_ahead(const AttentionItem& item, int key, int64_t* offsets) const {
    find(item, key, offsets);
    if (!is_by_row(item)) return {};
    const int64_t first = item.head_begin * cache.head_stride;
    return {cache.keys + first, cache.values + first, offsets, std::min(kKeyTile, item.key_end - key),
            (item.head_end - item.head_begin) * shape.head_dim};
  }

  T* row_head(T* base, int row, int head) const {
    return base + (static_cast<size_t>(row) * shape.query_heads + head) * shape.head_dim;
  }

  // Rows of the state in the order KV head, row of the chunk, query head of the group.
  template <class F>
  void for_rows(const AttentionItem& item, const Chunk& chunk, F&& f) const {
    int index = 0;
    for (int head = item.head_begin; head < item.head_end; ++head) {
      for (int row = item.row_begin; row < item.row_end; ++row) {
        for (int g = 0; g < shape.group(); ++g) f(index++, chunk.first_row + row, head * shape.group() + g);
      }
    }
  }

  // The item's queries side by side. Those of one row and all heads already lie so.
  const T* gather_queries(const AttentionItem& item, const Chunk& chunk, int rows, Buffer<T>& buffer) const {
    if (item.row_end - item.row_begin == 1 && item.head_begin == 0 && item.head_end == shape.kv_heads) {
      return row_head(const_cast<T*>(queries), chunk.first_row + item.row_begin, 0);
    }
    T* to = buffer.fit(static_cast<size_t>(rows) * shape.head_dim);
    for_rows(item, chunk, [&](int index, int row, int head) {
      std::memcpy(to + static_cast<size_t>(index) * shape.head_dim, row_head(const_cast<T*>(queries), row, head),
                  sizeof(T) * shape.head_dim);
    });
    return to;
  }

  void write_rows(const AttentionItem& item, const Chunk& chunk, const SoftmaxState& state) const {
    for_rows(item, chunk, [&](int index, int row, int head) {
      const float inverse = state.total[index] > 0 ? 1.0f / state.total[index] : 0.0f;
      write(state.output.data() + static_cast<size_t>(index) * shape.padded_dim(), inverse, row_head(output, row, head));
    });
  }

  void write(const float* from, float factor, T* to) const {
    for (int d = 0; d < shape.head_dim; d += kLanes) store_narrow(to + d, load<f32x16>(from + d) * factor);
  }

  void keep_part(const AttentionItem& item, const Chunk& chunk, const SoftmaxState& state) const {
    const int heads = shape.query_heads, dim = shape.head_dim;
    const size_t part = static_cast<size_t>(item.parts_at + item.part) * heads;
    for (int h = 0; h < heads; ++h) {
      std::memcpy(parts->output.data() + (part + h) * dim,
                  state.output.data() + static_cast<size_t>(h) * shape.padded_dim(), sizeof(float) * dim);
      parts->maximum[part + h] = state.maximum[h];
      parts->total[part + h] = state.total[h];
    }
    std::atomic<int>& finished = parts->finished[item.parts_at];
    if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 < item.num_parts) return;
    finished.store(0, std::memory_order_relaxed);  // for the next layer
    for (int h = 0; h < heads; ++h) merge_head(item, h, row_head(output, chunk.first_row, h));
  }

  void merge_head(const AttentionItem& item, int head, T* to) const {
    const int heads = shape.query_heads, dim = shape.head_dim;
    const size_t first = static_cast<size_t>(item.parts_at) * heads + head;
    float largest = kMinusInfinity, total = 0, merged[kMaxHeadDim];
    for (int p = 0; p < item.num_parts; ++p) largest = std::max(largest, parts->maximum[first + p * heads]);
    std::fill_n(merged, dim, 0.0f);
    for (int p = 0; p < item.num_parts; ++p) {
      const size_t at = first + static_cast<size_t>(p) * heads;
      const float weight = exp(splat(parts->maximum[at] - largest))[0];
      total += weight * parts->total[at];
      for (int d = 0; d < dim; ++d) merged[d] += weight * parts->output[at * dim + d];
    }
    write(merged, 1.0f / total, to);
  }
};

}  // namespace tbt
