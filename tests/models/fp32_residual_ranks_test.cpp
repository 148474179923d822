// precision.fp32_residual_connection: blocks of a half-precision model pass fp32 hidden states and compute in half
// types as before. The stream no longer loses precision.
#include <string>

#include "models/tools.h"

namespace metroplex::test::fp32_residual_ranks_test {
namespace {

struct Passed {
  at::Tensor stream;      // input of the head
  at::Tensor words_grad;  // of the word embedding: passes all blocks backward
};

Passed run_model(const config::Model& model, at::ScalarType dtype, bool fp32_residual, bool dropout) {
  models::ModelContext context(model);
  if (dropout) context.model.hidden_dropout = 0.2;
  context.vocab_size = 37;
  context.dtype = dtype;
  context.fp32_residual_connection = fp32_residual;
  const nn::Blocks blocks = models::build_stage(context, {0, model.num_layers, true, true});
  const std::vector<nn::Param*> params = nn::list_params(blocks);
  shake_vectors(params);
  for (nn::Param* param : params) param->data.copy_(param->data.to(at::kBFloat16));  // the same numbers in all types
  give_main_grad(params);
  const nn::Microbatch batch = small_batch(2, 12, 37);
  train_step(blocks, batch, 1.0);
  Passed result;
  result.words_grad = params.front()->main_grad;
  nn::Values x;
  for (size_t i = 0; i + 1 < blocks.size(); ++i) {
    x = nn::run_forward(nn::make_region(blocks[i]), x, {batch}, nullptr);
    result.stream = x.tensor(nn::kHiddenStates);
    EXPECT_EQ(result.stream.scalar_type(), fp32_residual ? at::kFloat : dtype) << "after block " << i;
  }
  return result;
}

double error(const at::Tensor& got, const at::Tensor& exact) {
  return (got.to(at::kDouble) - exact).norm().item<double>() / exact.norm().item<double>();
}

TEST(Fp32Residual, TheStreamIsFp32AndNearerToTheExactOne) {
  config::Model norms_after = llama_model();
  norms_after.pre_norm = false, norms_after.sandwich_norm = true;
  for (config::Model model : {gpt_model(), llama_model(), norms_after}) {
    model.num_layers = 8;
    for (const bool dropout : {false, true}) {
      SCOPED_TRACE(model.family + (model.pre_norm ? "" : ", norms after layers") + (dropout ? " with dropout" : ""));
      const Passed exact = run_model(model, at::kDouble, false, dropout),
                   half = run_model(model, at::kBFloat16, false, dropout),
                   wide = run_model(model, at::kBFloat16, true, dropout);
      // A block adds less to the stream than the stream itself, so rounding the sum costs more than rounding the
      // summand.
      EXPECT_LT(error(wide.stream, exact.stream), error(half.stream, exact.stream));
      // 16 additions and as many layers, each good to 2^-8 of its result; errors add up like a random walk, and the
      // layers between add a few roundings each.
      EXPECT_LT(error(wide.stream, exact.stream), std::ldexp(1, -8) * std::sqrt(16.0 * 8));
      EXPECT_LT(error(wide.words_grad, exact.words_grad), 3 * std::ldexp(1, -8) * std::sqrt(16.0 * 8));
    }
  }
}

}  // namespace
}  // namespace metroplex::test::fp32_residual_ranks_test
