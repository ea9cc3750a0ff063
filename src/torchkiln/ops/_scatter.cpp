/* Sums and extremes of rows that go to any place, without atomics: a thread owns a range of places
   and reads the whole list of them, so each place gets its rows in the order of the list. */
#include "_packs.h"

#include <omp.h>

namespace {

/* What the caller fills in; see _scatter.py. */
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

} // namespace

#define KERNELS(suffix, Real)                                                                      \
  extern "C" bool torchkiln_scatter_sum_##suffix(const Rows *rows, const Real *x,                  \
                                                 const Real *weight, int64_t groups, Real *out) {  \
    return scatter_sum(*rows, x, weight, groups, out);                                             \
  }                                                                                                \
  extern "C" bool torchkiln_scatter_max_##suffix(const Rows *rows, const Real *x, uint8_t *seen,   \
                                                 Real *out) {                                      \
    return scatter_extreme<Real, true>(*rows, x, seen, out);                                       \
  }                                                                                                \
  extern "C" bool torchkiln_scatter_min_##suffix(const Rows *rows, const Real *x, uint8_t *seen,   \
                                                 Real *out) {                                      \
    return scatter_extreme<Real, false>(*rows, x, seen, out);                                      \
  }

KERNELS(f32, float)
KERNELS(f64, double)
