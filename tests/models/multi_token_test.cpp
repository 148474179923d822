// Multi-token prediction against its formula in plain libtorch operations with autograd.
#include "models/tools.h"

namespace metroplex::test::multi_token_test {
namespace {

// b 2 samples, s 7 tokens, h 12, 3 heads of 4, vocabulary 19.
constexpr int64_t kSamples = 2, kTokens = 7, kHeads = 3, kHead = 4, kHidden = kHeads * kHead, kVocab = 19;
constexpr uint64_t kSeed = 77;

config::Model small_model() {
  config::Model model;
  model.num_layers = 1;
  model.hidden_size = kHidden;
  model.num_attention_heads = kHeads;
  model.ffn_hidden_size = 20;
  model.position_embedding_type = "none";
  model.normalization = "RMSNorm";
  model.activation = "silu";
  model.add_bias_linear = false;
  model.max_position_embeddings = kTokens;
  model.make_vocab_size_divisible_by = 1;
  model.mtp_num_layers = 2;
  model.mtp_loss_scaling_factor = 0.6;
  return model;
}

// The model built from leaves with the values of `params`. Activations are [b, s, h].
class Plain {
 public:
  Plain(const std::vector<nn::Param*>& params, at::Tensor document_ids, double dropout, int64_t window,
        const nn::Microbatch& batch)
      : documents(std::move(document_ids)), dropout(dropout), window(window), batch(batch) {
    for (const nn::Param* param : params) leaves[param->name] = param->data.detach().clone().requires_grad_();
  }

  at::Tensor norm(const at::Tensor& x, const std::string& name) {
    return x * (x.square().mean(-1, true) + 1e-5).rsqrt() * leaves.at(name + ".weight");
  }
  at::Tensor linear(const at::Tensor& x, const std::string& name) {
    return x.matmul(leaves.at(name + ".weight").t());
  }
  // Returns residual + dropout(x) with the mask of layer `number`.
  at::Tensor sum(const at::Tensor& x, const at::Tensor& residual, int64_t number, nn::RandomSite site) {
    const nn::BiasDropoutAdd how{{kSeed, number, site, dropout, {}}, nullptr, {}};
    const auto first_rows = [](const at::Tensor& y) { return y.transpose(0, 1).contiguous(); };
    return nn::bias_dropout_add(first_rows(x), residual.defined() ? first_rows(residual) : residual, how, batch)
        .transpose(0, 1);
  }
  at::Tensor layer(const at::Tensor& x, const std::string& name, int64_t number) {
    const at::Tensor qkv = linear(norm(x, name + ".input_layernorm"), name + ".self_attention.linear_qkv")
                               .view({kSamples, kTokens, kHeads, 3, kHead})
                               .permute({3, 0, 2, 1, 4});
    const at::Tensor all = at::ones({kTokens, kTokens}, at::kBool), later = all.triu(1);
    const at::Tensor early = window < 0 ? at::zeros_like(all) : all.tril(-window - 1);
    const at::Tensor hidden = later | early | documents.unsqueeze(1).ne(documents.unsqueeze(2)).unsqueeze(1);
    const at::Tensor scores = (qkv[0].matmul(qkv[1].transpose(-1, -2)) / 2.0).masked_fill(hidden, -INFINITY);
    const at::Tensor mixed = scores.softmax(-1).matmul(qkv[2]).permute({0, 2, 1, 3}).reshape(x.sizes());
    const at::Tensor h =
        sum(linear(mixed, name + ".self_attention.linear_proj"), x, number, nn::RandomSite::attention_output);
    const at::Tensor inner = at::silu(linear(norm(h, name + ".pre_mlp_layernorm"), name + ".mlp.linear_fc1"));
    return sum(linear(inner, name + ".mlp.linear_fc2"), h, number, nn::RandomSite::mlp_output);
  }
  at::Tensor words(const at::Tensor& tokens, int64_t number) {
    const at::Tensor rows = leaves.at("embedding.word_embeddings.weight").index_select(0, tokens.flatten());
    return sum(rows.view({kSamples, -1, kHidden}), {}, number, nn::RandomSite::embedding);
  }
  // [b, s - ahead]: positions whose document contains a target `ahead` positions after their label.
  at::Tensor counted(const nn::Microbatch& batch, int64_t ahead) const {
    const int64_t left = kTokens - ahead;
    return batch.loss_mask.narrow(1, ahead, left) * documents.narrow(1, ahead, left).eq(documents.narrow(1, 0, left));
  }
  // The sum over these positions.
  at::Tensor loss(const at::Tensor& x, const nn::Microbatch& batch, int64_t ahead) {
    const at::Tensor logs = linear(x, "output_layer").log_softmax(-1).narrow(1, 0, kTokens - ahead);
    const at::Tensor labels = batch.labels.narrow(1, ahead, kTokens - ahead);
    return -(logs.gather(2, labels.unsqueeze(2)).squeeze(2) * counted(batch, ahead)).sum();
  }

