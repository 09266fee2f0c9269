// One forward pass of a Llama-family decoder over the rows of a step, start to end, on a pool of threads.
//
// Every thread walks through the same phases (pool.h), seven per layer, whose units are rows, heads or blocks of outputs:
//   norm | Q K V, rotate, store to the cache | attention | output projection, add | norm | gate and up, SiLU | down, add
//
// Numbers: sums and the residual stream are float32; what enters a product (normed rows, queries, probabilities,
// attention output, activations) is rounded once to the activation type T. With T = float nothing is rounded.
// Shapes: M rows in the step, C hidden size, Hq query heads, Hk KV heads, D head_dim, F intermediate size, V vocabulary.
#pragma once

#include <cmath>

#include "attention.h"
#include "linear.h"
#include "pool.h"

namespace tbt {

struct Layer {
  const float* attention_norm;  // [C]
  const float* q_norm;          // [D] or null
  const float* k_norm;          // [D] or null
  const float* mlp_norm;        // [C]
  Weight qkv;      // [(Hq + 2 Hk) * padded D, C]: each head padded to whole blocks
  Weight o;        // [C, Hq * D]
  Weight gate_up;  // [2 F, C]: 16 gates, 16 ups, 16 gates ...
  Weight down;     // [C, F]
  int32_t rotates;  // 0: a layer without RoPE
};

struct Model {
  int32_t hidden_size, num_layers, query_heads, kv_heads, head_dim, intermediate_size, vocab_size;
  float norm_eps;
  float rope_scale;
  const float* inverse_frequencies;  // [D / 2]
  const void* embedding;             // [V, C] in the activation type
  const float* final_norm;           // [C]
  Weight head;                       // [V, C]
  const Layer* layers;
};

// The paged cache of the run: element [slot][head][d] of a layer at base + slot * slot_stride + head * head_stride + d.
struct CacheView {
  void* const* keys;    // [layers]
  void* const* values;  // [layers]
  int64_t slot_stride, head_stride;
  int32_t block_size;
};

struct Batch {
  int32_t num_rows;
  const int32_t* token_ids;  // [M]
  const int32_t* positions;  // [M]
  const int64_t* slots;      // [M] where to store key and value; -1: nowhere
  int32_t num_chunks;
  const Chunk* chunks;
  const int32_t* block_ids;
  int32_t num_logit_rows;
  const int32_t* logit_rows;  // [R]
  float* logits;              // [R, V]
  CacheView cache;
};

template <class T>
class Decoder {
 public:
  explicit Decoder(const Model& model) : model_(model), layers_(model.layers, model.layers + model.num_layers) {
    shape_ = {model.query_heads, model.kv_heads, model.head_dim, 1.0f / std::sqrt(static_cast<float>(model.head_dim))};
  }

  void forward(const Batch& batch, Pool* pool) {
    if (batch.num_rows == 0) return;
    batch_ = batch;
    pool_ = pool;
    threads_.resize(pool->num_threads());
    fit();
    plan_.make(batch.chunks, batch.num_chunks, shape_, pool_->num_threads());
    parts_.fit(plan_.num_parts, shape_);
    pool_->run([](void* self, Walk& walk) { static_cast<Decoder*>(self)->pass(walk); }, this);
  }

 private:
  struct Thread {
    Scratch linear;
    AttentionScratch<T> attention;
  };

  void fit() {
    const size_t rows = batch_.num_rows;
    const size_t widest = std::max({model_.hidden_size, model_.intermediate_size, model_.query_heads * model_.head_dim});
    residual_.fit(rows * model_.hidden_size);
    normed_.fit(std::max<size_t>(rows, batch_.num_logit_rows) * model_.hidden_size);
    queries_.fit(rows * model_.query_heads * model_.head_dim);
    attended_.fit(rows * model_.query_heads * model_.head_dim);
    activations_.fit(rows * model_.intermediate_size);
    angles_.fit(rows * model_.head_dim);
    group_sums_.fit(kInt4DirectRows * widest / kLanes);
  }

  // What every thread walks through. Outside the units of for_each nothing of the batch may be touched (pool.h).
  void pass(Walk& walk) {
    start(walk);
    for (int i = 0; i < model_.num_layers; ++i) {
      const Layer& layer = layers_[i];
      norm(layer.attention_norm, batch_.num_rows, layer.qkv, walk, [](int m) { return m; });
      queries_keys_values(layer, i, walk);
      attend(i, walk);
      add_product(layer.o, attended_.data(), walk);
      norm(layer.mlp_norm, batch_.num_rows, layer.gate_up, walk, [](int m) { return m; });
      gate_and_up(layer, walk);
      add_product(layer.down, activations_.data(), walk);
    }
    norm(model_.final_norm, batch_.num_logit_rows, model_.head, walk, [this](int i) { return batch_.logit_rows[i]; });
    logits(walk);
  }

