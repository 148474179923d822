#include "kernels/dropout_norm.h"
#include "kernels_on_host/twins.h"
#include "support/everyday.h"

namespace metroplex::kernels_on_host::norm_test {
namespace {

constexpr uint64_t kKey = 0x123456789ABCDEF0ull;

// The two implementations sum in different orders. For 8200 columns a GPU thread adds 33 and then the block 12, one
// after another; a CPU lane adds 513 and 32 over the lanes. Roundings of 2^-24 of the sum with random sign make a
// relative error of sqrt(590) 2^-24 = 1.4e-6; expect_twins allows nearly three times that. Columns have fewer rows.
constexpr int kAll = -1, kNone = -2;

// Inputs of one call of each kernel; `sum` is the input of the norm. All, none or one (by number) of the arrays begin
// after a multiple of 16 bytes.
template <class In, class Out>
struct Case {
  using T = Wide<In>;
  NormShape s;
  bool with_add = true;
  double probability = 0;
  int shifted = kNone;
  int64_t n = s.rows * s.width;
  std::vector<In> x = made<In>(n, 0.7), add = made<In>(n, 0.11), residual = made<In>(n, 0.6);
  std::vector<Out> dy = made<Out>(n, 0.3), raw = made<Out>(n, 0.5);
  std::vector<Out> weight = made<Out>(s.width, 0.2), bias = made<Out>(s.width, 0.9), added = made<Out>(s.width, 0.4);
  std::vector<T> mean = std::vector<T>(static_cast<size_t>(s.rows)), rstd = mean;
  std::vector<int64_t> counters = std::vector<int64_t>{7, 9};

  size_t shift(int array) const { return shifted == kAll || shifted == array ? 1 : 0; }

