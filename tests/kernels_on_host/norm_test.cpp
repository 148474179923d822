#include <array>

#include "kernels/column_sums.h"
#include "kernels/dropout_norm.h"
#include "kernels_on_host/twins.h"
#include "support/everyday.h"

namespace metroplex::kernels_on_host::norm_test {
namespace {

constexpr uint64_t kKey = 0x123456789ABCDEF0ull;

// The two implementations sum in different orders. For 8200 columns a GPU thread adds 33 and then the block 12, one
// after another; a CPU lane adds 513 and 32 over the lanes. Roundings of 2^-24 of the sum with random sign make a
// relative error of sqrt(590) 2^-24 = 1.4e-6; expect_close allows nearly three times that. Columns have fewer rows.
constexpr int kAll = -1, kNone = -2;

// Inputs of one call of each kernel; `sum` is the input of the norm. All, none or one (by number) of the arrays begin
// after a multiple of 16 bytes.
template <class In, class Out>
struct Case {
  using T = Wide<In>;
  NormShape s;
  bool with_add = true, with_dx = true;
  double probability = 0;
  int shifted = kNone;
  int64_t n = s.rows * s.width;
  std::vector<In> x = make_values<In>(n, 0.7), add = make_values<In>(n, 0.11), residual = make_values<In>(n, 0.6);
  std::vector<Out> dy = make_values<Out>(n, 0.3), raw = make_values<Out>(n, 0.5);
  std::vector<Out> weight = make_values<Out>(s.width, 0.2), bias = make_values<Out>(s.width, 0.9),
                   added = make_values<Out>(s.width, 0.4);
  std::vector<T> mean = std::vector<T>(static_cast<size_t>(s.rows)), rstd = mean;
  std::vector<int64_t> counters = std::vector<int64_t>{7, 9};

  size_t shift(int array) const { return shifted == kAll || shifted == array ? 1 : 0; }

  DropoutNormShape shape(const int64_t* where) const {
    return {{{where, s.rows % 2 == 0 ? 2 : 1, 5, false}, s.rows, s.width, kKey, probability}, s};
  }
};

template <class In, class Out>
void check_forward(Case<In, Out>& test_case) {
  using T = Wide<In>;
  std::vector<Out> out(test_case.x.size());
  norm_forward<In, Out>(
      {test_case.x.data(), test_case.weight.data(), test_case.s.rms ? nullptr : test_case.bias.data(), out.data(),
       test_case.mean.data(), test_case.rstd.data()},
      test_case.s);
  const auto got = run_all_orders([&] {
    const DeviceArray<In> x(test_case.x, Use::in, "x", test_case.shift(0));
    const DeviceArray<T> mean(test_case.mean, Use::out, "mean"), rstd(test_case.rstd, Use::out, "rstd");
    const DeviceArray<Out> weight(test_case.weight, Use::in, "weight", test_case.shift(1)),
        bias(test_case.bias, Use::in, "bias", test_case.shift(2)), to(out, Use::out, "out", test_case.shift(3));
    norm_forward_cuda<In, Out>(
        {x.data(), weight.data(), test_case.s.rms ? nullptr : bias.data(), to.data(), mean.data(), rstd.data()},
        test_case.s, nullptr);
    return std::tuple{to.values(), test_case.s.rms ? test_case.mean : mean.values(), rstd.values()};
  });
  expect_close(std::get<0>(got), out, "norm");
  expect_sums(std::get<1>(got), test_case.mean, "mean", test_case.s.width,
              std::vector<double>(test_case.mean.size(), 3.0));
  expect_close(std::get<2>(got), test_case.rstd, "rstd");
}

// The terms of dx: rstd dy weight, from which sums over the row are subtracted, and the gradient that bypasses the
// norm.
template <class In, class Out>
std::vector<double> weight_products(const Case<In, Out>& test_case, const std::vector<In>& dx) {
  std::vector<double> parts;
  for (size_t i = 0; i < dx.size(); ++i) {
    const size_t width = static_cast<size_t>(test_case.s.width);
    const double total = load(dx[i]), past = test_case.with_add ? double{load(test_case.add[i])} : 0.0;
    const double own = double{test_case.rstd[i / width]} * load(test_case.dy[i]) *
                       (load(test_case.weight[i % width]) + test_case.s.one_plus);
    parts.push_back(std::fabs(total) + std::fabs(past) + std::fabs(own));
  }
  return parts;
}

// Sums of the absolute values of each column's terms of dweight, then dbias.
template <class In, class Out>
std::vector<double> summand_sizes(const Case<In, Out>& test_case) {
  const auto width = static_cast<size_t>(test_case.s.width);
  std::vector<double> sizes(2 * width);
  for (size_t i = 0; i < test_case.x.size(); ++i) {
    const double dy = std::fabs(double{load(test_case.dy[i])}), rstd = double{test_case.rstd[i / width]},
                 mean = test_case.s.rms ? 0 : std::fabs(double{test_case.mean[i / width]});
    sizes[i % width] += dy * rstd * (std::fabs(double{load(test_case.x[i])}) + mean);
    sizes[width + i % width] += dy;
  }
  return sizes;
}

// Sums of the columns of dx, and of their absolute values.
template <class T, class Element>
std::array<std::vector<T>, 2> column_totals(const std::vector<Element>& dx, int64_t width) {
  std::array<std::vector<T>, 2> totals;
  totals[0] = totals[1] = std::vector<T>(static_cast<size_t>(width));
  for (size_t i = 0; i < dx.size(); ++i) {
    const T value = load(dx[i]);
    totals[0][i % totals[0].size()] += value, totals[1][i % totals[1].size()] += std::fabs(value);
  }
  return totals;
}

// Lines of a backward on the GPU, and their sums: dweight, then dbias, or zeros if there is no bias, then those of
// dx.
template <class T>
class Lines {
 public:
  Lines(const NormShape& shape, bool with_dx, size_t shift)
      : shape_(shape),
        with_dx_(with_dx),
        stride_((1 + !shape.rms + with_dx) * shape.width),
        lines_(std::vector<T>(static_cast<size_t>(norm_lines(shape) * stride_)), Use::both, "lines", shift) {}
  T* data() const { return lines_.data(); }
  std::vector<T> sums() const {
    const DeviceArray<T> out(std::vector<T>(static_cast<size_t>(3 * shape_.width)), Use::both, "sums");
    const auto sums = [&](int64_t from, int64_t to, bool adds) {
      return LineSums<T>{lines_.data() + from * shape_.width,
                         norm_lines(shape_),
                         stride_,
                         shape_.width,
                         out.data() + to * shape_.width,
                         adds};
    };
    LineSumsTable<T> table{{sums(0, 0, false)}};
    size_t count = 1;
    if (!shape_.rms) table.all[count++] = sums(1, 1, true);
    if (with_dx_) table.all[count] = sums(stride_ / std::max<int64_t>(1, shape_.width) - 1, 2, false);
    sum_lines_cuda<T>(table, nullptr);
    return out.values();
  }

