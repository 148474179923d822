// Runs refusals.txt: each configuration is refused, and the error names exactly these keys and values.
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "config/support.h"

namespace metroplex::config::refusals_test {
namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t from = 0, end = 0; from < text.size(); from = end + 2) {
    end = std::min(text.find("; ", from), text.size());
    parts.push_back(text.substr(from, end - from));
  }
  return parts;
}

// The keys and values that the parser or the rules reject, as in the file.
std::string refused(const std::vector<std::string>& overrides, const std::string& expected) {
  const std::string unread = catch_error([&] { good(overrides); });
  if (!unread.empty()) return unread.find(" " + expected + ": ") != std::string::npos ? expected : unread;
  std::string list;
  for (const Violation& violation : violations(good(overrides), kWorld)) {
    EXPECT_FALSE(violation.rule.empty() || violation.fix.empty()) << violation.key;
    list += (list.empty() ? "" : "; ") + violation.key + " = " + violation.value;
  }
  return list;
}

TEST(Refusals, NameKeyAndValue) {
  std::ifstream file(METROPLEX_SOURCE_DIR "/tests/config/refusals.txt");
  std::vector<std::string> base;
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    if (line[0] == '[') {
      base = split(line.substr(std::min(line.find("] ") + 2, line.size())));
      if (line.find("] ") == std::string::npos) base.clear();
      EXPECT_EQ(described(violations(good(base), kWorld)), "nothing") << line;
      continue;
    }
    const size_t arrow = line.find(" <- ");
    ASSERT_NE(arrow, std::string::npos) << line;
    const std::string expected = line.substr(0, arrow);
    std::vector<std::string> overrides = base;
    for (const std::string& override : split(line.substr(arrow + 4))) overrides.push_back(override);
    EXPECT_EQ(refused(overrides, expected), expected) << line;
    ++cases;
  }
  EXPECT_GE(cases, 440);
}

}  // namespace
}  // namespace metroplex::config::refusals_test
