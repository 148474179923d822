#include "moe/grouped_library.h"

#include <ATen/ATen.h>

#include "kernels/grouped_choice.h"
#include "nn/matmul.h"
#include "nn/wide.h"

namespace metroplex::moe {
namespace {

using kernels::GroupedOp;

at::Tensor get_ends(const device::Target& target, const GroupCounts& counts, int64_t rows) {
  return counts.ends.defined() ? counts.ends : group_ends(target, counts.counts, rows);
}

at::Tensor multiplied(const device::Target& target, const at::Tensor& a, const at::Tensor& b, const at::Tensor& ends,
                      std::vector<int64_t> sizes) {
  if (target.meta) return at::empty(sizes, a.options());
  return at::_grouped_mm(a, b, ends);
}

double product_flops(int64_t rows, const at::Tensor& weights) {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(weights.size(1)) *
         static_cast<double>(weights.size(2));
}

at::Tensor joined(const GroupedWeights& weights) {
  return weights.replicas.defined() ? at::cat({weights.home, weights.replicas}) : weights.home;
}

}  // namespace

bool library_has(bool gpu, int capability, at::ScalarType type) {
  bool library = false;
  nn::dispatch_element(type, [&](auto zero) {
    library = kernels::grouped_choice(gpu, kernels::kElementNumber<decltype(zero)>, capability).library;
  });
  return library;
}

bool library_multiplies(const GroupedCase& c) {
  constexpr int64_t kAligned = 8;  // elements in 16 bytes
  const bool pays = !c.joins || c.rows_of_group >= kRowsForJoin;
  return library_has(c.gpu, c.capability, c.type) && pays && c.in > 0 && c.out > 0 && c.in % kAligned == 0 &&
         c.out % kAligned == 0;
}

std::string product_name(const GroupedCase& c) {
  const bool library = library_multiplies(c);
  std::string name;
  nn::dispatch_element(c.type, [&](auto zero) {
    for (const auto* choice :
         kernels::grouped_choices(c.gpu, kernels::kElementNumber<decltype(zero)>, c.capability)) {
      if (name.empty() && choice->library == library) name = choice->name;
    }
  });
  return name;
}

at::Tensor group_ends(const device::Target& target, const at::Tensor& counts, int64_t rows) {
  at::Tensor ends = at::empty({counts.numel()}, counts.options().dtype(at::kInt));
  device::launch(target, {"group_ends", {&counts}, {&ends}}, kernels::group_ends, kernels::group_ends_cuda,
                 static_cast<const int64_t*>(counts.const_data_ptr()), counts.numel(), rows,
                 static_cast<int32_t*>(ends.mutable_data_ptr()));
  return ends;
}

at::Tensor library_rows(const device::Target& target, GroupedOp op, const at::Tensor& rows,
                        const GroupedWeights& of_groups, const GroupCounts& counts, double fill) {
  const bool forward = op == GroupedOp::forward;
  const int64_t n = rows.size(0), width = of_groups.home.size(forward ? 1 : 2);
  if (n == 0) return at::empty({n, width}, rows.options());
  const at::Tensor weights = joined(of_groups);
  const at::Tensor matrices = forward ? weights.transpose(1, 2) : weights;
  const at::Tensor out = multiplied(target, rows, matrices, get_ends(target, counts, n), {n, width});
  device::issued(target, {"grouped_mm", {&rows, &weights}, {&out}, {}, fill * product_flops(n, weights)});
  return out;
}

void put_library_weight_gradient(const device::Target& target, const LibraryGradient& to, const at::Tensor& dy,
                                 const at::Tensor& x, const GroupCounts& group_counts) {
  const at::Tensor &counts = group_counts.counts, &gradient = to.gradient.home, &of_replicas = to.gradient.replicas;
  const int64_t n = x.size(0), home = gradient.size(0);
  if (n == 0) {
    if (!to.adds) gradient.zero_();
    if (of_replicas.defined()) of_replicas.zero_();
    return;
  }
  const at::Tensor product = multiplied(target, dy.t(), x, get_ends(target, group_counts, n),
                                        {counts.numel(), gradient.size(1), gradient.size(2)});
  device::issued(target, {"grouped_mm", {&dy, &x}, {&product}, {}, to.fill * product_flops(n, gradient)});
  if (to.zeros_empty) product.masked_fill_((counts == 0).view({-1, 1, 1}), 0);
  nn::put_product(target, gradient, product.narrow(0, 0, home), to.adds);
  if (of_replicas.defined())
    nn::put_product(target, of_replicas, product.narrow(0, home, of_replicas.size(0)), false);
}

}  // namespace metroplex::moe
