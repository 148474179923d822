#include "moe/context.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "config/experts.h"
#include "device/launch_point.h"

namespace metroplex::moe {

using topology::Axis;

NoRoom StaticBuffers::no_room(const device::Target& target) const {
  NoRoom worst;
  for (const Layer& layer : layers) {
    const at::Tensor wanted = device::read_on_host(target, layer.wanted);
    const auto* const rows = wanted.const_data_ptr<int64_t>();
    const auto* const most = std::max_element(rows, rows + wanted.numel());
    const double factor = static_cast<double>(*most) / static_cast<double>(std::max<int64_t>(layer.even, 1));
    if (*most <= layer.room || factor <= worst.factor) continue;
    worst = {base::concat("layer ", layer.number, ": ", *most, " rows for rank ", most - rows,
                          " of ep, whose capacity is ", layer.room),
             factor};
  }
  return worst;
}

bool captures_shared_expert(const config::Train& train) {
  const config::CudaGraphModules captured = train.captured_modules();
  return captured.has(config::CudaGraphModule::moe_router) && !captured.has(config::CudaGraphModule::moe);
}

ExpertContext expert_context(const comm::World& world, const config::Config& config) {
  ExpertContext context;
  context.captures_shared_expert = captures_shared_expert(config.train);
  topology::Ranks members = world.grid().group_ranks(world.rank(), {Axis::etp, Axis::ep});
  std::sort(members.begin(), members.end(), [&](int a, int b) {
    const topology::Coordinates left = world.grid().coordinates(a), right = world.grid().coordinates(b);
    return std::pair(left.ep, left.etp) < std::pair(right.ep, right.etp);
  });
  context.experts = world.make_group({"etp-ep", comm::Purpose::experts, members});
  context.etp = static_cast<int>(world.grid().size(Axis::etp));
  context.ep = static_cast<int>(world.grid().size(Axis::ep));
  const auto ranks = static_cast<size_t>(context.experts.size());
  const int64_t wanted = config.parallel.expert_ranks_per_node;
  const size_t of_node = wanted > 0 ? static_cast<size_t>(wanted) : ranks;
  MPX_CHECK(ranks % of_node == 0, "config", "parallel.expert_ranks_per_node = ", wanted, " must divide the ", ranks,
            " ranks that share a layer's experts (etp * ep); choose a divisor");
  const auto index = static_cast<size_t>(context.experts.index());
  std::vector<int> node, across;
  for (size_t i = 0; i < ranks; ++i) {
    if (i / of_node == index / of_node) node.push_back(context.experts.ranks()[i]);
    if (i % of_node == index % of_node) across.push_back(context.experts.ranks()[i]);
  }
  context.slots = static_cast<int>(config::echo_slots(config.model, context.ep));
  if (context.slots > 0) {
    std::vector<int> same_part;
    for (size_t i = static_cast<size_t>(context.etp_rank()); i < ranks; i += static_cast<size_t>(context.etp))
      same_part.push_back(context.experts.ranks()[i]);
    context.replicas = world.make_group({"ep", comm::Purpose::replicas, same_part});
  }
  context.node = world.make_group({"etp-ep-node", comm::Purpose::experts, node});
  context.across = world.make_group({"etp-ep-across", comm::Purpose::experts, across});
  if (config.precision.has_tensor_factors() || config.peft.stores_codes())
    context.inner = world.make_layer_group("etp", {Axis::etp});
  if (config.precision.delays_scales()) context.holders = world.make_layer_group("etp-edp", {Axis::etp, Axis::edp});
  context.tp_cp = world.make_layer_group("tp-cp", {Axis::tp, Axis::cp});
  context.tp_dp_cp = world.make_layer_group("tp-dp-cp", {Axis::tp, Axis::dp, Axis::cp});
  context.data_parallel = world.groups().dp.size();
  context.per_token_loss = config.train.calculate_per_token_loss;
  return context;
}

}  // namespace metroplex::moe
