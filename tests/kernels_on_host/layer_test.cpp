#include <algorithm>
#include <array>
#include <numeric>

#include "kernels/cross_entropy.h"
#include "kernels/dropout.h"
#include "kernels/embedding.h"
#include "kernels/heads.h"
#include "kernels/rope.h"
#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host::layer_test {
namespace {

// `shift`: of one array after the other.
template <class T>
void check_rope(const RopeShape& shape, size_t shift) {
  const int64_t n = shape.sequence * shape.stride_s;
  const std::vector<Wide<T>> cos = make_values<Wide<T>>(shape.sequence * shape.rotary / 2, 0.2),
                             sin = make_values<Wide<T>>(shape.sequence * shape.rotary / 2, 0.9);
  for (const int direction : {1, -1}) {
    const std::vector<T> start = make_values<T>(n, 0.7);
    std::vector<T> x = start;
    rope<T>(x.data(), cos.data(), sin.data(), direction, shape);
    for (const int shifted : {0, 1, 2}) {
      const auto got = run_all_orders([&] {
        const DeviceArray<T> gx(start, Use::both, "x", shifted == 0 ? shift : 0);
        const DeviceArray<Wide<T>> gcos(cos, Use::in, "cos", shifted == 1 ? shift : 0),
            gsin(sin, Use::in, "sin", shifted == 2 ? shift : 0);
        rope_cuda<T>(gx.data(), gcos.data(), gsin.data(), direction, shape, nullptr);
        return std::tuple{gx.values()};
      });
      // a cos - c sin: of two products of at most 9.
      expect_close(std::get<0>(got), x, "rope", std::vector<double>(x.size(), 9.0 * 2));
    }
  }
}

// Queries, gates, keys and values of 2 samples; queries and keys are rotated. `apart`: elements between two heads of
// a region in addition to head_dim. `shift`: of one array after the other.
template <class T>
void check_heads(HeadsShape shape, const std::array<int64_t, 4>& heads, int64_t apart, size_t shift) {
  constexpr int64_t kRows = 3;
  shape.sequence = kRows, shape.batch = 2;
  const int64_t dim = shape.head_dim + apart;
  const std::vector<Wide<T>> cos = make_values<Wide<T>>(kRows * shape.rotary / 2, 0.2),
                             sin = make_values<Wide<T>>(kRows * shape.rotary / 2, 0.9);
  const auto regions = [&](const auto& data, const Wide<T>* cosines, const Wide<T>* sines) {
    HeadRegions<T> all;
    for (size_t which = 0; which < heads.size(); ++which) {
      const int64_t width = shape.groups * heads[which] * dim;
      const bool turns = shape.rotary > 0 && which % 2 == 0;
      all.regions[which] = {
          data(which), heads[which], 2 * width, width, dim, turns ? cosines : nullptr, turns ? sines : nullptr};
    }
    return all;
  };
  std::array<std::vector<T>, 4> parts;
  for (size_t which = 0; which < heads.size(); ++which)
    parts[which] =
        make_values<T>(kRows * 2 * shape.groups * heads[which] * dim, 0.3 + 0.1 * static_cast<double>(which));
  const auto plain = regions([&](size_t which) { return parts[which].data(); }, cos.data(), sin.data());
  std::vector<T> fused(static_cast<size_t>(kRows * 2 * shape.groups * fused_heads(plain) * shape.head_dim));
  join_heads<T>(fused.data(), plain, shape);
  split_heads<T>(fused.data(), plain, shape);
  std::vector<Wide<T>> line(fused.size() / (2 * kRows));
  for (const int shifted : {0, 1, 2, 3}) {
    const auto at = [&](int array) { return shifted == array ? shift : 0; };
    const auto got = run_all_orders([&] {
      const DeviceArray<T> whole(fused, Use::both, "fused", at(0)), q(parts[0], Use::both, "q", at(1)),
          gate(parts[1], Use::both, "gate", at(2)), k(parts[2], Use::both, "k"), v(parts[3], Use::both, "v");
      const DeviceArray<Wide<T>> gcos(cos, Use::in, "cos", at(3)), gsin(sin, Use::in, "sin");
      const std::array<const DeviceArray<T>*, 4> all{&q, &gate, &k, &v};
      const auto there = regions([&](size_t which) { return all[which]->data(); }, gcos.data(), gsin.data());
      split_heads_cuda<T>(whole.data(), there, shape, nullptr);
      const auto split = std::tuple{q.values(), gate.values(), k.values(), v.values()};
      join_heads_cuda<T>(whole.data(), there, shape, nullptr);
      const auto joined = whole.values();
      const DeviceArray<Wide<T>> lines(line, Use::both, "lines");
      auto summing = there;
      summing.sums = lines.data();
      join_heads_cuda<T>(whole.data(), summing, shape, nullptr);
      return std::tuple_cat(split, std::tuple{joined, whole.values(), lines.values()});
    });
    // a cos - c sin: of two products of at most 9, of joined ones 27.
    expect_close(std::get<0>(got), parts[0], "queries", std::vector<double>(parts[0].size(), 9.0 * 2));
    EXPECT_TRUE(same_bits(std::get<1>(got), parts[1])) << "gates";
    expect_close(std::get<2>(got), parts[2], "keys", std::vector<double>(parts[2].size(), 9.0 * 2));
    EXPECT_TRUE(same_bits(std::get<3>(got), parts[3])) << "values";
    std::vector<T> again(fused.size());
    auto summing = plain;
    summing.sums = line.data();
    join_heads<T>(again.data(), summing, shape);
    expect_close(std::get<4>(got), again, "joined heads", std::vector<double>(again.size(), 27.0 * 4));
    expect_close(std::get<5>(got), again, "joined heads with sums", std::vector<double>(again.size(), 27.0 * 4));
    // All 6 rows are in one line: 5 additions in any order of numbers of at most 27 * 2.
    for (size_t column = 0; column < line.size(); ++column) {
      double sum = 0, sum_again = 0;
      for (size_t row = 0; row < 2 * kRows; ++row) {
        sum += load(std::get<5>(got)[row * line.size() + column]);
        sum_again += load(again[row * line.size() + column]);
      }
      const double bound = 5 * 6 * 54 * (std::is_same_v<Wide<T>, double> ? 0x1p-53 : 0x1p-24);
      ASSERT_NEAR(std::get<6>(got)[column], sum, bound) << "sum of column " << column;
      ASSERT_NEAR(line[column], sum_again, bound) << "sum of column " << column << " on the CPU";
    }
  }
}

template <class T>
void check_cross_entropy(const LogitsShape& shape, size_t shift) {
  using A = Wide<T>;
  const std::vector<T> x = make_values<T>(shape.rows * shape.stride, 0.7);
  std::vector<int64_t> targets(static_cast<size_t>(shape.rows));
  for (size_t i = 0; i < targets.size(); ++i) targets[i] = static_cast<int64_t>(i) * 7 - 3;
  const std::vector<A> scale = make_values<A>(shape.rows, 0.4);
  std::vector<A> maximum(targets.size()), exp_sum = maximum, target = maximum, sum = maximum, lse = maximum;
  cross_entropy_statistics<T>(x.data(), targets.data(), {maximum.data(), exp_sum.data(), target.data(), sum.data()},
                              shape);
  for (size_t i = 0; i < lse.size(); ++i) lse[i] = maximum[i] + std::log(exp_sum[i]);
  std::vector<T> dx = x;
  cross_entropy_backward<T>(dx.data(), targets.data(), {lse.data(), scale.data(), 0.9, 0.1 / 40}, shape);
  const auto got = run_all_orders([&] {
    const DeviceArray<T> gx(x, Use::both, "logits", shift);
    const DeviceArray<int64_t> gtargets(targets, Use::in, "targets");
    const DeviceArray<A> gmax(maximum, Use::out, "maximum"), gexp(maximum, Use::out, "exp_sum"),
        gtarget(maximum, Use::out, "target"), gsum(maximum, Use::out, "sum"), glse(lse, Use::in, "logsumexp"),
        gscale(scale, Use::in, "scale");
    cross_entropy_statistics_cuda<T>(gx.data(), gtargets.data(),
                                     {gmax.data(), gexp.data(), gtarget.data(), gsum.data()}, shape, nullptr);
    cross_entropy_backward_cuda<T>(gx.data(), gtargets.data(), {glse.data(), gscale.data(), 0.9, 0.1 / 40}, shape,
                                   nullptr);
    return std::tuple{gmax.values(), gexp.values(), gtarget.values(), gsum.values(), gx.values()};
  });
  expect_close(std::get<0>(got), maximum, "maximum");
  expect_sums(std::get<1>(got), exp_sum, "exp_sum", shape.columns, {exp_sum.begin(), exp_sum.end()});
  expect_close(std::get<2>(got), target, "target");
  expect_sums(std::get<3>(got), sum, "sum", shape.columns,
              std::vector<double>(sum.size(), 3.0 * static_cast<double>(shape.columns)));
  expect_close(std::get<4>(got), dx, "gradient of the logits", std::vector<double>(dx.size(), 3));
}

struct DropoutCase {
  int64_t rows, width, first;
  double probability;
  bool bias, residual, sample_major = false, chosen = false;
};

// Offsets of x, bias, residual and out.
using Shifts = std::array<size_t, 4>;

template <class In, class Out>
void check_dropout(const DropoutCase& test_case, const Shifts& shifts) {
  const std::vector<In> x = make_values<In>(test_case.rows * test_case.width, 0.7);
  const std::vector<Out> residual = make_values<Out>(test_case.rows * test_case.width, 0.2);
  const std::vector<In> bias = make_values<In>(test_case.width, 0.3);
  const int64_t samples = test_case.rows % 3 == 0 ? 3 : 1;
  const int64_t of_sample = test_case.rows / samples, heads = of_sample % 2 == 0 ? 2 : 1;
  std::vector<int64_t> counters(static_cast<size_t>(samples)), chosen(static_cast<size_t>(of_sample / heads));
  std::iota(counters.begin(), counters.end(), int64_t{0xF00000000000});
  for (size_t i = 0; i < chosen.size(); ++i) chosen[i] = 2 * static_cast<int64_t>(chosen.size() - 1 - i);
  const auto shape = [&](const int64_t* counts, const int64_t* choice) {
    DropoutRows rows{counts, samples, test_case.first, test_case.sample_major};
    if (test_case.chosen) rows.chosen = choice, rows.num_chosen = of_sample / heads, rows.whole = 2 * rows.num_chosen;
    return DropoutShape{rows, test_case.rows, test_case.width, 0x123456789ABCDEF0ull, test_case.probability};
  };
  std::vector<Out> out(x.size());
  bias_dropout_add<In, Out>(
      {x.data(), test_case.bias ? bias.data() : nullptr, test_case.residual ? residual.data() : nullptr, out.data()},
      shape(counters.data(), chosen.data()));
  const auto got = run_all_orders([&] {
    const DeviceArray<In> gx(x, Use::in, "x", shifts[0]), gbias(bias, Use::in, "bias", shifts[1]);
    const DeviceArray<Out> gresidual(residual, Use::in, "residual", shifts[2]), gout(out, Use::out, "out", shifts[3]);
    const DeviceArray<int64_t> gcounters(counters, Use::in, "counters"), gchosen(chosen, Use::in, "chosen");
    bias_dropout_add_cuda<In, Out>({gx.data(), test_case.bias ? gbias.data() : nullptr,
                                    test_case.residual ? gresidual.data() : nullptr, gout.data()},
                                   shape(gcounters.data(), gchosen.data()), nullptr);
    return std::tuple{gout.values()};
  });
  // (x + bias) scale + residual, and each at most 3.
  const double most = 6 / (1 - test_case.probability) + 3;
  std::vector<double> parts(out.size());
  for (size_t i = 0; i < out.size(); ++i) parts[i] = kIsHalf<Out> ? std::fabs(double{load(out[i])}) : most;
  expect_close(std::get<0>(got), out, "dropout", parts);
  for (size_t i = 0; !test_case.residual && i < out.size(); ++i)
    ASSERT_EQ(load(std::get<0>(got)[i]) == 0, load(out[i]) == 0) << "mask at " << i;
}

std::vector<int64_t> some_indices(int64_t count, int64_t rows) {
  std::vector<int64_t> indices(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) indices[static_cast<size_t>(i)] = i * 7919 % (rows + 2) - 1;
  return indices;
}

template <class T>
void check_gather(const TableShape& shape, bool add, size_t shift) {
  const std::vector<T> table = make_values<T>(shape.rows * shape.width, 0.7),
                       start = make_values<T>(shape.count * shape.width, 0.3);
  const std::vector<int64_t> indices = some_indices(shape.count, shape.rows);
  std::vector<T> out = start;
  gather_rows<T>(table.data(), indices.data(), out.data(), add, shape);
  const auto got = run_all_orders([&] {
    const DeviceArray<T> gtable(table, Use::in, "table", add ? 0 : shift),
        gout(start, add ? Use::both : Use::out, "out", add ? shift : 0);
    const DeviceArray<int64_t> gindices(indices, Use::in, "indices");
    gather_rows_cuda<T>(gtable.data(), gindices.data(), gout.data(), add, shape, nullptr);
    return std::tuple{gout.values()};
  });
  EXPECT_TRUE(same_bits(std::get<0>(got), out)) << "gather";
}

template <class Table, class Dout>
void check_scatter(const TableShape& shape, size_t shift) {
  const std::vector<Table> start = make_values<Table>(shape.rows * shape.width, 0.7);
  const std::vector<Dout> dout = make_values<Dout>(shape.count * shape.width, 0.3);
  const std::vector<int64_t> indices = some_indices(shape.count, shape.rows);
  std::vector<int64_t> order(indices.size()), sorted = indices;
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return indices[static_cast<size_t>(a)] < indices[static_cast<size_t>(b)];
  });
  std::sort(sorted.begin(), sorted.end());
  std::vector<Table> table = start;
  scatter_add_rows<Table, Dout>(table.data(), indices.data(), dout.data(), shape);
  const auto got = run_all_orders([&] {
    const DeviceArray<Table> gtable(start, Use::both, "table", shift);
    const DeviceArray<Dout> gdout(dout, Use::in, "dout", shift);
    const DeviceArray<int64_t> gsorted(sorted, Use::in, "sorted"), gorder(order, Use::in, "order");
    scatter_add_rows_cuda<Table, Dout>(gtable.data(), {gsorted.data(), gorder.data()}, gdout.data(), shape, nullptr);
    return std::tuple{gtable.values()};
  });
  EXPECT_TRUE(same_bits(std::get<0>(got), table)) << "scatter";
}

