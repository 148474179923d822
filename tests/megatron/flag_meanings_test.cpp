// The table of flags against flag_meanings.txt, which was written apart from it.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "megatron/flags.h"

namespace metroplex::megatron {

TEST(MegatronFlags, EachMeansWhatItMeansInMegatronAndNothingElse) {
  std::ifstream file(METROPLEX_SOURCE_DIR "/tests/megatron/flag_meanings.txt");
  std::set<std::string> named;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    // Of a layout's own bars only the last one, with blanks around it, parts the line.
    const size_t bar = line.find(" |", line.find("layout") == std::string::npos ? 0 : line.find("L |"));
    ASSERT_NE(bar, std::string::npos) << line;
    std::istringstream words(line.substr(0, bar)), pairs(line.substr(bar + 2));
    const std::vector<std::string> tokens{std::istream_iterator<std::string>(words), {}};
    std::vector<std::string> expected;
    for (std::string pair; std::getline(pairs, pair, ';');) {
      pair.erase(0, pair.find_first_not_of(' '));
      if (!pair.empty()) expected.push_back(pair);
    }
    std::sort(expected.begin(), expected.end());
    const Arguments got = parse_arguments(tokens, Form::kSingleFlags);
    EXPECT_EQ(got.assignments, expected) << line;
    EXPECT_TRUE(got.defining.empty() && got.not_known_yet.empty() && got.without_effect.empty()) << line;
    std::string flag = tokens[0];
    std::replace(flag.begin(), flag.end(), '_', '-');
    EXPECT_TRUE(named.insert(flag).second) << flag;
  }
  for (const FlagRow& row : flag_table()) {
    EXPECT_EQ(named.contains(row.flag), row.sets[0] != '\0') << row.flag;
    if (row.sets[0] != '\0') continue;
    std::vector<std::string> tokens{row.flag};
    if (row.take == Take::kOne) tokens.emplace_back("1");
    const Arguments got = parse_arguments(tokens, Form::kSingleFlags);
    EXPECT_TRUE(got.assignments.empty()) << row.flag;
    EXPECT_EQ(got.without_effect.size(), 1u) << row.flag;
  }
  EXPECT_GT(named.size(), 190u);
}

}  // namespace metroplex::megatron
