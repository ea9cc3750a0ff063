/* Continuous-filter convolution over the edges of many small molecules.

   An edge (a, b) with a filter w sends w * x[a] to b (bit 1 of its `ways`) and w * x[b] to a (bit
   2). Filters are rows of memory, or cubic splines whose coefficients are rows of a table, formed
   in registers.

   Edges come molecule by molecule, and so is work divided between threads: no two of them write to
   the same place. Sums at nodes have one order whatever the number of threads; gradients of tables
   have one for each number. Indices are checked as they are read, before they are used; kernels
   return whether all were right. */
#include "_packs.h"
#include "_scratch.h"
#include "_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <omp.h>
#include <vector>

namespace {

/* Edges of a run, and of those that are looked up together. */
constexpr int kRun = 64, kStep = 8;

struct Graph {
  const int64_t *from, *to, *batch;
  const uint8_t *ways; /* null: every edge is one-way, from -> to */
  int64_t num_edges, num_nodes, width;
  int64_t reverse; /* messages run backwards */
  int64_t threads;

  INLINE int ways_of(int64_t edge) const { return ways ? ways[edge] & 3 : 1; }
  /* The molecule that an edge starts in; -1 if it starts nowhere. */
  int64_t molecule(int64_t edge) const {
    return uint64_t(from[edge]) < uint64_t(num_nodes) ? batch[from[edge]] : -1;
  }
  /* The first node of the molecule that a node belongs to. */
  int64_t first_node(int64_t node) const {
    while (node > 0 && batch[node - 1] == batch[node]) node--;
    return node;
  }
  /* The first edge of part `part` of `parts`: equal shares, moved on to the next molecule. */
  int64_t cut(int64_t part, int64_t parts) const {
    int64_t edge = num_edges * part / parts;
    while (edge > 0 && edge < num_edges && molecule(edge) == molecule(edge - 1)) edge++;
    return edge;
  }
};

/* Consecutive edges that start at the same node. */
struct Run {
  int64_t node, edge, count;
};

/* The edges [next, end) of some molecules, run by run, checked. */
struct Reader {
  const Graph &graph;
  int64_t next, end, limit = INT64_MAX, node_limit;
  int64_t molecule = -1, first_node = 0, last_node = -1; /* where we are */
  bool good = true;

  Reader(const Graph &g, int64_t part, int64_t parts) : graph(g), node_limit(g.num_nodes) {
    next = g.cut(part, parts);
    end = part + 1 < parts ? g.cut(part + 1, parts) : g.num_edges;
    /* Molecules of the next part belong to another thread. */
    if (end < g.num_edges && g.molecule(end) >= 0) {
      limit = g.molecule(end);
      node_limit = g.first_node(g.from[end]);
    }
  }

  /* Read a run that sends something; false at the end, or where edges are out of order. */
  bool read(Run &run) {
    while (next < end) {
      run.node = graph.from[next];
      if ((run.node < first_node || run.node > last_node) && !enter(next)) return good = false;
      run.edge = next;
      const int64_t stop = end - next > kRun ? next + kRun : end;
      bool inside = true;
      int active = 0;
      for (; next < stop && graph.from[next] == run.node; next++) {
        inside &= graph.to[next] >= first_node && graph.to[next] <= last_node;
        active |= graph.ways_of(next);
      }
      if (!inside) return good = false;
      run.count = next - run.edge;
      if (active) return true;
    }
    return false;
  }

  /* Go on to the molecule that `edge` starts in, which must be a later one, of later nodes. */
  bool enter(int64_t edge) {
    const int64_t here = graph.molecule(edge);
    if (here <= molecule || here >= limit) return false;
    const int64_t first = graph.first_node(graph.from[edge]);
    if (first <= last_node || first >= node_limit) return false;
    molecule = here;
    first_node = first;
    last_node = graph.from[edge];
    while (last_node + 1 < graph.num_nodes && graph.batch[last_node + 1] == here) last_node++;
    return true;
  }
};

/* Rows of sums at the nodes of one part, zeroed molecule by molecule: so they are in the cache. */
template <class Real>
struct Sums {
  Real *out;
  int64_t width, next, end;

