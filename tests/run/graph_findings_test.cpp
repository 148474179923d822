// Training steps captured again with other data. The training code has no diagnostics; planted faults are reported
// with segment and operator.
#include <gtest/gtest.h>

#include <thread>

#include "support/record_tape.h"
#include "verify/graph_check.h"
#include "run/planted_fault.h"
#include "run/support.h"

namespace metroplex::graph_findings_test {
namespace {

using tape_check::FindingKind;
using Way = tape_check::CheckedGraphs::Way;

verify::GraphCheck check(const config::Config& config, Way way = Way::compared,
                         const step::StageBuilder& build = models::build_stage) {
  verify::GraphCheck found;
  test::run_sharded(config, {}, [&](const comm::World& world) {
    found = verify::check_graphs(config, world, test::kVocab, {way, 2}, build);
  });
  return found;
}

TEST(GraphFindings, StepsOfAModelHaveNone) {
  for (const config::Config& model : {test::small_gpt(), test::small_llama()}) {
    const verify::GraphCheck found = check(test::cut(model, {}));
    EXPECT_EQ(tape_check::report(found.findings), "");
    EXPECT_GT(found.training, 1000u);
    EXPECT_GT(found.evaluation, 200u);
  }
}

TEST(GraphFindings, StepsOfAModelInAClosedArenaHaveNone) {
  for (const config::Config& model : {test::small_gpt(), test::small_llama()})
    EXPECT_EQ(tape_check::report(check(test::cut(model, {}), Way::guarded).findings), "");
}

TEST(GraphFindings, PartsOfLayersHaveNone) {
  for (const Way way : {Way::compared, Way::guarded}) {
    for (const std::vector<std::string>& modules :
         std::vector<std::vector<std::string>>{{"attn"}, {"mlp"}, {"attn", "mlp"}, {}}) {
      config::Config config = test::small_gpt();
      config.train.cuda_graph_impl = config::CudaGraphImpl::local;
      config.train.cuda_graph_modules = modules;
      const verify::GraphCheck found = check(test::cut(config, {}), way);
      EXPECT_EQ(tape_check::report(found.findings), "");
      EXPECT_GT(found.training, 50u);
      EXPECT_GT(found.evaluation, 15u);
    }
  }
}

// A capture of 8 microbatches succeeds: three steps of training and of evaluation.
TEST(GraphFindings, WhatTheHostWritesWhenTheNumberOfMicrobatchesChangesIsFound) {
  int64_t forwards = 0;
  at::Tensor table = at::zeros({1}, at::kDouble);
  const test::Fault writes = [&](const at::Tensor& x) {
    if (++forwards == 3 * (8 + 8) + 1) table.copy_(at::ones({1}, at::kDouble));
    return x.add(table);
  };
  const verify::GraphCheck found = check(test::cut(test::small_gpt(), {}), Way::compared, test::with_fault(writes));
  EXPECT_GT(forwards, 3 * (8 + 8) + 1);
  EXPECT_NE(tape_check::report(found.findings).find("planted"), std::string::npos)
      << tape_check::report(found.findings);
}

verify::GraphCheck planted(const test::Fault& fault, Way way = Way::compared) {
  return check(test::cut(test::small_gpt(), {}), way, test::with_fault(fault));
}
constexpr const char* kForward = "forward of decoder.layers.0, planted";
constexpr const char* kBackward = "backward of decoder.layers.0, planted";

// In graphs of whole layers; a graph is named by its first segment.
TEST(GraphFindings, FaultsInPartsOfLayersAreNamed) {
  config::Config config = test::small_gpt();
  config.train.cuda_graph_impl = config::CudaGraphImpl::transformer_engine;
  config = test::cut(config, {});
  const auto found = [&](const test::Fault& fault) {
    return check(config, Way::compared, test::with_fault(fault)).findings;
  };
  constexpr const char* kPart = "forward of decoder.layers.0, decoder.layers.0.self_attention";
  EXPECT_EQ(tape_check::report(found([](const at::Tensor& x) { return x.mul(1.5); })), "");
  test::expect_finding(found([](const at::Tensor& x) { return x.sum().item<double>() == 0.5 ? x.mul(2) : x.mul(1); }),
                       FindingKind::host_access, "aten::_local_scalar_dense", kPart);
  int runs = 0;
  test::expect_finding(found([&](const at::Tensor& x) { return x.add(0.125 * runs++); }), FindingKind::stale_number,
                       "aten::add.Scalar", kPart);
}

TEST(GraphFindings, ASegmentThatDoesNothingWrongHasNone) {
  const test::Fault none = [](const at::Tensor& x) { return x.mul(1.5); };
  EXPECT_EQ(tape_check::report(planted(none).findings), "");
  EXPECT_EQ(tape_check::report(planted(none, Way::guarded).findings), "");
}

TEST(GraphFindings, ASegmentThatReadsAValueIsNamed) {
  const auto found = planted([](const at::Tensor& x) { return x.sum().item<double>() == 0.5 ? x.mul(2) : x.mul(1); });
  test::expect_finding(found.findings, FindingKind::host_access, "aten::_local_scalar_dense", kForward);
}

TEST(GraphFindings, ABackwardThatReadsAValueIsNamed) {
  const auto found = planted([](const at::Tensor& x) {
    const at::Tensor y = x.mul(1.5);
    if (y.requires_grad())
      y.register_hook([](const at::Tensor& dy) { return dy.sum().item<double>() == 0.5 ? dy.mul(2) : dy; });
    return y;
  });
  test::expect_finding(found.findings, FindingKind::host_access, "aten::_local_scalar_dense", kBackward);
}

TEST(GraphFindings, ASegmentThatReadsThroughAPointerIsNamedInTheArena) {
  const test::Fault fault = [](const at::Tensor& x) {
    return x.const_data_ptr<double>()[3] == 0.5 ? x.mul(2) : x.mul(1);
  };
  EXPECT_EQ(tape_check::report(planted(fault).findings), "");  // only the guarded arena detects it
  const auto found = planted(fault, Way::guarded);
  ASSERT_FALSE(found.findings.empty());
  for (const tape_check::Finding& finding : found.findings) {
    EXPECT_EQ(finding.kind, FindingKind::host_access) << tape_check::text_of(finding);
    EXPECT_EQ(finding.place, kForward) << tape_check::text_of(finding);
  }
}

TEST(GraphFindings, ANumberOfTheHostThatChangesPerStepIsNamed) {
  const auto found = planted([factor = 1.0](const at::Tensor& x) mutable { return x.mul(factor += 0.001); });
  ASSERT_FALSE(found.findings.empty());
  for (const tape_check::Finding& finding : found.findings) {
    EXPECT_EQ(finding.kind, FindingKind::stale_number) << tape_check::text_of(finding);
    EXPECT_TRUE(finding.place == kForward || finding.place == kBackward) << tape_check::text_of(finding);
    EXPECT_NE(finding.text.find("other = 1.0"), std::string::npos) << tape_check::text_of(finding);
  }
}

TEST(GraphFindings, AnInputMadeFreshEachStepIsNamed) {
  std::vector<at::Tensor> held;  // keeps them allocated so that their addresses differ
  const auto found = planted([&](const at::Tensor& x) {
    at::Tensor loaded;
    std::thread([&] { loaded = at::full({x.size(-1)}, 0.5, at::kDouble); }).join();
    held.push_back(loaded);
    return x.add(loaded);
  });
  test::expect_finding(found.findings, FindingKind::input_not_copied, "aten::add.Tensor", kForward);
}

TEST(GraphFindings, ScratchMemoryFromElsewhereIsNamed) {
  const auto found = planted([](const at::Tensor& x) {
    at::Tensor scratch;
    std::thread([&] { scratch = at::empty(x.sizes(), at::kDouble); }).join();
    scratch.copy_(x.detach());
    return x.add(scratch.sum());
  });
  test::expect_finding(found.findings, FindingKind::outside_pool, "aten::copy_", kForward, "have been freed since");
}

TEST(GraphFindings, AnotherSequenceOfOperatorsIsNamed) {
  const auto found = planted([calls = 0](const at::Tensor& x) mutable {
    return ++calls > 40 ? x.mul(1.5).add(0.25) : x.mul(1.5);  // during the second capture
  });
  test::expect_finding(found.findings, FindingKind::other_sequence, "aten::add.Scalar", kForward);
}

}  // namespace
}  // namespace metroplex::graph_findings_test
