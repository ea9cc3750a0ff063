/* Continuous-filter convolution over the edges of many small molecules.

   An edge (a, b) with a filter w sends w * x[a] to b (bit 1 of its `ways`) and w * x[b] to a (bit
   2). Filters are rows of memory, or cubic interpolations of rows of a table that are formed in
   registers.

   Edges come molecule by molecule. Work is divided between threads by molecule, or by row of the
   table, never by edge: no two threads write to the same place, and each sum has one order whatever
   the number of threads. Indices are checked as they are read, before they are used; functions
   return whether all were right. */
#include "_packs.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <omp.h>

namespace {

constexpr int kRun = 64;

/* Filled in by Python (_cfconv_native.py), field by field. */
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
  int64_t next, end, limit = INT64_MAX;
  int64_t molecule = -1, first_node = 0, last_node = -1; /* where we are */
  bool good = true;

  Reader(const Graph &g, int64_t part, int64_t parts) : graph(g) {
    next = g.cut(part, parts);
    end = part + 1 < parts ? g.cut(part + 1, parts) : g.num_edges;
    /* Molecules of the next part belong to another thread. */
    if (end < g.num_edges && g.molecule(end) >= 0) limit = g.molecule(end);
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

  /* Go on to the molecule that `edge` starts in, which must be a later one. */
  bool enter(int64_t edge) {
    const int64_t here = graph.molecule(edge);
    if (here <= molecule || here >= limit) return false;
    molecule = here;
    first_node = last_node = graph.from[edge];
    while (first_node > 0 && graph.batch[first_node - 1] == here) first_node--;
    while (last_node + 1 < graph.num_nodes && graph.batch[last_node + 1] == here) last_node++;
    return true;
  }
};

/* Call work(reader) on all threads, each with its molecules, after out[0, size) was zeroed; return
   whether all edges were in order. */
template <class Real, class Work>
bool share(const Graph &graph, Real *out, int64_t size, Work work) {
  bool good = true;
#pragma omp parallel num_threads(int(graph.threads)) if (graph.threads > 1) reduction(&& : good)
  {
    const int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
    zero_share(out, size, part, parts);
#pragma omp barrier
    Reader reader(graph, part, parts);
    work(reader);
    good = reader.good;
  }
  return good;
}

/* Filled in by Python, too. */
struct Table {
  const void *distances, *scale; /* scale may be null: ones */
  int64_t num_knots;
  double spacing;
  int64_t order; /* which derivative of the interpolation by distance */
};

/* Where the edges of a run look into a table: the first of four rows, and the weight of each. */
template <class Real>
struct Places {
  int64_t row[kRun];
  Real weight[4][kRun];
  const Real *distances, *scale;
  double inverse, last, top, last_start, polynomial[4][4];

  explicit Places(const Table &table)
      : distances(static_cast<const Real *>(table.distances)),
        scale(static_cast<const Real *>(table.scale)),
        inverse(1 / table.spacing),
        last(double(table.num_knots - 3)),
        /* Distances are rounded: one that was computed to be the last knot counts as that. */
        top(last * (1 + 1e-6)),
        last_start(double(table.num_knots - 4)) {
    /* The cubic through knots at -1, 0, 1, 2, by powers of the place between 0 and 1. */
    constexpr double kCubic[4][4] = {{0, -2. / 6, 3. / 6, -1. / 6},
                                     {1, -1. / 2, -2. / 2, 1. / 2},
                                     {0, 2. / 2, 1. / 2, -1. / 2},
                                     {0, -1. / 6, 0, 1. / 6}};
    for (int knot = 0; knot < 4; knot++) {
      double *p = polynomial[knot];
      std::memcpy(p, kCubic[knot], sizeof kCubic[knot]);
      for (int64_t k = 0; k < table.order; k++) {
        for (int power = 0; power < 3; power++) p[power] = inverse * (power + 1) * p[power + 1];
        p[3] = 0;
      }
    }
  }

  INLINE double start_of(double held) const {
    const double whole = std::floor(held == held ? held : 0);
    return whole > last_start ? last_start : whole;
  }