  Sums(const Graph &graph, Real *out, int64_t part, int64_t parts)
      : out(out), width(graph.width), next(begin(graph, part, parts)),
        end(begin(graph, part + 1, parts)) {}

  static int64_t begin(const Graph &graph, int64_t part, int64_t parts) {
    if (part == 0) return 0;
    const int64_t edge = part < parts ? graph.cut(part, parts) : graph.num_edges;
    if (edge == graph.num_edges || graph.molecule(edge) < 0) return graph.num_nodes;
    return graph.first_node(graph.from[edge]);
  }
  INLINE void zero_to(int64_t node) {
    if (node <= next) return;
    std::memset(out + next * width, 0, sizeof(Real) * size_t((node - next) * width));
    next = node;
  }
};

/* Call work(reader, part, parts) on all threads, each with its molecules; return whether all edges
   were in order. */
template <class Work>
bool share(const Graph &graph, Work work) {
  bool good = true;
#pragma omp parallel num_threads(int(graph.threads)) if (graph.threads > 1) reduction(&& : good)
  {
    const int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
    Reader reader(graph, part, parts);
    work(reader, part, parts);
    good = reader.good;
  }
  return good;
}

/* Call work(run) for all runs of all molecules, with out[0, num_nodes) zeroed before they add to
   it, and the next molecule's rows of x and out on their way. */
template <class Real, class Work>
bool share_sums(const Graph &graph, const Real *x, Real *out, Work make_work) {
  return share(graph, [&](Reader &reader, int64_t part, int64_t parts) {
    Sums<Real> sums(graph, out, part, parts);
    auto work = make_work();
    Run run;
    while (reader.read(run)) {
      const int64_t next = run.node + reader.last_node + 1 - reader.first_node;
      if (next < sums.end) {
        fetch(x + next * graph.width, graph.width);
        fetch<1>(out + next * graph.width, graph.width);
      }
      sums.zero_to(reader.last_node + 1);
      work(run);
    }
    sums.zero_to(sums.end);
  });
}

struct Table {
  const void *distances, *scale; /* scale may be null: ones */
  int64_t num_knots;
  double spacing;
  int64_t order; /* which derivative of the spline by distance */
};

/* Where the edges of a run look into a table: the first of four rows, and the weight of each. */
template <class Real>
struct Places {
  alignas(64) int64_t row[kRun];
  alignas(64) Real weight[4][kRun];
  const Real *distances, *scale;
  double inverse, last, top, last_start;
  Real polynomial[4][4];

  explicit Places(const Table &table)
      : distances(static_cast<const Real *>(table.distances)),
        scale(static_cast<const Real *>(table.scale)),
        inverse(1 / table.spacing),
        last(double(table.num_knots - 3)),
        /* Distances are rounded: one that was computed to be the last knot counts as that. */
        top(last * (1 + 1e-6)),
        last_start(double(table.num_knots - 4)) {
    /* The B-splines of knots at -1, 0, 1, 2, by powers of the place between 0 and 1. */
    constexpr double kCubic[4][4] = {{1. / 6, -3. / 6, 3. / 6, -1. / 6},
                                     {4. / 6, 0, -6. / 6, 3. / 6},
                                     {1. / 6, 3. / 6, 3. / 6, -3. / 6},
                                     {0, 0, 0, 1. / 6}};
    for (int knot = 0; knot < 4; knot++) {
      double p[4];
      std::copy_n(kCubic[knot], 4, p);
      for (int64_t k = 0; k < table.order; k++) {
        for (int power = 0; power < 3; power++) p[power] = inverse * (power + 1) * p[power + 1];
        p[3] = 0;
      }
      std::copy_n(p, 4, polynomial[knot]);
    }
  }

  INLINE double start_of(double held) const {
    const double whole = std::floor(held == held ? held : 0);
    return whole > last_start ? last_start : whole;
  }

