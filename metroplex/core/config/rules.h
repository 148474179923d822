// Internal to this module: input and result list of the rules. Rules use full key names. This allows dropping
// consequences of a key that already violates its own limits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "config/config.h"
#include "config/fields.h"
#include "config/validate.h"

namespace metroplex::config {

// A key whose value is not the default.
struct ChangedKey {
  std::string key, name;  // "model.moe_echo_eps", "moe_echo_eps"
  std::string value;      // for display
};

class Rules {
 public:
  Rules(const Config& config, int64_t world, Use u);

  // Records a violation unless `holds`.
  template <class Value>
  void require(bool holds, const char* key, const Value& value, const std::string& rule, const std::string& fix) {
    if (holds) return;
    if constexpr (std::is_floating_point_v<Value>) {
      refuse(list, key, number_text(value), rule, fix);
    } else {
      refuse(list, key, value, rule, fix);
    }
  }

  // The same for a value without effect, where Megatron ignores the flag instead of rejecting it.
  template <class Value>
  void require_effect(bool holds, const char* key, const Value& value, const std::string& rule,
                      const std::string& fix) {
    require(holds, key, value, rule, fix);
    if (!holds) list.back().without_effect = true;
  }

  bool trains() const { return use != Use::evaluation; }
  // Returns how the steps are captured; `none` if they are not.
  Choice<CudaGraphImpl> captured_by() const {
    const Choice<CudaGraphImpl> asked = config.train.cuda_graph_impl;
    if (!trains()) return CudaGraphImpl::none;
    const bool whole = use == Use::capture && asked == CudaGraphImpl::none;
    return whole ? Choice<CudaGraphImpl>(CudaGraphImpl::full_iteration) : asked;
  }
  // Appends the suggested fix to disable graphs if the user enabled them.
  std::string or_no_graphs(const std::string& fix) const {
    const bool asked = config.train.cuda_graph_impl != CudaGraphImpl::none;
    return fix + (asked ? ", or set cuda_graph_impl to none" : "");
  }

  const Config& config;
  int64_t world_size;
  Use use;
  int64_t dp;  // 0: the ranks do not divide evenly
  std::vector<ChangedKey> changed;
  std::vector<Violation> list;
};

inline std::string key_is(const char* key, int64_t value) { return base::concat(key, " = ", value); }

// Rejects every non-default key for which `belongs` is true: it has no effect while the flag `switched` is off.
void refuse_without(Rules& rules, const char* switched, bool (*belongs)(std::string_view name));

void check_ranks(Rules& rules);
void check_low_precision(Rules& rules);
void check_device(Rules& rules);
void check_context_parallel(Rules& rules);
void check_hybrid_context(Rules& rules);
void check_model(Rules& rules);
void check_attention(Rules& rules);
void check_linear_attention(Rules& rules);
void check_hybrid_layers(Rules& rules);
void check_peft(Rules& rules);  // and frozen parameters
void check_experts(Rules& rules);
void check_echo(Rules& rules);  // requires a model with experts
void check_pipeline(Rules& rules);
void check_batch(Rules& rules);
void check_lengths(Rules& rules);
void check_optim(Rules& rules);
void check_optimizer_state(Rules& rules);
void check_precision(Rules& rules);
void check_sharding(Rules& rules);
void check_gradient_sums(Rules& rules);
void check_recompute(Rules& rules);
void check_offload(Rules& rules);
void check_loss_chunks(Rules& rules);
void check_data(Rules& rules);
void check_checkpoint(Rules& rules);
void check_paths(Rules& rules);
void check_loop(Rules& rules);
void check_cuda_graphs(Rules& rules);

// Returns the batch sizes of train.step_batch_size_schedule or train.rampup_batch_size, in order. Returns nothing and
// sets `problem` if the text is invalid.
std::optional<std::vector<int64_t>> scheduled_batch_sizes(const Train& train, std::string& problem);

}  // namespace metroplex::config