template <class T>
void check_all() {
  for (const size_t shift : {0, 1}) {
    check_rope<T>({5, 3, 2, 16, 3 * 2 * 24, 2 * 24, 24}, shift);
    check_rope<T>({4, 2, 3, 48, 2 * 3 * 48, 3 * 48, 48}, shift);
    for (const RopeShape& odd :
         {RopeShape{3, 2, 2, 16, 97, 48, 24}, {3, 2, 2, 16, 104, 49, 24}, {3, 2, 2, 16, 104, 52, 25}})
      check_rope<T>(odd, 0);
    check_rope<T>({3, 1, 3, 6, 3 * 7, 3 * 7, 7}, shift);
    check_rope<T>({3, 1, 3, 6, 3 * 7, 3 * 7, 7, true}, shift);
    check_rope<T>({4, 2, 3, 48, 2 * 3 * 48, 3 * 48, 48, true}, shift);
    check_rope<T>({0, 1, 3, 6, 3 * 7, 3 * 7, 7}, shift);
    check_heads<T>({.groups = 2, .head_dim = 32, .rotary = 32}, {3, 3, 1, 1}, 0, shift);
    check_heads<T>({.groups = 1, .head_dim = 48, .rotary = 16}, {2, 0, 1, 1}, 8, shift);
    check_heads<T>({.groups = 3, .head_dim = 7, .rotary = 4, .interleaved = true}, {1, 0, 1, 1}, 1, shift);
    check_heads<T>({.groups = 2, .head_dim = 16}, {1, 0, 1, 1}, 0, shift);
    for (const LogitsShape& shape : {LogitsShape{5, 41, 37},
                                     {3, 600, 600},
                                     {4, 48, 37},
                                     {2, 8208, 8195},
                                     {0, 8, 8},
                                     {2, 0, 0},
                                     {2, 8, 0},
                                     {1, 1, 1}})
      check_cross_entropy<T>(shape, shift);
    for (const TableShape& table_shape :
         {TableShape{40, 16, 100}, {20, 257, 30}, {5, 1, 1}, {64, 768, 0}, {3, 0, 4}}) {
      check_gather<T>(table_shape, false, shift);
      check_gather<T>(table_shape, true, shift);
    }
  }
}

