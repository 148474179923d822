// Text generation on any layout, with a KV cache. The last stage samples one token per step and broadcasts it over
// the pipeline.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "step/assemble.h"

namespace metroplex::run {

struct GenerateOptions {
  int64_t max_new_tokens = 64;
  double temperature = 1.0;  // 0: greedy
  int64_t top_k = 0;         // sample from the k most likely tokens; 0: all
  double top_p = 0.0;        // sample from the smallest set with this total probability (nucleus sampling); 0: all
  uint64_t seed = 1234;
  int64_t stop_token = -1;  // ends the text and is not part of it; -1: none
  std::vector<int64_t> more_stop_tokens = {};
  // Rank 0 calls it before each token; true ends the generation. Either every rank has one or none has.
  std::function<bool()> stop = {};
  bool stops_at(int64_t token) const;
};

// True if positions are limited to max_position_embeddings (a learned table). Rotary positions have no limit.
bool has_position_table(const config::Model& model);

// Returns the index of the sampled token for logits [V]. Depends only on (seed, position).
int64_t sample_token(const at::Tensor& logits, const GenerateOptions& options, int64_t position);

// Collective over the world. Every rank passes the same non-empty prompt and gets the same continuation. `on_token`
// is called on each rank for each new token. Throws if prompt and continuation exceed the model's positions. Requires
// sequence_parallel off.
std::vector<int64_t> generate(const step::ProcessContext& process, step::RankModel& model,
                              const std::vector<int64_t>& prompt, const GenerateOptions& options,
                              const std::function<void(int64_t)>& on_token = {});

// Generates for several prompts of any lengths at once. Shorter prompts are left-padded; padding is masked, and the
// first token of each prompt has position 0. Each result equals that of generate() up to floating-point rounding. The
// longest prompt sets the prefill length.
std::vector<std::vector<int64_t>> generate_batch(const step::ProcessContext& process, step::RankModel& model,
                                                 const std::vector<std::vector<int64_t>>& prompts,
                                                 const GenerateOptions& options,
                                                 const std::function<void(size_t, int64_t)>& on_token = {});

}  // namespace metroplex::run
