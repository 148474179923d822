// Small models on any layout, batches as a function of the global sample number, and a temporary folder.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "comm/collectives.h"
#include "comm/launch.h"
#include "config/load.h"
#include "config/validate.h"
#include "support/folder.h"
#include "step/assemble.h"
#include "step/batch.h"
#include "verify/gather.h"
#include "step/step.h"

namespace metroplex::test {

constexpr int64_t kVocab = 50, kSequence = 8;

struct TestLayout {
  int64_t tp = 1, pp = 1, vpp = 1, dp = 1;
  bool sp = false;
  int64_t ranks() const { return tp * pp * dp; }
};

inline config::Config small_gpt() {
  return config::parse(
      "model: {family: gpt, num_layers: 4, hidden_size: 16, num_attention_heads: 4, vocab_size: 50,"
      " make_vocab_size_divisible_by: 8, attention_dropout: 0.1, hidden_dropout: 0.1}\n"
      "train: {seq_length: 8, micro_batch_size: 1, global_batch_size: 8, train_iters: 10}\n"
      "optim: {lr: 1.0e-2, clip_grad: 0.5, lr_decay_style: cosine, lr_warmup_iters: 2, adam_eps: 1.0e-6}\n"
      "precision: {params_dtype: fp64}\n"
      "data: {mock_data: true}\n");
}

// The model of `yaml` with train, optimizer and other sections of small_gpt(); `yaml` may contain further sections.
inline config::Config with_small_settings(const std::string& yaml) {
  config::Config config = config::parse(yaml);
  const config::Config base = small_gpt();
  config.train = base.train;
  config.optim = base.optim;
  config.precision = base.precision;
  config.data = base.data;
  return config;
}

inline config::Config small_llama() {
  return with_small_settings(
      "model: {family: llama, num_layers: 4, hidden_size: 16, num_attention_heads: 4, num_query_groups: 2,"
      " ffn_hidden_size: 24, vocab_size: 50, make_vocab_size_divisible_by: 8}\n");
}

// Mamba-2 before and after attention, with chunks shorter than a sequence.
inline config::Config small_hybrid() {
  config::Config config = small_llama();
  config.model.hybrid_layer_pattern = "M*-M";
  config.model.mamba_num_groups = 2, config.model.mamba_num_heads = 4, config.model.mamba_head_dim = 6;
  config.model.mamba_state_dim = 5, config.model.mamba_chunk_size = 3;
  return config;
}

inline config::Config cut(config::Config config, const TestLayout& layout) {
  config.parallel.tensor_model_parallel_size = layout.tp;
  config.parallel.pipeline_model_parallel_size = layout.pp;
  config.parallel.virtual_pipeline_model_parallel_size = layout.vpp;
  config.parallel.sequence_parallel = layout.sp;
  config.parallel.overlap_p2p_comm = layout.vpp > 1;
  config.parallel.ddp_bucket_size = 1500;
  config::check(config, layout.ranks());
  return config::resolved(config, layout.ranks());
}

inline void run_sharded(const config::Config& config, const TestLayout& layout, const comm::RankBody& body) {
  const auto ranks = static_cast<int>(layout.ranks());
  comm::run_threads(ranks, topology::RankGrid(ranks, config.parallel), {std::chrono::seconds(60)}, body);
}

// Some positions are masked, a different number in every sample.
inline nn::Microbatch make_batch(const config::Train& train, int64_t first_sample, int64_t step,
                                 at::ScalarType float_type = at::kDouble) {
  step::HostBatch host;
  host.numbers = {first_sample, 1, step};
  host.vocab_size = kVocab;
  for (int64_t s = first_sample; s < first_sample + train.micro_batch_size; ++s) {
    data::Sample sample;
    for (int64_t t = 0; t < train.seq_length; ++t) {
      sample.tokens.push_back((s * 31 + t * 7 + s * t) % kVocab);
      sample.labels.push_back((s * 31 + (t + 1) * 7 + s * (t + 1)) % kVocab);
      sample.position_ids.push_back(t);
      sample.loss_mask.push_back(t < 2 + s % 6 ? 1.0F : 0.0F);
    }
    host.samples.push_back(std::move(sample));
  }
  return step::stack_samples(host, float_type);
}

inline std::vector<nn::Microbatch> make_batches(const step::Assembly& assembly, int64_t step) {
  const config::Train& train = assembly.process.config.train;
  const comm::Group& dp = assembly.process.groups().dp;
  const int64_t count = train.global_batch_size / (train.micro_batch_size * dp.size());
  std::vector<nn::Microbatch> batches;
  for (int64_t m = 0; m < count; ++m) {
    const int64_t first = step * train.global_batch_size + (m * dp.size() + dp.index()) * train.micro_batch_size;
    batches.push_back(
        make_batch(train, first, step, assembly.process.dtype == at::kDouble ? at::kDouble : at::kFloat));
  }
  return batches;
}

// With context parallelism this rank's region of each batch.
inline std::vector<nn::Microbatch> make_sharded_batches(const step::Assembly& assembly, int64_t step) {
  std::vector<nn::Microbatch> batches = make_batches(assembly, step);
  const step::SequenceSharding parts =
      step::sequence_sharding(assembly.process.config.parallel, assembly.process.groups().cp);
  for (nn::Microbatch& batch : batches) batch = step::shard_sequence(batch, parts);
  return batches;
}

// Step number `step`, from 0; `scheduled`: samples of the updates before it.
inline step::StepOutcome step_at(step::Assembly& assembly, int64_t step, int64_t scheduled) {
  return step::train_step(assembly, {make_sharded_batches(assembly, step), step + 1, scheduled, false, {}});
}
// If no step was skipped.
inline step::StepOutcome step_at(step::Assembly& assembly, int64_t step) {
  return step_at(assembly, step, step * assembly.process.config.train.global_batch_size);
}

// Whole tensors on rank 0: parameters and buffers by name, optimizer state by "name kind".
inline std::map<std::string, at::Tensor> whole_state(step::Assembly& assembly) {
  auto all = verify::gather_whole(assembly.process, assembly.model, assembly.optimization, verify::GatherKind::data);
  std::map<std::string, std::vector<verify::ParamShard>> kinds;
  for (const optim::State& state : assembly.optimization.optimizer->state())
    kinds[state.kind].push_back({state.param, state.begin, state.end, state.values()});
  // A rank may have no state of some kind, but all ranks must join in gathering each.
  std::string mine;
  for (const auto& [kind, parts] : kinds) mine += kind + '\n';
  for (const std::string& text : comm::all_gather_strings(mine, assembly.process.groups().world)) {
    std::istringstream lines(text);
    for (std::string kind; std::getline(lines, kind);) kinds[kind];
  }
  for (const auto& [kind, parts] : kinds) {
    const at::ScalarType dtype = assembly.process.dtype == at::kDouble ? at::kDouble : at::kFloat;
    for (auto& [name, tensor] : verify::gather_shards(assembly.process, assembly.model, parts, dtype))
      all[name + " " + kind] = tensor;
  }
  std::vector<verify::ParamShard> buffers;
  for (const nn::Buffer* buffer : assembly.model.buffers)
    buffers.push_back({buffer, 0, buffer->numel(), buffer->data.view(-1)});
  for (auto& [name, tensor] : verify::gather_shards(assembly.process, assembly.model, buffers, at::kDouble))
    all[name] = tensor;
  return all;
}

inline void expect_equal_state(const std::map<std::string, at::Tensor>& got,
                               const std::map<std::string, at::Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, tensor] : want) {
    ASSERT_TRUE(got.count(name)) << name;
    EXPECT_TRUE(at::equal(got.at(name), tensor)) << name;
  }
}

}  // namespace metroplex::test
