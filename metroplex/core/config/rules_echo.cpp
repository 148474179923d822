// Rules for replicas of hot experts (model.moe_enable_echo).
#include "config/rules.h"

#include <cmath>

#include "config/experts.h"

namespace metroplex::config {

using base::concat;

namespace {

constexpr const char *kEnable = "model.moe_enable_echo", *kNumber = "model.moe_num_echo_experts",
                     *kPlanner = "model.moe_echo_planner", *kFactor = "model.moe_expert_rank_capacity_factor";

void check_slots(Rules& rules) {
  const Model& m = rules.config.model;
  const int64_t ep = rules.config.parallel.ep(), replicas = m.moe_num_echo_experts;
  const std::string of_ep = key_is("parallel.expert_model_parallel_size", ep);
  rules.require(ep > 1, kEnable, "true",
                concat("has no effect with ", of_ep, ": all experts are on one rank, so no rank waits for another"),
                "turn it off, or spread the experts over more ranks");
  rules.require(replicas > 0, kNumber, replicas,
                concat("must be given with ", kEnable, ": replica slots on all ranks together"),
                concat("give a multiple of ", of_ep, ", one or two replica slots per rank to begin with: ", 2 * ep));
  if (ep < 2 || replicas <= 0 || m.num_moe_experts % ep != 0) return;
  rules.require(replicas % ep == 0, kNumber, replicas,
                concat("must be a multiple of ", of_ep, ": every rank has the same number of replica slots"),
                concat("the next one is ", (replicas + ep - 1) / ep * ep));
  const int64_t slots = replicas / ep, foreign = m.num_moe_experts - m.num_moe_experts / ep;
  rules.require(
      slots <= foreign, kNumber, replicas,
      concat("makes ", slots, " replica slots per rank, but only ", foreign, " experts are owned by other ranks (",
             key_is("model.num_moe_experts", m.num_moe_experts), ", ", of_ep, ")"),
      concat("give ", foreign * ep, " at most"));
  rules.require(m.moe_echo_planner != EchoPlanner::binpack || slots == 1, kPlanner, m.moe_echo_planner,
                concat("supports one replica slot per rank, not ", slots),
                concat("set moe_num_echo_experts to ", ep, ", or use another planner"));
}

void check_dispatcher(Rules& rules) {
  const Model& m = rules.config.model;
  const TokenDispatcher type = m.moe_token_dispatcher_type;
  const bool known = type != TokenDispatcher::local && type != TokenDispatcher::allgather;
  rules.require(known, "model.moe_token_dispatcher_type", m.moe_token_dispatcher_type,
                concat("does not send rows to the ranks of their experts, which replicas need (", kEnable, ")"),
                "use alltoall, hierarchical or static_buffer");
  rules.require(!m.has_capacity(), "model.moe_expert_capacity_factor", m.moe_expert_capacity_factor,
                concat("excludes ", kEnable, ": plans use the routed rows before any are dropped"), "set it to 0");
  if (type != TokenDispatcher::static_buffer || m.moe_echo_planner != EchoPlanner::capfill) return;
  const double content =
      std::round((1 + m.moe_echo_eps) * 1e12) / 1e12;  // 1 + 0.0131 is slightly above 1.0131 in double
  rules.require(m.moe_expert_rank_capacity_factor >= content, kFactor, m.moe_expert_rank_capacity_factor,
                concat("is less than 1 + model.moe_echo_eps = ", number_text(content),
                       ", the load that the planner capfill allows"),
                concat("give ", number_text(content), " or more, lower moe_echo_eps, or use the planner exact"));
}

void check_effects(Rules& rules) {
  const Model& m = rules.config.model;
  rules.require(m.moe_echo_reclaim == 0 || m.moe_echo_planner == EchoPlanner::greedy, "model.moe_echo_reclaim",
                m.moe_echo_reclaim, concat("is for ", kPlanner, " = greedy, not ", m.moe_echo_planner.text()),
                "set it to 0, or use greedy");
  const bool on_warps = m.moe_echo_planner == EchoPlanner::capfill || m.moe_echo_planner == EchoPlanner::exact;
  rules.require(m.moe_echo_split != EchoSplit::breadth_then_depth || !on_warps, "model.moe_echo_split",
                m.moe_echo_split,
                concat("is for ", kPlanner, " = greedy or binpack: ", m.moe_echo_planner.text(),
                       " plans on the device, which splits local_first"),
                "use local_first, or another planner");
  rules.require(m.moe_echo_eps == Model{}.moe_echo_eps || m.moe_echo_planner == EchoPlanner::capfill,
                "model.moe_echo_eps", m.moe_echo_eps,
                concat("is for ", kPlanner, " = capfill, not ", m.moe_echo_planner.text()),
                "leave it out, or use capfill");
}

}  // namespace

void check_echo(Rules& rules) {
  if (!rules.config.model.moe_enable_echo) return refuse_without(rules, kEnable, is_echo_key);
  check_slots(rules);
  check_dispatcher(rules);
  check_effects(rules);
}

}  // namespace metroplex::config
