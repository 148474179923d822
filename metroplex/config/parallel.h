// How the ranks are cut: the degree of every axis, and how layers are laid over pipeline stages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/choice.h"

namespace metroplex::config {

// What the data-parallel ranks share instead of each holding all of it: the stages of ZeRO (Rajbhandari et al.,
// arXiv:1910.02054) as three policies, each of which takes in those before it. Whoever acts on a stage asks here.

enum class ShardingStrategy { no_shard, optim, optim_grads, optim_grads_params };
template <>
inline constexpr Word<ShardingStrategy> kWords<ShardingStrategy>[] = {
    {ShardingStrategy::no_shard, "no_shard"},
    {ShardingStrategy::optim, "optim"},
    {ShardingStrategy::optim_grads, "optim_grads"},
    {ShardingStrategy::optim_grads_params, "optim_grads_params"}};

struct Sharding {
  bool optimizer_state = false;  // main parameters and moments: a rank updates its own slices only
  bool gradients = false;        // of reduced ones a rank keeps its own slices only
  bool parameters = false;       // between uses a rank keeps its own slices only

  // Buckets are cut into own parts, aligned for it; off: all ranks hold and update everything.
  bool any() const { return optimizer_state; }
  // Parameters lie in one range that every rank holds whole; its buckets are gathered after an update.
  bool gathers_updates() const { return optimizer_state && !parameters; }
  // The parameters of a segment are a unit: made by themselves, in buckets of their own, gathered before forward and
  // backward of the segment and freed after.
  bool gathers_units() const { return parameters; }
  // A bucket of gradients exists from the first one that goes into it until it is reduced, once a microbatch.
  bool transient_gradients() const { return gradients; }
  int stage() const { return int{optimizer_state} + int{gradients} + int{parameters}; }  // 0 to 3, for names
};

Sharding sharding_of(ShardingStrategy strategy);

enum class Schedule { automatic, none, gpipe, one_f_one_b, interleaved };
template <>
inline constexpr Word<Schedule> kWords<Schedule>[] = {{Schedule::automatic, "auto"},
                                                      {Schedule::none, "none"},
                                                      {Schedule::gpipe, "gpipe"},
                                                      {Schedule::one_f_one_b, "1f1b"},
                                                      {Schedule::interleaved, "interleaved"}};

// Which tokens of a sequence a context-parallel rank holds (plan/sequence_cut.h).
enum class SequenceCutKind { zigzag, contiguous, balanced };
template <>
inline constexpr Word<SequenceCutKind> kWords<SequenceCutKind>[] = {{SequenceCutKind::zigzag, "zigzag"},
                                                                    {SequenceCutKind::contiguous, "contiguous"},
                                                                    {SequenceCutKind::balanced, "balanced"}};

// How queries reach the keys of other context-parallel ranks (nn/context_attention.h).
enum class CpCommType { p2p, all_gather, a2a, a2a_p2p };
template <>
inline constexpr Word<CpCommType> kWords<CpCommType>[] = {{CpCommType::p2p, "p2p"},
                                                          {CpCommType::all_gather, "all_gather"},
                                                          {CpCommType::a2a, "a2a"},
                                                          {CpCommType::a2a_p2p, "a2a+p2p"}};

// Its keys, each with type, default and help: parallel_keys.inc.
struct Parallel {
#define KEY(type, name, value, limits, help) type name = value;
#include "config/parallel_keys.inc"
#undef KEY

  Sharding sharding() const { return sharding_of(data_parallel_sharding_strategy); }
  int64_t tp() const { return tensor_model_parallel_size; }
  int64_t pp() const { return pipeline_model_parallel_size; }
  int64_t vpp() const { return virtual_pipeline_model_parallel_size; }
  int64_t cp() const { return context_parallel_size; }
  int64_t ep() const { return expert_model_parallel_size; }
  int64_t etp() const { return expert_tensor_parallel_size == 0 ? tp() : expert_tensor_parallel_size; }
};

// One string of E (embedding), t (layer), m (multi-token prediction), L (loss) a stage; `problem` says why there is
// none (an unknown letter, parentheses that do not close or nest, a repetition too large to be meant).
std::optional<std::vector<std::string>> unrolled_layout(const std::string& layout, std::string& problem);

}  // namespace metroplex::config
