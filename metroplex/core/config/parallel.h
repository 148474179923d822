// Parallelism degrees of every axis, and the distribution of layers over pipeline stages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/choice.h"

namespace metroplex::config {

// State that data-parallel ranks shard instead of replicating: the stages of ZeRO (Rajbhandari et al.,
// arXiv:1910.02054). Each policy includes the previous ones. All code that depends on a stage queries this struct.

enum class ShardingStrategy { no_shard, optim, optim_grads, optim_grads_params };
template <>
inline constexpr Word<ShardingStrategy> kWords<ShardingStrategy>[] = {
    {ShardingStrategy::no_shard, "no_shard"},
    {ShardingStrategy::optim, "optim"},
    {ShardingStrategy::optim_grads, "optim_grads"},
    {ShardingStrategy::optim_grads_params, "optim_grads_params"}};

struct Sharding {
  bool optimizer_state = false;  // main parameters and moments: a rank updates only its shards
  bool gradients = false;        // a rank keeps only its shards of reduced gradients
  bool parameters = false;       // a rank keeps only its shards between uses

  // Buckets are divided into aligned shards. If false, all ranks hold and update everything.
  bool any() const { return optimizer_state; }
  // Parameters are in one range that every rank holds in full; its buckets are gathered after an update.
  bool gathers_updates() const { return optimizer_state && !parameters; }
  // The parameters of a segment form a unit with its own buckets. The unit is gathered before forward and backward of
  // the segment and freed afterwards.
  bool gathers_units() const { return parameters; }
  // A gradient bucket exists from its first gradient until its reduction, once per microbatch.
  bool transient_gradients() const { return gradients; }
  int stage() const { return int{optimizer_state} + int{gradients} + int{parameters}; }  // 0 to 3, for names
};

Sharding sharding_of(ShardingStrategy strategy);

enum class Schedule { automatic, none, gpipe, one_f_one_b, interleaved, zb_h1, zb_h2, zb_v, dualpipe_v, searched };
// True if weight gradients are separate actions.
constexpr bool splits_backward(Schedule schedule) {
  return schedule == Schedule::zb_h1 || schedule == Schedule::zb_h2 || schedule == Schedule::zb_v ||
         schedule == Schedule::dualpipe_v || schedule == Schedule::searched;
}
// True if the two chunks of a rank are placed in a V (plan/pipeline_table.h). A searched schedule has one or two
// chunks.
constexpr bool is_v_shaped(Schedule schedule, int64_t chunks) {
  return schedule == Schedule::zb_v || schedule == Schedule::dualpipe_v ||
         (schedule == Schedule::searched && chunks == 2);
}
template <>
inline constexpr Word<Schedule> kWords<Schedule>[] = {{Schedule::automatic, "auto"},
                                                      {Schedule::none, "none"},
                                                      {Schedule::gpipe, "gpipe"},
                                                      {Schedule::one_f_one_b, "1f1b"},
                                                      {Schedule::interleaved, "interleaved"},
                                                      {Schedule::zb_h1, "zb_h1"},
                                                      {Schedule::zb_h2, "zb_h2"},
                                                      {Schedule::zb_v, "zb_v"},
                                                      {Schedule::dualpipe_v, "dualpipe_v"},
                                                      {Schedule::searched, "searched"}};

// Assignment of a sequence's tokens to context-parallel ranks (plan/sequence_cut.h).
enum class SequenceCutKind { zigzag, contiguous, balanced };
template <>
inline constexpr Word<SequenceCutKind> kWords<SequenceCutKind>[] = {{SequenceCutKind::zigzag, "zigzag"},
                                                                    {SequenceCutKind::contiguous, "contiguous"},
                                                                    {SequenceCutKind::balanced, "balanced"}};

// Exchange of keys between context-parallel ranks (nn/context_attention.h).
enum class CpCommType { p2p, all_gather, a2a, a2a_p2p };
template <>
inline constexpr Word<CpCommType> kWords<CpCommType>[] = {{CpCommType::p2p, "p2p"},
                                                          {CpCommType::all_gather, "all_gather"},
                                                          {CpCommType::a2a, "a2a"},
                                                          {CpCommType::a2a_p2p, "a2a+p2p"}};

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

// Returns one string of E (embedding), t (layer), m (multi-token prediction), L (loss) per stage. Returns nothing and
// sets `problem` for an unknown letter, unbalanced or nested parentheses, or an excessive repetition.
std::optional<std::vector<std::string>> unrolled_layout(const std::string& layout, std::string& problem);

}  // namespace metroplex::config
