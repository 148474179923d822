#include "kernels/step_state.h"

#include "kernels/step_state_case.h"
#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host::step_state_test {
namespace {

template <class T>
std::vector<double> to_numbers(const T& of) {
  constexpr size_t kBytes = sizeof(T);
  std::vector<double> numbers(kBytes / sizeof(double));
  memcpy(numbers.data(), &of, kBytes);
  return numbers;
}

TEST(StepStateOnHost, JudgementsHaveTheBitsOfTheCpu) {
  for (int i = 0; i < 40; ++i) {
    kernels::test::Case test_case;
    test_case.rules.scale = {i % 2 == 0, i % 4 == 0, 1.5F, 2.1F, 0.3F, 3, 2};
    test_case.rules.per_token = i % 3 == 0;
    test_case.rules.max_norm = 0.1 * i;
    test_case.rules.skip_threshold = 0.3 * i;
    test_case.values.loss_scale = 1 + i;
    test_case.values.growth_tracker = i % 4;
    test_case.values.hysteresis_tracker = 2 - i % 3;
    test_case.sums.tokens = 2.5 * i;
    test_case.numbers[0] = i % 10 == 9 ? kernels::test::kInf : 0.37 * i;
    const auto got = run_all_orders([&] {
      const DeviceArray<double> values(to_numbers(test_case.values), Use::both, "values"),
          rates(to_numbers(test_case.rates), Use::both, "rates"), table(test_case.table, Use::in, "table"),
          sums(to_numbers(test_case.sums), Use::in, "sums"),
          numbers(to_numbers(test_case.numbers), Use::in, "numbers"),
          verdict(to_numbers(test_case.verdict), Use::out, "verdict");
      judge_step_cuda(
          test_case.rules,
          {reinterpret_cast<StepValues*>(values.data()), reinterpret_cast<GroupRates*>(rates.data()), table.data(),
           reinterpret_cast<StepSums*>(sums.data()), numbers.data(), reinterpret_cast<StepVerdict*>(verdict.data())},
          nullptr);
      return std::tuple{values.values(), rates.values(), verdict.values()};
    });
    test_case.judged();
    EXPECT_TRUE(same_bits(std::get<0>(got), to_numbers(test_case.values))) << i;
    EXPECT_TRUE(same_bits(std::get<1>(got), to_numbers(test_case.rates))) << i;
    EXPECT_TRUE(same_bits(std::get<2>(got), to_numbers(test_case.verdict))) << i;
  }
}

TEST(StepStateOnHost, SumsFactorsAndCopiesHaveTheBitsOfTheCpu) {
  for (const int64_t n : {0, 1, 300}) {
    const std::vector<double> losses = make_values<double>(n, 0.7), tokens(losses.size(), 7);
    const std::vector<int64_t> reported{1};  // the second term, once in each microbatch
    const LossFactorShape shape{n, 3, false};
    const StepValues values{.loss_scale = 3};
    const double stop = 1;
    const std::vector<int32_t> flags{1};
    std::vector<double> sums = to_numbers(StepSums{}), terms(2), own(losses.size()), factors(losses.size());
    own_sums({n, losses.data(), tokens.data(), &stop, 1, losses.data(), reported.data(), false, true, true, true,
              flags.data()},
             {reinterpret_cast<StepSums*>(sums.data()), terms.data(), 2, own.data()});
    loss_factors(&values, tokens.data(), factors.data(), shape);
    const auto got = run_all_orders([&] {
      const DeviceArray<double> glosses(losses, Use::in, "losses"), gtokens(tokens, Use::in, "tokens"),
          gstop({stop}, Use::in, "stop"), gsums(sums, Use::out, "sums"), gterms(terms, Use::out, "terms"),
          gown(own, Use::out, "own"), gfactors(factors, Use::out, "factors"),
          gvalues(to_numbers(values), Use::in, "values");
      const DeviceArray<int64_t> greported(reported, Use::in, "reported");
      const DeviceArray<int32_t> gflags(flags, Use::in, "flags");
      own_sums_cuda({n, glosses.data(), gtokens.data(), gstop.data(), 1, glosses.data(), greported.data(), false,
                     true, true, true, gflags.data()},
                    {reinterpret_cast<StepSums*>(gsums.data()), gterms.data(), 2, gown.data()}, nullptr);
      loss_factors_cuda(reinterpret_cast<const StepValues*>(gvalues.data()), gtokens.data(), gfactors.data(), shape,
                        nullptr);
      return std::tuple{gsums.values(), gterms.values(), gown.values(), gfactors.values()};
    });
    EXPECT_EQ(std::get<0>(got), sums);
    EXPECT_EQ(std::get<1>(got), terms);
    EXPECT_EQ(std::get<2>(got), own);
    EXPECT_EQ(std::get<3>(got), factors);
  }
  for (const int64_t bytes : {0, 1, 3, 4, 7, 1001}) {
    for (const bool updates : {false, true}) {
      const std::vector<uint8_t> from(static_cast<size_t>(bytes), 7), to(from.size(), 1);
      const auto got = run_all_orders([&] {
        const DeviceArray<StepValues> values({{.updates = updates ? 1.0 : 0.0}}, Use::in, "values");
        const DeviceArray<uint8_t> gfrom(from, Use::in, "from"), gto(to, Use::both, "to");
        copy_if_updates_cuda(values.data(), false, gfrom.data(), gto.data(), bytes, nullptr);
        return std::tuple{gto.values()};
      });
      EXPECT_EQ(std::get<0>(got), updates ? to : from) << bytes;
    }
  }
}

}  // namespace
}  // namespace metroplex::kernels_on_host::step_state_test
