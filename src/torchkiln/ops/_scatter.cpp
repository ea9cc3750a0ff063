/* Sums and extremes of rows that go to any place, without atomics: a thread owns a range of places
   and reads the whole list of them, so each place gets its rows in the order of the list. */
#include "_packs.h"
#include "_tensors.h"

#include <omp.h>

namespace {

struct Rows {
  const int64_t *target;
  /* Which row of the table an entry takes; null: its own. */
  const int64_t *source;
  int64_t num_entries, num_targets, num_sources, width;
  /* From one row of the table to the next. */
  int64_t stride;
  /* Whether the result holds values already that count. */
  int64_t has_base;
  int64_t threads;
};

/* Call body(entry, place, row of the table) for all entries of this thread's places. Returns
   whether all of them lie inside. */
template <class Body>
INLINE bool for_own_entries(const Rows &rows, Body body) {
  const int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
  const int64_t begin = rows.num_targets * part / parts;
  const int64_t end = rows.num_targets * (part + 1) / parts;
  for (int64_t entry = 0; entry < rows.num_entries; entry++) {
    const int64_t place = rows.target[entry];
    if (place < 0 || place >= rows.num_targets) return false;
    if (place < begin || place >= end) continue;
    const int64_t row = rows.source ? rows.source[entry] : entry;
    if (row < 0 || row >= rows.num_sources) return false;
    body(entry, place, row);
  }
  return true;
}

template <class Real>
void zero_own_places(const Rows &rows, Real *out) {
  const int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
  const int64_t begin = rows.num_targets * part / parts;
  const int64_t end = rows.num_targets * (part + 1) / parts;
  std::memset(out + begin * rows.width, 0, sizeof(Real) * size_t((end - begin) * rows.width));
}

/* out[target[e]] += x[source[e]]; times weight[e, g], each for width / groups features. */
template <class Real>
bool scatter_sum(const Rows &rows, const Real *x, const Real *weight, int64_t groups, Real *out) {
  const int64_t width = rows.width, span = groups ? width / groups : 0;
  bool good = true;
#pragma omp parallel num_threads(int(rows.threads)) if (rows.threads > 1) reduction(&& : good)
  {
    if (!rows.has_base) zero_own_places(rows, out);
    if (!weight) {
      good = for_own_entries(rows, [&](int64_t, int64_t place, int64_t row) ALWAYS {
        for_blocks<Real>(0, width, [&](auto kind, int64_t f) ALWAYS {
          using P = decltype(kind);
          Real *to = out + place * width + f;
          P::load(to).add(P::load(x + row * rows.stride + f)).store(to);
        });
      });
    } else if (span == 1) {
      good = for_own_entries(rows, [&](int64_t entry, int64_t place, int64_t row) ALWAYS {
        for_blocks<Real>(0, width, [&](auto kind, int64_t f) ALWAYS {
          using P = decltype(kind);
          Real *to = out + place * width + f;
          const P factor = P::load(weight + entry * width + f);
          P::load(to).add_product(factor, P::load(x + row * rows.stride + f)).store(to);
        });
      });
    } else {
      good = for_own_entries(rows, [&](int64_t entry, int64_t place, int64_t row) ALWAYS {
        for (int64_t g = 0; g < groups; g++) {
          const Real factor = weight[entry * groups + g];
          for_blocks<Real>(g * span, (g + 1) * span, [&](auto kind, int64_t f) ALWAYS {
            using P = decltype(kind);
            Real *to = out + place * width + f;
            P::load(to).add_product(factor, P::load(x + row * rows.stride + f)).store(to);
          });
        }
      });
    }
  }
  return good;
}

/* The largest or smallest entry of each place; NaN wins, as in torch. `seen` has a byte a place,
   all 0, which says whether a place has got a value. */
template <class Real, bool kLargest>
bool scatter_extreme(const Rows &rows, const Real *x, uint8_t *seen, Real *out) {
  const int64_t width = rows.width;
  bool good = true;
#pragma omp parallel num_threads(int(rows.threads)) if (rows.threads > 1) reduction(&& : good)
  {
    if (!rows.has_base) zero_own_places(rows, out);
    good = for_own_entries(rows, [&](int64_t, int64_t place, int64_t row) ALWAYS {
      const Real *from = x + row * rows.stride;
      Real *to = out + place * width;
      if (!seen[place]) {
        seen[place] = 1;
        std::memcpy(to, from, sizeof(Real) * size_t(width));
        return;
      }
      for (int64_t f = 0; f < width; f++) {
        const bool better = kLargest ? from[f] > to[f] : from[f] < to[f];
        to[f] = better || from[f] != from[f] ? from[f] : to[f];
      }
    });
  }
  return good;
}

/* Every thread reads the whole index, which takes about as long as adding so many numbers a row. */
constexpr int64_t kMinWidthPerThread = 4;

/* Rows at any distance, each in one piece: slices of wider tensors (gradients of a concatenation)
   are read where they are. */
Tensor with_dense_rows(const Tensor &x) {
  int64_t step = 1;
  for (int64_t k = x.dim(); k-- > 1; step *= x.size(k))
    if (x.size(k) != 1 && x.stride(k) != step) return torch::stable::contiguous(x);
  return x.size(0) ? x : torch::stable::contiguous(x);
}

/* What results begin with; must be filled if there is no base. */
Tensor start(const Tensor &x, int64_t num_rows, const MaybeTensor &base) {
  Tensor out = new_rows(x, num_rows);
  if (base) torch::stable::copy_(out, *base);
  return out;
}

Rows describe(const Tensor &x, const Tensor &index, const MaybeTensor &source, int64_t num_rows,
              bool has_base) {
  const int64_t width = row_numel(x), num_entries = index.size(0);
  const int64_t threads =
      std::min(num_threads(num_entries * width), std::max<int64_t>(1, width / kMinWidthPerThread));
  return {address<int64_t>(index), address<int64_t>(source), num_entries, num_rows, x.size(0),
          width,                   x.stride(0),              has_base,    threads};
}

/* Say which entry leaves the rows. */
void complain(const Rows &rows) {
  const auto look = [&](const int64_t *numbers, int64_t limit, const std::string &what) {
    for (int64_t entry = 0; numbers && entry < rows.num_entries; entry++)
      if (numbers[entry] < 0 || numbers[entry] >= limit)
        throw std::runtime_error(
            "entry " + std::to_string(entry) + " of an aggregation " + what + " row " +
            std::to_string(numbers[entry]) + ", but there are " + std::to_string(limit) +
            " rows; indices (edge_index, batch) must count rows of the batch from 0");
  };
  look(rows.target, rows.num_targets, "goes to");
  look(rows.source, rows.num_sources, "comes from");
}

Tensor operator_sum(Tensor given, Tensor index, int64_t num_rows, MaybeTensor source,
                    MaybeTensor weight, MaybeTensor base) {
  const Tensor x = with_dense_rows(given), out = start(given, num_rows, base);
  index = dense(index), source = dense(source), weight = dense(weight);
  const Rows rows = describe(x, index, source, num_rows, base.has_value());
  const int64_t groups = weight ? row_numel(*weight) : 0;
  const bool good = with_type_of(x, [&](auto real) {
    using Real = decltype(real);
    return scatter_sum(rows, address<const Real>(x), address<const Real>(weight), groups,
                       address<Real>(out));
  });
  if (!good) complain(rows);
  return out;
}

Tensor operator_extreme(Tensor given, Tensor index, int64_t num_rows, bool largest,
                        MaybeTensor base, bool include_base) {
  const Tensor x = with_dense_rows(given), out = start(given, num_rows, base);
  index = dense(index);
  const Rows rows = describe(x, index, std::nullopt, num_rows, base.has_value());
  std::vector<uint8_t> seen(size_t(num_rows), include_base);
  const bool good = with_type_of(x, [&](auto real) {
    using Real = decltype(real);
    const auto kernel = largest ? scatter_extreme<Real, true> : scatter_extreme<Real, false>;
    return kernel(rows, address<const Real>(x), seen.data(), address<Real>(out));
  });
  if (!good) complain(rows);
  return out;
}

} // namespace

STABLE_TORCH_LIBRARY_IMPL(torchkiln, CPU, library) {
  Kernel<&operator_sum, float, double>::add_to(library, "scatter_sum");
  Kernel<&operator_extreme, float, double>::add_to(library, "scatter_extreme");
}
