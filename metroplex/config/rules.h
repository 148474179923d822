// Inside the room: what a group of rules gets and where it puts what it finds. Rules name other keys in full, so
// that a consequence of a key that already breaks its own limits can be left out.
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

class Rules {
 public:
  Rules(const Config& c, int64_t world, Use u);

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

  // The same for a value that changes nothing, where Megatron ignores the flag instead of refusing it.
  template <class Value>
  void require_effect(bool holds, const char* key, const Value& value, const std::string& rule,
                      const std::string& fix) {
    require(holds, key, value, rule, fix);
    if (!holds) list.back().without_effect = true;
  }

  bool trains() const { return use != Use::evaluation; }
  // How the steps are captured; none: they are not.
  Choice<CudaGraphImpl> captured_by() const {
    const Choice<CudaGraphImpl> asked = config.train.cuda_graph_impl;
    if (!trains()) return CudaGraphImpl::none;
    const bool whole = use == Use::capture && asked == CudaGraphImpl::none;
    return whole ? Choice<CudaGraphImpl>(CudaGraphImpl::full_iteration) : asked;
  }
  // A way out, and the other one where graphs were asked for.
  std::string or_no_graphs(const std::string& fix) const {
    const bool asked = config.train.cuda_graph_impl != CudaGraphImpl::none;
    return fix + (asked ? ", or set cuda_graph_impl to none" : "");
  }

  const Config& config;
  int64_t world_size;
  Use use;
  int64_t dp;  // 0: the ranks do not divide
  std::vector<Violation> list;
};

// "key = value", for the text of a rule.
inline std::string key_is(const char* key, int64_t value) { return base::concat(key, " = ", value); }

// Refuses every key of which `belongs` is true that has another value than its default: it has no effect without
// `switched`, a flag that is off.
void refuse_without(Rules& rules, const char* switched, bool (*belongs)(std::string_view name));

void check_ranks(Rules& rules);
void check_device(Rules& rules);
void check_context_parallel(Rules& rules);
void check_hybrid_context(Rules& rules);
void check_model(Rules& rules);
void check_attention(Rules& rules);
void check_peft(Rules& rules);  // and of what is frozen
void check_experts(Rules& rules);
void check_echo(Rules& rules);  // of a model with experts
void check_pipeline(Rules& rules);
void check_batch(Rules& rules);
void check_lengths(Rules& rules);
void check_optim(Rules& rules);
void check_optimizer_state(Rules& rules);
void check_precision(Rules& rules);
void check_sharding(Rules& rules);
void check_recompute(Rules& rules);
void check_offload(Rules& rules);
void check_data(Rules& rules);
void check_checkpoint(Rules& rules);
void check_paths(Rules& rules);
void check_loop(Rules& rules);
void check_cuda_graphs(Rules& rules);

// The batch sizes of train.step_batch_size_schedule or train.rampup_batch_size, in order; nothing when the text
// cannot be read (`problem` says why).
std::optional<std::vector<int64_t>> scheduled_batch_sizes(const Train& train, std::string& problem);

}  // namespace metroplex::config
