#include "forecast/step_budget.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "forecast/kernel_classes.h"

namespace metroplex::forecast {
namespace {

struct OperatorRow {
  const char* name;  // of a libtorch operator: without namespace, overload and outer underscores
  const char* kernel_class;
  int launches = 1;
};

// The optimizer and gradient_sums launch once per table of ranges, and are counted once.
constexpr OperatorRow kOperators[] = {
    {"mm", classes::kProducts},
    {"addmm", classes::kProducts},
    {"grouped_mm", classes::kExpertProducts, 2},  // prepare_grouped_gemm_data and the product
    {"grouped_product", classes::kExpertProducts},
    {"grouped_arguments", classes::kExpertProducts},
    {"attention_cudnn", classes::kAttention},
    // Sums of dout * out, the gradients, the conversion of dq, and sums over the heads of a group for dk and dv.
    {"attention_cudnn_backward", classes::kAttention, 5},
    {"attention_flash", classes::kAttention},
    {"attention_flash_backward", classes::kAttention, 3},  // sums of dout * out, the gradients, the conversion of dq
    {"norm_forward", classes::kNorms},
    {"norm_backward", classes::kNorms},
    {"dropout_norm_forward", classes::kNorms},
    {"dropout_norm_backward", classes::kNorms},
    {"column_sums", classes::kSums, 2},
    {"sum_lines", classes::kSums},
    {"activation_forward", classes::kActivations},
    {"activation_backward", classes::kActivations},
    {"expert_activation", classes::kActivations},
    {"expert_activation_backward", classes::kActivations},
    {"rope", classes::kRope},
    {"split_heads", classes::kRope},
    {"join_heads", classes::kRope},
    {"bias_dropout_add", classes::kResidual},
    {"cross_entropy_statistics", classes::kCrossEntropy},
    {"cross_entropy_backward", classes::kCrossEntropy},
    {"gather_rows", classes::kEmbedding},
    {"scatter_add_rows", classes::kEmbedding},
    {"route_forward", classes::kRouting},
    {"route_backward", classes::kRouting},
    {"balance", classes::kRouting, 2},  // balance_lines and balance_sums
    {"balance_term", classes::kRouting},
    {"balance_backward", classes::kRouting},
    {"group_ends", classes::kExpertProducts},
    {"plan_permutation", classes::kPermutation, 3},  // count_assignments, sum_tiles, plan_permutation
    {"permute_rows", classes::kPermutation},
    {"sum_rows", classes::kPermutation},
    {"add_elements", classes::kExpertGradients},
    {"adam_step", classes::kOptimizer},
    {"gradient_sums", classes::kGradientNorm, 2},  // gradient_sums and gradient_sums_total
    {"sum_shards", classes::kGradientNorm},
    {"own_sums", classes::kGradientNorm},
    {"judge_step", classes::kGradientNorm},
    {"loss_factors", classes::kGradientNorm},
    {"clone", classes::kCopies},
    {"copy", classes::kCopies},
    {"to_copy", classes::kCopies},
    {"cat", classes::kCopies},
    {"stack", classes::kCopies},
    {"zeros", classes::kFills},
    {"zero", classes::kFills},
    {"add", classes::kElementwise},
    {"sub", classes::kElementwise},
    {"mul", classes::kElementwise},
    {"div", classes::kElementwise},
    {"log", classes::kElementwise},
    {"sum", classes::kOther},
    {"sort", classes::kOther}};

// "aten::_to_copy" and "aten::add_.Tensor": "to_copy" and "add".
std::string_view base_name(std::string_view name) {
  constexpr std::string_view kNamespace = "aten::";
  if (!name.starts_with(kNamespace)) return name;
  name.remove_prefix(kNamespace.size());
  name = name.substr(0, name.find('.'));
  while (name.starts_with('_')) name.remove_prefix(1);
  while (name.ends_with('_')) name.remove_suffix(1);
  return name;
}

const OperatorRow& find_operator(const std::string& name) {
  const std::string_view base = base_name(name);
  for (const OperatorRow& row : kOperators) {
    if (row.name == base) return row;
  }
  MPX_CHECK(false, "cost", "operator ", name,
            ": has no kernel class; add a row to kOperators in forecast/step_budget.cpp");
  return kOperators[0];
}

template <class Visit>
void for_each_region(const replay::StepTrace& trace, const Visit& visit) {
  for (const replay::TracedAction& action : trace.actions)
    for (const replay::IslandTrace& region : action.regions) visit(region);
  for (const replay::IslandTrace& region : trace.after) visit(region);
}

void add_work(Work& sum, const replay::TraceOperation& one, int launches, const BudgetRates& rates) {
  const auto bytes = static_cast<double>(one.bytes);
  sum.launches += launches;
  sum.bytes += bytes;
  sum.flops += one.flops;
  sum.bound_s += std::max(bytes / rates.copy_bytes_per_s, one.flops / rates.matmul_flops);
}

bool contains(const replay::IslandTrace& region, std::string_view name) {
  return std::any_of(region.operations.begin(), region.operations.end(),
                     [&](const replay::TraceOperation& one) { return one.name == name; });
}

// Role of the next product of a layer, by the operators before it.
class RoleFinder {
 public:
  explicit RoleFinder(const replay::IslandTrace& region)
      : backward_(region.backward), routes_(contains(region, "route_forward")) {
    if (contains(region, "cross_entropy_statistics") || contains(region, "cross_entropy_backward"))
      role_ = "output layer";
    else role_ = backward_ ? "MLP" : "QKV";
  }

