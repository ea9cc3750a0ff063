/* Operators of torch in C++: tensors as kernels see them, new ones for results, and registration.

   Only torch's stable interface is used, which compiles in a second. */
#pragma once
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

/* Below this many numbers per thread, waking another one costs more than it saves. A variable, so
   that tests can divide small work. */
extern "C" {
int64_t torchkiln_min_numel_per_thread = 32768;
}

namespace {

using torch::stable::Tensor;
using MaybeTensor = std::optional<Tensor>;

/* How many of torch's threads to use for work on `numel` numbers. */
inline int64_t num_threads(int64_t numel) {
  const int64_t all = torch::stable::get_num_threads();
  return std::max<int64_t>(1, std::min(all, numel / torchkiln_min_numel_per_thread));
}

inline Tensor dense(const Tensor &x) {
  return x.is_contiguous() ? x : torch::stable::contiguous(x);
}
inline MaybeTensor dense(const MaybeTensor &x) { return x ? MaybeTensor(dense(*x)) : x; }

/* The first number of a tensor; null if there is none. */
template <class T>
T *address(const Tensor &x) {
  return static_cast<T *>(x.data_ptr());
}
template <class T>
T *address(const MaybeTensor &x) {
  return x ? address<T>(*x) : nullptr;
}

/* The numbers in each row. */
inline int64_t row_numel(const Tensor &x) {
  int64_t numel = 1;
  for (int64_t k = 1; k < x.dim(); k++) numel *= x.size(k);
  return numel;
}

/* A new tensor with the dtype of another; what is in it is not defined. */
inline Tensor make_tensor(const Tensor &like, const std::vector<int64_t> &sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (size_t k = sizes.size(); k-- > 0; step *= sizes[k]) strides[k] = step;
  int32_t dtype = 0;
  AtenTensorHandle made = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &dtype));
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(int64_t(sizes.size()), sizes.data(),
                                                  strides.data(), dtype,
                                                  aoti_torch_device_type_cpu(), 0, &made));
  return Tensor(made);
}
/* The same with the rows of another, but so many of them. */
inline Tensor new_rows(const Tensor &like, int64_t num_rows) {
  const auto sizes = like.sizes();
  std::vector<int64_t> all(sizes.begin(), sizes.end());
  all[0] = num_rows;
  return make_tensor(like, all);
}

/* Call work(number of the type of x), which is a float or a double. */
template <class Work>
auto with_type_of(const Tensor &x, Work work) {
  return x.element_size() == sizeof(float) ? work(float()) : work(double());
}

/* Throw what an operator of Python, which checks what a kernel refused, has to say of it. */
template <class... Arguments>
[[noreturn]] void refuse(const char *checker, const Arguments &...arguments) {
  StableIValue stack[] = {torch::stable::detail::from(arguments)...};
  if (torch_call_dispatcher(checker, "", stack, TORCH_ABI_VERSION) != TORCH_SUCCESS)
    throw std::runtime_error(torch_exception_get_what_without_backtrace());
  throw std::runtime_error("a kernel refused what looks right");
}

/* The CPU's kernel of an operator. `Reals` are the types it is made for, by the first argument; for
   others, plain torch is called, which Python defines (_define.py). */
template <auto function, class... Reals>
struct Kernel {
  /* A function: variables of the class would be initialised after registration. */
  static std::string &plain() {
    static std::string name;
    return name;
  }

  static void add_to(torch::stable::detail::StableLibrary &library, const std::string &name) {
    plain() = "torchkiln::" + name + "_plain";
    library.impl(name.c_str(), &call);
  }

  static void call(StableIValue *stack, uint64_t num_inputs, uint64_t num_outputs) {
    AtenTensorHandle first;
    std::memcpy(&first, stack, sizeof(first));
    int32_t dtype = 0;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(first, &dtype));
    if (((dtype == number_of(Reals())) || ...))
      TORCH_BOX(function)(stack, num_inputs, num_outputs);
    else
      STABLE_TORCH_ERROR_CODE_CHECK(
          torch_call_dispatcher(plain().c_str(), "", stack, TORCH_ABI_VERSION));
  }
  static int32_t number_of(float) { return aoti_torch_dtype_float32(); }
  static int32_t number_of(double) { return aoti_torch_dtype_float64(); }
};

} // namespace
