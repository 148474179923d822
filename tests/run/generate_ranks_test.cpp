// Token sampling, and equality of generation with a KV cache and generation that recomputes the prefix for each
// token.
#include "run/generate.h"

#include <cmath>
#include <mutex>
#include <set>

#include "base/error.h"
#include "comm/collectives.h"
#include "run/support.h"
#include "support/error_of.h"

namespace metroplex::test::generate_ranks_test {
namespace {

using run::GenerateOptions;

at::Tensor to_logits(const std::vector<double>& probabilities) {
  return at::log(at::tensor(probabilities, at::kDouble));
}

std::vector<double> shares(const std::vector<double>& probabilities, const GenerateOptions& options) {
  constexpr int64_t kDraws = 8000;
  std::vector<double> share(probabilities.size());
  const at::Tensor logits = to_logits(probabilities);
  for (int64_t position = 0; position < kDraws; ++position) {
    share[static_cast<size_t>(run::sample_token(logits, options, position))] += 1.0 / kDraws;
  }
  return share;
}

// Five standard deviations of a frequency over 8000 samples: sqrt(0.25 / 8000) * 5.
void expect_shares(const std::vector<double>& got, const std::vector<double>& want) {
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 0.028) << "token " << i;
  for (size_t i = 0; i < want.size(); ++i) {
    if (want[i] == 0) { EXPECT_EQ(got[i], 0.0) << "token " << i << " was cut off"; }
  }
}

const std::vector<double> kFour{0.15, 0.5, 0.1, 0.25};

TEST(SampleToken, TemperatureZeroAndTopOneTakeTheLikeliest) {
  GenerateOptions greedy;
  greedy.temperature = 0;
  expect_shares(shares(kFour, greedy), {0, 1, 0, 0});
  GenerateOptions one;
  one.top_k = 1;
  expect_shares(shares(kFour, one), {0, 1, 0, 0});
}

TEST(SampleToken, TemperatureOneDrawsTheModelsOwnDistribution) { expect_shares(shares(kFour, {}), kFour); }

TEST(SampleToken, TemperatureSharpensOrFlattens) {
  GenerateOptions options;
  options.temperature = 0.5;
  std::vector<double> squares;
  double sum = 0;
  for (const double p : kFour) sum += p * p;
  for (const double p : kFour) squares.push_back(p * p / sum);
  expect_shares(shares(kFour, options), squares);
}

TEST(SampleToken, TopKKeepsTheLikeliest) {
  GenerateOptions options;
  options.top_k = 2;
  expect_shares(shares(kFour, options), {0, 0.5 / 0.75, 0, 0.25 / 0.75});
  options.top_k = 100;
  expect_shares(shares(kFour, options), kFour);
}

TEST(SampleToken, TopPKeepsTheLikeliestUpToThatProbability) {
  GenerateOptions options;
  options.top_p = 0.6;
  expect_shares(shares(kFour, options), {0, 0.5 / 0.75, 0, 0.25 / 0.75});
  options.top_p = 0.4;
  expect_shares(shares(kFour, options), {0, 1, 0, 0});
}

TEST(SampleToken, DependsOnSeedAndPositionAlone) {
  const at::Tensor logits = at::zeros({1000}, at::kFloat);
  GenerateOptions options;
  const int64_t token = run::sample_token(logits, options, 5);
  EXPECT_EQ(run::sample_token(logits, options, 5), token);
  EXPECT_NE(run::sample_token(logits, options, 6), token);
  options.seed = 99;
  EXPECT_NE(run::sample_token(logits, options, 5), token);
}

config::Config randomize(config::Config config) {
  config.train.seq_length = 24;
  config.model.init_method_std = 0.4;  // spreads the logits, so that greedy decoding varies too
  config.train.global_batch_size = 4;
  return config;
}

const std::vector<int64_t> kPrompt{3, 41, 7, 7, 12};

// Runs the whole prefix for each token, without cache, by the training schedule. An interleaved schedule needs as
// many microbatches as stages, so the prefix runs twice.
std::vector<int64_t> without_cache(step::Assembly& assembly, const GenerateOptions& options) {
  std::vector<int64_t> text = kPrompt;
  while (static_cast<int64_t>(text.size() - kPrompt.size()) < options.max_new_tokens) {
    const auto length = static_cast<int64_t>(text.size());
    nn::Microbatch batch;
    batch.tokens = at::tensor(text, at::kLong).view({1, length});
    batch.position_ids = at::arange(length, at::kLong).view({1, length});
    batch.training = false;
    const auto outputs = assembly.model.executor
                             ->run({assembly.model.table(assembly.process.config.parallel, 2, true),
                                    {batch, batch},
                                    {},
                                    step::border_shape(assembly.process, assembly.model, batch)})
                             .last;
    at::Tensor next = at::zeros({1}, at::kLong);
    if (assembly.process.last_stage()) next.fill_(run::sample_token(outputs.at(0)[-1][0], options, length));
    comm::broadcast(next, assembly.process.groups().pp.size() - 1, assembly.process.groups().pp);
    text.push_back(next.item<int64_t>());
  }
  return {text.begin() + static_cast<int64_t>(kPrompt.size()), text.end()};
}

struct Continuation {
  std::vector<int64_t> cached, plain, announced;
};

Continuation continue_on(const config::Config& base, const TestLayout& layout, const GenerateOptions& options) {
  const config::Config config = cut(base, layout);
  Continuation result;
  std::mutex lock;
  run_sharded(config, layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab, true);
    Continuation mine;
    mine.cached = run::generate(assembly->process, assembly->model, kPrompt, options,
                                [&](int64_t token) { mine.announced.push_back(token); });
    mine.plain = without_cache(*assembly, options);
    const std::lock_guard hold(lock);
    if (!result.cached.empty()) { EXPECT_EQ(mine.cached, result.cached) << "ranks disagree"; }
    result = mine;
  });
  return result;
}

