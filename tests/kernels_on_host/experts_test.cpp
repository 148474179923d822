#include <numeric>

#include "kernels/expert_rows.h"
#include "kernels/grouped_product.h"
#include "kernels/permutation.h"
#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host::experts_test {
namespace {

const std::vector<int64_t> kCounts{3, 0, 7, 1, 9};  // of 16 rows: the last ones are truncated

template <class T>
std::vector<double> sizes(const std::vector<T>& x, double most) {
  return std::vector<double>(x.size(), most);
}

template <class T>
void check_rows(const ExpertShape& shape, bool with_bias, bool with_probs, size_t shift) {
  using A = Wide<T>;
  const int64_t wide = shape.gated ? 2 * shape.width : shape.width;
  const std::vector<T> x = make_values<T>(shape.rows * wide, 0.7), bias = make_values<T>(shape.experts * wide, 0.2),
                       dy = make_values<T>(shape.rows * shape.width, 0.3);
  const std::vector<A> probs = make_values<A>(shape.rows, 0.5);
  const T* const b = with_bias ? bias.data() : nullptr;
  const A* const p = with_probs ? probs.data() : nullptr;
  std::vector<T> out = make_values<T>(shape.rows * shape.width, 0.9), dx = make_values<T>(shape.rows * wide, 0.8),
                 y = dy;
  std::vector<A> dprobs = make_values<A>(shape.rows, 0.6), sums = make_values<A>(shape.experts * shape.width, 0.1),
                 more = dprobs;
  const auto out0 = out, dx0 = dx;
  const auto dprobs0 = dprobs, sums0 = sums;
  expert_activation<T>(x.data(), b, p, kCounts.data(), out.data(), shape);
  expert_activation_backward<T>({dy.data(), x.data(), b, p, dx.data(), with_probs ? dprobs.data() : nullptr},
                                kCounts.data(), shape);
  expert_bias<T>(y.data(), bias.data(), p, kCounts.data(), shape);
  expert_bias_probs<T>(dy.data(), bias.data(), kCounts.data(), more.data(), shape);
  expert_sums<T>(dy.data(), p, kCounts.data(), sums.data(), shape);
  const auto got = run_all_orders([&] {
    const DeviceArray<T> gx(x, Use::in, "x", shift), gbias(bias, Use::in, "bias", shift),
        gdy(dy, Use::in, "dy", shift), gout(out0, Use::both, "out", shift), gdx(dx0, Use::both, "dx", shift),
        gy(dy, Use::both, "y", shift);
    const DeviceArray<A> gprobs(probs, Use::in, "probs", shift), gdprobs(dprobs0, Use::both, "dprobs", shift),
        gsums(sums0, Use::both, "sums", shift), gmore(dprobs0, Use::both, "dprobs of the bias", shift);
    const DeviceArray<int64_t> counts(kCounts, Use::in, "counts");
    const T* const at_bias = with_bias ? gbias.data() : nullptr;
    const A* const at_probs = with_probs ? gprobs.data() : nullptr;
    expert_activation_cuda<T>(gx.data(), at_bias, at_probs, counts.data(), gout.data(), shape, nullptr);
    expert_activation_backward_cuda<T>(
        {gdy.data(), gx.data(), at_bias, at_probs, gdx.data(), with_probs ? gdprobs.data() : nullptr}, counts.data(),
        shape, nullptr);
    expert_bias_cuda<T>(gy.data(), gbias.data(), at_probs, counts.data(), shape, nullptr);
    expert_bias_probs_cuda<T>(gdy.data(), gbias.data(), counts.data(), gmore.data(), shape, nullptr);
    expert_sums_cuda<T>(gdy.data(), at_probs, counts.data(), gsums.data(), shape, nullptr);
    return std::tuple{gout.values(), gdx.values(), gy.values(), gdprobs.values(), gmore.values(), gsums.values()};
  });
  expect_close(std::get<0>(got), out, "activation of experts");
  expect_close(std::get<1>(got), dx, "its gradient");
  expect_close(std::get<2>(got), y, "bias of experts");
  const double dot = 27.0 * static_cast<double>(shape.width) + 3;  // products of three numbers of at most 3
  expect_close(std::get<3>(got), dprobs, "dprobs", sizes(dprobs, dot));
  expect_close(std::get<4>(got), more, "dprobs of the bias", sizes(more, dot));
  expect_close(std::get<5>(got), sums, "sums", sizes(sums, 9.0 * 9 + 3));
}

template <class T>
void check_scale(const ExpertShape& shape, size_t shift) {
  using A = Wide<T>;
  const std::vector<T> x = make_values<T>(shape.rows * shape.width, 0.7),
                       dy = make_values<T>(shape.rows * shape.width, 0.3);
  const std::vector<A> probs = make_values<A>(shape.rows, 0.5);
  std::vector<T> out = x, dx = x;
  std::vector<A> dprobs = probs;
  expert_scale<T>(x.data(), probs.data(), kCounts.data(), out.data(), shape);
  expert_scale_backward<T>({dy.data(), x.data(), nullptr, probs.data(), dx.data(), dprobs.data()}, kCounts.data(),
                           shape);
  const auto got = run_all_orders([&] {
    const DeviceArray<T> gx(x, Use::in, "x", shift), gdy(dy, Use::in, "dy", shift), gout(x, Use::both, "out", shift),
        gdx(x, Use::both, "dx", shift);
    const DeviceArray<A> gprobs(probs, Use::in, "probs", shift), gdprobs(probs, Use::both, "dprobs", shift);
    const DeviceArray<int64_t> counts(kCounts, Use::in, "counts");
    expert_scale_cuda<T>(gx.data(), gprobs.data(), counts.data(), gout.data(), shape, nullptr);
    expert_scale_backward_cuda<T>({gdy.data(), gx.data(), nullptr, gprobs.data(), gdx.data(), gdprobs.data()},
                                  counts.data(), shape, nullptr);
    return std::tuple{gout.values(), gdx.values(), gdprobs.values()};
  });
  expect_close(std::get<0>(got), out, "scaled rows");
  expect_close(std::get<1>(got), dx, "their gradient");
  expect_close(std::get<2>(got), dprobs, "dprobs", sizes(dprobs, 9.0 * static_cast<double>(shape.width)));
}

template <class T>
void check_experts() {
  for (const auto kind : {Activation::gelu, Activation::gelu_tanh, Activation::quick_gelu, Activation::silu,
                          Activation::relu, Activation::squared_relu}) {
    for (const bool gated : {false, true}) {
      SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(kind) << " gated " << gated);
      check_rows<T>({5, 16, 33, kind, gated}, true, true, gated ? 1 : 0);
      if (gated) check_rows<T>({5, 16, 33, kind, true, {0.4, 1.0}}, true, true, 0);
      if (kind == Activation::silu) check_rows<T>({5, 16, 300, kind, gated}, false, false, 0);
      if (kind == Activation::silu) check_rows<T>({5, 16, 64, kind, gated}, true, true, gated ? 0 : 1);
    }
  }
  check_rows<T>({5, 0, 8, Activation::gelu, false}, true, true, 0);
  check_rows<T>({0, 4, 8, Activation::gelu, false}, true, true, 0);
  for (const size_t shift : {0, 1}) check_scale<T>({5, 16, 70}, shift);
}

