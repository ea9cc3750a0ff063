/* Memory for what kernels compute by the way. */
#pragma once
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace {

/* Memory that a thread keeps from call to call. */
template <class Real>
class Scratch {
public:
  void reserve(int64_t size) {
    if (size > capacity_) {
      memory_.reset();
      /* Whole cache lines. */
      const size_t bytes = (sizeof(Real) * size_t(size) + 63) / 64 * 64;
      memory_.reset(static_cast<Real *>(std::aligned_alloc(64, bytes)));
      capacity_ = memory_ ? size : 0;
    }
    used_ = 0;
  }
  Real *take(int64_t size) {
    Real *taken = memory_.get() + used_;
    used_ += (size + kAlign - 1) / kAlign * kAlign;
    return taken;
  }

private:
  static constexpr int64_t kAlign = 64 / int64_t(sizeof(Real));
  struct Free {
    void operator()(Real *memory) const { std::free(memory); }
  };
  std::unique_ptr<Real, Free> memory_;
  int64_t capacity_ = 0, used_ = 0;
};

template <class Real>
thread_local Scratch<Real> scratch_of;

} // namespace
