// The C functions that kernels/cpu/library.py calls. Plain pointers and sizes, no torch, no exceptions across the border.
#include "argmax.h"
#include "decoder.h"

using namespace tbt;

namespace {

// A pass of a single phase: body(unit, thread) for all units.
template <class Body>
void in_units(Pool* pool, int units, Body&& body) {
  auto pass = [&](Walk& walk) { pool->for_each(walk, units, [&](int unit) { body(unit, walk.thread); }); };
  pool->run([](void* f, Walk& walk) { (*static_cast<decltype(pass)*>(f))(walk); }, &pass);
  pool->settle();
}

template <class T>
void multiply(Pool* pool, const Weight& w, const T* x, int rows, float* out) {
  const int groups = static_cast<Kind>(w.kind) == Kind::kInt4 ? w.inputs / w.group : 0;
  std::vector<float> sums(static_cast<size_t>(rows) * groups);
  for (size_t i = 0; i < sums.size(); ++i) {
    for (int k = 0; k < w.group; ++k) sums[i] += widen(x[i * w.group + k]);
  }
  std::vector<Scratch> scratch(pool->num_threads());
  in_units(pool, w.blocks(), [&](int block, int thread) {
    linear(w, block, 1, x, w.inputs, rows, sums.data(), scratch[thread],
           [&](int m, int count, const float* from, int stride) {
             for (int i = 0; i < count; ++i) {
               std::memcpy(out + static_cast<size_t>(m + i) * w.outputs + block * kBlock, from + i * stride,
                           sizeof(float) * kBlock);
             }
           });
  });
}

template <class T>
void attend(Pool* pool, const Attention<T>& attention, int num_chunks) {
  AttentionPlan plan;
  plan.make(attention.chunks, num_chunks, attention.shape, pool->num_threads());
  attention.parts->fit(plan.num_parts, attention.shape);
  std::vector<AttentionScratch<T>> scratch(pool->num_threads());
  const int num_items = static_cast<int>(plan.items.size());
  in_units(pool, num_items, [&](int i, int thread) {
    attention.run(plan.items[i], i + 1 < num_items ? &plan.items[i + 1] : nullptr, scratch[thread]);
  });
}

// Either of the two decoders behind one handle.
struct AnyDecoder {
  std::unique_ptr<Decoder<bf16>> narrow;
  std::unique_ptr<Decoder<float>> wide;
};

}  // namespace

extern "C" {

// 1 where the matrix instruction for bfloat16 is used.
int tbt_has_bf16_dot() { return TBT_BF16_DOT; }

Pool* tbt_pool_create(int num_threads) { return new Pool(std::max(1, std::min(num_threads, kMaxThreads))); }
void tbt_pool_destroy(Pool* pool) { delete pool; }
int tbt_phase_times(const Pool* pool, int64_t* to, int room) { return pool->phase_times(to, room); }

// x: [rows, inputs] bfloat16 or float32 -> out: [rows, padded outputs] float32
void tbt_linear(Pool* pool, const Weight* w, const void* x, int is_bf16, int rows, float* out) {
  if (is_bf16) {
    multiply(pool, *w, static_cast<const bf16*>(x), rows, out);
  } else {
    multiply(pool, *w, static_cast<const float*>(x), rows, out);
  }
}

// queries, out: [rows, query_heads, head_dim]; keys, values: caches as in attention.h
void tbt_attention(Pool* pool, int is_bf16, int query_heads, int kv_heads, int head_dim, const void* queries, void* keys,
                   void* values, int64_t slot_stride, int64_t head_stride, int block_size, const Chunk* chunks,
                   int num_chunks, const int32_t* block_ids, void* out) {
  const HeadShape shape{query_heads, kv_heads, head_dim, 1.0f / std::sqrt(static_cast<float>(head_dim))};
  Parts parts;
  if (is_bf16) {
    using T = bf16;
    attend(pool, Attention<T>{shape, {static_cast<T*>(keys), static_cast<T*>(values), slot_stride, head_stride, block_size},
                              chunks, block_ids, static_cast<const T*>(queries), static_cast<T*>(out), &parts}, num_chunks);
  } else {
    using T = float;
    attend(pool, Attention<T>{shape, {static_cast<T*>(keys), static_cast<T*>(values), slot_stride, head_stride, block_size},
                              chunks, block_ids, static_cast<const T*>(queries), static_cast<T*>(out), &parts}, num_chunks);
  }
}

AnyDecoder* tbt_decoder_create(const Model* model, int is_bf16) {
  auto* decoder = new AnyDecoder;
  if (is_bf16) {
    decoder->narrow.reset(new Decoder<bf16>(*model));
  } else {
    decoder->wide.reset(new Decoder<float>(*model));
  }
  return decoder;
}

void tbt_decoder_forward(AnyDecoder* decoder, Pool* pool, const Batch* batch) {
  if (decoder->narrow) {
    decoder->narrow->forward(*batch, pool);
  } else {
    decoder->wide->forward(*batch, pool);
  }
}

// pool: the one it ran on, or null if that is gone and its threads with it.
void tbt_decoder_destroy(AnyDecoder* decoder, Pool* pool) {
  if (pool) pool->settle();
  delete decoder;
}

// values: [rows, width] -> out: [rows]. By the caller alone: a row is found before another thread would have woken up.
void tbt_argmax(const float* values, int rows, int width, int32_t* out) {
  for (int row = 0; row < rows; ++row) out[row] = argmax(values + static_cast<size_t>(row) * width, width);
}

// Read `bytes` once with all threads, each its own part: the bandwidth that a forward pass can hope for.
uint64_t tbt_read(Pool* pool, const uint8_t* data, size_t bytes) {
  const size_t unit_bytes = std::max<size_t>(1 << 16, bytes / kMaxUnits / 256 * 256 + 256);
  std::atomic<uint64_t> total{0};
  in_units(pool, static_cast<int>(bytes / unit_bytes), [&](int unit, int) {
    u32x16 sums[4] = {};
    const uint8_t* from = data + unit * unit_bytes;
    for (size_t i = 0; i < unit_bytes; i += 256) {
      for (int j = 0; j < 4; ++j) sums[j] += load<u32x16>(from + i + 64 * j);
    }
    const u32x16 all = sums[0] + sums[1] + sums[2] + sums[3];
    total.fetch_add(all[0] + all[7], std::memory_order_relaxed);
  });
  return total.load();
}

}  // extern "C"