// Norms over all heads after layers, a layer without rotary positions, multipliers, queries scaled by position.
config::Config scaled_llama() {
  config::Config config = randomize(small_llama());
  config.model.pre_norm = false;
  config.model.sandwich_norm = config.model.qk_layernorm = config.model.qk_layernorm_all_heads = true;
  config.model.no_rope_freq = "4", config.model.residual_multiplier = 0.6, config.model.logits_scaling = 0.5;
  config.model.rope_type = config::RopeType::yarn, config.model.query_scaling_beta = 0.5;
  config.model.original_max_position_embeddings = 6, config.model.rotary_scaling_factor = 4;
  return config;
}

// LongRoPE whose long factors apply from the prompt on.
config::Config longrope_llama() {
  config::Config config = randomize(small_llama());
  config.model.rope_type = config::RopeType::longrope;
  config.model.original_max_position_embeddings = 4, config.model.rotary_scaling_factor = 4;
  const int64_t pairs = config.model.hidden_size / config.model.num_attention_heads / 2;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    config.model.longrope_short_factor += pair == 0 ? "1" : ",1";
    config.model.longrope_long_factor += pair == 0 ? "1" : ",3";
  }
  return config;
}

// Chunks that end in the prompt and in the new tokens, norms without weights, scaled queries in the other layers.
config::Config chunked_llama() {
  config::Config config = randomize(small_llama());
  config.model.attention_chunk_size = 5, config.model.window_attn_skip_freq = config.model.no_rope_freq = "2";
  config.model.qk_l2_norm = true;
  config.model.query_scaling_beta = 0.5, config.model.query_scaling_floor = 3;
  return config;
}

// Gated delta nets and gated attention.
config::Config delta_llama() {
  config::Config config = randomize(small_llama());
  config.model.experimental_attention_variant = config::AttentionVariant::gated_delta_net;
  config.model.linear_attention_freq = "2", config.model.linear_num_key_heads = 2;
  config.model.linear_num_value_heads = 4, config.model.linear_key_head_dim = config.model.linear_value_head_dim = 6;
  config.model.attention_output_gate = config.model.qk_layernorm = true;
  return config;
}

// Lightning attention, with chunks shorter than the prompt and a residual stream of norms.
config::Config lightning_llama() {
  config::Config config = randomize(small_llama());
  config.model.experimental_attention_variant = config::AttentionVariant::lightning_attention;
  config.model.linear_attention_freq = "2", config.model.lightning_chunk_size = 3;
  config.model.apply_residual_connection_post_layernorm = true;
  return config;
}

TEST(Generate, TheCacheGivesWhatReadingEverythingAgainGives) {
  for (const config::Config& base :
       {randomize(small_gpt()), randomize(small_llama()), scaled_llama(), longrope_llama(), chunked_llama(),
        delta_llama(), lightning_llama(), randomize(small_hybrid())}) {
    for (const double temperature : {0.0, 1.0}) {
      GenerateOptions options;
      options.max_new_tokens = 16;
      options.temperature = temperature;
      SCOPED_TRACE(base.model.family + base::concat(" temperature ", temperature));
      const Continuation one = continue_on(base, {}, options);
      ASSERT_EQ(one.cached.size(), 16u);
      EXPECT_EQ(one.cached, one.plain);
      EXPECT_EQ(one.announced, one.cached);
      EXPECT_GT(std::set<int64_t>(one.cached.begin(), one.cached.end()).size(), 2u) << "too dull to show anything";
      for (const TestLayout& layout : {TestLayout{2, 2, 1, 1, false}, TestLayout{1, 2, 2, 2, false}}) {
        const Continuation many = continue_on(base, layout, options);
        EXPECT_EQ(many.cached, one.cached) << "pp " << layout.pp << " vpp " << layout.vpp;
        EXPECT_EQ(many.plain, one.plain);
      }
    }
  }
}

