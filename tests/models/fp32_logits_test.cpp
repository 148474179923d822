// precision.output_logit_dtype = fp32: generation returns fp32 logits, and training and evaluation take the loss of
// the same logits.
#include "models/tools.h"

namespace metroplex::test::fp32_logits_test {
namespace {

nn::Blocks build(const config::Model& model, at::ScalarType dtype, int64_t chunk) {
  models::ModelContext context(model);
  context.vocab_size = 37;
  context.dtype = dtype;
  context.precision.output_logit_dtype = config::OutputLogitDtype::fp32;
  context.loss_chunk_tokens = chunk;
  nn::set_tensor_parallel(context, {}, false);
  nn::Blocks blocks = models::build_stage(context, {0, model.num_layers, true, true});
  give_main_grad(nn::list_params(blocks));
  return blocks;
}

// The loss of 24 tokens is the sum of logsumexp and a logit, each good to a few times 2^-24.
TEST(Fp32Logits, GenerationAndLossAgree) {
  config::Model capped = llama_model();
  capped.final_logit_softcapping = 2, capped.logits_scaling = 0.5;
  for (const config::Model& model : {gpt_model(), capped}) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      for (const int64_t chunk : {0, 5}) {
        const nn::Blocks blocks = build(model, dtype, chunk);
        const nn::Microbatch batch = small_batch(2, 12, 37);
        nn::Microbatch unlabeled = batch;
        unlabeled.labels = at::Tensor();
        const at::Tensor logits = evaluate(blocks, unlabeled);
        EXPECT_EQ(logits.scalar_type(), at::kFloat);
        const at::Tensor log_p = at::log_softmax(logits.to(at::kDouble), -1);
        const at::Tensor losses = -log_p.gather(2, batch.labels.t().contiguous().unsqueeze(2)).squeeze(2);
        const double expected = (losses * batch.loss_mask.t()).sum().item<double>();
        EXPECT_NEAR(evaluate(blocks, batch).item<double>(), expected, expected * 8 * 0x1p-24);
        EXPECT_NEAR(train_step(blocks, batch, 1.0), expected, expected * 8 * 0x1p-24);
      }
    }
  }
}

}  // namespace
}  // namespace metroplex::test::fp32_logits_test
