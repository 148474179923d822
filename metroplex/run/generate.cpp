#include "run/generate.h"

#include <algorithm>

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
#include "step/batch.h"

namespace metroplex::run {
namespace {

// The next tokens of every prompt, the same number for each. `before`: padding tokens in front, which are masked.
struct Rows {
  std::vector<std::vector<int64_t>> tokens;
  std::vector<int64_t> before;
};

nn::Microbatch make_microbatch(const Rows& rows, nn::KvCache* cache) {
  const auto b = static_cast<int64_t>(rows.tokens.size()), s = static_cast<int64_t>(rows.tokens[0].size());
  const int64_t first = cache->length;
  nn::Microbatch batch;
  batch.tokens = at::empty({b, s}, at::kLong);
  batch.position_ids = at::empty({b, s}, at::kLong);
  const bool padded = std::any_of(rows.before.begin(), rows.before.end(), [](int64_t n) { return n > 0; });
  if (padded) batch.documents.ids = at::empty({b, first + s}, at::kLong);
  for (int64_t row = 0; row < b; ++row) {
    const int64_t before = rows.before[static_cast<size_t>(row)];
    std::copy(rows.tokens[static_cast<size_t>(row)].begin(), rows.tokens[static_cast<size_t>(row)].end(),
              batch.tokens.mutable_data_ptr<int64_t>() + row * s);
    for (int64_t i = 0; i < s; ++i)
      batch.position_ids.mutable_data_ptr<int64_t>()[row * s + i] = std::max<int64_t>(first + i - before, 0);
    for (int64_t i = 0; padded && i < first + s; ++i)
      batch.documents.ids.mutable_data_ptr<int64_t>()[row * (first + s) + i] = i < before ? 0 : 1;
  }
  batch.training = false;
  batch.cache = cache;
  return batch;
}

// Schedules one microbatch through all stages in sequence. Training schedules do not allow that: interleaved needs at
// least as many microbatches as stages.
plan::PipelineTable make_forward_table(const step::ProcessContext& process) {
  plan::PipelineTable table;
  table.name = "one pass";
  table.num_stages = process.placement.ranks;
  table.num_chunks = process.placement.chunks;
  table.v_shaped = process.placement.v_shaped;
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

void check_options(const GenerateOptions& options) {
  MPX_CHECK(options.temperature >= 0, "config", "--temperature ", options.temperature,
            " must be at least 0; 0 is greedy, 1 is the model's own distribution");
  MPX_CHECK(options.top_k >= 0, "config", "--top-k ", options.top_k, " is negative; 0 keeps all tokens");
  MPX_CHECK(options.top_p >= 0 && options.top_p <= 1, "config", "--top-p ", options.top_p, " is not between 0 and 1");
}

}  // namespace

bool has_position_table(const config::Model& model) {
  return model.position_embedding_type == config::PositionEmbedding::learned_absolute ||
         config::family(model.family).top_query;
}

int64_t sample_token(const at::Tensor& logits, const GenerateOptions& options, int64_t position) {
  const at::Tensor wide = logits.to(at::kCPU, at::kDouble);
  if (options.temperature == 0 || options.top_k == 1) return wide.argmax().item<int64_t>();
  const auto [values, order] = (wide / options.temperature).sort(/*dim=*/0, /*descending=*/true);
  const int64_t num_candidates =
      options.top_k > 0 ? std::min<int64_t>(options.top_k, values.size(0)) : values.size(0);
  const at::Tensor probabilities = values.narrow(0, 0, num_candidates).softmax(0).contiguous();
  const double* p = probabilities.const_data_ptr<double>();
  int64_t end = num_candidates;
  double total = 1.0;
  if (options.top_p > 0 && options.top_p < 1) {
    total = 0;
    for (end = 0; end < num_candidates && total < options.top_p; ++end) total += p[end];
  }
  const base::PhiloxBlock bits = base::philox4x32(options.seed, static_cast<uint64_t>(position), 0x73616d706cull);
  double left = (static_cast<double>(bits[0]) * 0x1p-32 + static_cast<double>(bits[1]) * 0x1p-64) * total;
  for (int64_t i = 0; i < end; ++i) {
    left -= p[i];
    if (left < 0) return order[i].item<int64_t>();
  }
  return order[end - 1].item<int64_t>();
}

bool GenerateOptions::stops_at(int64_t token) const {
  return token == stop_token ||
         std::find(more_stop_tokens.begin(), more_stop_tokens.end(), token) != more_stop_tokens.end();
}

static void check_prompt(const step::ProcessContext& process, const std::vector<int64_t>& prompt,
                         const GenerateOptions& options) {
  MPX_CHECK(!prompt.empty(), "config", "the prompt has no tokens; give at least one character");
  const int64_t longest = static_cast<int64_t>(prompt.size()) + options.max_new_tokens;
  MPX_CHECK(longest <= process.config.model.max_position_embeddings || !has_position_table(process.config.model),
            "config", "a prompt of ", prompt.size(), " tokens and ", options.max_new_tokens, " new ones need ",
            longest, " positions, but the model has ", process.config.model.max_position_embeddings,
            "; shorten the prompt or lower --max-new-tokens");
  for (const int64_t token : prompt) {
    MPX_CHECK(token >= 0 && token < process.vocab_size, "data", "prompt token ", token,
              " is outside the vocabulary of ", process.vocab_size);
  }
}

// LongRoPE rotates all positions of a sequence by its length, and scaled queries and chunks depend on the position.
// Cached keys and padding in front of a prompt allow neither.
static void check_positions(const config::Model& model, const std::vector<std::vector<int64_t>>& prompts,
                            int64_t new_tokens) {
  size_t shortest = prompts[0].size(), longest = shortest;
  for (const auto& prompt : prompts)
    shortest = std::min(shortest, prompt.size()), longest = std::max(longest, prompt.size());
  const int64_t before = model.original_max_position_embeddings;
  const bool crosses =
      static_cast<int64_t>(shortest) <= before && static_cast<int64_t>(longest) + new_tokens > before;
  MPX_CHECK(!model.longrope() || !crosses, "config", "model.original_max_position_embeddings = ", before,
            ": with rope_type longrope, generated sequences must not cross this length (prompts of ", shortest,
            " to ", longest, " tokens, ", new_tokens, " new); use longer prompts or lower --max-new-tokens");
  MPX_CHECK(model.query_scaling_beta == 0 || shortest == longest, "config",
            "model.query_scaling_beta = ", model.query_scaling_beta,
            ": prompts of one batch must have equal lengths; generate them one by one");
  MPX_CHECK(model.attention_chunk_size == 0 || shortest == longest, "config",
            "model.attention_chunk_size = ", model.attention_chunk_size,
            ": prompts of one batch must have equal lengths; generate them one by one");
}

// Broadcasts whether rank 0 requests a stop.
static bool is_stop_requested(const step::ProcessContext& process, const GenerateOptions& options) {
  if (!options.stop) return false;
  at::Tensor told = at::zeros({1}, at::kLong);
  if (process.world->rank() == 0) told.fill_(options.stop() ? 1 : 0);
  comm::broadcast(told, 0, process.groups().world);
  return told.item<int64_t>() != 0;
}

std::vector<std::vector<int64_t>> generate_batch(const step::ProcessContext& process, step::RankModel& model,
                                                 const std::vector<std::vector<int64_t>>& prompts,
                                                 const GenerateOptions& options,
                                                 const std::function<void(size_t, int64_t)>& on_token) {
  check_options(options);
  MPX_ASSERT(!prompts.empty(), "no prompts");
  size_t longest = 0;
  for (const auto& prompt : prompts) {
    check_prompt(process, prompt, options);
    longest = std::max(longest, prompt.size());
  }
  check_positions(process.config.model, prompts, options.max_new_tokens);
  Rows rows;
  for (const auto& prompt : prompts) {
    const size_t before = longest - prompt.size();
    rows.before.push_back(static_cast<int64_t>(before));
    rows.tokens.emplace_back(before, 0).insert(rows.tokens.back().end(), prompt.begin(), prompt.end());
  }
  const plan::PipelineTable table = make_forward_table(process);
  nn::KvCache cache;
  std::vector<std::vector<int64_t>> generated(prompts.size());
  std::vector<bool> ended(prompts.size(), false);
  const comm::Group& stages = process.groups().stages;
  for (int64_t step = 0; step < options.max_new_tokens; ++step) {
    if (std::find(ended.begin(), ended.end(), false) == ended.end() || is_stop_requested(process, options)) break;
    const nn::Microbatch batch = step::on_device(make_microbatch(rows, &cache), process.world->device());
    const std::vector<at::Tensor> outputs =
        model.executor->run({table, {batch}, {}, step::border_shape(process, model, batch)}).last;
    cache.length += static_cast<int64_t>(rows.tokens[0].size());
    at::Tensor next = at::zeros({static_cast<int64_t>(prompts.size())}, at::kLong);
    for (size_t row = 0; process.last_stage() && row < prompts.size(); ++row) {
      const int64_t position = cache.length - rows.before[row];
      if (!ended[row])
        next[static_cast<int64_t>(row)] =
            sample_token(outputs.at(0)[-1][static_cast<int64_t>(row)], options, position);
    }
    comm::broadcast(next, process.last_stage_rank(), stages);
    for (size_t row = 0; row < prompts.size(); ++row) {
      const int64_t token = next[static_cast<int64_t>(row)].item<int64_t>();
      rows.tokens[row] = {token};
      if (ended[row] || options.stops_at(token)) {
        ended[row] = true;
        continue;
      }
      generated[row].push_back(token);
      if (on_token) on_token(row, token);
    }
  }
  return generated;
}

std::vector<int64_t> generate(const step::ProcessContext& process, step::RankModel& model,
                              const std::vector<int64_t>& prompt, const GenerateOptions& options,
                              const std::function<void(int64_t)>& on_token) {
  const auto told = [&on_token](size_t, int64_t token) {
    if (on_token) on_token(token);
  };
  return generate_batch(process, model, {prompt}, options, told)[0];
}

}  // namespace metroplex::run