TEST(ExpertsOnHost, WhatExpertsDoToTheirRowsIsAsTheCpuTwins) {
  check_experts<float>();
  check_experts<double>();
  check_experts<Bf16>();
  check_experts<F16>();
}

struct Sizes {
  std::vector<int64_t> rows, source, counts;
};

template <class Cpu, class Gpu>
Sizes check_plan(const std::vector<int64_t>& from, const Sizes& empty, const Cpu& cpu, const Gpu& gpu) {
  Sizes plan = empty;
  cpu(from.data(), PermutationPlan{plan.rows.data(), plan.source.data(), plan.counts.data()});
  const auto got = run_all_orders([&] {
    const DeviceArray<int64_t> gfrom(from, Use::in, "experts"), rows(empty.rows, Use::out, "rows"),
        source(empty.source, Use::out, "source"), counts(empty.counts, Use::out, "counts");
    gpu(gfrom.data(), PermutationPlan{rows.data(), source.data(), counts.data()});
    return std::tuple{rows.values(), source.values(), counts.values()};
  });
  EXPECT_EQ(std::get<0>(got), plan.rows);
  EXPECT_EQ(std::get<1>(got), plan.source);
  EXPECT_EQ(std::get<2>(got), plan.counts);
  return plan;
}

std::vector<int64_t> make_zeros(int64_t n) { return std::vector<int64_t>(static_cast<size_t>(n)); }

