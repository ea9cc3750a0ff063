/* Four rows from each one: rows of a finer grid as sums of consecutive rows of a coarse one.

       fine[4 q + s] = sum over t of weights[s, t] * coarse[q + t]

   and its transpose. Each thread has rows of the result of its own. */
#include "_packs.h"

#include <algorithm>
#include <cstdint>
#include <omp.h>

namespace {

constexpr int kPhases = 4;

/* Filled in by Python (_refine.py), field by field. */
struct Grids {
  int64_t num_coarse, num_fine, width, num_taps, threads;
  const void *weights; /* [kPhases, num_taps] */

  int64_t num_steps() const { return (num_fine + kPhases - 1) / kPhases; }
};

template <class Real>
void refine(const Grids &grids, const Real *coarse, Real *fine, int64_t begin, int64_t end) {
  const Real *weights = static_cast<const Real *>(grids.weights);
  const int64_t width = grids.width, taps = grids.num_taps;
  for (int64_t step = begin; step < end; step++)
    for_blocks<Real, kWidest / 2>(0, width, [&](auto kind, int64_t f) ALWAYS {
      using P = decltype(kind);
      P sums[kPhases] = {P::zero(), P::zero(), P::zero(), P::zero()};
      for (int64_t t = 0; t < taps; t++) {
        const P row = P::load(coarse + (step + t) * width + f);
#pragma GCC unroll 4
        for (int s = 0; s < kPhases; s++) sums[s].add_product(weights[s * taps + t], row);
      }
      for (int64_t s = 0; s < kPhases && step * kPhases + s < grids.num_fine; s++)
        sums[s].store(fine + (step * kPhases + s) * width + f);
    });
}

template <class Real>
void coarsen(const Grids &grids, const Real *fine, Real *coarse, int64_t begin, int64_t end) {
  const Real *weights = static_cast<const Real *>(grids.weights);
  const int64_t width = grids.width, taps = grids.num_taps;
  for (int64_t row = begin; row < end; row++) {
    const int64_t first = std::max<int64_t>(0, row - taps + 1) * kPhases;
    const int64_t last = std::min((row + 1) * kPhases, grids.num_fine);
    for_blocks<Real, kWidest / 2>(0, width, [&](auto kind, int64_t f) ALWAYS {
      using P = decltype(kind);
      P sum = P::zero();
      for (int64_t k = first; k < last; k++)
        sum.add_product(weights[k % kPhases * taps + row - k / kPhases],
                        P::load(fine + k * width + f));
      sum.store(coarse + row * width + f);
    });
  }
}

template <class Work>
void share_rows(const Grids &grids, int64_t rows, Work work) {
#pragma omp parallel num_threads(int(grids.threads)) if (grids.threads > 1)
  {
    const int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
    work(rows * part / parts, rows * (part + 1) / parts);
  }
}

} // namespace

#define EXPORT(SUFFIX, Real)                                                                       \
  extern "C" void torchkiln_refine_##SUFFIX(const Grids *grids, const Real *coarse, Real *fine) {  \
    share_rows(*grids, grids->num_steps(), [&](int64_t begin, int64_t end) {                       \
      refine(*grids, coarse, fine, begin, end);                                                    \
    });                                                                                            \
  }                                                                                                \
  extern "C" void torchkiln_coarsen_##SUFFIX(const Grids *grids, const Real *fine, Real *coarse) { \
    share_rows(*grids, grids->num_coarse, [&](int64_t begin, int64_t end) {                        \
      coarsen(*grids, fine, coarse, begin, end);                                                   \
    });                                                                                            \
  }

EXPORT(f32, float)
EXPORT(f64, double)
