// Narrow weights to bfloat16 (or float32) without leaving the registers.
//
// Both formats store whole numbers, and bfloat16 has eight significant bits, so widening is exact.
#pragma once

#include "simd.h"

namespace tbt {

// ---- int8: one byte = sign bit + magnitude 0..127 ------------------------------------------------------------------------
//
// A pair of inputs of 32 outputs is 64 bytes, in an order that two "interleave the bytes of a and b" instructions turn
// into two vectors of pairs: byte 16 * lane + 8 * half + 2 * i + parity belongs to output 16 * half + 4 * lane + i.
// Magnitude m as bfloat16 is a table look-up of its high and of its low byte; 128 table entries fit two registers.
constexpr int kInt8BytesPerPair = 64;

TBT_INLINE float int8_value(uint8_t byte) {
  const float magnitude = static_cast<float>(byte & 0x7f);
  return byte & 0x80 ? -magnitude : magnitude;
}

// Where the byte of (output 0..31, parity 0..1) lies in its 64 bytes.
TBT_INLINE int int8_byte_index(int output, int parity) {
  return 16 * ((output % 16) / 4) + 8 * (output / 16) + 2 * (output % 4) + parity;
}

#if TBT_BF16_DOT && defined(__AVX512VBMI__)
struct Int8Bytes {
  alignas(64) uint8_t high[128] = {}, low[128] = {};
  constexpr Int8Bytes() {
    for (int m = 1; m < 128; ++m) {
      int exponent = 0;
      while (m >> (exponent + 1)) ++exponent;
      const int bits = (127 + exponent) << 7 | ((m << (7 - exponent)) & 0x7f);
      high[m] = static_cast<uint8_t>(bits >> 8);
      low[m] = static_cast<uint8_t>(bits & 0xff);
    }
  }
};

class Int8Table {
 public:
  TBT_INLINE Int8Table() {
    static constexpr Int8Bytes bytes;
    for (int half = 0; half < 2; ++half) {
      high_[half] = _mm512_load_si512(bytes.high + 64 * half);
      low_[half] = _mm512_load_si512(bytes.low + 64 * half);
    }
  }

  TBT_INLINE void widen(const uint8_t* from, u32x16& w0, u32x16& w1) const {
    const __m512i bytes = _mm512_loadu_si512(from);
    const __m512i low = _mm512_permutex2var_epi8(low_[0], bytes, low_[1]);  // bit 7 of an index is ignored
    __m512i high = _mm512_permutex2var_epi8(high_[0], bytes, high_[1]);
    high = _mm512_ternarylogic_epi32(high, bytes, _mm512_set1_epi8(static_cast<char>(0x80)), 0xf8);  // a | (b & c)
    w0 = (u32x16)_mm512_unpacklo_epi8(low, high);
    w1 = (u32x16)_mm512_unpackhi_epi8(low, high);
  }

 private:
  __m512i high_[2], low_[2];
};
#else
class Int8Table {
 public:
  TBT_INLINE void widen(const uint8_t* from, u32x16& w0, u32x16& w1) const {
    uint32_t pairs[32];
    for (int output = 0; output < 32; ++output) {
      bf16 even, odd;
      narrow(int8_value(from[int8_byte_index(output, 0)]), &even);
      narrow(int8_value(from[int8_byte_index(output, 1)]), &odd);
      pairs[output] = even | static_cast<uint32_t>(odd) << 16;
    }
    w0 = load<u32x16>(pairs);
    w1 = load<u32x16>(pairs + kLanes);
  }
};
#endif

// A whole block, unscaled, in the layout of a bfloat16 or float32 block.
inline void widen_int8(const uint8_t* from, int inputs, bf16* to) {
  const Int8Table table;
  for (int k = 0; k < inputs; k += 2, from += kInt8BytesPerPair, to += 64) {
    u32x16 w0, w1;
    table.widen(from, w0, w1);
    store(to, w0);
    store(to + 32, w1);
  }
}

inline void widen_int8(const uint8_t* from, int inputs, float* to) {
  const Int8Table table;
  for (int k = 0; k < inputs; k += 2, from += kInt8BytesPerPair, to += 64) {
    u32x16 w[2];
    table.widen(from, w[0], w[1]);
    for (int half = 0; half < 2; ++half) {
      store(to + 16 * half, (f32x16)(w[half] << 16));
      store(to + 32 + 16 * half, (f32x16)(w[half] & 0xffff0000u));
    }
  }
}

// ---- int4: groups of inputs; weight = scale * q + minimum, q in 0..15 -----------------------------------------------------
//
// A group of one block is: scales of 32 outputs (float16), their minimums (float16), then for each 8 inputs 32 words of
// 32 bits. In a word, bits 4p..4p+3 are input 2p and bits 16+4p..16+4p+3 are input 2p + 1, so that one shift and one
// "and, or" give a pair: a bfloat16 with exponent of 128 has steps of exactly 1, so q in its low bits makes it 128 + q.
constexpr float kInt4Bias = 128.0f;

TBT_INLINE u32x16 int4_pair(u32x16 word, int pair) {
  return ((word >> (4 * pair)) & 0x000f000fu) | 0x43004300u;
}

TBT_INLINE float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24
    const float value = static_cast<float>(fraction) * 5.9604644775390625e-8f;
    return sign ? -value : value;
  }
  const uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
  float out;
  std::memcpy(&out, &bits, sizeof(out));
  return out;
}

TBT_INLINE f32x16 load_half(const uint16_t* from) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#else
  f32x16 out;
  for (int lane = 0; lane < kLanes; ++lane) out[lane] = half_to_float(from[lane]);
  return out;
#endif
}

// The head of a group: 32 scales and 32 minimums.
struct Int4Group {
  static constexpr int kBytes = 128;
  const uint16_t* values;
  explicit TBT_INLINE Int4Group(const uint8_t* at) : values(reinterpret_cast<const uint16_t*>(at)) {}
  TBT_INLINE f32x16 scale(int half) const { return load_half(values + 16 * half); }
  TBT_INLINE f32x16 minimum(int half) const { return load_half(values + 32 + 16 * half); }
};

TBT_INLINE void put_pairs(f32x16 even, f32x16 odd, bf16* to) {
  const u32x16 low = __builtin_convertvector(round_to_bf16(even), u32x16);
  const u32x16 high = __builtin_convertvector(round_to_bf16(odd), u32x16);
  store(to, low | (high << 16));
}

// A whole block with scale and minimum applied, in the layout of a bfloat16 or float32 block.
template <class T>
void widen_int4(const uint8_t* from, int inputs, int group, T* to) {
  for (int g = 0; g < inputs / group; ++g) {
    const Int4Group head(from);
    from += Int4Group::kBytes;
    const f32x16 scale[2] = {head.scale(0), head.scale(1)}, minimum[2] = {head.minimum(0), head.minimum(1)};
    for (int k = 0; k < group; k += 8, from += 128) {
      for (int pair = 0; pair < 4; ++pair, to += 64) {
        for (int half = 0; half < 2; ++half) {
          const u32x16 q = int4_pair(load<u32x16>(from + 64 * half), pair);
          const f32x16 even = ((f32x16)(q << 16) - kInt4Bias) * scale[half] + minimum[half];
          const f32x16 odd = ((f32x16)(q & 0xffff0000u) - kInt4Bias) * scale[half] + minimum[half];
          if constexpr (sizeof(T) == 4) {
            store(to + 16 * half, even);
            store(to + 32 + 16 * half, odd);
          } else {
            put_pairs(even, odd, to + 32 * half);
          }
        }
      }
    }
  }
}

}  // namespace tbt