template <class T>
void check_moves(const Sizes& plan, int64_t assignments, int64_t width) {
  const size_t shift = assignments == 254 ? 1 : 0;
  const std::vector<T> x = make_values<T>(assignments / 2 * width, 0.7);
  std::vector<T> out = make_values<T>(static_cast<int64_t>(plan.source.size()) * width, 0.2);
  const std::vector<T> out0 = out;
  const auto num_rows = static_cast<int64_t>(plan.source.size());
  const SumShape sum{assignments / 2, 2 * static_cast<int64_t>(plan.rows.size()) / std::max<int64_t>(1, assignments),
                     width};
  const std::vector<Wide<T>> numbers = make_values<Wide<T>>(assignments, 0.4);
  std::vector<Wide<T>> moved = make_values<Wide<T>>(num_rows, 0.9);
  const auto moved0 = moved;
  constexpr int kBytes = sizeof(Wide<T>);
  permute_rows<T>(x.data(), plan.source.data(), out.data(), {num_rows, width, 2},
                  {numbers.data(), moved.data(), kBytes});
  std::vector<T> back(x.size());
  sum_rows<T>(out.data(), plan.rows.data(), back.data(), sum);
  const auto got = run_all_orders([&] {
    const DeviceArray<T> gx(x, Use::in, "x", shift), gout(out0, Use::both, "out", shift),
        gback(back, Use::out, "back", shift);
    const DeviceArray<int64_t> source(plan.source, Use::in, "source"), rows(plan.rows, Use::in, "rows");
    const DeviceArray<Wide<T>> gnumbers(numbers, Use::in, "numbers"), gmoved(moved0, Use::both, "moved numbers");
    permute_rows_cuda<T>(gx.data(), source.data(), gout.data(), {num_rows, width, 2},
                         {gnumbers.data(), gmoved.data(), kBytes}, nullptr);
    sum_rows_cuda<T>(gout.data(), rows.data(), gback.data(), sum, nullptr);
    return std::tuple{gout.values(), gback.values(), gmoved.values()};
  });
  EXPECT_TRUE(same_bits(std::get<0>(got), out)) << "permuted rows";
  EXPECT_TRUE(same_bits(std::get<1>(got), back)) << "sums of rows";
  EXPECT_TRUE(same_bits(std::get<2>(got), moved)) << "numbers of rows";
}

TEST(ExpertsOnHost, RowsAreSortedAndSummedToTheBitsOfTheCpu) {
  // From 1024 on, in tiles; 2100 are two, of which the second is longer.
  for (const int64_t assignments : {0, 2, 254, 300, 1024, 2100, 5002}) {
    std::vector<int64_t> experts(static_cast<size_t>(assignments));
    for (int64_t a = 0; a < assignments; ++a) experts[static_cast<size_t>(a)] = a * 7 % 13 - 1;
    for (const PermutationShape& shape :
         {PermutationShape{assignments, assignments, 0, 12, 12},
          PermutationShape{assignments, 3 * assignments, 4, 4, 2, 3},
          PermutationShape{assignments, 12 * assignments, 0, 12, 12, 1, assignments}}) {
      const Sizes plan = check_plan(
          experts,
          {make_zeros(assignments * shape.copies), make_zeros(shape.num_rows), make_zeros(shape.num_experts)},
          [&](const int64_t* e, const PermutationPlan& plan) { plan_permutation(e, plan, shape); },
          [&](const int64_t* e, const PermutationPlan& plan) { plan_permutation_cuda(e, plan, shape, nullptr); });
      if (assignments > 1024 && shape.copies * shape.capacity > 0) continue;  // its buffer is large
      const int64_t width = assignments > 300 ? 1 : assignments > 254 ? 3 : assignments > 2 ? 64 : 33;
      check_moves<float>(plan, assignments, width);
      check_moves<double>(plan, assignments, width);
      check_moves<Bf16>(plan, assignments, width);
      check_moves<F16>(plan, assignments, width);
    }
  }
  for (const RegroupShape& shape : {RegroupShape{2, 3, 0, 7, 7}, {2, 3, 4, 24, 24}}) {
    check_plan(
        {2, 0, 1, 1, 3, 0}, {make_zeros(shape.num_in), make_zeros(shape.num_out), make_zeros(3)},
        [&](const int64_t* table, const PermutationPlan& plan) { plan_regroup(table, plan, shape); },
        [&](const int64_t* table, const PermutationPlan& plan) { plan_regroup_cuda(table, plan, shape, nullptr); });
  }
}

