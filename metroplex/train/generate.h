// Text generation with a model on any layout: keys and values are cached, one token per step is sampled on the last
// stage and broadcast over the pipeline.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "train/assemble.h"

namespace metroplex::train {

struct GenerateOptions {
  int64_t max_new_tokens = 64;
  double temperature = 1.0;  // 0: greedy
  int64_t top_k = 0;         // keep the k most likely; 0: all
  double top_p = 0.0;        // keep the most likely ones up to this probability; 0: all
  uint64_t seed = 1234;
  int64_t stop_token = -1;  // ends the text, and is not part of it; -1: none
  std::vector<int64_t> more_stop_tokens = {};
  // Asked of rank 0 before each token: whether to end here. Every rank has one, or none.
  std::function<bool()> stop = {};
  bool stops_at(int64_t token) const;
};

// Whether there are no positions beyond max_position_embeddings; rotary ones have no end.
bool positions_in_a_table(const config::Model& model);

// Index of the token to take for logits [V]: a function of (seed, position) and nothing else.
int64_t sample_token(const at::Tensor& logits, const GenerateOptions& options, int64_t position);

// Collective over the world; every rank passes the same prompt (at least one token) and gets the same continuation.
// `on_token` is called on each rank as a token is chosen. Throws when prompt and continuation need more positions
// than the model has. Requires sequence_parallel off.
std::vector<int64_t> generate(Assembly& assembly, const std::vector<int64_t>& prompt, const GenerateOptions& options,
                              const std::function<void(int64_t)>& on_token = {});

// The same of several prompts at once, of any lengths: shorter ones begin behind tokens that they do not see, at
// position 0. Each is continued as it would be alone, with the rounding of other sums; the longest decides how many
// steps are made.
std::vector<std::vector<int64_t>> generate_batch(Assembly& assembly, const std::vector<std::vector<int64_t>>& prompts,
                                                 const GenerateOptions& options,
                                                 const std::function<void(size_t, int64_t)>& on_token = {});

}  // namespace metroplex::train