// Prompts of different lengths against each prompt alone; equal in exact arithmetic.
TEST(Generate, ABatchOfAnyLengthsIsContinuedAsEachAlone) {
  const std::vector<std::vector<int64_t>> prompts{kPrompt, {9}, {3, 41}, {1, 2, 3, 4, 5, 6, 7, 8}, {9}};
  for (const config::Config& base :
       {randomize(small_gpt()), randomize(small_llama()), delta_llama(), randomize(small_hybrid())}) {
    for (const TestLayout& layout : {TestLayout{}, TestLayout{2, 2, 1, 1, false}}) {
      SCOPED_TRACE(base.model.family + base::concat(" pp ", layout.pp));
      const config::Config config = cut(base, layout);
      run_sharded(config, layout, [&](const comm::World& world) {
        const auto assembly = step::assemble(config, world, kVocab, true);
        GenerateOptions options;
        options.max_new_tokens = 12;
        options.temperature = 0;
        std::vector<std::vector<int64_t>> alone;
        for (const auto& prompt : prompts)
          alone.push_back(run::generate(assembly->process, assembly->model, prompt, options));
        EXPECT_EQ(run::generate_batch(assembly->process, assembly->model, prompts, options), alone);
        EXPECT_NE(alone[0], alone[1]);
        // A finished text does not affect the others; each of several stop tokens ends a text.
        options.stop_token = alone[0][6];
        options.more_stop_tokens = {alone[3][2]};
        std::vector<std::vector<int64_t>> cut_short;
        for (const auto& text : alone)
          cut_short.emplace_back(
              text.begin(), std::find_if(text.begin(), text.end(), [&](int64_t t) { return options.stops_at(t); }));
        EXPECT_EQ(run::generate_batch(assembly->process, assembly->model, prompts, options), cut_short);
        options = {.max_new_tokens = 12};
        for (size_t i = 0; i < prompts.size(); ++i)
          alone[i] = run::generate(assembly->process, assembly->model, prompts[i], options);
        EXPECT_EQ(run::generate_batch(assembly->process, assembly->model, prompts, options), alone);
        int64_t asked = 0;
        options.stop = [&asked, &world] { return world.rank() == 0 && ++asked > 3; };
        EXPECT_EQ(run::generate(assembly->process, assembly->model, kPrompt, options),
                  std::vector<int64_t>(alone[0].begin(), alone[0].begin() + 3));
      });
    }
  }
}

TEST(Generate, StopsBeforeTheStopToken) {
  GenerateOptions options;
  options.max_new_tokens = 12;
  const config::Config config = randomize(small_gpt());
  const auto whole = continue_on(config, {}, options).cached;
  options.stop_token = whole[5];
  const auto end = std::find(whole.begin(), whole.end(), whole[5]);
  const config::Config one = cut(config, {});
  run_sharded(one, {}, [&](const comm::World& world) {
    const auto assembly = step::assemble(one, world, kVocab, true);
    EXPECT_EQ(run::generate(assembly->process, assembly->model, kPrompt, options),
              std::vector<int64_t>(whole.begin(), end));
  });
}

TEST(Generate, RefusesWhatItCannotDo) {
  const config::Config config = cut(randomize(small_gpt()), {});
  run_sharded(config, {}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab, true);
    const auto refused = [&](const std::vector<int64_t>& prompt, const GenerateOptions& options, const char* word) {
      try {
        run::generate(assembly->process, assembly->model, prompt, options);
        ADD_FAILURE() << "accepted; " << word;
      } catch (const base::Error& error) {
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
      }
    };
    refused({}, {}, "prompt");
    refused({kVocab}, {.max_new_tokens = 1}, "50");
    refused({-1}, {.max_new_tokens = 1}, "-1");
    refused(kPrompt, {.max_new_tokens = 20}, "24");
    refused(kPrompt, {.max_new_tokens = 1, .temperature = -1}, "temperature");
    refused(kPrompt, {.max_new_tokens = 1, .top_k = -1}, "top-k");
    refused(kPrompt, {.max_new_tokens = 1, .top_p = 1.5}, "top-p");
  });
}

TEST(Generate, RefusesWhatScaledPositionsExclude) {
  config::Config longrope = longrope_llama();
  longrope.model.original_max_position_embeddings = 8;
  config::Config chunked = randomize(small_llama());
  chunked.model.attention_chunk_size = 5;
  for (const config::Config& base : {longrope, scaled_llama(), chunked}) {
    const config::Config config = cut(base, {});
    run_sharded(config, {}, [&](const comm::World& world) {
      const auto assembly = step::assemble(config, world, kVocab, true);
      const auto attempt = [&](const std::vector<std::vector<int64_t>>& prompts, int64_t new_tokens) {
        return catch_error([&] {
          run::generate_batch(assembly->process, assembly->model, prompts, {.max_new_tokens = new_tokens});
        });
      };
      EXPECT_EQ(attempt({kPrompt}, 3), "");
      const char* const key = config.model.longrope()                 ? "original_max_position_embeddings = 8"
                              : config.model.attention_chunk_size > 0 ? "attention_chunk_size = 5"
                                                                      : "query_scaling_beta";
      const std::string error = config.model.longrope() ? attempt({kPrompt}, 4) : attempt({kPrompt, {9}}, 1);
      EXPECT_NE(error.find(key), std::string::npos) << error;
    });
  }
}

}  // namespace
}  // namespace metroplex::test::generate_ranks_test