  /* Distances outside the table get the weight 0; NaN stays NaN. */
  void find(const Graph &graph, const Run &run) {
    /* Whole vectors: runs are short, and the end of one would be computed number by number. What is
       found for edges behind it is never used. */
    const int64_t count = (run.count + kStep - 1) / kStep * kStep;
    const Real *distance = distances + run.edge;
    Real copied[kRun] = {};
    if (run.edge + count > graph.num_edges)
      distance = std::copy_n(distance, run.count, copied) - run.count;
    for (int64_t begin = 0; begin < count; begin += kStep) find_some(distance + begin, begin);
    if (!scale) return;
    for (int knot = 0; knot < 4; knot++)
      for (int64_t k = 0; k < run.count; k++) weight[knot][k] *= scale[run.edge + k];
  }

  INLINE void find_some(const Real *distance, int64_t begin) {
    /* Where a distance lies is computed in float64: it is a small rest of a large number. */
#pragma omp simd
    for (int64_t k = 0; k < kStep; k++) {
      const double place = double(distance[k]) * inverse;
      double held = place > last ? last : place;
      held = held < 0 ? 0 : held;
      const double start = start_of(held);
      const Real t = Real(held - start);
      const Real covered = place < 0 ? Real(0) : place > top ? Real(0) : Real(1);
      row[begin + k] = int64_t(start);
      for (int knot = 0; knot < 4; knot++) {
        const Real *p = polynomial[knot];
        weight[knot][begin + k] = covered * (((p[3] * t + p[2]) * t + p[1]) * t + p[0]);
      }
    }
  }

  template <class P>
  INLINE P interpolate(const Real *table, int64_t width, int64_t k, int64_t f) const {
    const Real *rows = table + row[k] * width + f;
    P filter = P::load(rows).times(weight[0][k]);
#pragma GCC unroll 3
    for (int knot = 1; knot < 4; knot++)
      filter.add_product(weight[knot][k], P::load(rows + knot * width));
    return filter;
  }
};

/* Messages of a run: filter_of(pack type, k, f) is the filter of its edge k. The node's own sum
   stays in registers and is added at the end, so an edge from a node to itself is right too. */
template <class Real, class Filter>
INLINE void send(const Graph &graph, const Run &run, const Real *x, Real *out, Filter filter_of) {
  const int64_t width = graph.width;
  const int forth = graph.reverse ? 2 : 1, back = 3 - forth;
  for_blocks<Real>(0, width, [&](auto kind, int64_t f) ALWAYS {
    using P = decltype(kind);
    const P mine = P::load(x + run.node * width + f);
    P sum = P::zero();
    for (int64_t k = 0; k < run.count; k++) {
      const int ways = graph.ways_of(run.edge + k);
      if (!ways) continue;
      const P filter = filter_of(kind, k, f);
      const int64_t other = graph.to[run.edge + k] * width + f;
      if (ways & forth) filter.add_product_to(out + other, mine);
      if (ways & back) sum.add_product(filter, P::load(x + other));
    }
    P::load(out + run.node * width + f).add(sum).store(out + run.node * width + f);
  });
}

/* What the edges of a run carry: x of where a message comes from times g of where it goes.
   use(product, k, f) takes that of its edge k, if that carries anything. */
template <class Real, class Use>
INLINE void meet(const Graph &graph, const Run &run, const Real *x, const Real *g, Use use) {
  const int64_t width = graph.width;
  const int forth = graph.reverse ? 2 : 1, back = 3 - forth;
  for_few_blocks<Real>(0, width, [&](auto kind, int64_t f) ALWAYS {
    using P = decltype(kind);
    const P my_x = P::load(x + run.node * width + f), my_g = P::load(g + run.node * width + f);
    for (int64_t k = 0; k < run.count; k++) {
      const int ways = graph.ways_of(run.edge + k);
      if (!ways) continue;
      const int64_t other = graph.to[run.edge + k] * width + f;
      P product = P::zero();
      if (ways & forth) product.add_product(my_x, P::load(g + other));
      if (ways & back) product.add_product(my_g, P::load(x + other));
      use(product, k, f);
    }
  });
}

template <class Real>
bool cfconv(const Graph &graph, const Real *x, const Real *filters, Real *out) {
  return share_sums(graph, x, out, [&] {
    return [&](const Run &run) {
      send(graph, run, x, out, [&](auto kind, int64_t k, int64_t f) ALWAYS {
        return decltype(kind)::load(filters + (run.edge + k) * graph.width + f);
      });
    };
  });
}

template <class Real>
bool edge_products(const Graph &graph, const Real *x, const Real *g, Real *out) {
  const int64_t width = graph.width;
  return share(graph, [&](Reader &reader, int64_t, int64_t) {
    for (int64_t edge = reader.next; edge < reader.end; edge++)
      if (!graph.ways_of(edge)) std::memset(out + edge * width, 0, sizeof(Real) * size_t(width));
    Run run;
    while (reader.read(run))
      meet(graph, run, x, g, [&](auto product, int64_t k, int64_t f) ALWAYS {
        product.store(out + (run.edge + k) * width + f);
      });
  });
}

template <class Real>
bool table_conv(const Graph &graph, const Table &table, const Real *x, const Real *rows,
                Real *out) {
  return share_sums(graph, x, out, [&] {
    return [&, places = Places<Real>(table)](const Run &run) mutable {
      places.find(graph, run);
      send(graph, run, x, out, [&](auto kind, int64_t k, int64_t f) ALWAYS {
        return places.template interpolate<decltype(kind)>(rows, graph.width, k, f);
      });
    };
  });
}

/* Gradients of a table: each thread fills one of its own, the first one `out`; they are added in
   order. */
template <class Real>
struct TableSums {
  int64_t width, size;
  Real *out;
  std::vector<Real *> tables;

