// Recompute by module and offload of whole models: same bits as holding everything, in every type, with dropout, over
// tensor-parallel ranks. Also checks the bytes that a block holds.
#include "config/derived.h"
#include "device/memory_meter.h"
#include "models/tools.h"
#include "nn/attention.h"
#include "nn/mlp.h"
#include "nn/recompute.h"
#include "support/run_ranks.h"

namespace metroplex::test::recompute_ranks_test {
namespace {

struct Form {
  std::vector<std::string> modules;
  std::string offload = "none";

  config::Memory memory() const {
    config::Memory memory;
    memory.recompute_granularity = modules.empty() ? "none" : "selective";
    memory.recompute_modules = modules;
    memory.offload_activations = offload;
    return memory;
  }
  std::string name() const {
    std::string text;
    for (const std::string& module : modules) text += module + " ";
    return text + offload;
  }
};

std::vector<Form> forms() {
  return {{{"core_attn"}},
          {{"mlp"}},
          {{"layernorm"}},
          {{"activation"}},
          {{"mlp", "layernorm"}},
          {{"core_attn", "layernorm", "activation"}},
          {{"core_attn", "mlp", "layernorm", "activation"}},
          {{"mla_up_proj"}},
          {{"core_attn", "mla_up_proj", "layernorm"}},
          {{}, "host"},
          {{}, "file"},
          {{"core_attn", "layernorm", "activation"}, "file"},
          {{"core_attn", "mlp"}, "file"},
          {{"mla_up_proj"}, "file"}};
}

config::Model latent_model(int64_t q_lora_rank) {
  config::Model model = llama_model();
  model.multi_latent_attention = true;
  model.num_query_groups = 0;
  model.q_lora_rank = q_lora_rank, model.kv_lora_rank = 10;
  model.qk_head_dim = 6, model.qk_pos_emb_head_dim = 4, model.v_head_dim = 5;
  model.qk_layernorm = q_lora_rank > 0;
  model.attention_dropout = 0.15;
  return model;
}

struct Variant {
  std::string name;
  config::Model model;
};

std::vector<Variant> variants() {
  std::vector<Variant> all{{"gpt", gpt_model()}, {"llama", llama_model()}};
  Variant dropout{"gpt with dropout", gpt_model()};
  dropout.model.attention_dropout = 0.2;
  dropout.model.hidden_dropout = 0.3;
  all.push_back(dropout);
  Variant rich{"llama with qk norm and dropout", llama_model()};
  rich.model.qk_layernorm = true;
  rich.model.attention_dropout = 0.15;
  rich.model.hidden_dropout = 0.1;
  rich.model.add_qkv_bias = true;
  all.push_back(rich);
  Variant large{"gpt whose fp32 products go to oneDNN", gpt_model()};
  large.model.hidden_size = 128;
  all.push_back(large);
  Variant delta{"llama with gated delta nets and gated attention", llama_model()};
  delta.model.experimental_attention_variant = config::AttentionVariant::gated_delta_net;
  delta.model.linear_attention_freq = "2", delta.model.linear_num_key_heads = 4;
  delta.model.linear_num_value_heads = 8, delta.model.linear_key_head_dim = delta.model.linear_value_head_dim = 6;
  delta.model.attention_output_gate = true;
  all.push_back(delta);
  Variant lightning{"llama with lightning attention and a residual stream of norms", llama_model()};
  lightning.model.experimental_attention_variant = config::AttentionVariant::lightning_attention;
  lightning.model.linear_attention_freq = "2", lightning.model.lightning_chunk_size = 3;
  lightning.model.apply_residual_connection_post_layernorm = true;
  lightning.model.residual_stream_multiplier = 1.7;
  all.push_back(lightning);
  all.push_back({"latent attention with latent queries", latent_model(12)});
  all.push_back({"latent attention with queries of the input", latent_model(0)});
  Variant codegeex{"codegeex", gpt_model()};
  codegeex.model.family = "codegeex";
  codegeex.model.hidden_dropout = 0.1;
  all.push_back(codegeex);
  return all;
}

constexpr int64_t kVocab = 53;

struct Layout {
  comm::Group tp;
  bool sequence_parallel = false;
  at::ScalarType dtype = at::kDouble;
};

models::ModelContext make_context(const config::Model& model, const Layout& layout, const config::Memory& memory) {
  models::ModelContext context(model);
  context.vocab_size = kVocab;
  context.dtype = layout.dtype;
  nn::set_tensor_parallel(context, layout.tp, layout.sequence_parallel);
  context.saving = nn::save_policy(memory, nn::make_activation_store(memory));
  return context;
}

std::vector<at::Tensor> outcome(const Variant& variant, const Layout& layout, const Form& form) {
  const models::ModelContext context = make_context(variant.model, layout, form.memory());
  const nn::Blocks blocks = models::build_stage(context, {0, variant.model.num_layers, true, true});
  const auto params = nn::list_params(blocks);
  give_main_grad(params);
  shake_vectors(params);
  const nn::Microbatch batch = small_batch(3, 8, kVocab);
  const std::vector<nn::Region> regions = make_regions(blocks);
  std::vector<nn::RegionRun> runs(regions.size());
  nn::Values x;
  for (size_t i = 0; i < regions.size(); ++i)
    x = nn::run_forward(regions[i], x, {batch, context.saving.store.get()}, &runs[i]);
  std::vector<at::Tensor> all{x.tensor(nn::kLoss)};
  nn::Gradients dy{at::full({}, 0.25, all[0].options())};
  for (size_t i = regions.size(); i-- > 0;) dy = nn::run_backward(std::move(runs[i]), dy, {});
  for (nn::Param* param : params) all.push_back(param->main_grad);
  return all;
}

void expect_same_bits(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << "tensor " << i;
}

TEST(RecomputeRanks, EveryFormGivesTheBitsOfKeepingAll) {
  for (const Variant& variant : variants()) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      for (const auto& [tp, sequence_parallel] : {std::pair{1, false}, std::pair{2, false}, std::pair{2, true}}) {
        SCOPED_TRACE(testing::Message() << variant.name << " " << dtype << " tp " << tp << " sp "
                                        << sequence_parallel);
        run_ranks(tp, [&, sequence_parallel = sequence_parallel](const comm::World& world) {
          const Layout layout{world.groups().tp, sequence_parallel, dtype};
          const auto expected = outcome(variant, layout, {});
          for (const Form& form : forms()) {
            SCOPED_TRACE(form.name());
            expect_same_bits(outcome(variant, layout, form), expected);
          }
        });
      }
    }
  }
}

