// The first step of recorded Megatron runs: loss and the gradient of every parameter.
#include <fstream>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/tools.h"
#include "support/run_ranks.h"

namespace metroplex::test::golden_step_ranks_test {
namespace {

using Json = nlohmann::json;

uint32_t crc32(const std::string& text) {
  uint32_t crc = 0xFFFFFFFFU;
  for (const char c : text) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0xEDB88320U : 0U);
  }
  return ~crc;
}

// The recipe of golden_index.json.
void fill_by_recipe(nn::Param& param) {
  const uint32_t hash = crc32(param.name);
  const bool bias = param.name.ends_with("bias"), flat = param.global_shape.size() == 1;
  nn::fill(param, [=](int64_t index) {
    uint32_t x = static_cast<uint32_t>(static_cast<uint64_t>(index) * 2654435761ULL) + hash;
    x ^= x >> 15;
    x *= 2246822519U;
    x ^= x >> 13;
    const double u = (static_cast<double>(x) / 4294967296.0 - 0.5) * 2.0;
    return bias ? 0.02 * u : flat ? 1.0 + 0.1 * u : 0.08 * u;
  });
}

nn::Microbatch batch_by_recipe(int64_t first, int64_t mbs, int64_t seq, int64_t vocab, int64_t masked) {
  std::vector<int64_t> values;
  for (int64_t n = first; n < first + mbs; ++n) {
    for (int64_t t = 0; t <= seq; ++t) values.push_back((37 * n + 11 * t + n * t % 17 + t * t % 5) % vocab);
  }
  const at::Tensor text = at::tensor(values, at::kLong).view({mbs, seq + 1});
  nn::Microbatch batch;
  batch.tokens = text.narrow(1, 0, seq).contiguous();
  batch.labels = text.narrow(1, 1, seq).contiguous();
  batch.loss_mask = at::ones({mbs, seq});
  if (masked > 0) batch.loss_mask.narrow(1, seq - masked, masked).zero_();
  batch.mask_sum = batch.loss_mask.sum(at::kDouble).item<double>();
  batch.position_ids = at::arange(seq, at::kLong).expand({mbs, seq}).contiguous();
  batch.counters.samples = nn::make_sample_counters(0, at::arange(first, first + mbs, at::kLong));
  return batch;
}

models::ModelContext make_context(const Json& config, const comm::Group& tp, bool sequence_parallel) {
  const Json& m = config.at("model");
  config::Model model;
  model.num_layers = m.at("num_layers");
  model.hidden_size = m.at("hidden_size");
  model.num_attention_heads = m.at("num_attention_heads");
  model.num_query_groups = m.value("num_query_groups", int64_t{0});
  model.ffn_hidden_size = m.value("ffn_hidden_size", int64_t{0});
  model.gated_linear_unit = m.value("gated_linear_unit", false);
  model.activation = m.at("activation").get<std::string>();
  model.add_bias_linear = m.value("add_bias_linear", true);
  model.normalization = m.value("normalization", "LayerNorm");
  model.position_embedding_type = m.at("position_embedding_type").get<std::string>();
  model.qk_layernorm = m.value("qk_layernorm", false);
  model.untie_embeddings_and_output_weights = !m.at("tied").get<bool>();
  model.max_position_embeddings = config.at("seq");
  model.make_vocab_size_divisible_by = 1;
  models::ModelContext context(std::move(model));
  context.vocab_size = config.at("vocab");
  nn::set_tensor_parallel(context, tp, sequence_parallel);
  return context;
}

struct Case {
  const char* run;
  int tp;
  bool sequence_parallel;
};

void check_first_step(const Case& which, const comm::Group& tp) {
  std::ifstream stream(std::string(METROPLEX_SOURCE_DIR "/tests/vectors/golden/") + which.run + ".json");
  const Json run = Json::parse(stream);
  const Json& config = run.at("config");
  const models::ModelContext context = make_context(config, tp, which.sequence_parallel);
  const nn::Blocks blocks = models::build_stage(context, {0, context.model.num_layers, true, true});
  const auto params = nn::list_params(blocks);
  give_main_grad(params);
  for (nn::Param* param : params) fill_by_recipe(*param);
  const int64_t mbs = config.at("mbs"), seq = config.at("seq"), masked = config.value("mask_last", int64_t{0});
  const int64_t microbatches = config.at("gbs").get<int64_t>() / mbs;
  const auto tokens = static_cast<double>(mbs * (seq - masked) * microbatches);
  double loss = 0;
  for (int64_t m = 0; m < microbatches; ++m)
    loss += train_step(blocks, batch_by_recipe(m * mbs, mbs, seq, context.vocab_size, masked), 1 / tokens) / tokens;
  EXPECT_NEAR(loss, run.at("history")[0].at("loss").get<double>(), 2e-6);
  double squares = 0;
  for (nn::Param* param : params) {
    const at::Tensor gradient = whole_gradient(*param, tp);
    squares += gradient.square().sum().item<double>();
    const Json& expected = run.at("grads_iter1").at(param->name);
    // 64 positions of fp32 sums of size ~1: a few 1e-6 of the gradient's own size.
    EXPECT_NEAR(gradient.square().sum().sqrt().item<double>(), expected.at("l2").get<double>(),
                1e-7 + 5e-6 * expected.at("l2").get<double>())
        << param->name;
    for (int64_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(gradient.view(-1)[i].item<double>(), expected.at("first")[static_cast<size_t>(i)].get<double>(),
                  1e-6)
          << param->name << " element " << i;
    }
  }
  EXPECT_EQ(params.size(), run.at("final_params").size());
  const double norm = run.at("history")[0].at("grad_norm");
  EXPECT_NEAR(std::sqrt(squares), norm, 2e-5 * norm);
}

TEST(GoldenStepRanks, LossAndGradientsOfTheFirstStepAreThoseOfMegatron) {
  for (const Case& which :
       {Case{"gpt_1", 1, false}, Case{"gpt_mask", 1, false}, Case{"llama_1", 1, false},
        Case{"llama_qknorm", 1, false}, Case{"gpt_1", 2, false}, Case{"gpt_1", 4, true}, Case{"gpt_mask", 2, true},
        Case{"llama_1", 2, false}, Case{"llama_1", 2, true}, Case{"llama_qknorm", 2, true}}) {
    SCOPED_TRACE(std::string(which.run) + " tp " + std::to_string(which.tp) + (which.sequence_parallel ? " sp" : ""));
    run_ranks(which.tp, [&](const comm::World& world) { check_first_step(which, world.groups().tp); });
  }
}

}  // namespace
}  // namespace metroplex::test::golden_step_ranks_test