  /* Distances outside the table get the weight 0; NaN stays NaN. */
  void find(const Run &run) {
    const Real *distance = distances + run.edge;
#pragma omp simd
    for (int64_t k = 0; k < run.count; k++) {
      const double place = double(distance[k]) * inverse;
      double held = place > last ? last : place;
      held = held < 0 ? 0 : held;
      const double start = start_of(held);
      const double t = held - start;
      const double covered = place < 0 ? 0 : place > top ? 0 : 1;
      row[k] = int64_t(start);
      for (int knot = 0; knot < 4; knot++) {
        const double *p = polynomial[knot];
        weight[knot][k] = Real(covered * (((p[3] * t + p[2]) * t + p[1]) * t + p[0]));
      }
    }
    if (!scale) return;
    for (int knot = 0; knot < 4; knot++)
      for (int64_t k = 0; k < run.count; k++) weight[knot][k] *= scale[run.edge + k];
  }

  template <class P>
  INLINE P interpolate(const Real *table, int64_t width, int64_t k, int64_t f) const {
    const Real *rows = table + row[k] * width + f;
    P filter = P::zero();
#pragma GCC unroll 4
    for (int knot = 0; knot < 4; knot++, rows += width)
      filter.add_product(weight[knot][k], P::load(rows));
    return filter;
  }
};

/* How rows of a table are divided so that each thread gets as many edges: by a sample of them. */
template <class Real>
struct Shares {
  static constexpr int64_t kMostSamples = 2048;
  int64_t row[kMostSamples], count = 0, num_knots;

  Shares(const Graph &graph, const Table &table) : num_knots(table.num_knots) {
    const Places<Real> places(table);
    const int64_t step = 1 + graph.num_edges / kMostSamples;
    for (int64_t edge = 0; edge < graph.num_edges; edge += step) {
      if (!graph.ways_of(edge)) continue;
      const double place = double(places.distances[edge]) * places.inverse;
      row[count++] = place > 0 ? int64_t(places.start_of(place)) : 0;
    }
    std::sort(row, row + count);
  }
  int64_t cut(int64_t part, int64_t parts) const {
    if (part == 0) return 0;
    return part == parts || count == 0 ? num_knots : row[count * part / parts];
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
      if (ways & forth) P::load(out + other).add_product(filter, mine).store(out + other);
      if (ways & back) sum.add_product(filter, P::load(x + other));
    }
    P::load(out + run.node * width + f).add(sum).store(out + run.node * width + f);
  });
}

/* What the edges of a run carry: x of where a message comes from times g of where it goes.
   use(product, k, f) takes that of its edge k, if that carries anything and is wanted(k). */
template <class Real, class Wanted, class Use>
INLINE void meet(const Graph &graph, const Run &run, const Real *x, const Real *g, Wanted wanted,
                 Use use) {
  const int64_t width = graph.width;
  const int forth = graph.reverse ? 2 : 1, back = 3 - forth;
  for_blocks<Real>(0, width, [&](auto kind, int64_t f) ALWAYS {
    using P = decltype(kind);
    const P my_x = P::load(x + run.node * width + f), my_g = P::load(g + run.node * width + f);
    for (int64_t k = 0; k < run.count; k++) {
      const int ways = graph.ways_of(run.edge + k);
      if (!ways || !wanted(k)) continue;
      const int64_t other = graph.to[run.edge + k] * width + f;
      P product = P::zero();
      if (ways & forth) product.add_product(my_x, P::load(g + other));
      if (ways & back) product.add_product(my_g, P::load(x + other));
      use(product, k, f);
    }
  });
}

INLINE bool every(int64_t) { return true; }

template <class Real>
bool cfconv(const Graph &graph, const Real *x, const Real *filters, Real *out) {
  const int64_t width = graph.width;
  return share(graph, out, graph.num_nodes * width, [&](Reader &reader) {
    Run run;
    while (reader.read(run))
      send(graph, run, x, out, [&](auto kind, int64_t k, int64_t f) ALWAYS {
        return decltype(kind)::load(filters + (run.edge + k) * width + f);
      });
  });
}

template <class Real>
bool edge_products(const Graph &graph, const Real *x, const Real *g, Real *out) {
  const int64_t width = graph.width;
  return share(graph, out, 0, [&](Reader &reader) {
    for (int64_t edge = reader.next; edge < reader.end; edge++)
      if (!graph.ways_of(edge)) std::memset(out + edge * width, 0, sizeof(Real) * size_t(width));
    Run run;
    while (reader.read(run))
      meet(graph, run, x, g, every, [&](auto product, int64_t k, int64_t f) ALWAYS {
        product.store(out + (run.edge + k) * width + f);
      });
  });
}