  Cache<T> cache_of(int layer) const {
    const CacheView& c = batch_.cache;
    return {static_cast<T*>(c.keys[layer]), static_cast<T*>(c.values[layer]), c.slot_stride, c.head_stride, c.block_size};
  }

  // Token ids to rows of the residual stream; angles of the step's positions.
  void start(Walk& walk) {
    const int hidden = model_.hidden_size, half = model_.head_dim / 2;
    pool_->for_each(walk, batch_.num_rows, [&](int m) {
      const T* from = static_cast<const T*>(model_.embedding) + static_cast<size_t>(batch_.token_ids[m]) * hidden;
      float* to = residual_row(m);
      for (int c = 0; c < hidden; c += kLanes) store(to + c, load_wide(from + c));
      float* cosine = angles_.data() + static_cast<size_t>(m) * model_.head_dim;
      for (int i = 0; i < half; ++i) {
        const float angle = static_cast<float>(batch_.positions[m]) * model_.inverse_frequencies[i];
        cosine[i] = std::cos(angle) * model_.rope_scale;
        cosine[half + i] = std::sin(angle) * model_.rope_scale;
      }
    });
  }

  float* residual_row(int row) { return residual_.data() + static_cast<size_t>(row) * model_.hidden_size; }

  // RMSNorm of `rows` rows of the residual stream into normed_, for the product `next`; row_of(i) names them.
  template <class RowOf>
  void norm(const float* weight, int rows, const Weight& next, Walk& walk, RowOf&& row_of) {
    pool_->for_each(walk, rows, [&](int i) {
      T* to = normed_.data() + static_cast<size_t>(i) * model_.hidden_size;
      norm_row(residual_row(row_of(i)), weight, to);
      if (needs_sums(next, rows)) sum_groups(next, to, i);
    });
  }

  void norm_row(const float* x, const float* weight, T* to) const {
    const int hidden = model_.hidden_size;
    f32x16 squares{};
    for (int c = 0; c < hidden; c += kLanes) {
      const f32x16 v = load<f32x16>(x + c);
      squares += v * v;
    }
    const float factor = 1.0f / std::sqrt(sum(squares) / hidden + model_.norm_eps);
    for (int c = 0; c < hidden; c += kLanes) {
      store_narrow(to + c, load<f32x16>(x + c) * factor * load<f32x16>(weight + c));
    }
  }

  // int4 needs the sum of a row's inputs over each group beside the products (linear.h).
  static bool needs_sums(const Weight& w, int rows) {
    return static_cast<Kind>(w.kind) == Kind::kInt4 && rows <= kInt4DirectRows;
  }

  void sum_groups(const Weight& w, const T* x, int row) {
    const int groups = w.inputs / w.group;
    for (int g = 0; g < groups; ++g) {
      f32x16 total{};
      for (int k = 0; k < w.group; k += kLanes) total += load_wide(x + g * w.group + k);
      group_sums_[static_cast<size_t>(row) * groups + g] = sum(total);
    }
  }

  // A unit is one head: after its product it is normed and rotated while in the L1 cache, and goes where it belongs.
  void queries_keys_values(const Layer& layer, int index, Walk& walk) {
    const int blocks = shape_.padded_dim() / kBlock, heads = shape_.query_heads + 2 * shape_.kv_heads;
    pool_->for_each(walk, heads, [&](int head) {
      const Cache<T> cache = cache_of(index);
      fetch_cache(index, head, heads, walk);
      linear(layer.qkv, head * blocks, blocks, normed_.data(), model_.hidden_size, batch_.num_rows, group_sums_.data(),
             threads_[walk.thread].linear, [&](int m, int count, float* out, int stride) {
               for (int i = 0; i < count; ++i) finish_head(layer, cache, head, m + i, out + i * stride);
             });
    });
  }

  void finish_head(const Layer& layer, const Cache<T>& cache, int head, int row, float* values) {
    const int dim = shape_.head_dim, key_head = head - shape_.query_heads, value_head = key_head - shape_.kv_heads;
    if (value_head < 0) {
      const float* weight = key_head < 0 ? layer.q_norm : layer.k_norm;
      if (weight) norm_head(values, weight);
      if (layer.rotates) rotate(values, angles_.data() + static_cast<size_t>(row) * dim);
    }
    T* to = nullptr;
    if (key_head < 0) {
      to = queries_.data() + (static_cast<size_t>(row) * shape_.query_heads + head) * dim;
    } else {
      const int64_t slot = batch_.slots[row];
      if (slot < 0) return;  // padding is computed and kept nowhere
      const int kv_head = value_head < 0 ? key_head : value_head;
      to = (value_head < 0 ? cache.keys : cache.values) + slot * cache.slot_stride + kv_head * cache.head_stride;
    }
    for (int d = 0; d < dim; d += kLanes) store_narrow(to + d, load<f32x16>(values + d));
  }

