// Whether a configuration can run on so many ranks, before any tensor is made. violations() finds everything that is
// wrong at once: each key's own limits, what Megatron's TransformerConfig refuses (rules_transformer.h), and the
// stricter rules that span sections. resolved() fills every 0 that means "derived".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/config.h"

namespace metroplex::config {

// One broken rule, in the four parts a user needs.

struct Violation {
  std::string key;              // "parallel.tensor_model_parallel_size"
  std::string value;            // what it is
  std::string rule;             // what it must be, with the other values that matter
  std::string fix;              // what to do
  bool without_effect = false;  // the value changes nothing, and Megatron ignores its flag
};

// Adds one to `list`. An empty value is written "(empty)": nothing would look like a mistake of the message.
template <class Value>
void refuse(std::vector<Violation>& list, const char* key, const Value& value, const std::string& rule,
            const std::string& fix) {
  const std::string text = base::concat(value);
  list.push_back({key, text.empty() ? "(empty)" : text, rule, fix});
}

// What a configuration is asked to do: some of what training cannot do evaluation and generation can. Of `capture`
// the steps of training are captured, whole where train.cuda_graph_impl says nothing.
enum class Use { training, capture, evaluation };

std::vector<Violation> violations(const Config& config, int64_t world_size, Use use = Use::training);

// The values that change nothing in this configuration (Violation::without_effect), on the smallest number of ranks.
// Keys that break another rule too are left out.
std::vector<Violation> without_effect(const Config& config);

// Throws one base::Error("config", ...) that lists all violations; does nothing when there are none.
void check(const Config& config, int64_t world_size, Use use = Use::training);
std::string message(const std::vector<Violation>& violations);

// The configuration with derived values written out: head, MLP and expert widths, query groups, positions, batch
// size, schedule and its lengths, vpp of a layout, bucket size, format of gradients, modules of selective recompute;
// sequence_parallel is off at tp 1, the checks for NaN with a dynamic loss scale. What only a machine or a
// tokenizer can tell stays 0 or auto (run.threads_per_rank, run.master_port, run.device, model.vocab_size), and so
// does the batch size under a step schedule. resolved(resolved(c)) equals resolved(c).
// Requires: no violations.
Config resolved(const Config& config, int64_t world_size);

// The same run with everything in fp64, to compare layouts: formats of gradients, main parameters and moments, loss
// scale and fp32 residual fall back to their defaults.
Config in_double_precision(const Config& config);

// world / (tp * pp * cp). Requires: divisible, as violations() ensures.
int64_t data_parallel_size(const Parallel& parallel, int64_t world_size);

// Every batch size that the run passes through: the constant one, or those of the ramp-up or step schedule, in
// order. Requires: no violations.
std::vector<int64_t> batch_sizes(const Config& config, int64_t world_size);

}  // namespace metroplex::config
