// Which blocks defer their weight gradients to weight actions.
#include "models/tools.h"

namespace metroplex::test::deferred_weights_test {
namespace {

TEST(DeferredWeights, OfTheHeadWaitOnlyOnRequest) {
  for (const bool defers : {false, true}) {
    config::Model model;
    model.num_layers = 1, model.hidden_size = 8, model.num_attention_heads = 2, model.ffn_hidden_size = 16;
    model.max_position_embeddings = 4, model.make_vocab_size_divisible_by = 1;
    models::ModelContext context(model);
    context.vocab_size = 19;
    context.head_defers_weights = defers;
    nn::set_tensor_parallel(context, {}, false);
    const nn::Blocks blocks = models::build_stage(context, {0, 1, true, true});
    ASSERT_EQ(blocks.size(), 3u);
    EXPECT_TRUE(nn::make_region(blocks[0]).defers_weights);
    EXPECT_TRUE(nn::make_region(blocks[1]).defers_weights);
    EXPECT_EQ(nn::make_region(blocks[2]).defers_weights, defers);
  }
}

}  // namespace
}  // namespace metroplex::test::deferred_weights_test
