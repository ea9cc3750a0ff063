/* Two layers with a softplus between them, what follows them, and the gradients of it all.

       hidden = softplus(x @ first' + first_bias) - log 2
       y = hidden @ second' + second_bias + residual
       z = y @ third'

   Residual and third layer may be missing. Rows are independent: they pass through all layers by
   tiles that stay in the cache. Each thread has its own rows and sums gradients of weights by
   itself; those sums are added in the order of threads. */
#include "_products.h"
#include "_scratch.h"
#include "_softplus.h"
#include "_tensors.h"

#include <cstdint>
#include <omp.h>
#include <vector>

namespace {

constexpr int64_t kTileRows = 96;
/* Multiply-adds that take as long as other work on one number. */
constexpr int64_t kProductsPerNumber = 32;
/* What rounding up to whole cache lines may add, for all pieces of memory together. */
constexpr int64_t kSlack = 512;

struct Layers {
  int64_t rows, input, middle, output, third_output, threads;
  const float *x, *first, *first_bias, *second, *second_bias;
  const float *residual, *third; /* each may be null */
  /* forward writes, backward reads */
  float *y, *hidden, *z; /* hidden and z may be null in forward */
  /* backward only */
  const float *grad_y, *grad_z; /* each may be null */
  float *grad_x, *grad_residual; /* each may be null */
  float *grad_first, *grad_first_bias, *grad_second, *grad_second_bias, *grad_third;
};

/* Where the rows of a thread begin: at a whole block, since rows beside a block are computed by
   other code, which may round otherwise. So no row depends on how many threads there are. */
INLINE int64_t first_row(int64_t rows, int64_t part, int64_t parts) {
  const int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
  return std::min(rows, blocks * part / parts * kBlockRows);
}

/* Call work(first row, count) for tiles of the rows of one thread. */
template <class Work>
INLINE void for_tiles(int64_t rows, int64_t part, int64_t parts, Work work) {
  static_assert(kTileRows % kBlockRows == 0, "tiles begin at whole blocks, too");
  const int64_t end = first_row(rows, part + 1, parts);
  for (int64_t row = first_row(rows, part, parts); row < end; row += kTileRows)
    work(row, std::min(kTileRows, end - row));
}

struct Bias {
  const float *values;
  template <class P>
  INLINE P operator()(P, int64_t, int64_t column) const {
    return values ? P::load(values + column) : P::zero();
  }
};

float *padded_copy(const float *from, int64_t width) {
  float *to = scratch_of<float>.take(padded(width));
  copy_rows(to, from, 1, width);
  return to;
}

/* Panels of a layer's weights [outputs, inputs], and of their transpose. */
Right panels(const float *weights, int64_t outputs, int64_t inputs) {
  float *to = scratch_of<float>.take(panels_size(outputs, inputs));
  return lay_panels(to, weights, outputs, inputs, inputs, 1);
}
Right transposed(const float *weights, int64_t outputs, int64_t inputs) {
  float *to = scratch_of<float>.take(panels_size(inputs, outputs));
  return lay_panels(to, weights, inputs, outputs, 1, inputs);
}

void forward(const Layers &net, int64_t part, int64_t parts) {
  const int64_t middle = net.middle, output = net.output, last = net.third_output;
  Scratch<float> &scratch = scratch_of<float>;
  scratch.reserve(panels_size(net.input, middle) + panels_size(middle, output) +
                  panels_size(output, last) + padded(middle) + padded(output) +
                  kTileRows * (spaced(middle) + spaced(output)) + kSlack);
  const Right first = transposed(net.first, middle, net.input);
  const Right second = transposed(net.second, output, middle);
  const Right third = net.third ? transposed(net.third, last, output) : Right{};
  const Bias first_bias{padded_copy(net.first_bias, middle)};
  const Bias second_bias{padded_copy(net.second_bias, output)};
  float *hidden = scratch.take(kTileRows * spaced(middle));
  float *y = scratch.take(kTileRows * spaced(output));
  for_tiles(net.rows, part, parts, [&](int64_t top, int64_t rows) {
    /* What the next products read and write is on its way while this one is computed. */
    multiply(rows, net.input, middle, {net.x + top * net.input, net.input, 1}, first, first_bias,
             [&](auto sums, int64_t row, int64_t column) ALWAYS {
               if (column == 0) {
                 fetch(net.x + (top + row + kTileRows) * net.input, net.input);
                 if (net.residual) fetch(net.residual + (top + row) * output, output);
                 fetch<1>(net.y + (top + row) * output, output);
                 if (net.third) fetch<1>(net.z + (top + row) * last, last);
               }
               sums = shifted_softplus(sums);
               sums.store(hidden + row * spaced(middle) + column);
               if (net.hidden)
                 store_within(sums, net.hidden + (top + row) * middle, column, middle);
             });
    multiply(rows, middle, output, {hidden, spaced(middle), 1}, second, second_bias,
             [&](auto sums, int64_t row, int64_t column) ALWAYS {
               if (net.residual)
                 sums.add(load_within(sums, net.residual + (top + row) * output, column, output));
               store_within(sums, net.y + (top + row) * output, column, output);
               if (net.third) sums.store(y + row * spaced(output) + column);
             });
    if (net.third)
      multiply(rows, output, last, {y, spaced(output), 1}, third, Bias{nullptr},
               [&](auto sums, int64_t row, int64_t column) ALWAYS {
                 store_within(sums, net.z + (top + row) * last, column, last);
               });
  });
}

/* Sums over rows of one layer: gradients of its weights and of its bias. */
struct LayerSums {
  int64_t outputs = 0, inputs = 0;
  float *weights = nullptr, *bias = nullptr;

