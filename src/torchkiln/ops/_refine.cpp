/* Four rows from each one: rows of a finer grid as sums of consecutive rows of a coarse one.

       fine[4 q + s] = sum over t of weights[s, t] * scale[q + t] * coarse[q + t]

   and its transpose. Each thread has rows of the result of its own. */
#include "_packs.h"
#include "_tensors.h"

#include <algorithm>
#include <cstdint>
#include <omp.h>

namespace {

constexpr int kPhases = 4;

struct Grids {
  int64_t num_coarse, num_fine, width, num_taps, threads;
  const void *weights; /* [kPhases, num_taps] */
  const void *scale;   /* [num_coarse] */

  int64_t num_steps() const { return (num_fine + kPhases - 1) / kPhases; }
};

template <class Real>
void refine(const Grids &grids, const Real *coarse, Real *fine, int64_t begin, int64_t end) {
  const Real *weights = static_cast<const Real *>(grids.weights);
  const Real *scale = static_cast<const Real *>(grids.scale);
  const int64_t width = grids.width, taps = grids.num_taps;
  for (int64_t step = begin; step < end; step++)
    for_blocks<Real, kWidest / 2>(0, width, [&](auto kind, int64_t f) ALWAYS {
      using P = decltype(kind);
      P sums[kPhases] = {P::zero(), P::zero(), P::zero(), P::zero()};
      for (int64_t t = 0; t < taps; t++) {
        const P row = P::load(coarse + (step + t) * width + f).times(scale[step + t]);
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
  const Real *scale = static_cast<const Real *>(grids.scale);
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
      sum.times(scale[row]).store(coarse + row * width + f);
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

/* Return `out`, made of `given` by one of the functions above. */
template <class Make>
Tensor make_rows(const Tensor &given, const Tensor &given_weights, const Tensor &given_scale,
                 Tensor out, bool finer, Make make) {
  const Tensor from = dense(given), weights = dense(given_weights), scale = dense(given_scale);
  const int64_t width = out.size(1), taps = weights.size(1);
  const Tensor &coarse = finer ? from : out, &fine = finer ? out : from;
  const Grids grids{coarse.size(0), fine.size(0), width, taps,
                    num_threads(fine.size(0) * width * taps), address<void>(weights),
                    address<void>(scale)};
  with_type_of(out, [&](auto real) {
    using Real = decltype(real);
    const int64_t rows = finer ? grids.num_steps() : grids.num_coarse;
    share_rows(grids, rows, [&](int64_t begin, int64_t end) {
      make(grids, address<const Real>(from), address<Real>(out), begin, end);
    });
  });
  return out;
}

Tensor operator_refine(Tensor x, Tensor weights, Tensor scale, int64_t num_rows) {
  return make_rows(x, weights, scale, new_rows(x, num_rows), true,
                   [](auto... all) { refine(all...); });
}

Tensor operator_coarsen(Tensor grad, Tensor weights, Tensor scale) {
  return make_rows(grad, weights, scale, new_rows(grad, scale.size(0)), false,
                   [](auto... all) { coarsen(all...); });
}

} // namespace

STABLE_TORCH_LIBRARY_IMPL(torchkiln, CPU, library) {
  Kernel<&operator_refine, float, double>::add_to(library, "refine");
  Kernel<&operator_coarsen, float, double>::add_to(library, "coarsen");
}
