// The file of expert loads: it reads back as written, runs append to it, and damage is reported.
#include "files/expert_trace.h"

#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "base/error.h"
#include "draw/experts.h"
#include "files/mutate.h"
#include "support/error_of.h"
#include "support/folder.h"

namespace metroplex::files::expert_trace_test {
namespace {

const ExpertTraceHead kHead{4, 2, 2, 1, {0, 3}};

PosixFileSystem disk;

ExpertTraceStep step(int64_t iteration, int64_t first) {
  ExpertTraceStep step{iteration, {}, {first, 0}};
  for (int64_t i = 0; i < 2 * 2 * 4; ++i) step.tokens.push_back(first + i);
  return step;
}

std::string read_text(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

using test::catch_error;

TEST(ExpertTrace, WhatIsWrittenIsReadBack) {
  const test::Folder folder;
  const std::string path = folder.at("trace.jsonl");
  {
    ExpertTraceWriter writer(disk, path, kHead);
    writer.add(step(1, 10));
    writer.add(step(2, 100));
  }
  EXPECT_EQ(read_text(path).substr(0, read_text(path).find('\n')),
            R"({"ep":2,"etp":1,"expert_trace":1,"layers":[0,3],"num_experts":4,"topk":2})");
  const ExpertTrace trace = read_expert_trace(disk, path);
  EXPECT_EQ(trace.head, kHead);
  ASSERT_EQ(trace.steps.size(), 2U);
  EXPECT_EQ(trace.steps[1].iteration, 2);
  EXPECT_EQ(trace.steps[1].tokens, step(2, 100).tokens);
  EXPECT_EQ(trace.steps[1].dropped, step(2, 100).dropped);
  EXPECT_EQ(trace.tokens(trace.steps[0], 1, 2), (10 + 8 + 2) + (10 + 12 + 2));  // layer 3: source 0 and source 1
}

TEST(ExpertTrace, ARunThatGoesOnReplacesItsIterations) {
  const test::Folder folder;
  const std::string path = folder.at("trace.jsonl");
  for (const int64_t first : {1, 2}) {
    ExpertTraceWriter writer(disk, path, kHead);
    for (int64_t iteration = first; iteration < first + 2; ++iteration) writer.add(step(iteration, 10 * first));
    writer = ExpertTraceWriter(disk, path, kHead);
  }
  const ExpertTrace trace = read_expert_trace(disk, path);
  ASSERT_EQ(trace.steps.size(), 3U);
  EXPECT_EQ(trace.steps[0].tokens[0], 10);
  EXPECT_EQ(trace.steps[1].tokens[0], 20) << "the later one counts";
}

TEST(ExpertTrace, ALineThatAKilledRunLeftIsPassedOver) {
  const test::Folder folder;
  const std::string path = folder.at("trace.jsonl");
  ExpertTraceWriter(disk, path, kHead).add(step(1, 0));
  const std::string whole = read_text(path);
  write(path, whole + "{\"iteration\": 2, \"tok");
  EXPECT_EQ(read_expert_trace(disk, path).steps.size(), 1U);
  ExpertTraceWriter(disk, path, kHead).add(step(2, 5));
  EXPECT_EQ(read_text(path).substr(0, whole.size()), whole);
  EXPECT_EQ(read_expert_trace(disk, path).steps.at(1).tokens[0], 5);
}

TEST(ExpertTrace, WritesIntoNoOtherFile) {
  const test::Folder folder;
  const std::string path = folder.at("trace.jsonl");
  ExpertTraceWriter(disk, path, kHead).add(step(1, 0));
  ExpertTraceHead other = kHead;
  other.etp = 2;
  EXPECT_NE(catch_error([&] { ExpertTraceWriter(disk, path, other); }).find("different experts, layers or ranks"),
            std::string::npos);
  for (const char* text : {"notes", "notes\n", "{\"iteration\": 1}\n"}) {
    write(path, text);
    EXPECT_NE(catch_error([&] { ExpertTraceWriter(disk, path, kHead); }).find(path), std::string::npos) << text;
    EXPECT_EQ(read_text(path), text);
  }
  EXPECT_NE(catch_error([&] { ExpertTraceWriter(disk, folder.at("none/x"), kHead); }).find("cannot write"),
            std::string::npos);
}

TEST(ExpertTrace, DamageIsNamedWithItsLine) {
  const test::Folder folder;
  const std::string path = folder.at("trace.jsonl");
  const std::string head = R"({"expert_trace":1,"num_experts":2,"topk":1,"ep":1,"etp":1,"layers":[0]})";
  const std::pair<std::string, const char*> damaged[] = {
      {"", "has no complete line"},
      {"x\n", "line 1 is not JSON"},
      {"{}\n", "line 1 has no 'expert_trace'"},
      {"{\"expert_trace\":2}\n", "version 2"},
      {R"({"expert_trace":1,"num_experts":0,"topk":1,"ep":1,"etp":1,"layers":[0]})"
       "\n",
       "'num_experts' is 0"},
      {R"({"expert_trace":1,"num_experts":3,"topk":1,"ep":2,"etp":1,"layers":[0]})"
       "\n",
       "ep = 2"},
      {R"({"expert_trace":1,"num_experts":2,"topk":1,"ep":1,"etp":1,"layers":[]})"
       "\n",
       "'layers' is empty"},
      {R"({"expert_trace":1,"num_experts":2,"topk":1,"ep":1,"etp":1,"layers":[1,1]})"
       "\n",
       "ascending"},
      {head + "\n[]\n", "line 2 is []"},
      {head + "\n{\"iteration\":-1,\"dropped\":[0],\"tokens\":[[[1,1]]]}\n", "line 2: 'iteration' contains -1"},
      {head + "\n{\"iteration\":1,\"dropped\":[],\"tokens\":[[[1,1]]]}\n", "'dropped' has 0"},
      {head + "\n{\"iteration\":1,\"dropped\":[0],\"tokens\":[[[1,1],[1,1]]]}\n", "must have 1 sources"},
      {head + "\n{\"iteration\":1,\"dropped\":[0],\"tokens\":[[[1]]]}\n", "must have 2 experts"},
      {head + "\n{\"iteration\":1,\"dropped\":[0],\"tokens\":[[[1,-1]]]}\n", "-1 in 'tokens'"},
      {head + "\n{\"iteration\":1,\"dropped\":[0],\"tokens\":[[[1,1.5]]]}\n", "1.5 in 'tokens'"},
      {head + "\n{\"iteration\":1,\"dropped\":[0],\"tokens\":[[[1,9000000000000]]]}\n", "9000000000000 in 'tokens'"},
      {head + "\n{\"iteration\":1,\"dropped\":[9223372036854775807],\"tokens\":[[[1,1]]]}\n", "in 'dropped'"}};
  for (const auto& [text, words] : damaged) {
    write(path, text);
    const std::string error = catch_error([&] { read_expert_trace(disk, path); });
    EXPECT_NE(error.find(words), std::string::npos) << text << error;
    EXPECT_NE(error.find(path), std::string::npos) << error;
  }
  EXPECT_NE(catch_error([&] { read_expert_trace(disk, folder.at("gone")); }).find("cannot read"), std::string::npos);
}

TEST(ExpertTrace, DamagedOnesAreReadOrRefused) {
  const test::Folder folder;
  const std::string path = folder.at("trace.jsonl");
  {
    ExpertTraceWriter writer(disk, path, kHead);
    for (int64_t i = 1; i <= 3; ++i) writer.add(step(i, i));
  }
  const std::string sound = read_text(path);
  Mutator mutate(1);
  int read = 0, refused = 0;
  for (int i = 0; i < 3000; ++i) {
    write(path, mutate(sound));
    const std::string error = catch_error([&] { draw::draw_text(read_expert_trace(disk, path), {}); });
    ++(error.empty() ? read : refused);
  }
  EXPECT_GT(read, 100);
  EXPECT_GT(refused, 1000);
}

TEST(ExpertTrace, IsFoundInTheFolderOfARun) {
  const test::Folder folder;
  const std::string run = folder.path();
  EXPECT_EQ(find_expert_trace(disk, "no/such/file"), "no/such/file");
  EXPECT_NE(catch_error([&] { find_expert_trace(disk, run); }).find("contains no expert trace"), std::string::npos);
  write(folder.at("metrics.jsonl"), "{\"iteration\": 1}\n");
  ExpertTraceWriter(disk, folder.at("a.jsonl"), kHead);
  EXPECT_EQ(find_expert_trace(disk, run), folder.at("a.jsonl"));
  ExpertTraceWriter(disk, folder.at("b.jsonl"), kHead);
  EXPECT_NE(catch_error([&] { find_expert_trace(disk, run); }).find("2 expert traces"), std::string::npos);
}

}  // namespace
}  // namespace metroplex::files::expert_trace_test