  LayerSums() = default;
  LayerSums(int64_t outputs, int64_t inputs) : outputs(outputs), inputs(inputs) {
    weights = scratch_of<float>.take(outputs * padded(inputs));
    bias = scratch_of<float>.take(padded(outputs));
    std::fill(weights, weights + outputs * padded(inputs), 0.0f);
    std::fill(bias, bias + padded(outputs), 0.0f);
  }
  static int64_t size(int64_t outputs, int64_t inputs) {
    return outputs * padded(inputs) + padded(outputs);
  }

  /* Add those of a tile: gradients of what the layer gave, and what it got, padded and spaced.
     They are summed from zero, as sums of sums round less. */
  void add(int64_t rows, const float *grads, int64_t next_row, const float *got) {
    multiply(outputs, rows, inputs, {grads, 1, next_row}, {got, spaced(inputs), kPanel},
             Bias{nullptr}, [&](auto sums, int64_t row, int64_t column) ALWAYS {
               float *to = weights + row * padded(inputs) + column;
               sums.add(decltype(sums)::load(to)).store(to);
             });
  }
  /* `grads` padded and spaced. */
  void add_bias(int64_t rows, const float *grads) {
    for_blocks<float>(0, padded(outputs), [&](auto kind, int64_t column) ALWAYS {
      using P = decltype(kind);
      P sum = P::zero();
      for (int64_t row = 0; row < rows; row++)
        sum.add(P::load(grads + row * spaced(outputs) + column));
      sum.add(P::load(bias + column)).store(bias + column);
    });
  }
};

struct Sums {
  LayerSums first, second, third;
};

/* One part of the sums of all threads, added in their order. */
void add_up(const std::vector<Sums> &all, LayerSums Sums::*layer, float *weights, float *bias,
            int64_t part, int64_t parts) {
  if (!weights) return;
  const int64_t outputs = (all[0].*layer).outputs, inputs = (all[0].*layer).inputs;
  for (int64_t row = outputs * part / parts; row < outputs * (part + 1) / parts; row++) {
    float *to = weights + row * inputs;
    std::copy_n((all[0].*layer).weights + row * padded(inputs), inputs, to);
    if (bias) bias[row] = (all[0].*layer).bias[row];
    for (int64_t k = 1; k < parts; k++) {
      const float *from = (all[size_t(k)].*layer).weights + row * padded(inputs);
      for (int64_t column = 0; column < inputs; column++) to[column] += from[column];
      if (bias) bias[row] += (all[size_t(k)].*layer).bias[row];
    }
  }
}

Sums backward(const Layers &net, int64_t part, int64_t parts) {
  const int64_t input = net.input, middle = net.middle, output = net.output;
  const int64_t last = net.third_output;
  Scratch<float> &scratch = scratch_of<float>;
  scratch.reserve(panels_size(middle, input) + panels_size(output, middle) +
                  panels_size(last, output) + LayerSums::size(middle, input) +
                  LayerSums::size(output, middle) + LayerSums::size(last, output) +
                  kTileRows * (spaced(input) + 2 * spaced(middle) + 2 * spaced(output)) + kSlack);
  Sums sums{{middle, input}, {output, middle}, {last, output}};
  const Right first = panels(net.first, middle, input);
  const Right second = panels(net.second, output, middle);
  const Right third = net.third ? panels(net.third, last, output) : Right{};
  float *x = scratch.take(kTileRows * spaced(input));
  float *hidden = scratch.take(kTileRows * spaced(middle));
  float *grad_hidden = scratch.take(kTileRows * spaced(middle));
  float *y = scratch.take(kTileRows * spaced(output));
  float *grad_y = scratch.take(kTileRows * spaced(output));
  for_tiles(net.rows, part, parts, [&](int64_t top, int64_t rows) {
    const auto given = [&](auto kind, int64_t row, int64_t column) ALWAYS {
      return net.grad_y ? load_within(kind, net.grad_y + (top + row) * output, column, output)
                        : decltype(kind)::zero();
    };
    const bool follows = net.third && net.grad_z;
    const float *grad_z = follows ? net.grad_z + top * last : nullptr;
    multiply(rows, follows ? last : 0, output, {grad_z, last, 1}, third, given,
             [&](auto grads, int64_t row, int64_t column) ALWAYS {
               if (column == 0) {
                 fetch(net.hidden + (top + row) * middle, middle);
                 if (follows) fetch(net.y + (top + row) * output, output);
               }
               if (net.grad_residual)
                 store_within(grads, net.grad_residual + (top + row) * output, column, output);
               grads.store(grad_y + row * spaced(output) + column);
             });
    if (follows && net.grad_third) {
      copy_rows(y, net.y + top * output, rows, output);
      sums.third.add(rows, grad_z, last, y);
    }
    copy_rows(hidden, net.hidden + top * middle, rows, middle);
    if (net.grad_second) {
      sums.second.add(rows, grad_y, spaced(output), hidden);
      sums.second.add_bias(rows, grad_y);
    }
    multiply(rows, output, middle, {grad_y, spaced(output), 1}, second, Bias{nullptr},
             [&](auto grads, int64_t row, int64_t column) ALWAYS {
               const int64_t place = row * spaced(middle) + column;
               if (column == 0) {
                 const int64_t next = top + row + kTileRows;
                 fetch(net.x + (top + row) * input, input);
                 if (net.grad_y) fetch(net.grad_y + next * output, output);
                 if (follows) fetch(net.grad_z + next * last, last);
               }
               const auto slope = slope_of_shifted(decltype(grads)::load(hidden + place));
               decltype(grads)::zero().add_product(grads, slope).store(grad_hidden + place);
             });
    if (net.grad_first) {
      copy_rows(x, net.x + top * input, rows, input);
      sums.first.add(rows, grad_hidden, spaced(middle), x);
      sums.first.add_bias(rows, grad_hidden);
    }
    if (net.grad_x)
      multiply(rows, middle, input, {grad_hidden, spaced(middle), 1}, first, Bias{nullptr},
               [&](auto grads, int64_t row, int64_t column) ALWAYS {
                 store_within(grads, net.grad_x + (top + row) * input, column, input);
               });
  });
  return sums;
}

/* What an operator's arguments are to kernels; they must be dense, and live as long. */
Layers describe(const Tensor &x, const Tensor &first, const Tensor &second,
                const MaybeTensor &third) {
  Layers net{};
  net.rows = x.size(0), net.input = x.size(1), net.middle = first.size(0);
  net.output = second.size(0), net.third_output = third ? third->size(0) : 0;
  net.threads = num_threads(net.rows * net.middle * (net.input + net.output) / kProductsPerNumber);
  net.x = address<float>(x), net.first = address<float>(first);
  net.second = address<float>(second), net.third = address<float>(third);
  return net;
}

std::tuple<Tensor, Tensor, Tensor> operator_forward(Tensor given_x, Tensor given_first,
                                                    Tensor first_bias, Tensor given_second,
                                                    Tensor second_bias, MaybeTensor residual,
                                                    MaybeTensor given_third) {
  const Tensor x = dense(given_x), first = dense(given_first), second = dense(given_second);
  const MaybeTensor third = dense(given_third);
  first_bias = dense(first_bias), second_bias = dense(second_bias), residual = dense(residual);
  Layers net = describe(x, first, second, third);
  const Tensor y = make_tensor(x, {net.rows, net.output});
  const Tensor hidden = make_tensor(x, {net.rows, net.middle});
  const Tensor z = third ? make_tensor(x, {net.rows, net.third_output}) : make_tensor(x, {0});
  net.first_bias = address<float>(first_bias), net.second_bias = address<float>(second_bias);
  net.residual = address<float>(residual);
  net.y = address<float>(y), net.hidden = address<float>(hidden), net.z = address<float>(z);
#pragma omp parallel num_threads(int(net.threads)) if (net.threads > 1)
  forward(net, omp_get_thread_num(), omp_get_num_threads());
  return {y, hidden, z};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> operator_backward(
    Tensor given_x, Tensor given_first, Tensor given_second, MaybeTensor given_third, Tensor y,
    Tensor hidden, MaybeTensor grad_y, MaybeTensor grad_z, bool wants_x, bool wants_layers) {
  const Tensor x = dense(given_x), first = dense(given_first), second = dense(given_second);
  const MaybeTensor third = dense(given_third);
  y = dense(y), hidden = dense(hidden), grad_y = dense(grad_y), grad_z = dense(grad_z);
  Layers net = describe(x, first, second, third);
  net.y = address<float>(y), net.hidden = address<float>(hidden);
  net.grad_y = address<float>(grad_y), net.grad_z = address<float>(grad_z);
  const bool follows = third && grad_z;
  /* What nobody wants is empty, and its address null. */
  const auto wanted = [&](bool wants, float *&at, const std::vector<int64_t> &sizes) {
    const Tensor grad = make_tensor(x, wants ? sizes : std::vector<int64_t>{0});
    at = wants ? address<float>(grad) : nullptr;
    return grad;
  };
  const auto grad_x = wanted(wants_x, net.grad_x, {net.rows, net.input});
  const auto grad_residual = wanted(follows, net.grad_residual, {net.rows, net.output});
  const auto grad_first = wanted(wants_layers, net.grad_first, {net.middle, net.input});
  const auto grad_first_bias = wanted(wants_layers, net.grad_first_bias, {net.middle});
  const auto grad_second = wanted(wants_layers, net.grad_second, {net.output, net.middle});
  const auto grad_second_bias = wanted(wants_layers, net.grad_second_bias, {net.output});
  const auto grad_third =
      wanted(follows && wants_layers, net.grad_third, {net.third_output, net.output});
  std::vector<Sums> all(size_t(net.threads));
#pragma omp parallel num_threads(int(net.threads)) if (net.threads > 1)
  {
    const int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
    all[size_t(part)] = backward(net, part, parts);
#pragma omp barrier
    add_up(all, &Sums::first, net.grad_first, net.grad_first_bias, part, parts);
    add_up(all, &Sums::second, net.grad_second, net.grad_second_bias, part, parts);
    add_up(all, &Sums::third, net.grad_third, nullptr, part, parts);
  }
  return {grad_x,      grad_residual,    grad_first, grad_first_bias,
          grad_second, grad_second_bias, grad_third};
}

} // namespace

STABLE_TORCH_LIBRARY_IMPL(torchkiln, CPU, library) {
  Kernel<&operator_forward, float>::add_to(library, "softplus_mlp");
  Kernel<&operator_backward, float>::add_to(library, "softplus_mlp_backward");
}
