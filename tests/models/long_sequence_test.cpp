// Memory of a step over long sequences is linear in the length, also with dropout and documents.
#include "device/memory_meter.h"
#include "models/tools.h"

namespace metroplex::test::long_sequence_test {
namespace {

constexpr int64_t kVocab = 16;

// Peak of forward and backward of one sample, without the parameters.
int64_t peak(config::Model model, int64_t s, bool documents) {
  model.max_position_embeddings = s;
  models::ModelContext context(model);
  context.vocab_size = kVocab;
  context.dtype = at::kFloat;
  const nn::Blocks blocks = models::build_stage(context, {0, model.num_layers, true, true});
  give_main_grad(nn::list_params(blocks));
  nn::Microbatch batch = small_batch(1, s, kVocab);
  batch.loss_mask = batch.loss_mask.to(at::kFloat);
  if (documents) batch.documents.ids = at::arange(s, at::kLong).div(s / 3, "floor").view({1, s});
  const device::MemoryMeter meter;
  train_step(blocks, batch, 1.0);
  return meter.peak_bytes();
}

TEST(LongSequence, MemoryOfAStepIsLinearInTheLength) {
  for (const bool dropout : {false, true}) {
    for (const bool documents : {false, true}) {
      SCOPED_TRACE(testing::Message() << "dropout " << dropout << " documents " << documents);
      config::Model model = gpt_model();
      model.num_attention_heads = 2;
      model.hidden_size = 16;
      model.attention_dropout = model.hidden_dropout = dropout ? 0.1 : 0.0;
      const int64_t at_4k = peak(model, 4096, documents), at_8k = peak(model, 8192, documents);
      // Memory of blocks and threads does not grow: less than twice.
      EXPECT_LE(at_8k, 2 * at_4k);
      EXPECT_LT(at_8k, int64_t{8192} * 8192) << "a quarter of the scores of one head in fp32";
    }
  }
}

}  // namespace
}  // namespace metroplex::test::long_sequence_test