  const char* next(const std::string& name) {
    if (std::strcmp(find_operator(name).kernel_class, classes::kExpertProducts) == 0) return "experts";
    const bool attention = name.starts_with("attention"), norm = name.find("norm_") != std::string::npos;
    if (is("output layer")) return role_;
    if (backward_) {
      if (name == "route_backward") role_ = "router";
      if (norm && !is("QKV")) role_ = "attention projection";
      if (attention) role_ = "QKV";
    } else {
      if (norm && is("attention projection")) role_ = routes_ ? "router" : "MLP";
      if (attention) role_ = "attention projection";
    }
    return role_;
  }

 private:
  bool is(const char* role) const { return std::strcmp(role_, role) == 0; }

  bool backward_, routes_;
  const char* role_;
};

}  // namespace

std::map<std::string, Work> sum_classes(const replay::StepTrace& trace, const BudgetRates& rates) {
  std::map<std::string, Work> sums;
  for_each_region(trace, [&](const replay::IslandTrace& region) {
    for (const replay::TraceOperation& one : region.operations) {
      const OperatorRow& row = find_operator(one.name);
      add_work(sums[row.kernel_class], one, row.launches, rates);
    }
  });
  return sums;
}

std::map<ProductRole, Work> sum_products(const replay::StepTrace& trace, const BudgetRates& rates) {
  std::map<ProductRole, Work> sums;
  for_each_region(trace, [&](const replay::IslandTrace& region) {
    RoleFinder finder(region);
    for (const replay::TraceOperation& one : region.operations) {
      const char* role = finder.next(one.name);
      const OperatorRow& row = find_operator(one.name);
      const bool attention = std::strcmp(row.kernel_class, classes::kAttention) == 0;
      if (one.flops > 0 && !attention) add_work(sums[{role, one.flops}], one, row.launches, rates);
    }
  });
  return sums;
}

std::map<int, BlockLaunches> count_launches(const replay::StepTrace& trace) {
  std::map<int, BlockLaunches> blocks;
  for_each_region(trace, [&](const replay::IslandTrace& region) {
    if (region.block < 0) return;
    BlockLaunches& block = blocks[region.block];
    for (const replay::TraceOperation& one : region.operations) {
      const OperatorRow& row = find_operator(one.name);
      (region.backward ? block.backward : block.forward) += row.launches;
      block.operators[one.name] += row.launches;
    }
  });
  return blocks;
}

}  // namespace metroplex::forecast
