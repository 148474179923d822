#include "kernels/balance.h"
#include "kernels/random_rows.h"
#include "kernels/route.h"
#include "kernels/sinkhorn.h"
#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host::router_test {
namespace {

template <class T>
void check_random(int64_t rows, int64_t width, size_t shift) {
  const std::vector<int64_t> counters{77, 78, 79};
  for (const Noise noise : {Noise::uniform, Noise::gumbel}) {
    std::vector<T> out(static_cast<size_t>(rows * width));
    const auto shape = [&](const int64_t* c) { return DropoutShape{{c, 3, 3}, rows, width, 0x123456789ABCDEF0ull}; };
    random_rows<T>(out.data(), noise, shape(counters.data()));
    const auto got = run_all_orders([&] {
      const DeviceArray<int64_t> gcounters(counters, Use::in, "counters");
      const DeviceArray<T> gout(out, Use::out, "out", shift);
      random_rows_cuda<T>(gout.data(), noise, shape(gcounters.data()), nullptr);
      return std::tuple{gout.values()};
    });
    expect_close(std::get<0>(got), out, "random rows");
  }
}

template <class T>
void check_sinkhorn(int64_t rows, int64_t columns, size_t shift) {
  const std::vector<T> x = make_values<T>(rows * columns, 0.7);
  std::vector<T> out(x.size()), factors(static_cast<size_t>(rows + 2 * columns));
  const SinkhornShape shape{rows, columns};
  sinkhorn<T>(x.data(), out.data(), factors.data(), shape);
  const auto got = run_all_orders([&] {
    const DeviceArray<T> gx(x, Use::in, "logits", shift), gout(out, Use::out, "out", shift),
        gfactors(factors, Use::out, "factors", shift);
    sinkhorn_cuda<T>(gx.data(), gout.data(), gfactors.data(), shape, nullptr);
    return std::tuple{gout.values()};
  });
  // For these logits, sums in another order converge in the same iteration.
  expect_close(std::get<0>(got), out, "out");
}

template <class T>
void check_route(const RouteShape& shape, bool with_bias, size_t shift) {
  const std::vector<T> x = make_values<T>(shape.tokens * shape.experts, 0.7),
                       bias = make_values<T>(shape.experts, 0.2),
                       dprobs = make_values<T>(shape.tokens * shape.k, 0.3);
  std::vector<int64_t> experts(dprobs.size());
  for (size_t i = 0; i < experts.size(); ++i) experts[i] = static_cast<int64_t>(i) % shape.k;
  const std::vector<int64_t> given = experts;
  std::vector<T> probs(dprobs.size()), dx(x.size()), groups(static_cast<size_t>(shape.tokens * shape.groups));
  route_forward<T>({x.data(), with_bias ? bias.data() : nullptr, experts.data(), probs.data()}, shape);
  route_backward<T>({dprobs.data(), x.data(), experts.data(), dx.data()}, shape);
  const auto got = run_all_orders([&] {
    const DeviceArray<T> gx(x, Use::in, "logits", shift), gbias(bias, Use::in, "bias", shift),
        gdprobs(dprobs, Use::in, "dprobs", shift), gprobs(probs, Use::out, "probs", shift),
        gdx(dx, Use::out, "dlogits", shift), ggroups(groups, Use::out, "group scores", shift);
    const DeviceArray<int64_t> gexperts(given, shape.chosen ? Use::in : Use::out, "experts");
    route_forward_cuda<T>(
        {gx.data(), with_bias ? gbias.data() : nullptr, gexperts.data(), gprobs.data(), ggroups.data()}, shape,
        nullptr);
    route_backward_cuda<T>({gdprobs.data(), gx.data(), gexperts.data(), gdx.data()}, shape, nullptr);
    return std::tuple{gexperts.values(), gprobs.values(), gdx.values()};
  });
  EXPECT_TRUE(same_bits(std::get<0>(got), experts)) << "choice";
  expect_close(std::get<1>(got), probs, "probabilities");
  expect_close(std::get<2>(got), dx, "gradient of the logits", std::vector<double>(dx.size(), 9 * shape.scale));
}

template <class T>
void check_balance(BalanceShape shape, size_t shift) {
  shape.chosen = 3, shape.mask = 300;
  const std::vector<T> x = make_values<T>(shape.tokens * shape.experts, 0.7);
  std::vector<int64_t> chosen(static_cast<size_t>(shape.tokens * shape.chosen));
  for (size_t i = 0; i < chosen.size(); ++i)
    chosen[i] = static_cast<int64_t>(i * i * 7 + i / 3) % (shape.experts + 1) - 1;
  const std::vector<double> dsums = make_values<double>(shape.bins() + 1, 0.3), scale{1.5};
  const std::vector<T> mask = make_values<T>(shape.mask, 0.1);
  std::vector<double> sums(static_cast<size_t>(shape.sums())),
      lines(static_cast<size_t>(balance_chunks(shape) * shape.line()));
  std::vector<T> dx(x.size());
  balance_forward<T>({x.data(), chosen.data(), mask.data()}, sums.data(), lines.data(), shape);
  balance_backward<T>(x.data(), dsums.data(), scale.data(), dx.data(), shape);
  const auto got = run_all_orders([&] {
    const DeviceArray<T> gx(x, Use::in, "logits", shift), gdx(dx, Use::out, "dlogits", shift);
    const DeviceArray<T> gmask(mask, Use::in, "mask", shift);
    const DeviceArray<int64_t> gchosen(chosen, Use::in, "experts");
    const DeviceArray<double> gscale(scale, Use::in, "scale");
    const DeviceArray<double> gdsums(dsums, Use::in, "dsums", shift), gsums(sums, Use::out, "sums", shift),
        glines(lines, Use::out, "lines", shift);
    balance_forward_cuda<T>({gx.data(), gchosen.data(), gmask.data()}, gsums.data(), glines.data(), shape, nullptr);
    balance_backward_cuda<T>(gx.data(), gdsums.data(), gscale.data(), gdx.data(), shape, nullptr);
    return std::tuple{gsums.values(), gdx.values()};
  });
  double largest = 1;
  for (const double sum : sums) largest = std::max(largest, std::fabs(sum));
  const double slack = (std::is_same_v<T, double> ? 1e-12 : 4e-6) * largest;
  for (size_t i = 0; i < sums.size(); ++i) ASSERT_NEAR(std::get<0>(got)[i], sums[i], slack) << i;
  for (int64_t i = 0; i < shape.bins(); ++i)
    ASSERT_EQ(std::get<0>(got)[static_cast<size_t>(i)], sums[static_cast<size_t>(i)]) << i;
  expect_close(std::get<1>(got), dx, "gradient of the scores", std::vector<double>(dx.size(), 9));
}

// Sums of up to `bins` products, in another order.
void check_term(BalanceTerm::Kind kind, int64_t samples, int64_t experts, double weight) {
  const BalanceTerm term{kind, samples, experts, 0.3, 2};
  const int64_t bins = samples * experts;
  const std::vector<double> sums = make_values<double>(2 * bins + 1, 0.7), start(static_cast<size_t>(bins + 1));
  std::vector<double> gradient = start;
  double value = 0;
  balance_term(sums.data(), &weight, &value, gradient.data(), term);
  const auto got = run_all_orders([&] {
    const DeviceArray<double> gsums(sums, Use::in, "sums"), gweight({weight}, Use::in, "weight"),
        gvalue({0.0}, Use::out, "value"), ggradient(start, Use::out, "gradient");
    balance_term_cuda(gsums.data(), gweight.data(), gvalue.data(), ggradient.data(), term, nullptr);
    return std::tuple{gvalue.values(), ggradient.values()};
  });
  double size = 0;
  for (size_t i = 0; i < gradient.size(); ++i) size += std::fabs(gradient[i] * sums[static_cast<size_t>(bins) + i]);
  EXPECT_NEAR(std::get<0>(got)[0], value, static_cast<double>(bins + 1) * 0x1p-53 * size);
  for (size_t i = 0; i < gradient.size(); ++i) EXPECT_DOUBLE_EQ(std::get<1>(got)[i], gradient[i]) << i;
}

template <class T>
void check_all() {
  for (const auto kind : {BalanceTerm::Kind::aux, BalanceTerm::Kind::seq, BalanceTerm::Kind::z}) {
    check_term(kind, 1, 8, 0);
    check_term(kind, 3, 131, 5.5);
  }
  for (const BalanceScore score :
       {BalanceScore::none, BalanceScore::softmax, BalanceScore::sigmoid, BalanceScore::sqrtsoftplus}) {
    for (const size_t shift : {0, 1}) check_balance<T>({70, 8, 1, score, true}, shift);
    check_balance<T>({35, 67, 2, score, score == BalanceScore::sigmoid}, 0);
    check_balance<T>({201, 9, 67, score, false}, 0);
    check_balance<T>({0, 5, 1, score, true}, 0);
  }
  for (const auto& [rows, width] :
       std::vector<std::pair<int64_t, int64_t>>{{9, 131}, {7, 68}, {0, 8}, {3, 0}, {1, 1}}) {
    for (const size_t shift : {0, 1}) check_random<T>(rows, width, shift);
  }
  check_sinkhorn<T>(20, 7, 0);
  check_sinkhorn<T>(20, 8, 1);
  check_sinkhorn<T>(9, 300, 0);
  check_sinkhorn<T>(1, 1, 0);
  check_sinkhorn<T>(0, 3, 0);
  for (const RouteScore score :
       {RouteScore::softmax_of_chosen, RouteScore::softmax_of_all, RouteScore::sigmoid, RouteScore::sqrtsoftplus}) {
    const bool own = score == RouteScore::sigmoid || score == RouteScore::sqrtsoftplus;
    for (const size_t shift : {0, 1}) check_route<T>({33, 8, 2, score}, false, shift);
    check_route<T>({9, 100, 8, score, 2.5}, own, 1);
    for (const size_t shift : {0, 1})
      check_route<T>(
          {.tokens = 9, .experts = 24, .k = 3, .score = score, .groups = 4, .groups_chosen = 2, .best_of_group = 2},
          own, shift);
    check_route<T>(
        {.tokens = 5, .experts = 80, .k = 8, .score = score, .groups = 40, .groups_chosen = 5, .best_of_group = 1},
        own && score == RouteScore::sigmoid, 0);
    check_route<T>({5, 8, 1, score}, own, 0);
    check_route<T>({9, 8, 8, score, 1, true}, false, 0);
    check_route<T>({0, 8, 2, score}, false, 0);
  }
}

TEST(RouterOnHost, ChoiceBalanceNoiseAndSinkhornAreAsTheirCpuTwins) {
  check_all<float>();
  check_all<double>();
}

}  // namespace
}  // namespace metroplex::kernels_on_host::router_test