  at::Tensor documents;  // [b, s]
  double dropout;
  int64_t window;  // tokens before a query; -1: all
  nn::Microbatch batch;
  std::map<std::string, at::Tensor> leaves;
};

struct Losses {
  at::Tensor main, ahead[2];  // sums
};

Losses compute_losses(Plain& plain, const nn::Microbatch& batch) {
  at::Tensor x =
      plain.norm(plain.layer(plain.words(batch.tokens, 0), "decoder.layers.0", 0), "decoder.final_layernorm");
  Losses out{plain.loss(x, batch, 0), {}};
  for (int64_t k = 1; k <= 2; ++k) {
    const std::string name = "mtp.layers." + std::to_string(k - 1);
    // Tokens after the sample never reach a counted position.
    const at::Tensor tokens =
        at::cat({batch.tokens.narrow(1, k, kTokens - k), at::full({kSamples, k}, 11, at::kLong)}, 1);
    const at::Tensor both =
        at::cat({plain.norm(plain.words(tokens, k), name + ".enorm"), plain.norm(x, name + ".hnorm")}, -1);
    x = plain.norm(plain.layer(plain.linear(both, name + ".eh_proj"), name + ".transformer_layer", k),
                   name + ".final_layernorm");
    out.ahead[k - 1] = plain.loss(x, batch, k);
  }
  return out;
}

void check(bool documents, double dropout, int64_t window = -1) {
  models::ModelContext context(small_model());
  context.model.hidden_dropout = dropout;
  context.model.window_size = window;
  context.seed = kSeed;
  context.model.untie_embeddings_and_output_weights = true;
  context.vocab_size = kVocab;
  context.dtype = at::kDouble;
  context.init_std = 0.3;
  nn::set_tensor_parallel(context, {}, false);
  const nn::Blocks blocks = models::build_stage(context, {0, 1, true, true});
  const auto params = nn::list_params(blocks);
  shake_vectors(params);
  give_main_grad(params);
  nn::Microbatch batch = small_batch(kSamples, kTokens, kVocab);
  const at::Tensor ids = at::zeros({kSamples, kTokens}, at::kLong);
  if (documents) {
    ids[0].narrow(0, 3, 4).fill_(1);
    ids[1].narrow(0, 1, 2).fill_(1);
    ids[1].narrow(0, 3, 4).fill_(2);
    batch.documents.ids = ids;
  }
  nn::LossTerms terms;
  constexpr double kFactor = 0.25;
  const double main = train_step(blocks, batch, kFactor, &terms);

  Plain plain(params, ids, dropout, window, batch);
  const Losses wanted = compute_losses(plain, batch);
  // Sums of at most 2 x 7 x 19 terms in float64, some ten products in sequence: 10 x 266 x 2^-53 = 3e-13.
  EXPECT_NEAR(main, wanted.main.item<double>(), 1e-12 * main);
  at::Tensor all = wanted.main;
  ASSERT_EQ(terms.size(), 2u);
  for (int64_t k = 1; k <= 2; ++k) {
    const double left = plain.counted(batch, k).sum().item<double>();
    ASSERT_LT(left, batch.mask_sum);
    const at::Tensor term = wanted.ahead[k - 1] * (0.6 / 2 * batch.mask_sum / left);
    EXPECT_EQ(terms[static_cast<size_t>(k - 1)].name, "mtp_" + std::to_string(k) + " loss");
    const double got = terms[static_cast<size_t>(k - 1)].sum.item<double>();
    EXPECT_NEAR(got, term.item<double>(), 1e-12 * got);
    all = all + term;
  }
  (all * kFactor).backward();
  for (const nn::Param* param : params) {
    EXPECT_LT(relative_difference(param->main_grad, plain.leaves.at(param->name).grad()), 1e-12) << param->name;
    EXPECT_GT(largest(param->main_grad), 0) << param->name;
  }
}

TEST(MultiToken, LossesAndGradientsAreThoseOfTheFormula) {
  for (const bool documents : {false, true}) check(documents, 0);
}

TEST(MultiToken, LayersHaveTheWindowOfTheLast) {
  for (const bool documents : {false, true}) check(documents, 0, 2);
}

// Depth k uses the dropout masks of decoder layer num_layers + k - 1.
TEST(MultiToken, DropoutIsThatOfLayersAfterTheLast) { check(false, 0.4); }

TEST(MultiToken, NothingOfItRunsInEvaluation) {
  models::ModelContext context(small_model());
  context.vocab_size = kVocab;
  nn::set_tensor_parallel(context, {}, false);
  nn::Microbatch batch = small_batch(kSamples, kTokens, kVocab);
  batch.training = false;
  nn::LossTerms terms;
  const at::Tensor with = evaluate(models::build_stage(context, {0, 1, true, true}), batch, &terms);
  EXPECT_TRUE(terms.empty());
  context.model.mtp_num_layers = 0;
  EXPECT_TRUE(at::equal(with, evaluate(models::build_stage(context, {0, 1, true, true}), batch)));
}

}  // namespace
}  // namespace metroplex::test::multi_token_test
