/* Rows of numbers in vector registers, for any width; written with GCC's vector types, which Clang
   knows too. */
#pragma once
#include <cstdint>
#include <cstring>

namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kWidest = 8;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kWidest = 4;
#else
constexpr int kVectorBytes = 16, kWidest = 4;
#endif
#define ALWAYS __attribute__((always_inline))
#define INLINE inline ALWAYS

/* `Count` vectors of `Bytes` each: a stretch of one row, in registers. */
template <class Real, int Bytes, int Count>
struct Pack {
  typedef Real Vector __attribute__((vector_size(Bytes)));
  /* The same, at any address. */
  typedef Real Loose __attribute__((vector_size(Bytes), aligned(sizeof(Real)), may_alias));
  static constexpr int kLength = Bytes / sizeof(Real);
  static constexpr int kWidth = Count * kLength;
  Vector v[Count];

  static INLINE Pack zero() {
    Pack p;
#pragma GCC unroll 8
    for (int k = 0; k < Count; k++) p.v[k] = Vector{};
    return p;
  }
  static INLINE Pack load(const Real *from) {
    Pack p;
#pragma GCC unroll 8
    for (int k = 0; k < Count; k++) p.v[k] = *reinterpret_cast<const Loose *>(from + k * kLength);
    return p;
  }
  INLINE void store(Real *to) const {
#pragma GCC unroll 8
    for (int k = 0; k < Count; k++) *reinterpret_cast<Loose *>(to + k * kLength) = v[k];
  }
  INLINE Pack times(Real factor) const {
    Pack p;
#pragma GCC unroll 8
    for (int k = 0; k < Count; k++) p.v[k] = factor * v[k];
    return p;
  }
  INLINE Pack &add_product(const Pack &a, const Pack &b) {
#pragma GCC unroll 8
    for (int k = 0; k < Count; k++) v[k] += a.v[k] * b.v[k];
    return *this;
  }
  INLINE Pack &add_product(Real a, const Pack &b) {
#pragma GCC unroll 8
    for (int k = 0; k < Count; k++) v[k] += a * b.v[k];
    return *this;
  }
  /* Add the product with `a` to numbers in memory. */
  template <class Factor>
  INLINE void add_product_to(Real *to, const Factor &a) const {
    Pack sum = load(to);
    sum.add_product(a, *this).store(to);
  }
  INLINE Pack &add(const Pack &a) {
#pragma GCC unroll 8
    for (int k = 0; k < Count; k++) v[k] += a.v[k];
    return *this;
  }
  INLINE Real sum() const {
    Vector total = v[0];
#pragma GCC unroll 8
    for (int k = 1; k < Count; k++) total += v[k];
    Real result = 0;
    for (int k = 0; k < kLength; k++) result += total[k];
    return result;
  }
};

/* Two packs side by side, as one. */
template <class Real, class First, class Second>
struct Joined {
  static constexpr int kWidth = First::kWidth + Second::kWidth;
  First first;
  Second second;

  static INLINE Joined zero() { return {First::zero(), Second::zero()}; }
  static INLINE Joined load(const Real *from) {
    return {First::load(from), Second::load(from + First::kWidth)};
  }
  INLINE void store(Real *to) const {
    first.store(to);
    second.store(to + First::kWidth);
  }
  INLINE Joined times(Real factor) const { return {first.times(factor), second.times(factor)}; }
  INLINE Joined &add_product(const Joined &a, const Joined &b) {
    first.add_product(a.first, b.first);
    second.add_product(a.second, b.second);
    return *this;
  }
  INLINE Joined &add_product(Real a, const Joined &b) {
    first.add_product(a, b.first);
    second.add_product(a, b.second);
    return *this;
  }
  INLINE void add_product_to(Real *to, const Joined &a) const {
    first.add_product_to(to, a.first);
    second.add_product_to(to + First::kWidth, a.second);
  }
  INLINE void add_product_to(Real *to, Real a) const {
    first.add_product_to(to, a);
    second.add_product_to(to + First::kWidth, a);
  }
  INLINE Joined &add(const Joined &a) {
    first.add(a.first);
    second.add(a.second);
    return *this;
  }
  INLINE Real sum() const { return first.sum() + second.sum(); }
};

template <class Real, int Bytes, class Body>
INLINE void narrow_blocks(int64_t &f, int64_t end, Body &body) {
  if (f + int64_t(Bytes / sizeof(Real)) <= end) {
    body(Pack<Real, Bytes, 1>{}, f);
    f += Bytes / sizeof(Real);
  }
  if constexpr (Bytes > int(sizeof(Real))) narrow_blocks<Real, Bytes / 2>(f, end, body);
}

/* Call body(pack type, first feature) for pieces that cover [begin, end), widest first. */
template <class Real, int Count = kWidest, class Body>
INLINE void for_blocks(int64_t begin, int64_t end, Body body) {
  constexpr int kWidth = Count * kVectorBytes / int(sizeof(Real));
  int64_t f = begin;
  for (; f + kWidth <= end; f += kWidth) body(Pack<Real, kVectorBytes, Count>{}, f);
  if constexpr (Count > 1)
    for_blocks<Real, Count / 2>(f, end, body);
  else
    narrow_blocks<Real, kVectorBytes / 2>(f, end, body);
}

/* The same in fewer, more kinds of pieces. Every piece is a pass over what the body reads; so a few
   numbers at the end go along with what is before them. */
template <class Real, int Count = kWidest, class Body>
INLINE void for_few_blocks(int64_t begin, int64_t end, Body body) {
  using Whole = Pack<Real, kVectorBytes, Count>;
  using Few = Pack<Real, 16, 1>;
  int64_t f = begin;
  for (; f + Whole::kWidth <= end; f += Whole::kWidth) {
    if (kVectorBytes > 16 && f + Whole::kWidth + Few::kWidth == end)
      return body(Joined<Real, Whole, Few>{}, f);
    body(Whole{}, f);
  }
  if constexpr (Count > 1)
    for_few_blocks<Real, Count == 8 ? 6 : Count == 6 ? 4 : Count / 2>(f, end, body);
  else
    narrow_blocks<Real, kVectorBytes / 2>(f, end, body);
}

/* Ask for a row that is needed soon, to read or to write it. */
template <int Write = 0, class Real>
INLINE void fetch(const Real *row, int64_t width) {
  const char *at = reinterpret_cast<const char *>(row);
  for (int64_t k = 0; k < width * int64_t(sizeof(Real)); k += 64) __builtin_prefetch(at + k, Write);
}

/* Zero one part of out[0, size). */
template <class Real>
void zero_share(Real *out, int64_t size, int64_t part, int64_t parts) {
  const int64_t begin = size * part / parts, end = size * (part + 1) / parts;
  std::memset(out + begin, 0, sizeof(Real) * size_t(end - begin));
}

} // namespace
