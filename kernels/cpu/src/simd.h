// Sixteen float32 lanes and the few operations on them that everything else is built from.
//
// Two ways to the same numbers: where the compiler targets a CPU with AVX512_BF16 (AMD Zen 4, Intel Cooper Lake and later)
// one instruction multiplies 32 pairs of bfloat16 and adds them into 16 float32 lanes; everywhere else GCC's and Clang's
// portable vector types say the same in plain arithmetic, which becomes AVX2, SSE or NEON code.
//
// A "pair" is two neighbouring inputs k, k+1 of one output in one 32-bit word, the even one in the low half. That is how
// the instruction wants them, and why packed weights keep pairs together (linear.h).
#pragma once

#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#if defined(__AVX512F__) || defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define TBT_BF16_DOT 1
#else
#define TBT_BF16_DOT 0
#endif

#define TBT_INLINE inline __attribute__((always_inline))

namespace tbt {

constexpr int kLanes = 16;

typedef float f32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));

using bf16 = uint16_t;  // the upper half of a float32; arithmetic on it is always float32

template <class Vector, class Element>
TBT_INLINE Vector load(const Element* from) {
  Vector v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

template <class Vector, class Element>
TBT_INLINE void store(Element* to, Vector v) {
  std::memcpy(to, &v, sizeof(v));
}

TBT_INLINE f32x16 splat(float value) { return f32x16{} + value; }
TBT_INLINE u32x16 splat(uint32_t value) { return u32x16{} + value; }

TBT_INLINE float widen(bf16 value) {
  uint32_t bits = static_cast<uint32_t>(value) << 16;
  float out;
  std::memcpy(&out, &bits, sizeof(out));
  return out;
}
TBT_INLINE float widen(float value) { return value; }

TBT_INLINE f32x16 widen(u16x16 values) { return (f32x16)(__builtin_convertvector(values, u32x16) << 16); }

// 16 activations of either type as float32.
TBT_INLINE f32x16 load_wide(const bf16* from) { return widen(load<u16x16>(from)); }
TBT_INLINE f32x16 load_wide(const float* from) { return load<f32x16>(from); }

// Round to nearest, ties to even, as every other bfloat16 implementation does.
TBT_INLINE u16x16 round_to_bf16(f32x16 v) {
#if TBT_BF16_DOT
  return (u16x16)_mm512_cvtneps_pbh((__m512)v);
#else
  u32x16 bits = (u32x16)v;
  return __builtin_convertvector((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, u16x16);
#endif
}

TBT_INLINE void store_narrow(bf16* to, f32x16 v) { store(to, round_to_bf16(v)); }
TBT_INLINE void store_narrow(float* to, f32x16 v) { store(to, v); }

TBT_INLINE void narrow(float value, float* to) { *to = value; }
TBT_INLINE void narrow(float value, bf16* to) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  *to = static_cast<bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// acc + w.even * x.even + w.odd * x.odd in each lane; x is one pair, the same for all lanes.
TBT_INLINE f32x16 dot_pairs(f32x16 acc, u32x16 w, uint32_t x) {
#if TBT_BF16_DOT
  return (f32x16)_mm512_dpbf16_ps((__m512)acc, (__m512bh)w, (__m512bh)_mm512_set1_epi32(static_cast<int>(x)));
#else
  uint32_t even = x << 16, odd = x & 0xffff0000u;
  float x_even, x_odd;
  std::memcpy(&x_even, &even, 4);
  std::memcpy(&x_odd, &odd, 4);
  acc += (f32x16)(w << 16) * x_even;
  acc += (f32x16)(w & 0xffff0000u) * x_odd;
  return acc;
#endif
}

// The same with a pair of its own in each lane.
TBT_INLINE f32x16 dot_pairs(f32x16 acc, u32x16 w, u32x16 x) {
#if TBT_BF16_DOT
  return (f32x16)_mm512_dpbf16_ps((__m512)acc, (__m512bh)w, (__m512bh)x);
#else
  acc += (f32x16)(w << 16) * (f32x16)(x << 16);
  return acc + (f32x16)(w & 0xffff0000u) * (f32x16)(x & 0xffff0000u);
#endif
}

TBT_INLINE float sum(f32x16 v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float total = 0;
  for (int lane = 0; lane < kLanes; ++lane) total += v[lane];
  return total;
#endif
}

TBT_INLINE f32x16 maximum(f32x16 a, f32x16 b) { return a > b ? a : b; }

TBT_INLINE float maximum(f32x16 v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float best = v[0];
  for (int lane = 1; lane < kLanes; ++lane) best = v[lane] > best ? v[lane] : best;
  return best;
#endif
}

// e^x, relative error below 3e-7, 0 for very negative x. x = n ln 2 + r with |r| <= ln 2 / 2; 2^n goes into the exponent
// bits, e^r is a polynomial. Adding 1.5 * 2^23 rounds to a whole number and leaves it in the low bits.
TBT_INLINE f32x16 exp(f32x16 x) {
  const float shift = 12582912.0f;
  x = maximum(x, splat(-87.0f));
  f32x16 t = x * 1.44269504f + shift;
  f32x16 n = t - shift;
  f32x16 r = x - n * 0.693145752f;  // ln 2 in two parts, so that n * ln 2 loses nothing
  r = r - n * 1.42860677e-6f;
  f32x16 p = splat(1.0f / 720);
  p = p * r + (1.0f / 120);
  p = p * r + (1.0f / 24);
  p = p * r + (1.0f / 6);
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return (f32x16)((i32x16)p + ((i32x16)t << 23));
}

TBT_INLINE f32x16 silu(f32x16 x) { return x / (exp(-x) + 1.0f); }

// Memory that begins at a cache line, so that no vector load touches two. Grows to the largest size asked for.
template <class T>
struct CacheLineAllocator {
  using value_type = T;
  CacheLineAllocator() = default;
  template <class U>
  CacheLineAllocator(const CacheLineAllocator<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(64))); }
  void deallocate(T* at, size_t) { ::operator delete(at, std::align_val_t(64)); }
  template <class U>
  bool operator==(const CacheLineAllocator<U>&) const { return true; }
  template <class U>
  bool operator!=(const CacheLineAllocator<U>&) const { return false; }
};

template <class T>
class Buffer {
 public:
  T* fit(size_t size) {
    if (items_.size() < size) items_.resize(size);
    return items_.data();
  }
  T* data() { return items_.data(); }
  const T* data() const { return items_.data(); }
  T& operator[](size_t i) { return items_[i]; }
  const T& operator[](size_t i) const { return items_[i]; }

 private:
  std::vector<T, CacheLineAllocator<T>> items_;
};

// Ask for a cache line that will be needed soon, into the L2 cache: the L1 can wait for few lines at a time. (Volatile
// assembly, because GCC takes a function that only prefetches for one without effect and drops the call.)
TBT_INLINE void fetch(const void* at) {
#if defined(__SSE2__)
  asm volatile("prefetcht1 %0" : : "m"(*static_cast<const char*>(at)));
#else
  __builtin_prefetch(at, 0, 2);
#endif
}

inline void pause() {
#if defined(__SSE2__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace tbt
