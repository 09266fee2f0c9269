// The paged cache as the attention kernels see it, and how a step's attention is cut into pieces of work.
//
// A request's keys and values lie in blocks of block_size slots, anywhere in the cache; its block table lists them in
// order. Nothing is gathered: kernels get pointers to the rows of 64 slots at a time. Slots beyond a context are never
// read, whatever they hold.
#pragma once

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>

#include "linear.h"

namespace tbt {

constexpr int kKeyTile = 64;
constexpr int kQueryRows = 32;        // rows of a chunk that share one transposed tile
constexpr int kMinKeysPerPart = 32;  // below, splitting a context costs more than it brings
constexpr int kMaxHeadDim = 512;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

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

// Element [slot][head][d] of a layer lies at base + slot * slot_stride + head * head_stride + d.
template <class T>
struct Cache {
  T* keys;
  T* values;
  int64_t slot_stride, head_stride;
  int32_t block_size;

  // Offsets of the slots of a tile, positions [key, key + 64) of a context of which [.., end) is wanted; beyond, the
  // last offset found is repeated (all of `offsets` can be read, and points to a slot of this context).
  void find(const int32_t* table, int key, int end, int64_t* offsets) const {
    int index = key / block_size, within = key % block_size;
    int64_t last = 0;
    for (int i = 0; i < kKeyTile; ++i) {
      if (key + i < end) {
        last = (static_cast<int64_t>(table[index]) * block_size + within) * slot_stride;
        if (++within == block_size) {
          within = 0;
          ++index;
        }
      }
      offsets[i] = last;
    }
  }
};

// The keys and values of a tile, fetched from memory a few cache lines at a time while another tile is worked on. Blocks lie
// scattered: the prefetch of the hardware, which follows lines in order, does not find them, and waiting for each row of
// the cache takes three times as long as computing on it.
template <class T>
class TileAhead {
 public:
  TileAhead() = default;
  // `elements` of a slot, from `keys` and from `values` + offsets[slot].
  TileAhead(const T* keys, const T* values, const int64_t* offsets, int slots, int elements)
      : keys_(keys), values_(values), offset_(offsets), end_(offsets + slots), lines_((elements + kLine - 1) / kLine) {
    begin_slot();
  }

  int lines() const { return static_cast<int>(end_ - offset_) * 2 * lines_; }

  void narrow_to(int share, int num_shares) {
    const int slots = static_cast<int>(end_ - offset_);
    end_ = offset_ + slots * (share + 1) / num_shares;
    offset_ += slots * share / num_shares;
    begin_slot();
  }

  TBT_INLINE void step(int count) {
    for (; count > 0 && offset_ < end_; --count) {
      fetch(at_);
      at_ += kLine;
      if (++line_ == lines_) at_ = values_ + *offset_;
      if (line_ == 2 * lines_) {
        ++offset_;
        begin_slot();
      }
    }
  }

 private:
  static constexpr int kLine = 64 / sizeof(T);

  void begin_slot() {
    line_ = 0;
    if (offset_ < end_) at_ = keys_ + *offset_;
  }

  const T *keys_ = nullptr, *values_ = nullptr, *at_ = nullptr;
  const int64_t *offset_ = nullptr, *end_ = nullptr;
  int lines_ = 0, line_ = 0;
};

// A piece of work for one thread: some rows of a chunk, some KV heads, some keys.
struct AttentionItem {
  int chunk;
  int row_begin, row_end;  // within the chunk
  int head_begin, head_end;
  int key_begin, key_end;
  int part, num_parts;  // where a row's keys are split
  int parts_at;         // index of the row's first part; -1 where the item is the whole row
};

class AttentionPlan {
 public:
  std::vector<AttentionItem> items;
  int num_parts = 0;  // partial results to keep, each for all query heads of one row