// The formula: bytes that a block holds for one microbatch [s, b], including its input.
struct Sizes {
  int64_t s, b, element, wide;
};
int64_t block_bytes(const config::Model& model, const Sizes& size, const Layout& layout, const Form& form) {
  const auto recomputes = [memory = form.memory()](const char* module) { return memory.recomputes(module); };
  const int64_t tp = layout.tp.size(), tokens = size.s * size.b,
                rows = layout.sequence_parallel ? tokens / tp : tokens;
  const nn::HeadCounts heads = nn::head_counts(model, static_cast<int>(tp));
  const int64_t n = heads.heads, g = heads.groups, d = heads.head_dim, f = config::ffn_width(model) / tp;
  const int64_t moments = model.normalization == config::Normalization::RMSNorm ? 1 : 2;
  const bool core = recomputes("core_attn"), mlp = recomputes("mlp"), norm = recomputes("layernorm");
  int64_t small = 2 * rows * moments * size.wide;  // of the norms
  int64_t large = 2 * rows * model.hidden_size;    // inputs of the norms
  if (!norm) large += 2 * rows * model.hidden_size;
  large += tokens * (n + 2 * g) * d;
  if (model.qk_layernorm) {
    small += tokens * (n + g) * moments * size.wide;
    if (!core) large += tokens * (n + g) * d;
  }
  int64_t scores = 0;  // logsumexp
  if (!core) {
    large += tokens * n * d;
    scores = tokens * n * size.wide;
  }
  if (!mlp) large += tokens * f * (model.gated_linear_unit ? 2 : 1);
  if (!mlp && !recomputes("activation")) large += tokens * f;
  if (form.offload == "file") return small;
  return small + scores + large * size.element;
}

