/* Softplus, log(1 + exp(x)), and its slope, a vector of float32 at a time. */
#pragma once
#include "_packs.h"

namespace {

constexpr float kLog2 = 0.69314718056f;

/* exp(-x) for x >= 0; what would be no normal number is the smallest one. NaN stays NaN. */
template <class Vector>
INLINE Vector exp_minus(Vector x) {
  typedef int32_t Whole __attribute__((vector_size(sizeof(Vector))));
  const Vector held = x > 87.0f ? Vector{} + 87.0f : x;
  /* Adding this rounds to a whole number, which then is in the lowest bits. */
  constexpr float kRound = 12582912.0f;
  const Vector shifted = held * -1.44269504f + kRound;
  const Vector power = shifted - kRound;
  const Vector rest = (-held - power * 0.693145752f) - power * 1.42860677e-6f;
  Vector sum = rest * 1.98756917e-4f + 1.39819994e-3f;
  sum = sum * rest + 8.33345205e-3f;
  sum = sum * rest + 4.16657962e-2f;
  sum = sum * rest + 1.66666657e-1f;
  sum = sum * rest + 0.5f;
  sum = sum * rest * rest + rest + 1.0f;
  return sum * (Vector)(((Whole)shifted << 23) + (127 << 23));
}

/* log(1 + x) for x between 0 and 1, by the series of 2 artanh(x / (2 + x)). */
template <class Vector>
INLINE Vector log_one_plus(Vector x) {
  const Vector z = x / (x + 2.0f), square = z * z;
  Vector sum = square * (2.0f / 15) + 2.0f / 13;
  sum = sum * square + 2.0f / 11;
  sum = sum * square + 2.0f / 9;
  sum = sum * square + 2.0f / 7;
  sum = sum * square + 2.0f / 5;
  sum = sum * square + 2.0f / 3;
  return sum * square * z + 2.0f * z;
}

/* Softplus minus its value at 0. */
template <class Pack>
INLINE Pack shifted_softplus(Pack x) {
#pragma GCC unroll 8
  for (auto &v : x.v) {
    const auto positive = v > 0.0f ? v : decltype(v - v){};
    v = positive + log_one_plus(exp_minus(v > 0.0f ? v : -v)) - kLog2;
  }
  return x;
}

/* The slope of softplus where its shifted value is `y`. */
template <class Pack>
INLINE Pack slope_of_shifted(Pack y) {
#pragma GCC unroll 8
  for (auto &v : y.v) v = 1.0f - exp_minus(v + kLog2);
  return y;
}

} // namespace