// A warp searches the groups 32 at a time. Many are empty, one count is negative, and the last rows are cut off.
TEST(ExpertsOnHost, FindsGroupsOfManyExperts) {
  constexpr int64_t kExperts = 70;
  std::vector<int64_t> row_counts;
  for (int64_t expert = 0; expert < kExperts; ++expert)
    row_counts.push_back(expert % 5 == 0 || (expert > 20 && expert < 60) ? 0 : expert % 3);
  row_counts[7] = -4;
  const int64_t all = std::accumulate(row_counts.begin(), row_counts.end(), int64_t{4}), rows = all - 3;
  const ExpertShape shape{kExperts, rows, 3};
  const std::vector<float> y = make_values<float>(rows * 3, 0.7), bias = make_values<float>(kExperts * 3, 0.2);
  std::vector<float> out = y;
  std::vector<int32_t> ends(kExperts);
  expert_bias<float>(out.data(), bias.data(), nullptr, row_counts.data(), shape);
  group_ends(row_counts.data(), kExperts, rows, ends.data());
  const auto got = run_all_orders([&] {
    const DeviceArray<float> gy(y, Use::both, "y"), gbias(bias, Use::in, "bias");
    const DeviceArray<int64_t> counts(row_counts, Use::in, "counts");
    const DeviceArray<int32_t> gends(ends, Use::out, "ends");
    expert_bias_cuda<float>(gy.data(), gbias.data(), nullptr, counts.data(), shape, nullptr);
    group_ends_cuda(counts.data(), kExperts, rows, gends.data(), nullptr);
    return std::tuple{gy.values(), gends.values()};
  });
  EXPECT_TRUE(same_bits(std::get<0>(got), out));
  EXPECT_TRUE(same_bits(std::get<1>(got), ends));
  EXPECT_EQ(ends.back(), rows);
}

// The operands of one grouped matmul. The last `slots` weights or gradients are separate allocations, and these
// gradients are overwritten; the others are added to if `adds`. One group has no rows. `scales`: the operands that
// have factors.
struct Scales {
  bool a = false, b = false;
};
template <class T, class C>
void check_product(const GroupedShape& shape, size_t shift, int64_t slots = 0, bool adds = true,
                   const std::vector<int64_t>& row_counts = kCounts, const Scales& scales = {}) {
  const bool weight = shape.op == GroupedOp::weight_gradient;
  const int64_t home = (shape.groups - slots) * shape.out, apart = slots * shape.out;
  const int64_t a_width = shape.op == GroupedOp::forward ? shape.in : shape.out, b_rows = weight ? shape.rows : home,
                c_width = shape.op == GroupedOp::forward ? shape.out : shape.in, c_rows = weight ? home : shape.rows;
  const std::vector<T> a = make_values<T>(shape.rows * a_width, 0.7), b = make_values<T>(b_rows * shape.in, 0.3),
                       b_replicas = make_values<T>(weight ? 0 : apart * shape.in, 0.4);
  const std::vector<C> start = make_values<C>(c_rows * c_width, 0.1),
                       start_replicas = make_values<C>(weight ? apart * shape.in : 0, 0.2);
  const std::vector<float> a_factors = make_values<float>(shape.groups, 0.5),
                           b_factors = make_values<float>(shape.groups, 0.8);
  const auto source = [&](const T* at_a, const T* at_b, const T* at_b_replicas, const C* at_c, const C* at_c_replicas,
                          const float* of_a, const float* of_b) {
    return GroupedSource{
        {at_a, a_width, 0, sizeof(T), nullptr, scales.a ? of_a : nullptr},
        {at_b, shape.in, weight ? 0 : shape.out * shape.in, sizeof(T), at_b_replicas, scales.b ? of_b : nullptr},
        {at_c, c_width, weight ? shape.out * shape.in : 0, sizeof(C), at_c_replicas},
        shape.groups,
        shape.rows,
        slots,
        adds};
  };
  std::vector<C> c = start, c_replicas = start_replicas;
  std::vector<int64_t> arguments(static_cast<size_t>(kGroupedFields * shape.groups));
  grouped_arguments(
      row_counts.data(),
      source(a.data(), b.data(), b_replicas.data(), c.data(), c_replicas.data(), a_factors.data(), b_factors.data()),
      arguments.data());
  grouped_product<T>(arguments.data(), shape);
  const auto got = run_all_orders([&] {
    const DeviceArray<T> ga(a, Use::in, "a", shift), gb(b, Use::in, "b", shift),
        gb_replicas(b_replicas, Use::in, "b of clones", shift);
    const DeviceArray<C> gc(start, Use::both, "c", shift),
        gc_replicas(start_replicas, Use::both, "c of clones", shift);
    const DeviceArray<int64_t> counts(row_counts, Use::in, "counts"), table(arguments, Use::out, "arguments");
    const DeviceArray<float> of_a(a_factors, Use::in, "factors of a"), of_b(b_factors, Use::in, "factors of b");
    grouped_arguments_cuda(
        counts.data(),
        source(ga.data(), gb.data(), gb_replicas.data(), gc.data(), gc_replicas.data(), of_a.data(), of_b.data()),
        table.data(), nullptr);
    grouped_product_cuda<T>(table.data(), shape, nullptr);
    return std::tuple{gc.values(), gc_replicas.values()};
  });
  const double terms = static_cast<double>(std::max({shape.in, shape.out, shape.rows}));
  // Sums for half types are in fp32, of up to `terms` products of at most 9, times two factors of at most 3.
  const auto parts = [&](const std::vector<C>& of) {
    std::vector<double> out(of.size());
    for (size_t i = 0; i < of.size(); ++i)
      out[i] = kIsHalf<C> ? std::fabs(double{load(of[i])}) + 3 : (scales.a ? 3 : 1) * (scales.b ? 3 : 1) * 9 * terms;
    return out;
  };
  expect_close(std::get<0>(got), c, "product of groups", parts(c));
  expect_close(std::get<1>(got), c_replicas, "gradients of clones", parts(c_replicas));
}

