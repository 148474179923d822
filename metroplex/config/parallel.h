// How the ranks are cut: the degree of every axis, and how layers are laid over pipeline stages.
#pragma once

#include <cstdint>
#include <string>

#include "config/choice.h"
#include "config/sharding.h"

namespace metroplex::config {

enum class Schedule { automatic, none, gpipe, one_f_one_b, interleaved };
template <>
inline constexpr Word<Schedule> kWords<Schedule>[] = {{Schedule::automatic, "auto"},
                                                      {Schedule::none, "none"},
                                                      {Schedule::gpipe, "gpipe"},
                                                      {Schedule::one_f_one_b, "1f1b"},
                                                      {Schedule::interleaved, "interleaved"}};

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

}  // namespace metroplex::config