  void norm_head(float* values, const float* weight) const {
    float squares = 0;
    for (int d = 0; d < shape_.head_dim; ++d) squares += values[d] * values[d];
    const float factor = 1.0f / std::sqrt(squares / shape_.head_dim + model_.norm_eps);
    for (int d = 0; d < shape_.head_dim; ++d) values[d] *= factor * weight[d];
  }

  // Dimension i turns together with dimension i + D / 2.
  void rotate(float* __restrict__ values, const float* __restrict__ angles) const {
    const int half = shape_.head_dim / 2;
    for (int i = 0; i < half; ++i) {
      const float a = values[i], b = values[half + i], cosine = angles[i], sine = angles[half + i];
      values[i] = a * cosine - b * sine;
      values[half + i] = b * cosine + a * sine;
    }
  }

  void attend(int layer, Walk& walk) {
    const int num_items = static_cast<int>(plan_.items.size());
    pool_->for_each(walk, num_items, [&](int i) {
      const AttentionItem* next = i + 1 < num_items ? &plan_.items[i + 1] : nullptr;
      attention_of(layer).run(plan_.items[i], next, threads_[walk.thread].attention);
    });
  }

  // What this thread will attend to first, brought nearer share by share while it reads the weights of Q, K and V.
  void fetch_cache(int layer, int unit, int units, const Walk& walk) {
    const Share mine = pool_->share(units, walk.thread), items = pool_->share(plan_.items.size(), walk.thread);
    if (items.count == 0 || unit < mine.first || unit >= mine.first + mine.count) return;
    attention_of(layer).fetch_first(plan_.items[items.first], unit - mine.first, mine.count);
  }

  Attention<T> attention_of(int layer) {
    return {shape_, cache_of(layer), batch_.chunks, batch_.block_ids, queries_.data(), attended_.data(), &parts_};
  }

  // residual += x W^T
  void add_product(const Weight& w, const T* x, Walk& walk) {
    const int rows = batch_.num_rows, hidden = model_.hidden_size;
    if (needs_sums(w, rows)) {
      pool_->for_each(walk, rows, [&](int m) { sum_groups(w, x + static_cast<size_t>(m) * w.inputs, m); });
    }
    pool_->for_each(walk, w.blocks(), [&](int block) {
      const int width = std::min(kBlock, hidden - block * kBlock);
      linear(w, block, 1, x, w.inputs, rows, group_sums_.data(), threads_[walk.thread].linear,
             [&](int m, int count, const float* out, int stride) {
               for (int i = 0; i < count; ++i) {
                 float* to = residual_row(m + i) + block * kBlock;
                 for (int n = 0; n < width; n += kLanes) {
                   store(to + n, load<f32x16>(to + n) + load<f32x16>(out + i * stride + n));
                 }
               }
             });
    });
  }

  // A block holds 16 gates and the 16 ups that belong to them, so their product never leaves the thread.
  void gate_and_up(const Layer& layer, Walk& walk) {
    pool_->for_each(walk, layer.gate_up.blocks(), [&](int block) {
      linear(layer.gate_up, block, 1, normed_.data(), model_.hidden_size, batch_.num_rows, group_sums_.data(),
             threads_[walk.thread].linear, [&](int m, int count, const float* out, int stride) {
               for (int i = 0; i < count; ++i) {
                 const f32x16 gate = load<f32x16>(out + i * stride), up = load<f32x16>(out + i * stride + kLanes);
                 T* to = activations_.data() + static_cast<size_t>(m + i) * model_.intermediate_size + block * kLanes;
                 store_narrow(to, silu(gate) * up);
               }
             });
    });
  }

  // Only the rows that will be sampled: at one row the head is a fifth of all bytes.
  void logits(Walk& walk) {
    const int rows = batch_.num_logit_rows;
    pool_->for_each(walk, rows == 0 ? 0 : model_.head.blocks(), [&](int block) {
      const int width = std::min(kBlock, model_.vocab_size - block * kBlock);
      linear(model_.head, block, 1, normed_.data(), model_.hidden_size, rows, group_sums_.data(),
             threads_[walk.thread].linear, [&](int m, int count, const float* out, int stride) {
               for (int i = 0; i < count; ++i) {
                 std::memcpy(batch_.logits + static_cast<size_t>(m + i) * model_.vocab_size + block * kBlock,
                             out + i * stride, sizeof(float) * width);
               }
             });
    });
  }

  const Model model_;
  const std::vector<Layer> layers_;
  Pool* pool_ = nullptr;
  HeadShape shape_;
  Batch batch_;
  AttentionPlan plan_;
  Parts parts_;
  std::vector<Thread> threads_;
  Buffer<float> residual_, angles_, group_sums_;
  Buffer<T> normed_, queries_, attended_, activations_;
};

}  // namespace tbt
