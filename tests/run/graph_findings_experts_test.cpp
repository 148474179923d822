// Training steps with expert layers, captured again with other data. The training code has no diagnostics; planted
// faults in an expert layer are reported with segment and operator.
#include <gtest/gtest.h>

#include <memory>

#include "kernels/step_state.h"
#include "moe/experts_layer.h"
#include "support/record_tape.h"
#include "verify/graph_check.h"
#include "run/planted_fault.h"
#include "run/small_experts.h"

namespace metroplex::graph_findings_experts_test {
namespace {

using tape_check::FindingKind;
using Way = tape_check::CheckedGraphs::Way;
using config::CudaGraphImpl;

const std::string kBuffers = ", moe_token_dispatcher_type: static_buffer, moe_expert_rank_capacity_factor: ";

config::Config captured(CudaGraphImpl impl, const std::string& more, const std::vector<std::string>& modules = {}) {
  config::Config config = test::small_experts(more);
  config.train.cuda_graph_impl = impl;
  config.train.cuda_graph_modules = modules;
  return test::cut(config, {});
}

std::vector<tape_check::Finding> findings(const config::Config& config, Way way = Way::compared,
                                          const step::StageBuilder& build = models::build_stage) {
  std::vector<tape_check::Finding> found;
  test::run_sharded(config, {}, [&](const comm::World& world) {
    found = verify::check_graphs(config, world, test::kVocab, {way, 2}, build).findings;
  });
  return found;
}

TEST(GraphFindingsExperts, StepsHaveNone) {
  for (const std::string& more :
       {kBuffers + "1", std::string(), kBuffers + "2, moe_paged_stash: true, moe_paged_stash_page_size: 4"}) {
    for (const Way way : {Way::compared, Way::guarded}) {
      SCOPED_TRACE(testing::Message() << more << (way == Way::guarded ? " in a closed arena" : ""));
      EXPECT_EQ(tape_check::report(findings(captured(CudaGraphImpl::full_iteration, more), way)), "");
      EXPECT_EQ(tape_check::report(findings(captured(CudaGraphImpl::local, more), way)), "");
      EXPECT_EQ(tape_check::report(findings(captured(CudaGraphImpl::local, more, {"moe"}), way)), "");
      const std::vector<std::string> routes{"attn", "moe_router", "moe_preprocess"};
      EXPECT_EQ(tape_check::report(findings(captured(CudaGraphImpl::local, more, routes), way)), "");
    }
  }
}

// Makes a fault that changes the values after a segment of an expert layer.
using MakeFault = std::function<test::FaultOfValues(const models::ModelContext&)>;

constexpr const char* kForward = "forward of decoder.layers.0, planted";
// Graphs of layer modules are named by their first segment.
constexpr const char* kPart = "forward of decoder.layers.0, decoder.layers.0.self_attention";

std::vector<tape_check::Finding> planted(CudaGraphImpl impl, const std::string& behind, const MakeFault& make,
                                         Way way = Way::compared) {
  return findings(captured(impl, kBuffers + "1"), way, test::with_fault_after(behind, make));
}

// In a full-iteration graph, and in graphs of whole layers.
void expect_found(const std::string& behind, const MakeFault& make, FindingKind kind, const std::string& operation,
                  const std::string& part = "") {
  test::expect_finding(planted(CudaGraphImpl::full_iteration, behind, make), kind, operation, kForward, part);
  test::expect_finding(planted(CudaGraphImpl::transformer_engine, behind, make), kind, operation, kPart, part);
}

MakeFault everywhere(test::FaultOfValues fault) {
  return [fault = std::move(fault)](const models::ModelContext&) { return fault; };
}

TEST(GraphFindingsExperts, ASegmentThatDoesNothingWrongHasNone) {
  for (const char* behind : {".router", ".dispatch_plan", ".dispatch", ".experts"}) {
    const MakeFault none = everywhere([](const nn::Values& in) { return in; });
    for (const Way way : {Way::compared, Way::guarded})
      EXPECT_EQ(tape_check::report(planted(CudaGraphImpl::full_iteration, behind, none, way)), "") << behind;
  }
}

TEST(GraphFindingsExperts, ACountReadOnTheHostIsNamed) {
  expect_found(".dispatch", everywhere([](const nn::Values& in) {
                 return in.tensor(moe::kRowCounts).sum().item<int64_t>() < 0 ? nn::Values() : in;
               }),
               FindingKind::host_access, "aten::_local_scalar_dense");
}

TEST(GraphFindingsExperts, ACountReadThroughAPointerIsNamedInTheArena) {
  const MakeFault fault = everywhere([](const nn::Values& in) {
    return in.tensor(moe::kRowCounts).const_data_ptr<int64_t>()[0] < 0 ? nn::Values() : in;
  });
  const auto found = planted(CudaGraphImpl::full_iteration, ".dispatch", fault, Way::guarded);
  ASSERT_FALSE(found.empty());
  for (const tape_check::Finding& finding : found) {
    EXPECT_EQ(finding.kind, FindingKind::host_access) << tape_check::text_of(finding);
    EXPECT_EQ(finding.place, kForward) << tape_check::text_of(finding);
  }
}

TEST(GraphFindingsExperts, ASizeThatFollowsFromCountsIsNamed) {
  expect_found(".experts", everywhere([](const nn::Values& in) {
                 const at::Tensor& y = in.tensor(moe::kRowOutput);
                 const at::Tensor used = y.detach().abs().sum(1).nonzero();
                 return test::replaced(in, moe::kRowOutput, y.add(used.sum().mul(0)));
               }),
               FindingKind::host_access, "aten::nonzero");
}

TEST(GraphFindingsExperts, AnOverflowFlagThatIsLookedAtIsNamed) {
  expect_found(
      ".dispatch_plan",
      [](const models::ModelContext& context) {
        return [flags = context.experts.step_flags](const nn::Values& in) {
          return flags.select(0, kernels::kOverflow).item<int>() > 1 ? nn::Values() : in;
        };
      },
      FindingKind::host_access, "aten::_local_scalar_dense");
}

// A layer that reuses the routing map of one microbatch for the next.
TEST(GraphFindingsExperts, AStaleRoutingMapIsNamed) {
  const MakeFault stale = [](const models::ModelContext&) {
    const auto map = std::make_shared<at::Tensor>();
    return [map](const nn::Values& in) {
      const at::Tensor now = in.tensor(moe::kTopExperts);
      const at::Tensor last = map->defined() ? *map : now;
      *map = now.clone();
      return test::replaced(in, moe::kTopExperts, last.clone());
    };
  };
  for (const auto& [impl, place] :
       {std::pair{CudaGraphImpl::full_iteration, kForward}, std::pair{CudaGraphImpl::transformer_engine, kPart}}) {
    const auto found = planted(impl, ".router", stale);
    int lost = 0;  // a replay would read this from a microbatch before the capture
    for (const tape_check::Finding& finding : found) {
      EXPECT_EQ(finding.place, place) << tape_check::text_of(finding);
      EXPECT_EQ(finding.operation, "aten::clone") << tape_check::text_of(finding);
      lost += finding.kind == FindingKind::input_not_copied ? 1 : 0;
    }
    EXPECT_GT(lost, 0) << tape_check::report(found);
  }
}

}  // namespace
}  // namespace metroplex::graph_findings_experts_test