  DropoutNormShape shape(const int64_t* where) const {
    return {{{where, s.rows % 2 == 0 ? 2 : 1, 5, false}, s.rows, s.width, kKey, probability}, s};
  }
};

template <class In, class Out>
void check_forward(Case<In, Out>& c) {
  using T = Wide<In>;
  std::vector<Out> out(c.x.size());
  norm_forward<In, Out>(
      {c.x.data(), c.weight.data(), c.s.rms ? nullptr : c.bias.data(), out.data(), c.mean.data(), c.rstd.data()},
      c.s);
  const auto got = in_all_orders([&] {
    const DeviceArray<In> x(c.x, Use::in, "x", c.shift(0));
    const DeviceArray<T> mean(c.mean, Use::out, "mean"), rstd(c.rstd, Use::out, "rstd");
    const DeviceArray<Out> weight(c.weight, Use::in, "weight", c.shift(1)), bias(c.bias, Use::in, "bias", c.shift(2)),
        to(out, Use::out, "out", c.shift(3));
    norm_forward_cuda<In, Out>(
        {x.data(), weight.data(), c.s.rms ? nullptr : bias.data(), to.data(), mean.data(), rstd.data()}, c.s,
        nullptr);
    return std::tuple{to.values(), c.s.rms ? c.mean : mean.values(), rstd.values()};
  });
  expect_twins(std::get<0>(got), out, "norm");
  expect_sums(std::get<1>(got), c.mean, "mean", c.s.width, std::vector<double>(c.mean.size(), 3.0));
  expect_twins(std::get<2>(got), c.rstd, "rstd");
}

// The terms of dx: rstd dy weight, from which sums over the row are subtracted, and the gradient that bypasses the
// norm.
template <class In, class Out>
std::vector<double> parts_of(const Case<In, Out>& c, const std::vector<In>& dx) {
  std::vector<double> parts;
  for (size_t i = 0; i < dx.size(); ++i) {
    const size_t width = static_cast<size_t>(c.s.width);
    const double total = load(dx[i]), past = c.with_add ? double{load(c.add[i])} : 0.0;
    const double own = double{c.rstd[i / width]} * load(c.dy[i]) * (load(c.weight[i % width]) + c.s.one_plus);
    parts.push_back(std::fabs(total) + std::fabs(past) + std::fabs(own));
  }
  return parts;
}

template <class In, class Out>
void check_backward(const Case<In, Out>& c) {
  using T = Wide<In>;
  std::vector<In> dx(c.x.size());
  std::vector<T> dweight(c.weight.size()), dbias(c.weight.size());
  norm_backward<In, Out>(
      {c.dy.data(), c.x.data(), c.weight.data(), c.mean.data(), c.rstd.data(), c.with_add ? c.add.data() : nullptr,
       dx.data(), dweight.data(), c.s.rms ? nullptr : dbias.data()},
      c.s);
  const auto got = in_all_orders([&] {
    const DeviceArray<In> x(c.x, Use::in, "x", c.shift(0)), add(c.add, Use::in, "add", c.shift(4)),
        to(dx, Use::out, "dx", c.shift(5));
    const DeviceArray<Out> dy(c.dy, Use::in, "dy", c.shift(6)), weight(c.weight, Use::in, "weight", c.shift(1));
    const DeviceArray<T> mean(c.mean, Use::in, "mean"), rstd(c.rstd, Use::in, "rstd"),
        gdweight(dweight, Use::out, "dweight"), gdbias(dbias, Use::out, "dbias"),
        lines(std::vector<T>(static_cast<size_t>(norm_lines(c.s) * 2 * c.s.width)), Use::out, "lines", c.shift(7));
    norm_backward_cuda<In, Out>(
        {dy.data(), x.data(), weight.data(), mean.data(), rstd.data(), c.with_add ? add.data() : nullptr, to.data(),
         gdweight.data(), c.s.rms ? nullptr : gdbias.data()},
        lines.data(), c.s, nullptr);
    return std::tuple{to.values(), gdweight.values(), c.s.rms ? dbias : gdbias.values()};
  });
  expect_twins(std::get<0>(got), dx, "dx of the norm", parts_of(c, dx));
  expect_twins(std::get<1>(got), dweight, "dweight");
  expect_twins(std::get<2>(got), dbias, "dbias");
}

template <class In, class Out>
void check_sum(const Case<In, Out>& c) {
  using T = Wide<In>;
  std::vector<In> sum(c.x.size());
  std::vector<Out> out(c.x.size());
  std::vector<T> mean(c.mean.size()), rstd(c.mean.size());
  const Out* const bias = c.s.rms ? nullptr : c.bias.data();
  dropout_norm_forward<In, Out>({c.raw.data(), c.added.data(), c.residual.data(), sum.data()},
                                {sum.data(), c.weight.data(), bias, out.data(), mean.data(), rstd.data()},
                                c.shape(c.counters.data()));
  const auto got = in_all_orders([&] {
    const DeviceArray<Out> raw(c.raw, Use::in, "raw", c.shift(8)), to(out, Use::out, "out", c.shift(3));
    const DeviceArray<In> residual(c.residual, Use::in, "residual", c.shift(9)), x(sum, Use::out, "sum", c.shift(0));
    const DeviceArray<Out> added(c.added, Use::in, "bias", c.shift(10)),
        weight(c.weight, Use::in, "weight", c.shift(1)), bias_there(c.bias, Use::in, "norm bias", c.shift(2));
    const DeviceArray<T> gmean(mean, Use::out, "mean"), grstd(rstd, Use::out, "rstd");
    const DeviceArray<int64_t> counters(c.counters, Use::in, "counters");
    dropout_norm_forward_cuda<In, Out>(
        {raw.data(), added.data(), residual.data(), x.data()},
        {x.data(), weight.data(), c.s.rms ? nullptr : bias_there.data(), to.data(), gmean.data(), grstd.data()},
        c.shape(counters.data()), nullptr);
    return std::tuple{x.values(), to.values()};
  });
  // The retained values are multiplied by 1 or 2: exact.
  EXPECT_TRUE(same_bits(std::get<0>(got), sum)) << "sum";
  expect_twins(std::get<1>(got), out, "norm of the sum");
}

template <class In, class Out>
void check_sum_backward(const Case<In, Out>& c) {
  using T = Wide<In>;
  std::vector<In> dx(c.x.size());
  std::vector<Out> drawn(c.x.size());
  std::vector<T> dweight(c.weight.size()), dbias(c.weight.size());
  T* const to_bias = c.s.rms ? nullptr : dbias.data();
  dropout_norm_backward<In, Out>({c.dy.data(), c.x.data(), c.weight.data(), c.mean.data(), c.rstd.data(),
                                  c.add.data(), dx.data(), dweight.data(), to_bias},
                                 drawn.data(), c.shape(c.counters.data()));
  const auto got = in_all_orders([&] {
    const DeviceArray<In> x(c.x, Use::in, "x", c.shift(0)), add(c.add, Use::in, "add", c.shift(4)),
        gdx(dx, Use::out, "sum's gradient", c.shift(5));
    const DeviceArray<Out> dy(c.dy, Use::in, "dy", c.shift(6)), gdrawn(drawn, Use::out, "dx", c.shift(11)),
        weight(c.weight, Use::in, "weight", c.shift(1));
    const DeviceArray<T> mean(c.mean, Use::in, "mean"), rstd(c.rstd, Use::in, "rstd"),
        gdweight(dweight, Use::out, "dweight"), gdbias(dbias, Use::out, "dbias"),
        lines(std::vector<T>(static_cast<size_t>(norm_lines(c.s) * 2 * c.s.width)), Use::out, "lines", c.shift(7));
    const DeviceArray<int64_t> counters(c.counters, Use::in, "counters");
    dropout_norm_backward_cuda<In, Out>({dy.data(), x.data(), weight.data(), mean.data(), rstd.data(), add.data(),
                                         gdx.data(), gdweight.data(), c.s.rms ? nullptr : gdbias.data()},
                                        gdrawn.data(), lines.data(), c.shape(counters.data()), nullptr);
    return std::tuple{gdx.values(), gdweight.values(), gdrawn.values()};
  });
  expect_twins(std::get<0>(got), dx, "the sum's gradient", parts_of(c, dx));
  expect_twins(std::get<1>(got), dweight, "dweight");
  const T scale = static_cast<T>(1 / (1 - c.probability));
  for (size_t i = 0; i < drawn.size(); ++i) {
    const bool kept = load(drawn[i]) != 0 || c.probability == 0;
    const T to = load(std::get<0>(got)[i]);
    ASSERT_EQ(load(std::get<2>(got)[i]), kept ? load(store<Out>(to * scale)) : T(0)) << "dx at " << i;
  }
}

template <class In, class Out>
void check(const NormShape& s, double probability, int shifted) {
  SCOPED_TRACE(testing::Message() << s.rows << " x " << s.width << " rms " << s.rms << " one plus " << s.one_plus
                                  << " p " << probability << " shifted " << shifted);
  Case<In, Out> c{s, probability > 0, probability, shifted};
  check_forward(c);
  check_backward(c);
  check_sum(c);
  check_sum_backward(c);
}

template <class In, class Out>
void check_pair() {
  for (const bool rms : {false, true}) {
    for (const auto& [rows, width] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 8}, {1, 5}, {7, 1}, {19, 300}, {9, 64}}) {
      for (const double probability : {0.0, 0.5})
        check<In, Out>({rows, width, 1e-5, rms}, probability, rows == 9 || width == 5 ? kAll : kNone);
    }
    // More packs than threads: a thread holds two packs, of floats three; it reads doubles again.
    check<In, Out>({2, 2056, 1e-5, rms}, rms ? 0.5 : 0.0, kNone);
    // Sums that fit into shared memory only without dbias, in packs that no thread holds (of floats 5128 columns, of
    // halves 8200) and without packs. The path depends on the type of the sums, so by default one pair of types runs
    // for each, and one of half types.
    const bool everyday = std::is_same_v<In, Out> && !std::is_same_v<In, F16>;
    if (!everyday && !test::whole_walks()) continue;
    for (const int64_t width : {5128, 5121, 8200})
      if (test::whole_walks() || rms == (width != 5121))
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

TEST(NormOnHost, LinesOfManyRowsAreAddedUp) {
  Case<float, float> c{{4127, 3, 1e-5, false}};
  ASSERT_EQ(norm_lines(c.s), 258);
  set_order({});
  norm_forward<float, float>({c.x.data(), c.weight.data(), c.bias.data(), std::vector<float>(c.x.size()).data(),
                              c.mean.data(), c.rstd.data()},
                             c.s);
  check_backward(c);
}

}  // namespace
}  // namespace metroplex::kernels_on_host::norm_test
