#include "train/generate.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "base/philox.h"
#include "comm/collectives.h"
#include "config/family.h"
#include "nn/kv_cache.h"
#include "plan/table_writer.h"
#include "plan/verify.h"
#include "train/batch.h"

namespace metroplex::train {
namespace {

nn::Microbatch tokens_at(const std::vector<int64_t>& tokens, int64_t position, nn::KvCache* cache) {
  const int64_t s = static_cast<int64_t>(tokens.size());
  nn::Microbatch batch;
  batch.tokens = at::empty({1, s}, at::kLong);
  std::copy(tokens.begin(), tokens.end(), batch.tokens.mutable_data_ptr<int64_t>());
  batch.position_ids = at::arange(position, position + s, at::kLong).view({1, s});
  batch.training = false;
  batch.cache = cache;
  return batch;
}

// A table for one microbatch through all stages in sequence. Training schedules do not allow that: interleaved needs
// at least as many microbatches as stages.
plan::PipelineTable one_pass(const Assembly& a) {
  plan::PipelineTable table;
  table.name = "one pass";
  table.num_stages = a.placement.ranks;
  table.num_chunks = a.placement.chunks;
  table.v_shaped = a.placement.v_shaped;
  table.forward_only = true;
  table.ranks.resize(static_cast<size_t>(table.num_stages));
  for (int rank = 0; rank < table.num_stages; ++rank) {
    plan::TableWriter writer(table, rank);
    for (int chunk = 0; chunk < table.num_chunks; ++chunk) {
      writer.recv_forward({0, chunk});
      writer.forward({0, chunk});
      writer.send_forward({0, chunk});
      writer.close_batch();
    }
  }
  plan::verify(table);
  return table;
}

void check_options(const GenerateOptions& o) {
  MPX_CHECK(o.temperature >= 0, "config", "--temperature ", o.temperature,
            " is negative; 0 is greedy, 1 is the model's own distribution");
  MPX_CHECK(o.top_k >= 0, "config", "--top-k ", o.top_k, " is negative; 0 keeps all tokens");
  MPX_CHECK(o.top_p >= 0 && o.top_p <= 1, "config", "--top-p ", o.top_p, " is not between 0 and 1");
}

}  // namespace

int64_t sample_token(const at::Tensor& logits, const GenerateOptions& o, int64_t position) {
  const at::Tensor wide = logits.to(at::kCPU, at::kDouble);
  if (o.temperature == 0 || o.top_k == 1) return wide.argmax().item<int64_t>();
  const auto [values, order] = (wide / o.temperature).sort(/*dim=*/0, /*descending=*/true);
  const int64_t kept = o.top_k > 0 ? std::min<int64_t>(o.top_k, values.size(0)) : values.size(0);
  const at::Tensor probabilities = values.narrow(0, 0, kept).softmax(0).contiguous();
  const double* p = probabilities.const_data_ptr<double>();
  int64_t end = kept;
  double total = 1.0;
  if (o.top_p > 0 && o.top_p < 1) {
    total = 0;
    for (end = 0; end < kept && total < o.top_p; ++end) total += p[end];
  }
  const base::PhiloxBlock bits = base::philox4x32(o.seed, static_cast<uint64_t>(position), 0x73616d706cull);
  double left = (static_cast<double>(bits[0]) * 0x1p-32 + static_cast<double>(bits[1]) * 0x1p-64) * total;
  for (int64_t i = 0; i < end; ++i) {
    left -= p[i];
    if (left < 0) return order[i].item<int64_t>();
  }
  return order[end - 1].item<int64_t>();
}

std::vector<int64_t> generate(Assembly& a, const std::vector<int64_t>& prompt, const GenerateOptions& options,
                              const std::function<void(int64_t)>& on_token) {
  check_options(options);
  MPX_CHECK(!prompt.empty(), "config", "the prompt has no tokens; give at least one character");
  const int64_t longest = static_cast<int64_t>(prompt.size()) + options.max_new_tokens;
  const bool in_a_table = a.config.model.position_embedding_type == config::PositionEmbedding::learned_absolute ||
                          config::family(a.config.model.family).top_query;
  MPX_CHECK(longest <= a.config.model.max_position_embeddings || !in_a_table, "config", "a prompt of ", prompt.size(),
            " tokens and ", options.max_new_tokens, " new ones need ", longest, " positions, the model has ",
            a.config.model.max_position_embeddings, "; shorten the prompt or lower --max-new-tokens");
  for (const int64_t token : prompt) {
    MPX_CHECK(token >= 0 && token < a.vocab_size, "data", "prompt token ", token, " is outside the vocabulary of ",
              a.vocab_size);
  }
  const plan::PipelineTable table = one_pass(a);
  nn::KvCache cache;
  std::vector<int64_t> input = prompt, made;
  const comm::Group& stages = a.groups().stages;
  while (static_cast<int64_t>(made.size()) < options.max_new_tokens) {
    const nn::Microbatch batch = on_device(tokens_at(input, cache.length, &cache), a.world->device());
    const std::vector<at::Tensor> outputs = a.executor->run({table, {batch}, {}, a.border(batch)}).last;
    cache.length += static_cast<int64_t>(input.size());
    at::Tensor next = at::zeros({1}, at::kLong);
    if (a.last_stage()) next.fill_(sample_token(outputs.at(0)[-1][0], options, cache.length));
    comm::broadcast(next, a.last_stage_rank(), stages);
    const int64_t token = next.item<int64_t>();
    if (token == options.stop_token) break;
    made.push_back(token);
    if (on_token) on_token(token);
    input = {token};
  }
  return made;
}

}  // namespace metroplex::train
