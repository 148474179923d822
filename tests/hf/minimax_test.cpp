// MiniMax: the constants of its directories, and the config.json of the published models.
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "hf/directories.h"
#include "hf/directory.h"
#include "support/error_of.h"
#include "support/folder.h"

namespace metroplex::hf::minimax_test {
namespace {

using test::catch_error;
using test::has;

// Another number of layers changes the slopes of layer 1 from 1/8 to 1/6.
TEST(HfConstants, AreThoseOfTheConfig) {
  files::PosixFileSystem disk;
  const std::string directory = test::kHfCases + "minimax", name = "model.layers.1.self_attn.slope_rate";
  const config::Model model = test::read_hf_model(directory);
  const auto error_of = [&](const config::Model& other) {
    return catch_error([&] { Source(disk, directory, other); });
  };
  config::Model longer = model, deeper = model;
  longer.lightning_chunk_size = 9, deeper.num_layers = 4, deeper.linear_attention_freq = "[1,1,0,0]";
  EXPECT_TRUE(has(error_of(longer), "query_decay is F32 of shape [4, 8, 1], but config.json requires [4, 9, 1]"));
  EXPECT_TRUE(has(error_of(deeper), "element 0 of " + name + " is 0.125")) << error_of(deeper);
  Source source(disk, directory, model);
  EXPECT_EQ(source.find("model.layers.1.self_attn.slope_rate", "weight"), nullptr);
  const test::Folder folder;
  write_weights_directory(disk, source, model, {}, folder.at("half"), {.dtype = files::Dtype::kBF16});
  test::Tensors tensors = test::read_tensors(folder.at("half/model.safetensors"));
  EXPECT_EQ(tensors.at(name).dtype, files::Dtype::kBF16);
  EXPECT_EQ(catch_error([&] { Source(disk, folder.at("half"), model); }), "") << "rounded";
  // A directory without them.
  std::erase_if(tensors,
                [](const auto& tensor) { return has(tensor.first, "_decay") || has(tensor.first, "slope_rate"); });
  std::vector<files::TensorInfo> infos;
  for (const auto& [key, tensor] : tensors) infos.push_back({key, tensor.dtype, tensor.shape, 0, 0});
  files::order_tensors(infos);
  files::SafetensorsWriter writer(disk, folder.at("half/model.safetensors"), infos, {});
  for (const files::TensorInfo& info : infos)
    writer.write(tensors.at(info.name).bytes.data(), tensors.at(info.name).bytes.size());
  writer.finish();
  EXPECT_EQ(catch_error([&] { Source(disk, folder.at("half"), model); }), "") << "missing";
}

// The published config.json of MiniMax-M1, whose sizes are those of MiniMax-Text-01: 456 billion parameters in 80
// layers, of which every eighth has softmax attention (arXiv 2501.08313, section 2).
TEST(MiniMax, PublishedConfigHasItsParameters) {
  Json json = Json::parse(R"({
      "model_type": "minimax_m1", "hidden_size": 6144, "num_hidden_layers": 80, "num_attention_heads": 64,
      "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 9216, "vocab_size": 200064,
      "num_local_experts": 32, "num_experts_per_tok": 2, "max_position_embeddings": 10240000, "rotary_dim": 64,
      "rope_theta": 10000000, "rms_norm_eps": 1e-05, "hidden_act": "silu", "tie_word_embeddings": false,
      "layernorm_full_attention_alpha": 3.5565588200778455, "layernorm_full_attention_beta": 1.0,
      "layernorm_linear_attention_alpha": 3.5565588200778455, "layernorm_linear_attention_beta": 1.0,
      "layernorm_mlp_alpha": 3.5565588200778455, "layernorm_mlp_beta": 1.0, "postnorm": true,
      "shared_intermediate_size": 0, "shared_moe_mode": "sigmoid", "sliding_window": null, "attention_dropout": 0.0,
      "initializer_range": 0.02, "output_router_logits": false, "router_aux_loss_coef": 0.001,
      "router_jitter_noise": 0.0, "use_cache": true, "bos_token_id": null, "eos_token_id": null})");
  for (int layer = 0; layer < 80; ++layer) json["attn_type_list"].push_back(layer % 8 == 7 ? 1 : 0);
  const Family& family = find_family("minimax_m1");
  const config::Model model = config::resolved(config::load("", read_config(family, json)), 1).model;
  EXPECT_EQ(model.rotary_percent, 0.5);
  EXPECT_EQ(std::string(family_for(model).model_type), "minimax");
  int64_t parameters = 0;
  for (const MappedTensor& tensor : family.tensors(model))
    parameters += std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
  EXPECT_EQ(parameters / 1'000'000'000, 456);
  EXPECT_EQ(family.constants(model).size(), 4u * 70);
}

}  // namespace
}  // namespace metroplex::hf::minimax_test