template <class T>
void check_products() {
  const auto groups = static_cast<int64_t>(kCounts.size());
  for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{{33, 70}, {5, 3}, {8, 16}}) {
    const size_t shift = in == 33 ? 0 : 1;
    for (const auto& [slots, scales] : std::vector<std::pair<int64_t, Scales>>{
             {0, {}}, {1, {true, false}}, {4, {true, true}}, {0, {false, true}}}) {
      for (const GroupedOp op : {GroupedOp::forward, GroupedOp::input_gradient})
        check_product<T, T>({op, groups, 16, in, out}, shift, slots, true, kCounts, scales);
      const GroupedShape wide{GroupedOp::weight_gradient, groups, 16, in, out, true};
      check_product<T, Wide<T>>(wide, shift, slots, true, kCounts, scales);
      check_product<T, T>({wide.op, groups, 16, in, out, false}, shift, slots, true, kCounts, scales);
      check_product<T, Wide<T>>(wide, shift, slots, false, kCounts, scales);
    }
  }
}

TEST(ExpertsOnHost, ProductsOfGroupsAreAsTheCpuTwins) {
  check_products<float>();
  check_products<double>();
  check_products<Bf16>();
  check_products<F16>();
}

// Rows and widths around a tile of half numbers: products end within packs, steps and tiles, and on their edges.
template <class T>
void check_tiles(int64_t in, int64_t out, size_t shift) {
  const std::vector<int64_t> counts{127, 0, 130, 1, 129};
  const auto groups = static_cast<int64_t>(counts.size());
  for (const int64_t rows : {380, 400}) {  // the last rows are truncated; there is more capacity than rows
    SCOPED_TRACE(testing::Message() << in << " to " << out << ", room " << rows << ", shift " << shift);
    const bool cut = rows == 380;
    const int64_t slots = cut ? 2 : 0;
    check_product<T, T>({GroupedOp::forward, groups, rows, in, out}, shift, slots, true, counts);
    check_product<T, T>({GroupedOp::input_gradient, groups, rows, in, out}, shift, slots, true, counts);
    check_product<T, float>({GroupedOp::weight_gradient, groups, rows, in, out, true}, shift, slots, cut, counts,
                            {true, true});
    check_product<T, T>({GroupedOp::weight_gradient, groups, rows, in, out, false}, shift, slots, !cut, counts);
  }
}

TEST(ExpertsOnHost, TilesOfHalvesAreAsTheCpuTwinsAtTheirEdges) {
  check_tiles<F16>(128, 136, 0);
  check_tiles<F16>(129, 127, 0);
  check_tiles<Bf16>(136, 130, 0);
  check_tiles<Bf16>(40, 128, 1);
}

// More groups than a warp has lanes, and more tiles of rows than a band.
TEST(ExpertsOnHost, EveryTileOfManyGroupsAndRowsIsMadeOnce) {
  std::vector<int64_t> many(70);
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<int64_t>(i * 7 % 3);
  const int64_t rows = std::accumulate(many.begin(), many.end(), int64_t{0});
  check_product<F16, F16>({GroupedOp::forward, 70, rows, 8, 136}, 0, 0, true, many);
  check_product<float, float>({GroupedOp::forward, 70, rows, 8, 72}, 0, 0, true, many);
  check_product<F16, F16>({GroupedOp::forward, 2, 2400, 8, 264}, 0, 0, true, {2300, 100});
}

}  // namespace
}  // namespace metroplex::kernels_on_host::experts_test