  TableSums(const Graph &graph, const Table &table, Real *out)
      : width(graph.width), size(table.num_knots * graph.width), out(out),
        tables(size_t(graph.threads)) {}

  /* The table of one thread, zeroed. */
  Real *begin(int64_t part) {
    scratch_of<Real>.reserve(part ? size : 0);
    Real *mine = tables[size_t(part)] = part ? scratch_of<Real>.take(size) : out;
    std::memset(mine, 0, sizeof(Real) * size_t(size));
    return mine;
  }
  INLINE void add(Real *mine, const Graph &graph, const Run &run, const Places<Real> &places,
                  const Real *x, const Real *g) const {
    meet(graph, run, x, g, [&](auto product, int64_t k, int64_t f) ALWAYS {
      Real *rows = mine + places.row[k] * width + f;
#pragma GCC unroll 4
      for (int knot = 0; knot < 4; knot++)
        product.add_product_to(rows + knot * width, places.weight[knot][k]);
    });
  }
  /* To be called by all threads. */
  void end(int64_t part, int64_t parts) const {
#pragma omp barrier
    for (int64_t other = 1; other < parts; other++)
      for_blocks<Real>(size * part / parts, size * (part + 1) / parts,
                       [&](auto kind, int64_t k) ALWAYS {
                         auto sum = decltype(kind)::load(out + k);
                         sum.add(decltype(kind)::load(tables[size_t(other)] + k)).store(out + k);
                       });
  }
};

template <class Real>
bool table_gradient(const Graph &graph, const Table &table, const Real *x, const Real *g,
                    Real *out) {
  const int64_t width = graph.width;
  TableSums<Real> sums(graph, table, out);
  return share(graph, [&](Reader &reader, int64_t part, int64_t parts) {
    Real *mine = sums.begin(part);
    Places<Real> places(table);
    Run run;
    while (reader.read(run)) {
      const int64_t next = run.node + reader.last_node + 1 - reader.first_node;
      if (next < graph.num_nodes) {
        fetch(x + next * width, width);
        fetch(g + next * width, width);
      }
      places.find(graph, run);
      sums.add(mine, graph, run, places, x, g);
    }
    sums.end(part, parts);
  });
}

/* The gradients of table_conv by x and by the table: edges and rows are read once for both. */
template <class Real>
bool table_backward(const Graph &graph, const Table &table, const Real *x, const Real *g,
                    const Real *rows, Real *grad_x, Real *grad_rows) {
  const int64_t width = graph.width;
  const int forth = graph.reverse ? 2 : 1, back = 3 - forth;
  TableSums<Real> table_sums(graph, table, grad_rows);
  return share(graph, [&](Reader &reader, int64_t part, int64_t parts) {
    Real *mine = table_sums.begin(part);
    Sums<Real> sums(graph, grad_x, part, parts);
    Places<Real> places(table);
    Run run;
    while (reader.read(run)) {
      const int64_t next = run.node + reader.last_node + 1 - reader.first_node;
      if (next < sums.end) {
        fetch(x + next * width, width);
        fetch(g + next * width, width);
        fetch<1>(grad_x + next * width, width);
      }
      sums.zero_to(reader.last_node + 1);
      places.find(graph, run);
      for_few_blocks<Real>(0, width, [&](auto kind, int64_t f) ALWAYS {
        using P = decltype(kind);
        const int64_t here = run.node * width + f;
        const P my_x = P::load(x + here), my_g = P::load(g + here);
        P sum = P::zero();
        for (int64_t k = 0; k < run.count; k++) {
          const int ways = graph.ways_of(run.edge + k);
          if (!ways) continue;
          const int64_t other = graph.to[run.edge + k] * width + f;
          const P filter = places.template interpolate<P>(rows, width, k, f);
          const P its_g = P::load(g + other);
          P product = P::zero();
          if (ways & forth) {
            sum.add_product(filter, its_g);
            product.add_product(my_x, its_g);
          }
          if (ways & back) {
            filter.add_product_to(grad_x + other, my_g);
            product.add_product(my_g, P::load(x + other));
          }
          Real *to = mine + places.row[k] * width + f;
#pragma GCC unroll 4
          for (int knot = 0; knot < 4; knot++)
            product.add_product_to(to + knot * width, places.weight[knot][k]);
        }
        P::load(grad_x + here).add(sum).store(grad_x + here);
      });
    }
    sums.zero_to(sums.end);
    table_sums.end(part, parts);
  });
}

template <class Real>
bool edge_dots(const Graph &graph, const Table &table, const Real *x, const Real *g,
               const Real *rows, Real *out) {
  return share(graph, [&](Reader &reader, int64_t, int64_t) {
    std::fill(out + reader.next, out + reader.end, Real(0));
    Places<Real> places(table);
    Run run;
    while (reader.read(run)) {
      places.find(graph, run);
      meet(graph, run, x, g, [&](auto product, int64_t k, int64_t f) ALWAYS {
        using P = decltype(product);
        const P filter = places.template interpolate<P>(rows, graph.width, k, f);
        out[run.edge + k] += P::zero().add_product(product, filter).sum();
      });
    }
  });
}

/* The graph of an operator's arguments, which it holds on to. */
struct Edges {
  Tensor index, batch;
  MaybeTensor ways;
  Graph graph;

