// The small languages inside values: growing batch sizes and parameter groups.
#include <gtest/gtest.h>

#include <random>

#include "config/batch_schedule.h"
#include "config/optim.h"
#include "config/support.h"

namespace metroplex::config::schedules_and_groups_test {

TEST(Counts, AreReadWithTheirSuffixes) {
  std::string problem;
  const std::vector<std::pair<const char*, int64_t>> cases = {
      {"768", 768}, {"1.5K", 1500}, {"2m", 2'000'000}, {"250B", 250'000'000'000}, {".5T", 500'000'000'000}, {"0", 0}};
  for (const auto& [text, count] : cases) EXPECT_EQ(read_count(text, problem), count) << text;
  for (const char* bad :
       {"", "K", "-1", "+1", "1KK", "1x", "nan", "inf", "1e300T", "1e400", "0x10", "1 2", ".", "1.K."}) {
    problem.clear();
    EXPECT_EQ(read_count(bad, problem), std::nullopt) << bad;
    EXPECT_NE(problem.find("is not a count"), std::string::npos) << bad;
  }
}

TEST(BatchSteps, AreSortedAndCountedInSamplesOfTheSequenceLength) {
  std::string problem;
  const auto steps = read_batch_steps("250B:1536, 0:768", 4096, problem);
  ASSERT_TRUE(steps && steps->size() == 2) << problem;
  EXPECT_EQ((*steps)[1].first_sample, 61035156);
  EXPECT_EQ((*steps)[1].global_batch_size, 1536);
  const auto shrinking = read_batch_steps("8K:16 4K:32 0:64", 1, problem);
  ASSERT_TRUE(shrinking && shrinking->size() == 3) << "by their thresholds, for any sizes: " << problem;
  EXPECT_EQ((*shrinking)[1].global_batch_size, 32);
  EXPECT_EQ(read_batch_steps("0:8 4095:16", 4096, problem), std::nullopt);
  EXPECT_NE(problem.find("same threshold, 0 samples"), std::string::npos);
  EXPECT_EQ(read_batch_steps("5:8", 128, problem), std::nullopt) << "the group of the first sample is unspecified";
  EXPECT_NE(problem.find("must begin at 0"), std::string::npos);
}

TEST(BatchRampup, SaysWhatIsWrongWithIt) {
  std::string problem;
  EXPECT_TRUE(read_batch_rampup(" 4 2  100 ", 8, problem).has_value());
  const std::vector<std::pair<const char*, const char*>> cases = {{"4 2", "three whole numbers"},
                                                                  {"4 2 100 1", "three whole numbers"},
                                                                  {"4 2 1e3", "three whole numbers"},
                                                                  {"4 3 100", "not reached"},
                                                                  {"8 2 100", "not reached"},
                                                                  {"9 1 100", "not reached"},
                                                                  {"0 2 100", "positive"},
                                                                  {"4 -2 100", "positive"},
                                                                  {"4 2 0", "positive"}};
  for (const auto& [text, words] : cases) {
    EXPECT_EQ(read_batch_rampup(text, 8, problem), std::nullopt) << text;
    EXPECT_NE(problem.find(words), std::string::npos) << text << ": " << problem;
  }
  EXPECT_EQ(read_batch_rampup("1 1 100", 2'000'000, problem), std::nullopt);
}

TEST(ParamGroups, PatternsFitWholeNames) {
  const auto fits = [](const char* pattern, const char* name) { return ParamGroupRule{pattern, 1, {}}.match(name); };
  EXPECT_TRUE(fits("*", "") && fits("*", "any.name") && fits("a?c", "abc") && fits("*.bias", "mlp.linear_fc1.bias"));
  EXPECT_TRUE(fits("decoder.layers.?.mlp.*weight", "decoder.layers.7.mlp.linear_fc1.weight"));
  EXPECT_TRUE(fits("*a*b*", "xxaxxaxxbxx") && fits("a**b", "ab") && fits("*ab", "aab") && fits("[x]", "[x]"));
  EXPECT_FALSE(fits("bias", "mlp.bias") || fits("*.bias", "mlp.bias2") || fits("a?", "a") || fits("", "a"));
  EXPECT_FALSE(fits("*b*a", "ab") || fits("decoder.layers.?.*", "decoder.layers.12.mlp"));
}

// Against the definition: * matches nothing, or one letter and itself again.
static bool fits_by_definition(const char* pattern, const char* name) {
  if (*pattern == '\0') return *name == '\0';
  if (*pattern == '*')
    return fits_by_definition(pattern + 1, name) || (*name != '\0' && fits_by_definition(pattern, name + 1));
  return *name != '\0' && (*pattern == '?' || *pattern == *name) && fits_by_definition(pattern + 1, name + 1);
}

TEST(ParamGroups, RandomPatternsFitAsTheDefinitionSays) {
  std::mt19937 random(3);
  const auto text = [&](const std::string& letters) {
    std::string out;
    for (size_t size = random() % 8; out.size() < size;) out += letters[random() % letters.size()];
    return out;
  };
  int fitted = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::string pattern = text("ab*?"), name = text("ab");
    const bool expected = fits_by_definition(pattern.c_str(), name.c_str());
    ASSERT_EQ((ParamGroupRule{pattern, 1, {}}.match(name)), expected) << pattern << " " << name;
    fitted += expected ? 1 : 0;
  }
  EXPECT_GT(fitted, 1000);
}

TEST(ParamGroups, TheFirstRuleThatFitsCounts) {
  Optim optim;
  optim.param_groups = {"*.bias  wd_mult=1 lr_mult=2", "embedding.* lr_mult=0.5", "* wd_mult=0.25"};
  const auto rules = param_group_rules(optim);
  ASSERT_EQ(rules.size(), 3u);
  const ParamGroupRule* bias = find_param_group(rules, "embedding.bias");
  ASSERT_NE(bias, nullptr);
  EXPECT_EQ(bias->lr_mult, 2.0);
  EXPECT_EQ(bias->wd_mult, 1.0);
  EXPECT_EQ(find_param_group(rules, "embedding.weight")->wd_mult, std::nullopt);
  EXPECT_EQ(find_param_group(rules, "output.weight")->lr_mult, 1.0);
  EXPECT_EQ(find_param_group({}, "output.weight"), nullptr);
  optim.param_groups = {"* start_wd=0.1 end_wd=0.2"};
  EXPECT_EQ(param_group_rules(optim)[0].start_wd, 0.1);
  EXPECT_EQ(param_group_rules(optim)[0].end_wd, 0.2);
  optim.param_groups = {"* lr_mult=fast"};
  EXPECT_NE(catch_error([&] { param_group_rules(optim); }).find("optim.param_groups: '* lr_mult=fast'"),
            std::string::npos);
}

}  // namespace metroplex::config::schedules_and_groups_test
