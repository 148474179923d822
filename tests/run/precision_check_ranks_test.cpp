// `metroplex verify --precision`: errors of a step by layer.
#include <gtest/gtest.h>

#include "config/load.h"
#include "run/support.h"
#include "support/error_of.h"
#include "verify/precision_check.h"

namespace metroplex::run::precision_check_ranks_test {
namespace {

const std::string kModel =
    "model: {family: llama, num_layers: 4, hidden_size: 64, num_attention_heads: 4, ffn_hidden_size: 64,"
    " vocab_size: 50, make_vocab_size_divisible_by: 8, init_method_std: 0.1}\n"
    "train: {seq_length: 16, micro_batch_size: 2, global_batch_size: 4}\n"
    "optim: {lr: 1.0e-3}\n";

verify::PrecisionCheck check(const std::vector<std::string>& keys) {
  const config::Config config = config::resolved(verify::precision_check_config(config::parse(kModel, keys)), 1);
  verify::PrecisionCheck result;
  comm::run_threads(1, topology::RankGrid(1, config.parallel), {}, [&](const comm::World& world) {
    result = verify::check_precision(config, world, config.model.vocab_size);
  });
  return result;
}

// Rounding to e4m3 changes a value by up to 2^-4, to bf16 by up to 2^-8, each on average by a third of that or less.
// The relative error of a sum of rounded terms is about that of a term, and grows with the root of the number of
// layers: in bf16 between 2^-12 and 2^-5 after four layers, in 8 bits at least twice as large and below 2^-2.
// Gradients pass all layers twice.
TEST(PrecisionCheck, EightBitsAreFarFromFloat64) {
  for (const char* const recipe : {"delayed", "tensorwise", "mxfp8"}) {
    SCOPED_TRACE(recipe);
    const verify::PrecisionCheck got = check(
        {"precision.params_dtype=bf16", "precision.fp8_format=e4m3", std::string("precision.fp8_recipe=") + recipe});
    ASSERT_EQ(got.plain.blocks.size(), 6u);  // embedding, four layers, head
    EXPECT_FALSE(got.plain.blocks[5].states.has_value());
    EXPECT_GT(*got.plain.blocks[5].gradients, 0x1p-12);
    for (size_t i = 1; i <= 4; ++i) {
      const verify::BlockErrors &plain = got.plain.blocks[i], &rounded = got.rounded.blocks[i];
      EXPECT_EQ(plain.name, "decoder.layers." + std::to_string(i - 1));
      EXPECT_GT(*plain.states, 0x1p-12);
      EXPECT_LT(*plain.states, 0x1p-5);
      EXPECT_GT(*rounded.states, 2 * *plain.states);
      EXPECT_LT(*rounded.states, 0x1p-2);
      EXPECT_GT(*rounded.gradients, 2 * *plain.gradients);
      EXPECT_LT(*rounded.gradients, 0.5);
    }
  }
}

// The error enters in the first layer that rounds: before it, the hidden states are those without 8 bits.
TEST(PrecisionCheck, ErrorsEnterInRoundedLayers) {
  const verify::PrecisionCheck got =
      check({"precision.fp8_format=hybrid", "precision.fp8_recipe=tensorwise",
             "precision.first_last_layers_bf16=true", "precision.num_layers_at_start_in_bf16=2"});
  for (const size_t unrounded : {0, 1, 2})
    EXPECT_EQ(got.rounded.blocks[unrounded].states, got.plain.blocks[unrounded].states) << unrounded;
  // fp32 rounds by 2^-24: the root of 1e4 roundings gives 6e-6.
  EXPECT_GT(*got.rounded.blocks[3].states, 100 * *got.plain.blocks[3].states);  // fp32 against 8 bits
  EXPECT_LT(*got.plain.blocks[3].states, 1e-5);
  EXPECT_LT(*got.plain.blocks[3].gradients, 1e-5);
}

TEST(PrecisionCheck, RefusesExactFormats) {
  EXPECT_NE(test::catch_error([] { check({}); }).find("without precision.fp8_format"), std::string::npos);
}

}  // namespace
}  // namespace metroplex::run::precision_check_ranks_test