TEST(RecomputeRanks, ABlockKeepsTheBytesOfTheFormula) {
  const int64_t s = 8, b = 3;
  for (const Variant& variant : variants()) {
    // The formula is that of softmax attention without latents.
    if (variant.model.has_linear_attention() || variant.model.multi_latent_attention) continue;
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      for (const auto& [tp, sequence_parallel] : {std::pair{1, false}, std::pair{2, false}, std::pair{2, true}}) {
        SCOPED_TRACE(testing::Message() << variant.name << " " << dtype << " tp " << tp << " sp "
                                        << sequence_parallel);
        run_ranks(tp, [&, tp = tp, sequence_parallel = sequence_parallel](const comm::World& world) {
          const Layout layout{world.groups().tp, sequence_parallel, dtype};
          std::vector<Form> all = forms();
          all.push_back({});
          for (const Form& form : all) {
            SCOPED_TRACE(form.name());
            const models::ModelContext context = make_context(variant.model, layout, form.memory());
            const nn::Blocks blocks = models::build_stage(context, {0, 2, false, false});
            give_main_grad(nn::list_params(blocks));
            const nn::Microbatch batch = small_batch(b, s, kVocab);
            const device::MemoryMeter meter;
            const auto input = [&, rows = sequence_parallel ? s / tp : s] {
              return at::ones({rows, b, variant.model.hidden_size}, dtype);
            };
            const nn::Region region = nn::make_region(blocks[0]);
            const auto in = [&] { return nn::Values(nn::kHiddenStates, input()); };
            nn::run_forward(region, in(), {batch}, nullptr);  // grows the table of rotary positions
            const int64_t before = meter.bytes();
            nn::RegionRun run;
            at::Tensor y =
                nn::run_forward(region, in(), {batch, context.saving.store.get()}, &run).tensor(nn::kHiddenStates);
            const auto output = static_cast<int64_t>(y.nbytes());
            const Sizes size{s, b, static_cast<int64_t>(y.element_size()), dtype == at::kDouble ? 8 : 4};
            EXPECT_EQ(meter.bytes() - before - output, block_bytes(variant.model, size, layout, form));
            nn::run_backward(std::move(run), {y}, {});
            y = at::Tensor();
            EXPECT_EQ(meter.bytes(), before);
          }
        });
      }
    }
  }
}

// Queries and keys have n (d + p) features, values n dv. Without them, the shared rotated key of p is kept.
TEST(Recompute, LatentHeadsAreNotKept) {
  const int64_t length = 8, samples = 3, heads = 8, element = 8;
  const config::Model model = latent_model(12);
  const auto kept = [&](const Form& form) {
    const models::ModelContext context = make_context(model, {}, form.memory());
    const nn::Blocks blocks = models::build_stage(context, {0, 1, false, false});
    const nn::Microbatch batch = small_batch(samples, length, kVocab);
    const nn::Region region = nn::make_region(blocks[0]);
    const nn::Values in(nn::kHiddenStates, at::ones({length, samples, model.hidden_size}, at::kDouble));
    nn::run_forward(region, in, {batch}, nullptr);  // grows the table of rotary positions
    const device::MemoryMeter meter;
    const int64_t before = meter.bytes();
    nn::RegionRun run;
    const nn::Values out = nn::run_forward(region, in, {batch, context.saving.store.get()}, &run);
    return meter.bytes() - before;
  };
  const int64_t of_heads = heads * (2 * (6 + 4) + 5), shared = 4;
  EXPECT_EQ(kept({}) - kept({{"mla_up_proj"}}), length * samples * (of_heads - shared) * element);
}

// The formula once with numbers: 8 x 3 tokens of 32 features, 4 heads of 8, 128 between fc1 and fc2, in float.
TEST(Recompute, BytesOfOneBlockByHand) {
  const Sizes size{8, 3, 4, 4};
  const Variant gpt = variants()[0], dropout = variants()[2];
  const int64_t activation = 24 * 32 * 4, statistics = 4 * 24 * 4;
  // x, norm, q, k, v, core, h, norm: 8 of them; fc1's and the activation's outputs: 4 each; logsumexp of 4 heads.
  EXPECT_EQ(block_bytes(gpt.model, size, {}, {}), 16 * activation + statistics + 24 * 4 * 4);
  EXPECT_EQ(block_bytes(dropout.model, size, {}, {}), 16 * activation + statistics + 24 * 4 * 4);
  EXPECT_EQ(block_bytes(dropout.model, size, {}, {{"core_attn"}}), 15 * activation + statistics);
  EXPECT_EQ(block_bytes(gpt.model, size, {}, {{"core_attn", "mlp", "layernorm"}}), 5 * activation + statistics);
  EXPECT_EQ(block_bytes(gpt.model, size, {}, {{}, "file"}), statistics);
}

}  // namespace
}  // namespace metroplex::test::recompute_ranks_test
