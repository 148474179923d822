// Checks whether a configuration can run on a given number of ranks, before any tensor is created. violations()
// returns all problems at once: each key's limits, the rules of Megatron's TransformerConfig (rules_transformer.h),
// and the stricter rules across sections. resolved() fills every 0 that means "derived".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/config.h"

namespace metroplex::config {

// One violated rule, in the four parts of a message.

struct Violation {
  std::string key;  // "parallel.tensor_model_parallel_size"
  std::string value;
  std::string rule;  // requirement, with the other relevant values
  std::string fix;
  bool without_effect = false;  // the value has no effect, and Megatron ignores the flag
};

// Adds a violation to `list`. An empty value is written as "(empty)" so that the message stays readable.
template <class Value>
void refuse(std::vector<Violation>& list, const char* key, const Value& value, const std::string& rule,
            const std::string& fix) {
  const std::string text = base::concat(value);
  list.push_back({key, text.empty() ? "(empty)" : text, rule, fix});
}

// Purpose of a configuration. Evaluation and generation support some settings that training does not. `capture`:
// training steps are captured, as a full iteration if train.cuda_graph_impl is none.
enum class Use { training, capture, evaluation };

std::vector<Violation> violations(const Config& config, int64_t world_size, Use use = Use::training);

// Returns the values without effect (Violation::without_effect) on the smallest number of ranks, except keys that
// violate another rule too.
std::vector<Violation> without_effect(const Config& config);

// Throws one base::Error("config", ...) with all violations, if there are any.
void check(const Config& config, int64_t world_size, Use use = Use::training);
std::string message(const std::vector<Violation>& violations);

// Returns the configuration with derived values filled in. For the model: head, MLP and expert widths, query
// groups, positions. For the run: batch size, schedule and its lengths, vpp of a layout, bucket size, gradient
// format, modules of selective recompute. sequence_parallel is switched off for tp 1, and the NaN checks for a
// dynamic loss scale. Values that depend on the machine or tokenizer stay 0 or auto: run.threads_per_rank,
// run.master_port, run.device, model.vocab_size. The batch size stays 0 with a step schedule.
// resolved(resolved(c)) equals resolved(c). Requires no violations.
Config resolved(const Config& config, int64_t world_size);

// Returns the same run in fp64, to compare layouts. Formats of gradients, main parameters and moments, loss scale and
// fp32 residual get their defaults.
Config in_double_precision(const Config& config);

// Returns world / (tp * pp * cp). Requires divisibility, which violations() checks.
int64_t data_parallel_size(const Parallel& parallel, int64_t world_size);

// Returns every batch size of the run: the constant one, or those of the ramp-up or step schedule, in order. Requires
// no violations.
std::vector<int64_t> batch_sizes(const Config& config, int64_t world_size);

}  // namespace metroplex::config
