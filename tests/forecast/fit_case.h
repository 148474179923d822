// Configurations for fit tests, and predictors with planted values.
#pragma once

#include <string>
#include <vector>

#include "config/load.h"
#include "config/validate.h"
#include "forecast/fit.h"

namespace metroplex::test {

constexpr int64_t kFitVocab = 128;

inline config::Config fit_config(int ranks, const std::vector<std::string>& settings = {}) {
  const config::Config config = config::parse(
      "model: {family: gpt, num_layers: 8, hidden_size: 64, num_attention_heads: 4, vocab_size: 128}\n"
      "train: {seq_length: 32, micro_batch_size: 4, global_batch_size: 64, train_iters: 10}\n"
      "precision: {params_dtype: bf16}\n"
      "data: {mock_data: true}\n",
      settings);
  config::check(config, ranks);
  return config::resolved(config, ranks);
}

inline forecast::FitRequest fit_request(int ranks, const std::vector<std::string>& settings = {},
                                        forecast::MemoryDomains domains = {}) {
  return {fit_config(ranks, settings), ranks, kFitVocab, std::move(domains)};
}

// One GPU per rank, or a machine for all ranks.
inline forecast::MemoryDomains gpus(int64_t bytes) { return {true, 1, bytes, "the test", {}}; }
inline forecast::MemoryDomains machine(int ranks, int64_t bytes) { return {false, ranks, bytes, "the test", {}}; }

// Predicts peak(request), and counts its calls.
struct Planted {
  std::function<int64_t(const forecast::RankRequest&)> peak;
  int* calls = nullptr;
  forecast::RankPrediction operator()(const forecast::RankRequest& request) const {
    if (calls != nullptr) ++*calls;
    forecast::RankPrediction out;
    out.memory.peak = out.memory.use.parameters = peak(request);
    out.flops = out.model_flops = 1e12;
    return out;
  }
};

}  // namespace metroplex::test
