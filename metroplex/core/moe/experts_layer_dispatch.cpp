#include "moe/experts_layer.h"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace metroplex::moe {
namespace {

constexpr const char *kPlanRows = "dispatch_plan_rows", *kPlanSource = "dispatch_plan_source",
                     *kPlanCounts = "dispatch_plan_counts", *kRankCounts = "dispatch_rank_counts";
constexpr const char *kCombineRows = "combine_rows", *kCombineSource = "combine_source",
                     *kRegroupRows = "combine_regroup_rows", *kRegroupSource = "combine_regroup_source",
                     *kCombineSent = "combine_sent", *kCombineCame = "combine_came";

void add(nn::Values& values, const char* name, const at::Tensor& x) {
  if (x.defined()) values.add(name, x);
}

at::Tensor found(const nn::Values& values, const char* name) {
  return values.has(name) ? values.tensor(name) : at::Tensor();
}

}  // namespace

void add_plan(nn::Values& values, const DispatchPlan& plan) {
  add(values, kPlanRows, plan.permutation.rows);
  add(values, kPlanSource, plan.permutation.source);
  add(values, kPlanCounts, plan.permutation.counts);
  add(values, kRankCounts, plan.rank_counts);
  add(values, kReplicaOwners, plan.replicas.owners);
}

void add_plan(nn::Values& values, const CombinePlan& plan) {
  add(values, kCombineRows, plan.permutation.rows);
  add(values, kCombineSource, plan.permutation.source);
  add(values, kRegroupRows, plan.regroup.rows);
  add(values, kRegroupSource, plan.regroup.source);
  add(values, kCombineSent, plan.sent);
  add(values, kCombineCame, plan.came);
}

DispatchPlan dispatch_plan_in(const nn::Values& values, int64_t topk) {
  return {{found(values, kPlanRows), found(values, kPlanSource), found(values, kPlanCounts), topk},
          found(values, kRankCounts),
          {found(values, kReplicaOwners), {}, {}, {}}};
}

CombinePlan combine_plan_in(const nn::Values& values, int64_t topk) {
  return {{found(values, kCombineRows), found(values, kCombineSource), {}, topk},
          {found(values, kRegroupRows), found(values, kRegroupSource), {}, 1},
          {},
          found(values, kCombineSent),
          found(values, kCombineCame)};
}

void add_replicas(nn::Values& values, const ReplicaWeights& replicas) {
  add(values, kReplicaWeight1, replicas.fc1);
  add(values, kReplicaWeight2, replicas.fc2);
  add(values, kReplicaBias1, replicas.bias1);
  add(values, kReplicaBias2, replicas.bias2);
}

ReplicaWeights replicas_in(const nn::Values& values) {
  return {found(values, kReplicaWeight1), found(values, kReplicaWeight2), found(values, kReplicaBias1),
          found(values, kReplicaBias2)};
}

nn::Values without_dispatch_plan(const nn::Values& values) {
  constexpr std::string_view kNames[] = {kPlanRows, kPlanSource, kPlanCounts, kRankCounts, kReplicaOwners};
  nn::Values out;
  for (const nn::Values::Entry& entry : values) {
    if (std::find(std::begin(kNames), std::end(kNames), entry.name) == std::end(kNames))
      out.add(entry.name, entry.value);
  }
  return out;
}

}  // namespace metroplex::moe
