/* Sums over consecutive rows. */
#include "_packs.h"
#include "_tensors.h"

#include <omp.h>

namespace {

/* Sums of rows of the same segment; a thread takes whole segments. Returns whether all rows
   were in order and belong to a segment. */
template <class Real>
bool segment_sum(const Real *x, const int64_t *segment, int64_t num_rows, int64_t num_segments,
                    int64_t width, int64_t threads, Real *out) {
  bool good = true;
#pragma omp parallel num_threads(int(threads)) if (threads > 1) reduction(&& : good)
  {
    const int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
    zero_share(out, num_segments * width, part, parts);
#pragma omp barrier
    const auto cut = [&](int64_t p) {
      int64_t row = num_rows * p / parts;
      while (row > 0 && row < num_rows && segment[row] == segment[row - 1]) row++;
      return row;
    };
    const int64_t last = cut(part + 1), limit = last < num_rows ? segment[last] : num_segments;
    int64_t segment_before = 0;
    for (int64_t row = cut(part); row < last; row++) {
      const int64_t here = segment[row];
      if (here < segment_before || here >= limit || here >= num_segments) {
        good = false;
        break;
      }
      segment_before = here;
      for_blocks<Real>(0, width, [&](auto kind, int64_t f) ALWAYS {
        using P = decltype(kind);
        Real *to = out + here * width + f;
        P::load(to).add(P::load(x + row * width + f)).store(to);
      });
    }
  }
  return good;
}

Tensor operator_segment_sum(Tensor given, Tensor given_batch, int64_t num_segments) {
  const Tensor x = dense(given), batch = dense(given_batch), out = new_rows(x, num_segments);
  const bool good = with_type_of(x, [&](auto real) {
    using Real = decltype(real);
    return segment_sum(address<const Real>(x), address<const int64_t>(batch), x.size(0),
                       num_segments, row_numel(x), num_threads(x.numel()), address<Real>(out));
  });
  if (!good) refuse("torchkiln::segment_sum_check", batch, num_segments);
  return out;
}

} // namespace

STABLE_TORCH_LIBRARY_IMPL(torchkiln, CPU, library) {
  Kernel<&operator_segment_sum, float, double>::add_to(library, "segment_sum");
}