  Edges(const Tensor &x, const Tensor &given_index, const Tensor &given_batch,
        const MaybeTensor &given_ways, bool reverse)
      : index(dense(given_index)), batch(dense(given_batch)), ways(dense(given_ways)) {
    const int64_t num_edges = index.size(1), width = x.size(1);
    const int64_t *from = address<int64_t>(index);
    graph = {from,         from + num_edges, address<int64_t>(batch), address<uint8_t>(ways),
             num_edges,    x.size(0),        width,                   reverse,
             num_threads(num_edges * width)};
  }
};

/* Where edges look into a table, as an operator's arguments have it. */
struct Lookups {
  Tensor distances;
  MaybeTensor scale;
  Table table;

  Lookups(const Tensor &given, const MaybeTensor &given_scale, int64_t num_knots, double spacing,
          int64_t order)
      : distances(dense(given)), scale(dense(given_scale)) {
    table = {address<void>(distances), address<void>(scale), num_knots, spacing, order};
  }
};

/* Call kernel(pointers to the tensors' numbers...); all are of one type, and dense. */
template <class Call, class... Tensors>
void run(const Edges &edges, Call kernel, const Tensor &first, const Tensors &...others) {
  const bool good = with_type_of(first, [&](auto real) {
    using Real = decltype(real);
    return kernel(address<Real>(first), address<Real>(others)...);
  });
  if (!good) refuse("torchkiln::cfconv_check", edges.index, edges.batch);
}

/* Return `out`, filled by kernel(pointers to the tensors' numbers..., to those of `out`). */
template <class Call, class... Tensors>
Tensor fill(const Edges &edges, const Tensor &out, Call kernel, const Tensors &...given) {
  run(edges, kernel, dense(given)..., out);
  return out;
}

Tensor operator_cfconv(Tensor x, Tensor filters, Tensor index, Tensor batch, MaybeTensor ways,
                       bool reverse) {
  const Edges edges(x, index, batch, ways, reverse);
  return fill(edges, new_rows(x, x.size(0)),
              [&](auto... all) { return cfconv(edges.graph, all...); }, x, filters);
}

Tensor operator_edge_products(Tensor x, Tensor grad, Tensor index, Tensor batch, MaybeTensor ways,
                              bool reverse) {
  const Edges edges(x, index, batch, ways, reverse);
  return fill(edges, new_rows(x, index.size(1)),
              [&](auto... all) { return edge_products(edges.graph, all...); }, x, grad);
}

Tensor operator_table(Tensor x, Tensor table, Tensor distances, MaybeTensor scale, Tensor index,
                      Tensor batch, MaybeTensor ways, double spacing, int64_t order,
                      bool reverse) {
  const Edges edges(x, index, batch, ways, reverse);
  const Lookups at(distances, scale, table.size(0), spacing, order);
  return fill(edges, new_rows(x, x.size(0)),
              [&](auto... all) { return table_conv(edges.graph, at.table, all...); }, x, table);
}

Tensor operator_table_gradient(Tensor x, Tensor grad, Tensor distances, MaybeTensor scale,
                               int64_t num_knots, Tensor index, Tensor batch, MaybeTensor ways,
                               double spacing, int64_t order, bool reverse) {
  const Edges edges(x, index, batch, ways, reverse);
  const Lookups at(distances, scale, num_knots, spacing, order);
  return fill(edges, new_rows(x, num_knots),
              [&](auto... all) { return table_gradient(edges.graph, at.table, all...); }, x, grad);
}

std::tuple<Tensor, Tensor> operator_table_backward(Tensor given_x, Tensor given_grad,
                                                   Tensor given_table, Tensor distances,
                                                   MaybeTensor scale, Tensor index, Tensor batch,
                                                   MaybeTensor ways, double spacing, int64_t order,
                                                   bool reverse) {
  const Tensor x = dense(given_x), grad = dense(given_grad), table = dense(given_table);
  const Edges edges(x, index, batch, ways, reverse);
  const Lookups at(distances, scale, table.size(0), spacing, order);
  const Tensor grad_x = new_rows(x, x.size(0)), grad_table = new_rows(x, table.size(0));
  run(edges, [&](auto... all) { return table_backward(edges.graph, at.table, all...); }, x, grad,
      table, grad_x, grad_table);
  return {grad_x, grad_table};
}

Tensor operator_edge_dots(Tensor x, Tensor grad, Tensor table, Tensor distances, MaybeTensor scale,
                          Tensor index, Tensor batch, MaybeTensor ways, double spacing,
                          int64_t order, bool reverse) {
  const Edges edges(x, index, batch, ways, reverse);
  const Lookups at(distances, scale, table.size(0), spacing, order);
  return fill(edges, make_tensor(x, {distances.size(0)}),
              [&](auto... all) { return edge_dots(edges.graph, at.table, all...); }, x, grad,
              table);
}

} // namespace

STABLE_TORCH_LIBRARY_IMPL(torchkiln, CPU, library) {
  Kernel<&operator_cfconv, float, double>::add_to(library, "cfconv");
  Kernel<&operator_edge_products, float, double>::add_to(library, "cfconv_edge_products");
  Kernel<&operator_table, float, double>::add_to(library, "cfconv_table");
  Kernel<&operator_table_gradient, float, double>::add_to(library, "cfconv_table_gradient");
  Kernel<&operator_table_backward, float, double>::add_to(library, "cfconv_table_backward");
  Kernel<&operator_edge_dots, float, double>::add_to(library, "cfconv_edge_dots");
}
