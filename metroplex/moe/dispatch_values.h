// The plans of a dispatch among the values between two segments.
#pragma once

#include "moe/dispatcher.h"
#include "nn/value.h"

namespace metroplex::moe {

// What is not defined is not among them.
void add_plan(nn::Values& values, const DispatchPlan& plan);
void add_plan(nn::Values& values, const CombinePlan& plan);
// topk: moe_router_topk.
DispatchPlan dispatch_plan_in(const nn::Values& values, int64_t topk);
CombinePlan combine_plan_in(const nn::Values& values, int64_t topk);
// Without those of the plan.
nn::Values without_dispatch_plan(const nn::Values& values);

}  // namespace metroplex::moe
