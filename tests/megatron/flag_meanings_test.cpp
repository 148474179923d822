// The table of flags against the independently written flag_meanings.txt.
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
    // A layout contains bars too: only the last one with blanks around it separates the columns.
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
    EXPECT_TRUE(got.notes.empty()) << line;
    std::string flag = tokens[0];
    std::replace(flag.begin(), flag.end(), '_', '-');
    EXPECT_TRUE(named.insert(flag).second) << flag;
  }
  for (const FlagRow& row : flag_table()) { EXPECT_TRUE(named.contains(row.flag)) << row.flag; }
  EXPECT_GT(named.size(), 190u);
}

// Classification of a flag by parse_arguments: "translated", "harmless" or "refused".
static std::string classify_flag(const std::string& flag, const std::string& value) {
  for (const FlagRow& row : flag_table()) {
    if (flag == row.flag) return "translated";
  }
  const HarmlessFlag* const harmless = find_harmless(flag);
  if (harmless == nullptr) return "refused";
  const std::vector<std::string>& only = harmless->only;
  return only.empty() || std::find(only.begin(), only.end(), value) != only.end() ? "harmless" : "refused";
}

TEST(MegatronFlags, EachIsInItsClass) {
  std::ifstream file(METROPLEX_SOURCE_DIR "/tests/megatron/megatron_flags.txt");
  std::set<std::string> named;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t bar = line.find(" | "), second = line.find(" | ", bar + 1);
    ASSERT_NE(second, std::string::npos) << line;
    std::istringstream words(line.substr(0, bar));
    std::string flag, value;
    words >> flag >> value;
    std::replace(flag.begin(), flag.end(), '_', '-');
    named.insert(flag);
    const std::string expected = line.substr(bar + 3, second - bar - 3), found = classify_flag(flag, value);
    // A value without effect may also be translated.
    EXPECT_TRUE(found == expected || (!value.empty() && found == "translated")) << line << "\nis " << found;
    EXPECT_TRUE(expected != "refused" || !refusal_reason(flag).empty() || find_harmless(flag)) << flag;
  }
  EXPECT_GT(named.size(), 1000u);
  for (const HarmlessFlag& flag : harmless_flags()) {
    EXPECT_TRUE(named.contains(flag.flag)) << flag.flag;
    EXPECT_FALSE(flag.reason.empty()) << flag.flag;
  }
}

}  // namespace metroplex::megatron