template <class Real>
bool table_conv(const Graph &graph, const Table &table, const Real *x, const Real *rows,
                Real *out) {
  return share(graph, out, graph.num_nodes * graph.width, [&](Reader &reader) {
    Places<Real> places(table);
    Run run;
    while (reader.read(run)) {
      places.find(run);
      send(graph, run, x, out, [&](auto kind, int64_t k, int64_t f) ALWAYS {
        return places.template interpolate<decltype(kind)>(rows, graph.width, k, f);
      });
    }
  });
}

/* Every thread reads all edges and fills rows of its own. Tables of one thread each would have to
   be summed, and the sums would depend on the number of threads. */
template <class Real>
bool table_gradient(const Graph &graph, const Table &table, const Real *x, const Real *g,
                    Real *out) {
  const int64_t width = graph.width;
  const Shares<Real> shares(graph, table);
  bool good = true;
#pragma omp parallel num_threads(int(graph.threads)) if (graph.threads > 1) reduction(&& : good)
  {
    const int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
    const int64_t begin = shares.cut(part, parts), end = shares.cut(part + 1, parts);
    std::memset(out + begin * width, 0, sizeof(Real) * size_t((end - begin) * width));
    Places<Real> places(table);
    Reader reader(graph, 0, 1);
    Run run;
    const auto mine = [&](int64_t k) { return places.row[k] < end && places.row[k] + 3 >= begin; };
    while (reader.read(run)) {
      places.find(run);
      meet(graph, run, x, g, mine, [&](auto product, int64_t k, int64_t f) ALWAYS {
        using P = decltype(product);
        const int64_t row = places.row[k];
        const auto add = [&](int knot) ALWAYS {
          Real *to = out + (row + knot) * width + f;
          P::load(to).add_product(places.weight[knot][k], product).store(to);
        };
        if (row >= begin && row + 3 < end) {
#pragma GCC unroll 4
          for (int knot = 0; knot < 4; knot++) add(knot);
        } else { /* rows on both sides of a cut */
          for (int knot = 0; knot < 4; knot++)
            if (row + knot >= begin && row + knot < end) add(knot);
        }
      });
    }
    good = reader.good;
  }
  return good;
}

template <class Real>
bool edge_dots(const Graph &graph, const Table &table, const Real *x, const Real *g,
               const Real *rows, Real *out) {
  return share(graph, out, graph.num_edges, [&](Reader &reader) {
    Places<Real> places(table);
    Run run;
    while (reader.read(run)) {
      places.find(run);
      meet(graph, run, x, g, every, [&](auto product, int64_t k, int64_t f) ALWAYS {
        using P = decltype(product);
        const P filter = places.template interpolate<P>(rows, graph.width, k, f);
        out[run.edge + k] += P::zero().add_product(product, filter).sum();
      });
    }
  });
}

} // namespace

#define EXPORT(SUFFIX, Real)                                                                       \
  extern "C" bool torchkiln_cfconv_##SUFFIX(const Graph *graph, const Real *x,                     \
                                               const Real *filters, Real *out) {                   \
    return cfconv(*graph, x, filters, out);                                                        \
  }                                                                                                \
  extern "C" bool torchkiln_edge_products_##SUFFIX(const Graph *graph, const Real *x,              \
                                                      const Real *g, Real *out) {                  \
    return edge_products(*graph, x, g, out);                                                       \
  }                                                                                                \
  extern "C" bool torchkiln_table_conv_##SUFFIX(const Graph *graph, const Table *table,            \
                                                   const Real *x, const Real *rows, Real *out) {   \
    return table_conv(*graph, *table, x, rows, out);                                               \
  }                                                                                                \
  extern "C" bool torchkiln_table_gradient_##SUFFIX(const Graph *graph, const Table *table,        \
                                                       const Real *x, const Real *g, Real *out) {  \
    return table_gradient(*graph, *table, x, g, out);                                              \
  }                                                                                                \
  extern "C" bool torchkiln_edge_dots_##SUFFIX(                                                    \
      const Graph *graph, const Table *table, const Real *x, const Real *g, const Real *rows,      \
      Real *out) {                                                                                 \
    return edge_dots(*graph, *table, x, g, rows, out);                                             \
  }

EXPORT(f32, float)
EXPORT(f64, double)
