// The place of the largest of many numbers, as greedy sampling needs it: the first one where several are equal.
#pragma once

#include "simd.h"

namespace tbt {

// Sixteen searches side by side, each over every sixteenth number, and then the best of them. values[0 .. count).
inline int argmax(const float* values, int count) {
  f32x16 best = splat(-__builtin_inff());
  i32x16 at{}, here = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  int i = 0;
  for (; i + kLanes <= count; i += kLanes, here += kLanes) {
    const f32x16 v = load<f32x16>(values + i);
    const i32x16 is_better = v > best;
    best = is_better ? v : best;
    at = is_better ? here : at;
  }
  int found = at[0];
  float largest = best[0];
  for (int lane = 1; lane < kLanes; ++lane) {
    if (best[lane] > largest || (best[lane] == largest && at[lane] < found)) {
      largest = best[lane];
      found = at[lane];
    }
  }
  for (; i < count; ++i) {
    if (values[i] > largest) {
      largest = values[i];
      found = i;
    }
  }
  return found;
}

}  // namespace tbt