  void make(const Chunk* chunks, int num_chunks, const HeadShape& shape, int num_threads) {
    items.clear();
    num_parts = 0;
    int64_t keys = 0;  // of all rows that stand alone
    for (int c = 0; c < num_chunks; ++c) keys += chunks[c].num_rows == 1 ? chunks[c].context : 0;
    const int keys_per_part = static_cast<int>(std::max<int64_t>(kMinKeysPerPart, keys / (2 * num_threads)));
    for (int c = 0; c < num_chunks; ++c) {
      if (chunks[c].num_rows == 1) {
        add_row(c, chunks[c], shape, keys_per_part);
      } else {
        add_rows(c, chunks[c], shape);
      }
    }
  }

 private:
  // One long row would keep one thread busy and the others waiting.
  void add_row(int index, const Chunk& chunk, const HeadShape& shape, int keys_per_part) {
    const int parts = std::max(1, chunk.context / keys_per_part);
    for (int p = 0; p < parts; ++p) {
      const int begin = chunk.context * p / parts / kLanes * kLanes;
      const int end = p + 1 == parts ? chunk.context : chunk.context * (p + 1) / parts / kLanes * kLanes;
      items.push_back({index, 0, 1, 0, shape.kv_heads, begin, end, p, parts, parts > 1 ? num_parts : -1});
    }
    if (parts > 1) num_parts += parts;
  }

  // Later rows see more keys; the long pieces come first, so that a short one ends the phase.
  void add_rows(int index, const Chunk& chunk, const HeadShape& shape) {
    for (int end = chunk.num_rows; end > 0; end -= kQueryRows) {
      const int begin = std::max(0, end - kQueryRows);
      const int keys = chunk.context ? chunk.context - chunk.num_rows + end : 0;
      for (int h = 0; h < shape.kv_heads; ++h) items.push_back({index, begin, end, h, h + 1, 0, keys, 0, 1, -1});
    }
  }
};

// Scores of one row against a tile of keys, of which the first `visible` count -> weights relative to the running
// maximum, in place of which they are stored, as T. Returns the factor for everything summed before.
template <class T>
TBT_INLINE float softmax_step(const float* scores, int visible, float scale, T* weights, float& maximum_so_far,
                              float& sum_so_far) {
  const f32x16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const f32x16 minus_infinity = splat(kMinusInfinity);
  constexpr int kVectors = kKeyTile / kLanes;
  f32x16 masked[kVectors];
  f32x16 largest = minus_infinity;
  for (int i = 0; i < kVectors; ++i) {
    const f32x16 s = load<f32x16>(scores + i * kLanes) * scale;
    masked[i] = lane < splat(static_cast<float>(visible - i * kLanes)) ? s : minus_infinity;
    largest = maximum(largest, masked[i]);
  }
  const float new_maximum = std::max(maximum_so_far, maximum(largest));
  if (new_maximum == kMinusInfinity) {  // nothing visible yet
    for (int i = 0; i < kVectors; ++i) store_narrow(weights + i * kLanes, f32x16{});
    return 1.0f;
  }
  f32x16 total{};
  for (int i = 0; i < kVectors; ++i) {
    const f32x16 p = masked[i] == minus_infinity ? f32x16{} : exp(masked[i] - new_maximum);
    total += p;
    store_narrow(weights + i * kLanes, p);
  }
  const float factor = maximum_so_far == kMinusInfinity ? 0.0f : exp(splat(maximum_so_far - new_maximum))[0];
  sum_so_far = sum_so_far * factor + sum(total);
  maximum_so_far = new_maximum;
  return factor;
}

// Online softmax state of some query rows: unnormalized outputs [rows][padded_dim], their maximum and their sum.
struct SoftmaxState {
  Buffer<float> output, maximum, total;

  void start(int rows, int padded) {
    std::fill_n(output.fit(static_cast<size_t>(rows) * padded), static_cast<size_t>(rows) * padded, 0.0f);
    std::fill_n(maximum.fit(rows), rows, kMinusInfinity);
    std::fill_n(total.fit(rows), rows, 0.0f);
  }
};

}  // namespace tbt
