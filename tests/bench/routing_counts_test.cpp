#include "echo_model/routing_counts.h"

#include <fstream>

#include <gtest/gtest.h>

#include "support/error_of.h"
#include "support/folder.h"

namespace metroplex::bench::routing_counts_test {
namespace {

using test::catch_error;

files::ExpertTrace read(const std::string& text) {
  const test::Folder folder;
  std::ofstream(folder.at("counts"), std::ios::binary) << text;
  return read_routing_counts(folder.at("counts"));
}

std::string refused(const std::string& text) {
  return catch_error([&] { read(text); });
}

TEST(RoutingCounts, BothFormsAreOneTrace) {
  const files::ExpertTrace csv = read("layer,step,expert,count\r\n3,7,0,5\r\n3,7,2,1\n1,9,1,4\n");
  const files::ExpertTrace json = read(R"({"step":7,"layer":3,"expert":0,"count":5}
{"count":1,"step":7,"layer":3,"expert":2}
{"step":9,"layer":1,"expert":1,"count":4})");
  for (const files::ExpertTrace& trace : {csv, json}) {
    EXPECT_EQ(trace.head, (files::ExpertTraceHead{3, 0, 1, 1, {1, 3}}));
    ASSERT_EQ(trace.steps.size(), 2U);
    EXPECT_EQ(trace.steps[0].iteration, 7);
    EXPECT_EQ(trace.steps[0].tokens, (std::vector<int64_t>{0, 0, 0, 5, 0, 1}));
    EXPECT_EQ(trace.steps[1].iteration, 9);
    EXPECT_EQ(trace.steps[1].tokens, (std::vector<int64_t>{0, 4, 0, 0, 0, 0}));
    EXPECT_EQ(trace.steps[1].dropped, (std::vector<int64_t>{0, 0}));
  }
}

TEST(RoutingCounts, DamageIsNamedByFileAndLine) {
  const std::string head = "step,layer,expert,count\n";
  const struct {
    std::string text, line, what;
  } cases[] = {
      {head + "0,0,0\n", "line 2", "3 fields"},
      {head + "0,0,0,1,2\n", "line 2", "5 fields"},
      {head + "0,0,0,1\n0,0,1,x\n", "line 3", "'x' is no whole number for 'count'"},
      {head + "0,0,0,1.5\n", "line 2", "'1.5' is no whole number"},
      {head + "0,0,0, 1\n", "line 2", "' 1' is no whole number"},
      {head + "0,0,0,\n", "line 2", "'' is no whole number"},
      {head + "0,0,0,99999999999999999999\n", "line 2", "no whole number"},
      {head + "0,0,-1,1\n", "line 2", "'expert' is -1"},
      {head + "0,0,65536,1\n", "line 2", "'expert' is 65536"},
      {head + "0,0,0,1000000000001\n", "line 2", "'count' is 1000000000001"},
      {head + "0,0,0,1\n\n", "line 3", "1 fields"},
      {head + "0,0,4,1\n1,0,4,1\n0,0,4,1\n", "line 4", "step 0, layer 0, expert 4 was there before"},
      {"step,layer,expert\n", "line 1", "3 columns"},
      {"step,layer,expert,step\n", "line 1", "each once"},
      {"step,layer,expert,tokens\n", "line 1", "'tokens' is no column"},
      {"{\"step\":0,\"layer\":0,\"expert\":0,\"count\":1}\n0,0,0,1\n", "line 2", ""},
      {"{\"step\":0,\"layer\":0,\"expert\":0}\n", "line 1", "'count'"},
      {"{\"step\":0,\"layer\":0,\"expert\":0,\"count\":-1}\n", "line 1", "'count'"},
      {"{\"step\":0,\"layer\":0,\"expert\":0,\"count\":1,\"rank\":2}\n", "line 1", "other members"},
      {head, "", "has no counts"},
      {"", "", "has no counts"},
  };
  for (const auto& c : cases) {
    const std::string error = refused(c.text);
    EXPECT_NE(error.find("[files]"), std::string::npos) << c.text << error;
    EXPECT_NE(error.find(c.line), std::string::npos) << c.text << error;
    EXPECT_NE(error.find(c.what), std::string::npos) << c.text << error;
  }
  EXPECT_NE(catch_error([] { read_routing_counts("/no/such/file"); }).find("cannot read"), std::string::npos);
}

// Few lines may describe a table that exceeds any memory.
TEST(RoutingCounts, ATableThatIsTooLargeIsRefused) {
  std::string text = "step,layer,expert,count\n";
  for (int i = 0; i < 80; ++i) text += std::to_string(i) + "," + std::to_string(i) + ",65535,1\n";
  EXPECT_NE(refused(text).find("split the file"), std::string::npos);
}

}  // namespace
}  // namespace metroplex::bench::routing_counts_test