 private:
  NormShape shape_;
  bool with_dx_;
  int64_t stride_;
  DeviceArray<T> lines_;
};

// Compares the sums of a GPU's lines with the CPU's line, and the sums of dx with those of the stored dx.
template <class In, class Out, class Element, class T = Wide<In>>
void expect_line_sums(const Case<In, Out>& test_case, const std::vector<T>& got, const std::vector<T>& line,
                      const std::vector<Element>& got_dx, const std::vector<Element>& dx) {
  const auto width = static_cast<std::ptrdiff_t>(test_case.s.width), norms = (test_case.s.rms ? 1 : 2) * width;
  std::vector<T> weights(line.begin(), line.begin() + norms);
  weights.resize(static_cast<size_t>(2 * width));
  expect_sums({got.begin(), got.begin() + 2 * width}, weights, "gradients of weight and bias", test_case.s.rows,
              summand_sizes(test_case));
  if (!test_case.with_dx) return;
  const auto check = [&](const std::vector<T>& sums, const std::vector<Element>& of) {
    const auto [totals, sizes] = column_totals<T>(of, test_case.s.width);
    expect_sums(sums, totals, "sums of dx", test_case.s.rows, {sizes.begin(), sizes.end()});
  };
  check({got.begin() + 2 * width, got.end()}, got_dx);
  check({line.begin() + norms, line.begin() + norms + width}, dx);
}

template <class In, class Out>
void check_backward(const Case<In, Out>& test_case) {
  using T = Wide<In>;
  std::vector<In> dx(test_case.x.size());
  std::vector<T> sums(3 * test_case.weight.size());
  norm_backward<In, Out>({test_case.dy.data(), test_case.x.data(), test_case.weight.data(), test_case.mean.data(),
                          test_case.rstd.data(), test_case.with_add ? test_case.add.data() : nullptr, dx.data(),
                          sums.data(), !test_case.s.rms, test_case.with_dx},
                         test_case.s);
  const auto got = run_all_orders([&] {
    const DeviceArray<In> x(test_case.x, Use::in, "x", test_case.shift(0)),
        add(test_case.add, Use::in, "add", test_case.shift(4)), to(dx, Use::out, "dx", test_case.shift(5));
    const DeviceArray<Out> dy(test_case.dy, Use::in, "dy", test_case.shift(6)),
        weight(test_case.weight, Use::in, "weight", test_case.shift(1));
    const DeviceArray<T> mean(test_case.mean, Use::in, "mean"), rstd(test_case.rstd, Use::in, "rstd");
    const Lines<T> lines(test_case.s, test_case.with_dx, test_case.shift(7));
    norm_backward_cuda<In, Out>(
        {dy.data(), x.data(), weight.data(), mean.data(), rstd.data(), test_case.with_add ? add.data() : nullptr,
         to.data(), lines.data(), !test_case.s.rms, test_case.with_dx},
        test_case.s, nullptr);
    return std::tuple{to.values(), lines.sums()};
  });
  expect_close(std::get<0>(got), dx, "dx of the norm", weight_products(test_case, dx));
  expect_line_sums(test_case, std::get<1>(got), sums, std::get<0>(got), dx);
}

template <class In, class Out>
void check_sum(const Case<In, Out>& test_case) {
  using T = Wide<In>;
  std::vector<In> sum(test_case.x.size());
  std::vector<Out> out(test_case.x.size());
  std::vector<T> mean(test_case.mean.size()), rstd(test_case.mean.size());
  const Out* const bias = test_case.s.rms ? nullptr : test_case.bias.data();
  dropout_norm_forward<In, Out>({test_case.raw.data(), test_case.added.data(), test_case.residual.data(), sum.data()},
                                {sum.data(), test_case.weight.data(), bias, out.data(), mean.data(), rstd.data()},
                                test_case.shape(test_case.counters.data()));
  const auto got = run_all_orders([&] {
    const DeviceArray<Out> raw(test_case.raw, Use::in, "raw", test_case.shift(8)),
        to(out, Use::out, "out", test_case.shift(3));
    const DeviceArray<In> residual(test_case.residual, Use::in, "residual", test_case.shift(9)),
        x(sum, Use::out, "sum", test_case.shift(0));
    const DeviceArray<Out> added(test_case.added, Use::in, "bias", test_case.shift(10)),
        weight(test_case.weight, Use::in, "weight", test_case.shift(1)),
        bias_there(test_case.bias, Use::in, "norm bias", test_case.shift(2));
    const DeviceArray<T> gmean(mean, Use::out, "mean"), grstd(rstd, Use::out, "rstd");
    const DeviceArray<int64_t> counters(test_case.counters, Use::in, "counters");
    dropout_norm_forward_cuda<In, Out>({raw.data(), added.data(), residual.data(), x.data()},
                                       {x.data(), weight.data(), test_case.s.rms ? nullptr : bias_there.data(),
                                        to.data(), gmean.data(), grstd.data()},
                                       test_case.shape(counters.data()), nullptr);
    return std::tuple{x.values(), to.values()};
  });
  // The retained values are multiplied by 1 or 2: exact.
  EXPECT_TRUE(same_bits(std::get<0>(got), sum)) << "sum";
  expect_close(std::get<1>(got), out, "norm of the sum");
}

template <class In, class Out>
void check_sum_backward(const Case<In, Out>& test_case) {
  using T = Wide<In>;
  std::vector<In> dx(test_case.x.size());
  std::vector<Out> drawn(test_case.x.size());
  std::vector<T> sums(3 * test_case.weight.size());
  dropout_norm_backward<In, Out>(
      {test_case.dy.data(), test_case.x.data(), test_case.weight.data(), test_case.mean.data(), test_case.rstd.data(),
       test_case.add.data(), dx.data(), sums.data(), !test_case.s.rms, test_case.with_dx},
      drawn.data(), test_case.shape(test_case.counters.data()));
  const auto got = run_all_orders([&] {
    const DeviceArray<In> x(test_case.x, Use::in, "x", test_case.shift(0)),
        add(test_case.add, Use::in, "add", test_case.shift(4)),
        gdx(dx, Use::out, "sum's gradient", test_case.shift(5));
    const DeviceArray<Out> dy(test_case.dy, Use::in, "dy", test_case.shift(6)),
        gdrawn(drawn, Use::out, "dx", test_case.shift(11)),
        weight(test_case.weight, Use::in, "weight", test_case.shift(1));
    const DeviceArray<T> mean(test_case.mean, Use::in, "mean"), rstd(test_case.rstd, Use::in, "rstd");
    const Lines<T> lines(test_case.s, test_case.with_dx, test_case.shift(7));
    const DeviceArray<int64_t> counters(test_case.counters, Use::in, "counters");
    dropout_norm_backward_cuda<In, Out>({dy.data(), x.data(), weight.data(), mean.data(), rstd.data(), add.data(),
                                         gdx.data(), lines.data(), !test_case.s.rms, test_case.with_dx},
                                        gdrawn.data(), test_case.shape(counters.data()), nullptr);
    return std::tuple{gdx.values(), lines.sums(), gdrawn.values()};
  });
  expect_close(std::get<0>(got), dx, "the sum's gradient", weight_products(test_case, dx));
  expect_line_sums(test_case, std::get<1>(got), sums, std::get<2>(got), drawn);
  const T scale = static_cast<T>(1 / (1 - test_case.probability));
  for (size_t i = 0; i < drawn.size(); ++i) {
    const bool kept = load(drawn[i]) != 0 || test_case.probability == 0;
    const T to = load(std::get<0>(got)[i]);
    ASSERT_EQ(load(std::get<2>(got)[i]), kept ? load(store<Out>(to * scale)) : T(0)) << "dx at " << i;
  }
}

template <class In, class Out>
void check(const NormShape& shape, double probability, int shifted) {
  SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.width << " rms " << shape.rms << " one plus "
                                  << shape.one_plus << " p " << probability << " shifted " << shifted);
  Case<In, Out> test_case{shape, probability > 0, true, probability, shifted};
  check_forward(test_case);
  check_backward(test_case);
  test_case.with_dx = false;
  check_backward(test_case);
  test_case.with_dx = true;
  check_sum(test_case);
  check_sum_backward(test_case);
}

template <class In, class Out>
void check_pair() {
  for (const bool rms : {false, true}) {
    for (const auto& [rows, width] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 8}, {1, 5}, {7, 1}, {19, 300}, {9, 64}}) {
      for (const double probability : {0.0, 0.5})
        check<In, Out>({rows, width, 1e-5, rms}, probability, rows == 9 || width == 5 ? kAll : kNone);
    }
    // Rows of a warp with two packs per lane (bf16), or three, and rows of a block with one, two or more packs per
    // thread. A thread reads doubles of the longest rows again.
    for (const int64_t width : rms ? std::array{264, 1032} : std::array{520, 2056})
      check<In, Out>({2, width, 1e-5, rms}, rms ? 0.5 : 0.0, kNone);
    // Sums that fit into shared memory only without dbias, in packs that no thread holds (of floats 5128 columns, of
    // halves 8200) and without packs. The path depends on the type of the sums, so by default one pair of types runs
    // for each, and one of half types.
    const bool everyday = std::is_same_v<In, Out> && !std::is_same_v<In, F16>;
    if (!everyday && !test::runs_full_sweep()) continue;
    for (const int64_t width : {5128, 5121, 8200})
      if (test::runs_full_sweep() || rms == (width != 5121))
        check<In, Out>({2, width, 1e-5, rms}, rms ? 0.5 : 0.0, kNone);
  }
  constexpr int kArrays = 12;
  for (int shifted = kNone; shifted < kArrays; ++shifted) check<In, Out>({3, 64, 1e-5, false}, 0.5, shifted);
  for (const int64_t width : {5, 64})
    check<In, Out>({.rows = 3, .width = width, .epsilon = 1e-5, .rms = true, .one_plus = true}, 0.5, kNone);
}

TEST(NormOnHost, AloneAndBehindDropoutEveryPairOfTypesIsAsItsCpuTwin) {
  check_pair<float, float>();
  check_pair<double, double>();
  check_pair<Bf16, Bf16>();
  check_pair<F16, F16>();
  check_pair<float, Bf16>();
  check_pair<float, F16>();
}

template <class T>
void check_many_rows(int64_t width) {
  Case<T, T> test_case{{4127, width, 1e-5, false}};
  ASSERT_EQ(norm_lines(test_case.s), 258);
  set_order({});
  norm_forward<T, T>({test_case.x.data(), test_case.weight.data(), test_case.bias.data(),
                      std::vector<T>(test_case.x.size()).data(), test_case.mean.data(), test_case.rstd.data()},
                     test_case.s);
  check_backward(test_case);
}

// Blocks with 16 rows: a block takes one row at a time, and each of its warps two.
TEST(NormOnHost, SumsLinesOfManyRows) {
  check_many_rows<float>(3);
  check_many_rows<Bf16>(8);
}

}  // namespace
}  // namespace metroplex::kernels_on_host::norm_test
