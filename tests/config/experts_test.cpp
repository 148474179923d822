// The keys about experts: which layers have them, what their numbers come to, and which combinations are refused.
#include "config/experts.h"

#include <gtest/gtest.h>

#include "config/support.h"

namespace metroplex::config {
namespace {

std::string pattern(const std::string& text, int64_t layers) {
  std::string problem;
  const auto read = read_moe_layers(text, layers, problem);
  if (!read) return problem;
  std::string shown;
  for (const bool moe : *read) shown += moe ? '1' : '0';
  return shown;
}

TEST(ExpertLayers, FollowAFrequencyOrAPattern) {
  EXPECT_EQ(pattern("1", 4), "1111");
  EXPECT_EQ(pattern("2", 5), "10101");
  EXPECT_EQ(pattern("7", 4), "1000");
  EXPECT_EQ(pattern("[1,0,1]", 3), "101");
  EXPECT_EQ(pattern("[1, 0, 1,]", 3), "101");
  EXPECT_EQ(pattern("([1]*3+[0]*1)*2", 8), "11101110");
  EXPECT_EQ(pattern("([0]+[1]*3)", 4), "0111");
  EXPECT_EQ(pattern("[0]*(2+1)+2*[1,0]+[]", 7), "0001010");
  EXPECT_EQ(pattern("[0]*2*2", 4), "0000");
}

TEST(ExpertLayers, SayWhatIsWrongWithAPattern) {
  EXPECT_EQ(pattern("0", 4), "it is neither a whole number of at least 1 nor a pattern with [");
  EXPECT_EQ(pattern("", 4), pattern("0", 4));
  EXPECT_EQ(pattern("2x", 4), pattern("0", 4));
  EXPECT_EQ(pattern("[1,0]", 4), "it has 2 entries for model.num_layers = 4");
  EXPECT_EQ(pattern("[1,2]", 2), "its entry 2 is neither 0 nor 1");
  EXPECT_EQ(pattern("[1,0", 2), "a [ is never closed");
  EXPECT_EQ(pattern("([1]", 1), "a ( is never closed");
  EXPECT_EQ(pattern("[1]]", 1), "']' is left behind it");
  EXPECT_EQ(pattern("[1]+1", 2), "a list and a number cannot be added");
  EXPECT_EQ(pattern("[1]*[1]", 1), "two lists cannot be multiplied");
  EXPECT_EQ(pattern("[[1]]", 1), "a list stands in a list");
  EXPECT_EQ(pattern("[1]*", 1), "a number or a list is missing at its end");
  EXPECT_EQ(pattern("[1]*-1", 1), "a number or a list is expected where it says '-1'");
  EXPECT_EQ(pattern("[1,1]*131072", 1), "it has more than 131072 entries");
  EXPECT_EQ(pattern("[1]*131072*131072*131072*131072", 1), "it has more than 131072 entries");
  EXPECT_EQ(pattern("[1]*99999999999999999999", 1), "it has a number above 131072");
  EXPECT_EQ(pattern(std::string(100000, '(') + "[", 1), "its parentheses nest too deep");
  EXPECT_EQ(pattern(std::string(100000, '['), 1), "its parentheses nest too deep");
}

TEST(ExpertLayers, OfADenseModelAreNone) {
  Model model;
  EXPECT_EQ(moe_layers(model), std::vector<bool>(4, false));
  model.num_moe_experts = 2;
  model.moe_layer_freq = "[0,1,1,1]";
  EXPECT_EQ(moe_layers(model), (std::vector<bool>{false, true, true, true}));
  model.moe_layer_freq = "[0,1]";
  const std::string error = error_of([&] { moe_layers(model); });
  for (const char* words : {"model.moe_layer_freq = [0,1]", "2 entries for model.num_layers = 4", "write N"})
    EXPECT_NE(error.find(words), std::string::npos) << error;
}

TEST(AuxLosses, AreThoseWithACoefficient) {
  Model model;
  EXPECT_TRUE(aux_losses(model).empty());
  model.moe_router_load_balancing_type = "seq_aux_loss, aux_loss,global_aux_loss";
  model.moe_aux_loss_coeff = "1e-2, 0,2";
  const std::vector<AuxLoss> losses = aux_losses(model);
  ASSERT_EQ(losses.size(), 2U);
  EXPECT_EQ(losses[0].type, AuxLossType::seq_aux_loss);
  EXPECT_EQ(losses[0].coeff, 1e-2);
  EXPECT_EQ(losses[1].type, AuxLossType::global_aux_loss);
  EXPECT_EQ(losses[1].coeff, 2);
  for (const auto& [text, words] : {std::pair{"1,2", "2 numbers for the 3 words"},
                                    {"1,x,2", "'x' is no number"},
                                    {"1,,2", "'' is no number"},
                                    {"1,-1,2", "'-1' is no number"},
                                    {"1,inf,2", "'inf' is no number"},
                                    {"1,nan,2", "'nan' is no number"}}) {
    model.moe_aux_loss_coeff = text;
    const std::string error = error_of([&] { aux_losses(model); });
    EXPECT_NE(error.find(words), std::string::npos) << error;
    EXPECT_NE(error.find("model.moe_aux_loss_coeff = "), std::string::npos) << error;
  }
}

TEST(ExpertCapacity, RoundsUpAsMegatronDoes) {
  Model model;
  model.num_moe_experts = 8;
  model.moe_router_topk = 2;
  model.moe_expert_capacity_factor = 1;
  EXPECT_EQ(expert_capacity(model, 64), 16);
  EXPECT_EQ(expert_capacity(model, 65), 17);
  model.moe_expert_capacity_factor = 8;
  EXPECT_EQ(expert_capacity(model, 65), 130);  // more than there are tokens
  model.num_moe_experts = 10;
  model.moe_router_topk = 1;
  model.moe_expert_capacity_factor = 1.1;
  EXPECT_EQ(expert_capacity(model, 100), 11);  // 100 * 1.1 / 10 would be 12: 100 * 1.1 is above 110
}

TEST(ExpertDispatcher, IsLocalForOneRank) {
  Model model;
  EXPECT_EQ(token_dispatcher(model, 1), TokenDispatcher::local);
  EXPECT_EQ(token_dispatcher(model, 2), TokenDispatcher::alltoall);
  model.moe_token_dispatcher_type = TokenDispatcher::allgather;
  EXPECT_EQ(token_dispatcher(model, 1), TokenDispatcher::allgather);
}

}  // namespace
}  // namespace metroplex::config
