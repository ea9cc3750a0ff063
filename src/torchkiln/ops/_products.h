/* Products of small matrices that are in the cache, with something to do before and after them.

   A result is formed block by block in registers: where its sums begin, and what becomes of them,
   is given as functions, so that biases, activations and residuals cost no pass over memory. */
#pragma once
#include "_packs.h"

#include <algorithm>
#include <type_traits>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace {

/* Rows and vectors of a block: as many sums as there are registers for them. */
constexpr int kBlockRows = 6;
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kBlockVectors = 4;
#else
constexpr int kBlockVectors = 2;
#endif
constexpr int64_t kLane = kVectorBytes / int64_t(sizeof(float));
constexpr int64_t kPanel = kBlockVectors * kLane;

INLINE int64_t padded(int64_t width) { return (width + kLane - 1) / kLane * kLane; }
/* The distance of rows in memory of our own: a power of two would fill few sets of the cache. */
INLINE int64_t spaced(int64_t width) { return padded(width) + kLane; }

template <int Vectors>
using Row = Pack<float, kVectorBytes, Vectors>;

/* The left factor, at any distance of its rows and columns. */
struct Left {
  const float *at;
  int64_t next_row, next_column;
};

/* The right factor: rows of whole vectors, in one piece or by panels of `kPanel` columns. */
struct Right {
  const float *at;
  int64_t next_row, next_panel;
};

#if defined(__AVX512F__)
/* The mask of the first `count` numbers of a vector. */
INLINE __mmask16 first_lanes(int64_t count) {
  return __mmask16(count >= kLane ? 0xffff : count <= 0 ? 0 : (1 << count) - 1);
}
#endif

/* One block of sums, from begin(pack, row) to end(pack, row). */
template <int Rows, int Vectors, class Begin, class End>
INLINE void multiply_block(int64_t row, int64_t depth, const Left &left, const float *right,
                           int64_t next, Begin begin, End end) {
  Row<Vectors> sums[Rows];
#pragma GCC unroll 8
  for (int k = 0; k < Rows; k++) sums[k] = begin(Row<Vectors>{}, row + k);
  const float *at = left.at + row * left.next_row;
  for (int64_t k = 0; k < depth; k++, at += left.next_column, right += next) {
    const auto line = Row<Vectors>::load(right);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; r++) sums[r].add_product(at[r * left.next_row], line);
  }
#pragma GCC unroll 8
  for (int k = 0; k < Rows; k++) end(sums[k], row + k);
}

template <int Vectors, class Begin, class End>
INLINE void multiply_panel(int64_t rows, int64_t depth, const Left &left, const float *right,
                           int64_t next, Begin begin, End end) {
  int64_t row = 0;
  for (; row + kBlockRows <= rows; row += kBlockRows)
    multiply_block<kBlockRows, Vectors>(row, depth, left, right, next, begin, end);
  for (; row + 2 <= rows; row += 2)
    multiply_block<2, Vectors>(row, depth, left, right, next, begin, end);
  if (row < rows) multiply_block<1, Vectors>(row, depth, left, right, next, begin, end);
}

/* Call end(pack, row, column) with begin(pack type, row, column) + left @ right, all of it;
   `columns` are rounded up to whole vectors. */
template <class Begin, class End>
INLINE void multiply(int64_t rows, int64_t depth, int64_t columns, const Left &left,
                     const Right &right, Begin begin, End end) {
  const auto panel = [&](auto vectors, int64_t column) ALWAYS {
    multiply_panel<decltype(vectors)::value>(
        rows, depth, left, right.at + column / kPanel * right.next_panel, right.next_row,
        [&](auto kind, int64_t row) ALWAYS { return begin(kind, row, column); },
        [&](auto sums, int64_t row) ALWAYS { end(sums, row, column); });
  };
  int64_t column = 0;
  for (; column + kPanel <= padded(columns); column += kPanel)
    panel(std::integral_constant<int, kBlockVectors>{}, column);
  const int64_t left_over = (padded(columns) - column) / kLane;
  if constexpr (kBlockVectors > 2) {
    if (left_over == 3) panel(std::integral_constant<int, 3>{}, column);
    if (left_over == 2) panel(std::integral_constant<int, 2>{}, column);
  }
  if (left_over == 1) panel(std::integral_constant<int, 1>{}, column);
}

/* Write the numbers of a pack that belong to a row of `width`. */
template <int Vectors>
INLINE void store_within(const Row<Vectors> &pack, float *row, int64_t column, int64_t width) {
  if (column + Row<Vectors>::kWidth <= width) return pack.store(row + column);
#if defined(__AVX512F__)
#pragma GCC unroll 8
  for (int k = 0; k < Vectors; k++)
    _mm512_mask_storeu_ps(row + column + k * kLane, first_lanes(width - column - k * kLane),
                          pack.v[k]);
#else
  float all[Row<Vectors>::kWidth];
  pack.store(all);
  std::memcpy(row + column, all, sizeof(float) * size_t(width - column));
#endif
}

template <class P>
INLINE P load_within(P, const float *row, int64_t column, int64_t width) {
  if (column + P::kWidth <= width) return P::load(row + column);
#if defined(__AVX512F__)
  P pack;
#pragma GCC unroll 8
  for (int k = 0; k < P::kWidth / kLane; k++)
    pack.v[k] = _mm512_maskz_loadu_ps(first_lanes(width - column - k * kLane),
                                      row + column + k * kLane);
  return pack;
#else
  float all[P::kWidth] = {};
  std::memcpy(all, row + column, sizeof(float) * size_t(width - column));
  return P::load(all);
#endif
}

/* Rows of `width` numbers, copied to where they are padded with zeros and spaced. */
inline void copy_rows(float *to, const float *from, int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; row++, to += spaced(width), from += width)
    for (int64_t column = 0; column < width; column += kLane)
      load_within(Row<1>{}, from, column, width).store(to + column);
}

INLINE int64_t panels_size(int64_t rows, int64_t columns) {
  return (padded(columns) + kPanel - 1) / kPanel * kPanel * rows;
}

/* Copy a matrix [rows, columns], found at distances `next_row` and `next_column`, into panels. */
inline Right lay_panels(float *to, const float *from, int64_t rows, int64_t columns,
                        int64_t next_row, int64_t next_column) {
  for (int64_t first = 0; first < columns; first += kPanel) {
    float *panel = to + first * rows;
    const int64_t count = std::min(columns - first, kPanel);
    for (int64_t row = 0; row < rows; row++)
      std::fill(panel + row * kPanel + count, panel + (row + 1) * kPanel, 0.0f);
    /* Read along memory, whichever way that is. */
    if (next_column == 1)
      for (int64_t row = 0; row < rows; row++)
        std::memcpy(panel + row * kPanel, from + row * next_row + first,
                    sizeof(float) * size_t(count));
    else
      for (int64_t column = 0; column < count; column++)
        for (int64_t row = 0; row < rows; row++)
          panel[row * kPanel + column] = from[row * next_row + (first + column) * next_column];
  }
  return {to, kPanel, kPanel * rows};
}

} // namespace