TEST(LayersOnHost, RopeCrossEntropyAndRowsOfTablesAreAsTheirCpuTwins) {
  check_all<float>();
  check_all<double>();
  check_all<Bf16>();
  check_all<F16>();
#define MPX_CHECK_SCATTER(Dout, Table)          \
  check_scatter<Table, Dout>({40, 16, 100}, 0); \
  check_scatter<Table, Dout>({9, 257, 30}, 1);  \
  check_scatter<Table, Dout>({5, 1, 1}, 0);     \
  check_scatter<Table, Dout>({2, 300, 50}, 0);  \
  check_scatter<Table, Dout>({64, 768, 0}, 0)
  MPX_FOR_ELEMENT_PAIRS(MPX_CHECK_SCATTER);
}
#undef MPX_CHECK_SCATTER

TEST(LayersOnHost, DropoutDrawsTheMaskOfItsCpuTwinForEveryPairOfTypes) {
  for (const DropoutCase& test_case : {DropoutCase{1, 1, 0, 0.5, false, false},
                                       {5, 7, 3, 0.3, true, true},
                                       {9, 64, 0, 0.1, true, true},
                                       {9, 130, 1, 0.9, false, true, true},
                                       {8, 100, 6, 0.25, false, false},
                                       {7, 33, 2, 0.0, true, true},
                                       {3, 1027, 5, 0.1, true, false},
                                       {9, 67, 0, 0.4, false, false, false, true},
                                       {9, 131, 10, 0.4, false, false, true, true},
                                       {9, 132, 10, 0.4, false, true, true, true},
                                       {12, 24, 3, 0.4, true, false, false, true},
                                       {12, 21, 3, 0.4, true, false, true, true},
                                       {0, 8, 0, 0.5, true, true},
                                       {4, 0, 0, 0.5, true, true}}) {
    SCOPED_TRACE(testing::Message() << test_case.rows << " x " << test_case.width << " p " << test_case.probability);
    for (const Shifts& shifts : {Shifts{}, {1, 1, 1, 1}, {1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}}) {
#define MPX_CHECK_DROPOUT(In, Out) check_dropout<In, Out>(test_case, shifts)
      MPX_FOR_ELEMENT_CASTS(MPX_CHECK_DROPOUT);
    }
  }
}
#undef MPX_CHECK_DROPOUT

}  // namespace
}  // namespace metroplex::kernels_on_host::layer_test
