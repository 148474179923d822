#include "forecast/trace_inputs.h"

#include <algorithm>

#include "config/attention.h"
#include "config/derived.h"
#include "step/batch.h"

namespace metroplex::forecast {

int64_t block_bytes(at::Device device) {
  constexpr int64_t kGpuBlock = 512;  // c10/cuda/CUDACachingAllocator: kMinBlockSize
  return device.is_cuda() ? kGpuBlock : 1;
}

plan::PipelineTable own_actions(const step::ProcessContext& process, const OwnActions& form) {
  using plan::ActionKind;
  plan::PipelineTable table;
  table.num_stages = process.placement.ranks;
  table.num_chunks = process.placement.chunks;
  table.v_shaped = process.placement.v_shaped;
  table.num_microbatches = form.num_microbatches;
  table.forward_only = form.forward_only;
  table.ranks.resize(static_cast<size_t>(table.num_stages));
  const int rank = process.groups().pp.index();
  std::vector<plan::Action>& actions = table.ranks[static_cast<size_t>(rank)];
  const auto add = [&](bool exists, ActionKind kind, int microbatch, int chunk, int peer) {
    if (exists) actions.push_back({kind, microbatch, chunk, peer, -1});
  };
  const auto peer = [&, placement = table.placement()](int chunk, int by) {
    return placement.peer({rank, chunk}, by);
  };
  const auto frees_early = [&](int chunk) {
    return form.forward_only || (!form.output_in_pool.empty() && form.output_in_pool[static_cast<size_t>(chunk)]);
  };
  for (int m = 0; m < form.num_microbatches; ++m) {
    for (int c = 0; c < table.num_chunks; ++c) {
      const int before = peer(c, -1), after = peer(c, 1);
      add(before >= 0, ActionKind::recv_forward, m, c, before);
      add(true, ActionKind::forward, m, c, -1);
      add(after >= 0, ActionKind::send_forward, m, c, after);
      add(after >= 0 && frees_early(c), ActionKind::free, m, c, -1);
    }
    for (int c = form.forward_only ? 0 : table.num_chunks; c-- > 0;) {
      const int before = peer(c, -1), after = peer(c, 1);
      add(after >= 0, ActionKind::recv_backward, m, c, after);
      add(true, ActionKind::backward, m, c, -1);
      add(form.splits_backward, ActionKind::weight, m, c, -1);
      add(before >= 0, ActionKind::send_backward, m, c, before);
      add(after >= 0 && !frees_early(c), ActionKind::free, m, c, -1);
    }
  }
  return table;
}

nn::Microbatch largest_batch(const RankRequest& request, const comm::World& world) {
  const config::Config& config = request.config;
  const config::Parallel& parallel = config.parallel;
  const bool wide = config.precision.params_dtype == config::ParamsDtype::fp64;
  const at::ScalarType float_type = wide ? at::kDouble : at::kFloat;
  step::SequenceSharding parts = step::sequence_sharding(parallel, world.groups().cp);
  int64_t tokens = parallel.context_parallel_token_slack > 0 ? config::most_context_tokens(config) * parallel.cp()
                                                             : config.train.seq_length;
  if (parallel.hybrid_context_parallel) {
    const int64_t most = std::min(config::most_hybrid_tokens(config), config.train.seq_length);
    for (const int size : config::hybrid_context_sizes(world.groups().dp_cp.size())) {
      parts.ranks = size;
      if (size * most >= config.train.seq_length) break;
    }
    parts.rank = 0;
    tokens = most * parts.ranks;
  }
  const config::DocumentBound documents = step::document_bound_on(config, request.device);
  const nn::Microbatch whole =
      nn::empty_microbatch({config.train.micro_batch_size, tokens, config.data.reset_attention_mask, float_type,
                            world.device(), documents.per_sample});
  if (!parallel.hybrid_context_parallel) return shard_sequence(whole, parts);
  nn::Microbatch part = shard_documents(whole, {{0, tokens}}, parts);
  part.sequence.context_ranks = parts.ranks;
  part.sequence.step_samples = 1;
  return part;
}

}  // namespace metroplex::forecast
