// How the ranks are cut: the degree of every axis, and how layers are laid over pipeline stages.
#pragma once

#include <cstdint>
#include <string>

#include "config/choice.h"

namespace metroplex::config {

enum class Schedule { automatic, none, gpipe, one_f_one_b, interleaved };
template <>
inline constexpr Word<Schedule> kWords<Schedule>[] = {{Schedule::automatic, "auto"},
                                                      {Schedule::none, "none"},
                                                      {Schedule::gpipe, "gpipe"},
                                                      {Schedule::one_f_one_b, "1f1b"},
                                                      {Schedule::interleaved, "interleaved"}};

// In the order of ZeRO's stages, 0 to 3.
enum class Sharding { no_shard, optim, optim_grads, optim_grads_params };
template <>
inline constexpr Word<Sharding> kWords<Sharding>[] = {{Sharding::no_shard, "no_shard"},
                                                      {Sharding::optim, "optim"},
                                                      {Sharding::optim_grads, "optim_grads"},
                                                      {Sharding::optim_grads_params, "optim_grads_params"}};

// Its keys, each with type, default and help: parallel_keys.inc.
struct Parallel {
#define KEY(type, name, value, limits, help) type name = value;
#include "config/parallel_keys.inc"
#undef KEY

  // The level of ZeRO: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too.
  int zero_stage() const { return static_cast<int>(Sharding{data_parallel_sharding_strategy}); }
  int64_t tp() const { return tensor_model_parallel_size; }
  int64_t pp() const { return pipeline_model_parallel_size; }
  int64_t vpp() const { return virtual_pipeline_model_parallel_size; }
  int64_t cp() const { return context_parallel_size; }
  int64_t ep() const { return expert_model_parallel_size; }
  int64_t etp() const { return expert_tensor_parallel_size == 0 ? tp() : expert_tensor_parallel_size; }
};

}  // namespace metroplex::config
