// Hugging Face directories without tensors: any region of any tensor, rejected directories, and the conversion back.
#include "hf/directory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/error.h"
#include "config/load.h"
#include "config/validate.h"
#include "files/convert_dtype.h"
#include "hf/decoder.h"
#include "hf/directories.h"
#include "support/error_of.h"
#include "support/folder.h"

namespace metroplex::hf::directory_test {
namespace {

using test::catch_error;
using test::has;

files::PosixFileSystem disk;

TEST(HfSource, ListsAllThatIsMissingUnknownAndOfAnotherShapeAtOnce) {
  const std::string directory = test::kHfCases + "qwen3";
  config::Model model = test::read_hf_model(directory);
  EXPECT_EQ(catch_error([&] { Source(disk, directory, model); }), "");
  model.num_layers += 1;
  model.vocab_size -= 1;
  const std::string more = catch_error([&] { Source(disk, directory, model); });
  for (const char* part :
       {"model.embed_tokens.weight has shape [256, 48], but the model requires [255, 48]",
        "model.layers.3.input_layernorm.weight is missing", "model.layers.3.mlp.down_proj.weight is missing"})
    EXPECT_TRUE(has(more, part)) << part << ": " << more;
  // Sizes that no file could match are rejected before anything of that size is allocated.
  model.num_layers = 100000, model.num_attention_heads = 65536;
  const std::string many = catch_error([&] { Source(disk, directory, model); });
  EXPECT_TRUE(has(many, "config.json has 100000 layers, 65536 heads")) << many;
  // For a directory whose config has less than its files.
  const test::Folder folder;
  std::filesystem::copy(directory, folder.at("d"));
  std::filesystem::permissions(folder.at("d/config.json"), std::filesystem::perms::owner_all);
  Json json = Json::parse(disk.read(directory + "/config.json"));
  json["num_hidden_layers"] = 2;
  std::ofstream(folder.at("d/config.json")) << json;
  const std::string less = catch_error([&] { Source(disk, folder.at("d"), test::read_hf_model(folder.at("d"))); });
  EXPECT_TRUE(has(less, "model.layers.2.self_attn.q_proj.weight does not belong to this model")) << less;
}

// Sizes that an option changes are not blamed on config.json.
TEST(HfSource, NamesOptionsThatDifferFromConfig) {
  const std::string directory = test::kHfCases + "mixtral";
  config::Model model = test::read_hf_model(directory);
  model.moe_latent_size = 8;
  const std::string latent = catch_error([&] { Source(disk, directory, model); });
  EXPECT_TRUE(has(latent, "experts.0.w1.weight has shape [56, 48], but the model requires [56, 8]")) << latent;
  EXPECT_TRUE(latent.ends_with("\nset as in config.json: model.moe_latent_size = 0, not 8")) << latent;
  EXPECT_FALSE(has(latent, "correct config.json")) << latent;
}

// Tied weights that are stored twice must be equal; untied weights are the reader's choice.
TEST(HfSource, AHeadOfItsOwnIsNotTiedSilently) {
  const test::Folder folder;
  const std::string directory = folder.at("d"), file = folder.at("d/model.safetensors");
  std::filesystem::copy(test::kHfCases + "llama_biases", directory);
  for (const std::string& path : {file, folder.at("d/config.json")})
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  Json json = Json::parse(disk.read(directory + "/config.json"));
  json["tie_word_embeddings"] = true;
  std::ofstream(folder.at("d/config.json")) << json;
  config::Model model = test::read_hf_model(directory);
  const std::string differs = catch_error([&] { Source(disk, directory, model); });
  EXPECT_TRUE(has(differs, "ties lm_head.weight to the embedding, but contains a different lm_head.weight"))
      << differs;
  model.untie_embeddings_and_output_weights = true;
  EXPECT_EQ(catch_error([&] { Source(disk, directory, model); }), "");

  model.untie_embeddings_and_output_weights = false;
  std::string bytes = disk.read(file);
  const files::SafetensorsHeader header = files::parse_safetensors(bytes, file);
  const auto at = [&](const char* name) {
    const auto is = [&](const files::TensorInfo& info) { return info.name == name; };
    return *std::find_if(header.tensors.begin(), header.tensors.end(), is);
  };
  const files::TensorInfo words = at("model.embed_tokens.weight"), head = at("lm_head.weight");
  bytes.replace(header.data_begin + head.begin, head.end - head.begin, bytes, header.data_begin + words.begin,
                words.end - words.begin);
  std::ofstream(file, std::ios::binary) << bytes;
  EXPECT_EQ(catch_error([&] { Source(disk, directory, model); }), "");
}

// Regions as ranks of any layout read them, against the same elements of the whole tensor.
TEST(HfSource, ReadsAnyPartOfJoinedTransposedAndStackedTensors) {
  std::mt19937 draw(7);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(draw() % static_cast<uint64_t>(n)); };
  for (const char* name : {"qwen2", "gpt2_fp16", "qwen3_moe_bf16_sharded", "deepseek_v3_fp8", "gpt_oss_mxfp4"}) {
    Source source(disk, test::kHfCases + name, test::read_hf_model(test::kHfCases + name));
    for (const files::TensorForm& tensor : source.tensors()) {
      const int64_t width = files::dtype_bits(tensor.dtype) / 8;
      const checkpoint::Piece all = checkpoint::whole_piece(tensor.shape);
      std::vector<char> whole(static_cast<size_t>(all.count() * width));
      source.fill({tensor.name, tensor.kind, tensor.shape, all.offset, all.size, tensor.dtype, whole.data()});
      for (int trial = 0; trial < 4; ++trial) {
        Dims offset, size;
        for (const int64_t rows : tensor.shape) {
          offset.push_back(below(rows));
          size.push_back(1 + below(rows - offset.back()));
        }
        checkpoint::Piece part = checkpoint::box_piece(offset, size);
        part.begin = below(part.end);
        part.end -= below(part.end - part.begin);
        std::vector<char> read(static_cast<size_t>(part.count() * width)), expected = read;
        source.fill(
            {tensor.name, tensor.kind, tensor.shape, offset, size, tensor.dtype, read.data(), part.begin, part.end});
        ASSERT_EQ(checkpoint::copy_overlap(all, whole.data(), part, expected.data(), width), part.count());
        ASSERT_EQ(read, expected) << tensor.name << " " << checkpoint::describe(part);
      }
    }
  }
}

// New rows are the mean of the old ones, in any region of the tensor. gemma2 ties its head, llama_biases does not.
TEST(HfSource, FillsRowsBeyondTheStoredVocabulary) {
  for (const char* name : {"llama_biases", "gemma2", "gpt2_fp16", "qwen3_moe_bf16_sharded"}) {
    config::Model model = test::read_hf_model(test::kHfCases + name);
    Source before(disk, test::kHfCases + name, model);
    const int64_t old_rows = model.vocab_size, rows = old_rows + 5;
    model.vocab_size = rows;
    Source after(disk, test::kHfCases + name, model);
    for (const char* tensor : {"embedding.word_embeddings.weight", "output_layer.weight"}) {
      const files::TensorForm* form = before.find(tensor, "weight");
      if (form == nullptr) continue;
      const int64_t columns = form->shape[1], width = files::dtype_bits(form->dtype) / 8, row = columns * width;
      EXPECT_EQ(after.find(tensor, "weight")->shape, (Dims{rows, columns}));
      const auto read = [&](Source& source, int64_t all, int64_t begin, int64_t count) {
        std::vector<std::byte> bytes(static_cast<size_t>(count * row));
        source.fill({tensor, "weight", {all, columns}, {begin, 0}, {count, columns}, form->dtype, bytes.data()});
        return bytes;
      };
      const auto stored = read(before, old_rows, 0, old_rows), grown = read(after, rows, 0, rows);
      EXPECT_TRUE(std::equal(stored.begin(), stored.end(), grown.begin())) << name << " " << tensor;
      std::vector<double> values(static_cast<size_t>(rows * columns));
      files::convert_elements(form->dtype, grown.data(), files::Dtype::kF64,
                              reinterpret_cast<std::byte*>(values.data()), values.size());
      for (int64_t c = 0; c < columns; ++c) {
        double mean = 0;
        for (int64_t r = 0; r < old_rows; ++r) mean += values[static_cast<size_t>(r * columns + c)];
        mean /= static_cast<double>(old_rows);
        for (int64_t r = old_rows; r < rows; ++r)  // a bfloat16 has 8 bits
          ASSERT_NEAR(values[static_cast<size_t>(r * columns + c)], mean, std::abs(mean) / 256) << name << " " << r;
      }
      // A rank's shard that begins before the new rows, and one with new rows only.
      for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{old_rows - 2, 4}, {old_rows + 2, 3}})
        EXPECT_TRUE(std::equal(grown.begin() + begin * row, grown.begin() + (begin + count) * row,
                               read(after, rows, begin, count).begin()))
            << name << " " << begin;
    }
    model.vocab_size = old_rows - 1;
    EXPECT_TRUE(has(catch_error([&] { Source(disk, test::kHfCases + name, model); }), "has shape")) << "fewer rows";
  }
}

std::vector<std::string> settings_with(const std::string& name, const Json& changes) {
  const test::Folder folder;
  Json json = Json::parse(disk.read(test::kHfCases + name + "/config.json"));
  json.update(changes);
  std::ofstream(folder.at("config.json")) << json;
  return read_settings(disk, folder.path());
}

TEST(HfConfig, RefusesWhatOurModelsDoNotHave) {
  const struct {
    const char *name, *changes, *says;
  } kWrong[] = {
      {"qwen3", R"({"model_type": "deepseek_v4"})", "model_type 'deepseek_v4' is not supported"},
      {"qwen3", R"({"model_type": null})", "gpt2, llama, mistral, qwen2, qwen3, mixtral, qwen3_moe"},
      {"qwen3", R"({"rope_parameters": {"rope_type": "longrope", "factor": 4}})", "short_factor is missing"},
      {"qwen3", R"({"rope_parameters": {"rope_type": "dynamic", "factor": 4}})", "rope_type dynamic"},
      {"qwen3", R"({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})", "rope_scaling are both present"},
      {"qwen3", R"({"rope_scaling": 7})", "rope_scaling are both present"},
      {"qwen3", R"({"rope_parameters": {"rope_type": "linear"}})", "with rope_type linear has no factor"},
      {"qwen3", R"({"rope_parameters": {"rope_type": "llama3", "factor": 8}})", "llama3 has no low_freq_factor"},
      {"llama_biases", R"({"sliding_window": 16})", "sliding_window is 16"},
      {"mixtral", R"({"sliding_window": 0})", "sliding_window is 0"},
      {"deepseek_v3", R"({"sliding_window": 16})", "sliding_window is 16"},
      {"deepseek_v3", R"({"num_key_value_heads": 2})", "num_key_value_heads is 2"},
      {"deepseek_v3", R"({"scoring_func": "softmax"})", "scoring_func is \"softmax\""},
      {"deepseek_v2", R"({"topk_method": "noaux_tc"})", "topk_method is \"noaux_tc\""},
      {"deepseek_v3", R"({"n_group": 2, "topk_group": 3})", "topk_group = 3: must be from 1 to n_group (2)"},
      {"deepseek_v3", R"({"n_group": 0})", "n_group = 0: must be above 0"},
      {"deepseek_v2", R"({"topk_group": 0})", "topk_group = 0: must be from 1"},
      {"qwen3", R"({"bos_token_id": "<s>"})", "config.json: bos_token_id = \"<s>\": must be a token id"},
      {"qwen3", R"({"bos_token_id": -1})", "config.json: bos_token_id = -1: must be a token id"},
      {"qwen3", R"({"eos_token_id": [1, 2.5]})", "config.json: eos_token_id = [1,2.5]: must be a token id"},
      {"deepseek_v2", R"({"mlp_bias": true})", "mlp_bias is true"},
      {"deepseek_v2", R"({"moe_layer_freq": 2})", "moe_layer_freq is 2"},
      {"gpt_oss", R"({"attention_bias": false})", "attention_bias is false"},
      {"gpt_oss", R"({"swiglu_alpha": 1.5})", "swiglu_alpha is 1.5"},
      {"gpt_oss", R"({"layer_types": ["chunked_attention", "full_attention"]})", "layer_types"},
      {"gpt_oss", R"({"layer_types": ["full_attention"]})", "layer_types"},
      {"gemma2", R"({"use_bidirectional_attention": true})", "use_bidirectional_attention is true"},
      {"gemma2", R"({"query_pre_attn_scalar": 0})", "query_pre_attn_scalar is 0"},
      {"gemma", R"({"use_bidirectional_attention": true})", "use_bidirectional_attention is true"},
      {"gemma", R"({"hidden_activation": "silu"})", "hidden_activation is \"silu\""},
      {"gemma3", R"({"rope_parameters": {"sliding_attention": {"rope_type": "linear"}}})", "rope_type is \"linear\""},
      {"gemma3", R"({"_sliding_window_pattern": 0})", "_sliding_window_pattern is 0"},
      {"gemma3", R"({"sliding_window_pattern": -1})", "sliding_window_pattern is -1"},
      {"qwen2", R"({"hidden_act": "mish"})", "hidden_act is \"mish\""},
      {"qwen2", R"({"clip_qkv": 8.0, "qk_clip": null, "use_qk_norm": true})",
       "clip_qkv = 8.0, use_qk_norm = true: not supported in model_type qwen2"},
      {"qwen2", R"({"rope_parameters": {"rope_type": "default", "short_factor": [1]}})",
       "short_factor = [1]: not supported in rope_parameters"},
      {"qwen2", R"({"hidden_size": "large"})", "hidden_size is not a whole number: \"large\""},
      {"qwen2", R"({"num_hidden_layers": null})", "num_hidden_layers is missing"},
      {"gemma3", R"({"num_hidden_layers": 100000000000})", "num_hidden_layers is 100000000000"},
      {"gpt_oss", R"({"num_hidden_layers": 1000000000000000000})", "num_hidden_layers is 1000000000000000000"},
      {"deepseek_v2", R"({"num_hidden_layers": 100000000000})", "num_hidden_layers is 100000000000"},
      {"qwen3_moe_unnormalized", R"({"num_hidden_layers": 100000000000})", "num_hidden_layers is 100000000000"},
      {"qwen2", R"({"quantization_config": {"bits": 4}})", "quantization_config"},
      {"qwen2", R"({"dtype": "float8_e4m3fn"})", "dtype is \"float8_e4m3fn\""},
      {"qwen3_moe_unnormalized", R"({"decoder_sparse_step": 0})", "decoder_sparse_step is 0"},
      {"qwen3_moe_unnormalized", R"({"mlp_only_layers": "first"})", "mlp_only_layers"},
      {"smollm3", R"({"no_rope_layers": [1, 1, 1, 2]})", "no_rope_layers"},
      {"smollm3", R"({"no_rope_layers": [1, 0]})", "no_rope_layers"},
      {"llama4_text", R"({"attention_chunk_size": null})", "attention_chunk_size is missing"},
      {"llama4_text",
       R"({"layer_types": ["sliding_attention", "full_attention", "full_attention", "full_attention"]})",
       "chunked_attention and full_attention"},
      {"llama4_text", R"({"num_experts_per_tok": 2})", "num_experts_per_tok is 2"},
      {"llama4_text", R"({"moe_layers": [4]})", "moe_layers is [4]"},
      {"llama4_text", R"({"moe_layers": null, "interleave_moe_layer_step": 0})", "interleave_moe_layer_step is 0"},
      {"llama4_text", R"({"floor_scale": 0})", "floor_scale is 0"},
      {"llama4_text", R"({"attn_scale": -1})", "attn_scale is -1"},
      {"granite", R"({"residual_multiplier": 0})", "residual_multiplier is 0"},
      {"minimax", R"({"layer_types": null, "attn_type_list": [0, 2, 1]})", "attn_type_list is [0,2,1]"},
      {"minimax", R"({"layer_types": ["linear_attention", "sliding_attention", "full_attention"]})", "layer_types"},
      {"minimax", R"({"mlp_alpha_factor": 0})", "mlp_alpha_factor is 0"},
      {"minimax", R"({"full_attn_beta_factor": null, "layernorm_full_attention_beta": -1})",
       "layernorm_full_attention_beta is -1"},
      {"minimax", R"({"block_size": 0})", "block_size is 0"},
      {"minimax", R"({"hidden_act": "gelu"})", "hidden_act is \"gelu\""},
      {"minimax", R"({"postnorm": false})", "postnorm is false"},
      {"minimax", R"({"shared_intermediate_size": 8})", "shared_intermediate_size is 8"},
      {"qwen3_next", R"({"layer_types": ["linear_attention", "full_attention"]})", "layer_types"},
      {"qwen3_next", R"({"layer_types": ["linear_attention", "sliding_attention", "full_attention"]})",
       "layer_types"},
      {"qwen3_5", R"({"full_attention_interval": 0})", "full_attention_interval is 0"},
      {"qwen3_5_moe", R"({"mlp_only_layers": [1]})", "mlp_only_layers = [1]: not supported"},
      {"hunyuan_v1_dense", R"({"rope_parameters": {"rope_type": "dynamic", "factor": 2}})", "alpha is missing"},
      {"starcoder2", R"({"embedding_dropout": 0.5})", "embedding_dropout is 0.5"},
      {"mistral", R"({"layer_types": ["full_attention"]})", "layer_types"},
      {"llama_biases", R"({"rope_parameters": {"rope_type": "yarn", "factor": 2, "llama_4_scaling_beta": 0.1}})",
       "llama_4_scaling_beta = 0.1: not supported in rope_parameters"},
      {"phi3", R"({"rope_parameters": {"rope_type": "longrope", "short_factor": 3}})", "short_factor is 3"},
      {"phi3", R"({"embd_pdrop": 0.5})", "embd_pdrop is 0.5"},
      {"cohere2", R"({"logit_scale": 0})", "logit_scale is 0"},
      {"ernie4_5_moe", R"({"use_bias": true})", "use_bias is true"},
      {"ernie4_5_moe", R"({"moe_norm_min": 0.5})", "moe_norm_min is 0.5"},
      {"nemotron_h", R"({"moe_latent_size": "8"})", "moe_latent_size is not a whole number"},
      {"nemotron_h", R"({"num_nextn_predict_layers": 1})", "num_nextn_predict_layers is 1"},
      {"nemotron_h", R"({"attention_bias": true})", "attention_bias is true"},
      {"nemotron_h", R"({"layers_block_type": ["mlp", "sparse"]})", "layers_block_type"},
      {"nemotron_h", R"({"layers_block_type": null})", "hybrid_override_pattern is missing"},
      {"mamba2", R"({"time_step_limit": [0.0]})", "time_step_limit is [0.0]"},
      {"mamba2", R"({"expand": 3})", "expand is 3"},
      {"mamba2", R"({"hidden_act": "gelu"})", "hidden_act is \"gelu\""},
      {"gpt2_fp16", R"({"embd_pdrop": 0.2})", "embd_pdrop is 0.2"},
      {"gpt2_fp16", R"({"scale_attn_by_inverse_layer_idx": true})", "scale_attn_by_inverse_layer_idx is true"}};
  for (const auto& wrong : kWrong) {
    const std::string error = catch_error([&] { settings_with(wrong.name, Json::parse(wrong.changes)); });
    EXPECT_TRUE(has(error, wrong.says)) << wrong.changes << ": " << error;
  }
  EXPECT_NO_THROW(settings_with("qwen2", {{"sliding_window", 16}})) << "not turned on";
}

TEST(HfConfig, BareInfinityMeansTheNewerForm) {
  EXPECT_EQ(parse_json(R"({"time_step_limit": [0.0, Infinity], "name": "Infinity\" Infinity"})"),
            Json::parse(R"({"time_step_limit": [0.0, {"__float__": "Infinity"}], "name": "Infinity\" Infinity"})"));
  EXPECT_THROW(parse_json("[-Infinity]"), Json::exception);
}

// Settings that no case has; writing and reading them again gives the same settings.
TEST(HfConfig, KeysOfOneSortMeanKeysOfOurs) {
  const struct {
    const char *name, *changes;
    std::vector<std::string> means;
  } kCasesOfKeys[] = {
      {"qwen3", R"({"attention_bias": true})", {"add_qkv_bias=true", "add_attention_output_bias=true"}},
      {"qwen3",
       R"({"rope_parameters": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32}})",
       {"rope_type=yarn", "rotary_scaling_factor=4", "original_max_position_embeddings=32", "beta_fast=32"}},
      {"qwen3",
       R"({"rope_parameters": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}})",
       {"rope_scaling_original_max_position_embeddings=128"}},
      {"qwen3",
       R"({"rope_parameters": {"rope_type": "linear", "factor": 3}})",
       {"rotary_seq_len_interpolation_factor=3"}},
      {"qwen2",
       R"({"use_sliding_window": true, "sliding_window": 16, "layer_types": null, "max_window_layers": 0})",
       {"window_size=15"}},
      {"mixtral", R"({"sliding_window": 16})", {"window_size=15"}},
      {"llama_biases", R"({"mlp_bias": false})", {"add_qkv_bias=true", "add_attention_output_bias=true"}},
      {"llama_biases", R"({"attention_bias": false})", {"add_mlp_bias=true", "add_qkv_bias=false"}},
      {"deepseek_v3", R"({"norm_topk_prob": false})", {"moe_router_topk_normalization=never"}},
      {"deepseek_v3", R"({"attention_bias": true})", {"add_qkv_bias=true", "add_attention_output_bias=true"}},
      {"deepseek_v3", R"({"q_lora_rank": null})", {"q_lora_rank=0"}},
      {"deepseek_v3", R"({"n_shared_experts": null})", {"moe_shared_expert_intermediate_size=0"}},
      {"gpt_oss", R"({"layer_types": null, "sliding_window": 4})", {"window_size=3", "window_attn_skip_freq=[1,0]"}},
      {"gemma",
       R"({"hidden_act": "gelu", "hidden_activation": null})",
       {"activation=gelu_tanh", "add_qkv_bias=false"}},
      {"gemma", R"({"attention_bias": true})", {"add_qkv_bias=true", "add_attention_output_bias=true"}},
      {"gemma2", R"({"attn_logit_softcapping": null})", {"attn_logit_softcapping=0"}},
      {"gemma3",
       R"({"layer_types": null, "_sliding_window_pattern": 2})",
       {"window_size=7", "window_attn_skip_freq=[1,0,1]", "rotary_base_local=10000"}},
      {"gemma3",
       R"({"layer_types": null, "_sliding_window_pattern": null, "num_hidden_layers": 7})",
       {"window_attn_skip_freq=[1,1,1,1,1,0,1]"}},
      {"gemma3",
       R"({"rope_parameters": {"full_attention": {"rope_theta": 5000}, "sliding_attention": {"rope_theta": 777}}})",
       {"rotary_base=5000", "rotary_base_local=777"}},
      {"mixtral", R"({"router_jitter_noise": 0.125})", {"moe_input_jitter_eps=0.125"}},
      {"mixtral",
       R"({"num_experts_per_tok": 1})",
       {"moe_router_score_function=sigmoid", "moe_router_topk_normalization=always"}},
      {"qwen2_moe",
       R"({"num_experts_per_tok": 1, "norm_topk_prob": true})",
       {"moe_router_topk=1", "moe_router_score_function=sigmoid"}},
      {"smollm3", R"({"no_rope_layers": null, "no_rope_layer_interval": 2})", {"no_rope_freq=[0,1,0,1]"}},
      {"smollm3",
       R"({"no_rope_layers": [0, 1, 1, 1], "use_sliding_window": true, "sliding_window": 9, "layer_types": null})",
       {"no_rope_freq=[1,0,0,0]", "window_size=8", "window_attn_skip_freq=[1,0,0,0]"}},
      {"smollm3", R"({"no_rope_layers": [1, 1, 1, 1]})", {"no_rope_freq="}},
      {"llama4_text",
       R"({"no_rope_layers": [], "layer_types": null, "moe_layers": null, "interleave_moe_layer_step": 2})",
       {"no_rope_freq=[0,0,0,1]", "window_attn_skip_freq=[1,1,1,0]", "moe_layer_freq=[0,1,0,1]", "qk_l2_norm=true"}},
      {"llama4_text",
       R"({"attn_temperature_tuning": 4, "for_llm_compressor": false})",
       {"query_scaling_beta=0.3", "query_scaling_floor=5"}},
      {"llama4_text",
       R"({"attn_temperature_tuning": false, "use_qk_norm": false, "attention_bias": true})",
       {"qk_l2_norm=false", "query_scaling_floor=", "add_attention_output_bias=true"}},
      {"llama4_text",
       R"({"no_rope_layers": [1, 1, 1, 1], "layer_types": null})",
       {"no_rope_freq=", "window_attn_skip_freq=", "query_scaling_beta=", "attention_chunk_size=7"}},
      {"llama4_text", R"({"moe_layers": [1]})", {"moe_layer_freq=[0,1,0,0]", "ffn_hidden_size=48"}},
      {"olmo3",
       R"({"layer_types": null, "rope_parameters": {"full_attention":
           {"rope_type": "yarn", "factor": 8, "rope_theta": 5000, "original_max_position_embeddings": 16}}})",
       {"window_attn_skip_freq=[1,1,1,0]", "rotary_base=5000", "rotary_base_local=5e+05", "rope_type=yarn"}},
      {"minimax_m2",
       R"({"rope_parameters": {"rope_theta": 100}, "rotary_dim": 4})",
       {"rotary_percent=0.3333333333333333"}},
      {"minimax",
       R"({"layer_types": null, "linear_attn_alpha_factor": 2, "linear_attn_beta_factor": 3, "mlp_alpha_factor": 4,
           "mlp_beta_factor": 5, "full_attn_alpha_factor": 6, "full_attn_beta_factor": 7})",
       {"linear_attention_freq=[0,1,0]", "residual_stream_multiplier_linear=2", "residual_multiplier_linear=3",
        "residual_stream_multiplier_mlp=4", "residual_multiplier_mlp=5", "residual_stream_multiplier=6",
        "residual_multiplier=7", "apply_residual_connection_post_layernorm=true", "lightning_chunk_size=8"}},
      // The keys of MiniMaxAI's own files.
      {"minimax",
       R"({"model_type": "minimax_m1", "layer_types": null, "attn_type_list": [0, 1, 0], "block_size": null,
           "full_attn_alpha_factor": null, "linear_attn_alpha_factor": null, "mlp_alpha_factor": null,
           "layernorm_full_attention_alpha": 3.5, "layernorm_full_attention_beta": 1.0,
           "layernorm_linear_attention_alpha": 2.5, "layernorm_linear_attention_beta": 1.0,
           "layernorm_mlp_alpha": 1.5, "layernorm_mlp_beta": 1.0, "postnorm": true, "rotary_dim": 4,
           "shared_intermediate_size": 0, "shared_moe_mode": "sigmoid"})",
       {"linear_attention_freq=[1,0,1]", "residual_stream_multiplier=3.5", "residual_stream_multiplier_linear=2.5",
        "residual_stream_multiplier_mlp=1.5", "rotary_percent=0.5", "lightning_chunk_size=256",
        "hf_model_type=minimax"}},
      {"minimax",
       R"({"layer_types": ["full_attention", "full_attention", "full_attention"], "hidden_act": "gelu"})",
       {"linear_attention_freq=", "experimental_attention_variant=", "residual_multiplier_linear="}},
      {"qwen3_next",
       R"({"layer_types": null, "full_attention_interval": 2, "norm_topk_prob": false})",
       {"linear_attention_freq=[1,0,1]", "moe_router_pre_softmax=true"}},
      {"qwen3_next", R"({"mlp_only_layers": [0, 2]})", {"moe_layer_freq=[0,1,0]"}},
      {"qwen3_next", R"({"rope_parameters": {"rope_theta": 7}})", {"rotary_percent=0.25", "rotary_base=7"}},
      {"qwen3_5", R"({"attention_bias": true})", {"add_qkv_bias=true", "add_attention_output_bias=true"}},
      {"qwen3_5",
       R"({"layer_types": ["full_attention", "full_attention", "full_attention", "full_attention"],
           "rope_parameters": {"partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2], "mrope_interleaved": true}})",
       {"attention_output_gate=true", "rotary_percent=0.5"}},
      {"qwen3_5_moe", R"({"num_experts_per_tok": 1})", {"moe_router_topk_normalization=always"}},
      {"mistral", R"({"sliding_window": null})", {"num_query_groups=2"}},
      {"ministral3",
       R"({"rope_parameters": null})",
       {"query_scaling_beta=0.1", "rotary_base=1e+06", "original_max_position_embeddings=16384"}},
      {"phi3",
       R"({"rope_parameters": {"rope_type": "su", "short_factor": [1, 2, 3, 4], "long_factor": [5, 6, 7, 8]},
                   "rope_scaling": null})",
       {"rope_type=longrope", "longrope_short_factor=1,2,3,4", "rotary_scaling_factor=4"}},
      {"phi3", R"({"rope_parameters": null, "sliding_window": 5})", {"rope_type=rope", "window_size=4"}},
      {"ernie4_5_moe",
       R"({"moe_layer_interval": 2, "num_hidden_layers": 6, "moe_layer_end_index": -1})",
       {"moe_layer_freq=[0,1,0,1,0,1]"}},
      {"cohere2",
       R"({"layer_types": null, "sliding_window_pattern": 2})",
       {"no_rope_freq=[0,1,0,1]", "window_attn_skip_freq=[1,0,1,0]"}},
      {"ernie4_5_moe", R"({"moe_num_shared_experts": 0})", {"moe_shared_expert_intermediate_size=0"}},
      {"qwen2_moe",
       R"({"use_sliding_window": true, "sliding_window": 16, "layer_types": null, "max_window_layers": 1})",
       {"window_size=15", "window_attn_skip_freq=[1,0,0]"}},
      {"glm4_moe",
       R"({"use_qk_norm": false, "norm_topk_prob": false})",
       {"qk_layernorm=false", "moe_router_topk_normalization=never"}},
      {"starcoder2", R"({"use_bias": false, "sliding_window": 4})", {"add_mlp_bias=false", "window_size=3"}},
      {"nemotron_h",
       R"({"layers_block_type": null, "hybrid_override_pattern": "ME*-M"})",
       {"hybrid_layer_pattern=ME*-M", "num_layers=5"}},
      {"nemotron_h",
       R"({"layers_block_type": ["attention", "mamba", "mlp"], "mlp_bias": true})",
       {"hybrid_layer_pattern=*M-", "num_layers=3", "add_mlp_bias=true"}},
      {"mamba2",
       R"({"time_step_limit": [0.25, 3.5], "n_groups": 4, "use_bias": true, "use_conv_bias": false})",
       {"mamba_dt_min=0.25", "mamba_dt_max=3.5", "mamba_num_groups=4", "mamba_proj_bias=true",
        "mamba_conv_bias=false"}},
      {"gpt2", R"({"n_inner": 96})", {"ffn_hidden_size=96"}},
      {"gpt2", R"({"initializer_range": 0.006})", {"init_method_std=0.006"}},
      {"deepseek_v3", R"({"initializer_range": 0.006})", {"init_method_std=0.006"}},
      {"llama_biases", R"({"attention_dropout": 0.25})", {"attention_dropout=0.25"}},
      {"qwen3",
       R"({"rope_parameters": {"rope_type": "yarn", "factor": 4, "attention_factor": 1.5}})",
       {"yarn_attention_factor=1.5", "beta_fast=32", "beta_slow=1", "yarn_correction_range_round_to_int=true"}},
      {"qwen3",
       R"({"rope_parameters": {"rope_type": "yarn", "factor": 4, "mscale_all_dim": 1}})",
       {"yarn_attention_factor=1.138629436111989", "mscale=1", "mscale_all_dim=1"}},
      {"qwen2",
       R"({"use_sliding_window": true, "sliding_window": 16, "layer_types": null, "max_window_layers": null,
           "num_hidden_layers": 29})",
       {"window_size=15", "window_attn_skip_freq=[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1]"}}};
  for (const auto& given : kCasesOfKeys) {
    const std::vector<std::string> settings = settings_with(given.name, Json::parse(given.changes));
    for (const std::string& wanted : given.means) {
      if (wanted.ends_with("=")) {
        const auto named = [&](const std::string& setting) { return setting.starts_with("model." + wanted); };
        EXPECT_EQ(std::find_if(settings.begin(), settings.end(), named), settings.end()) << wanted;
        continue;
      }
      EXPECT_NE(std::find(settings.begin(), settings.end(), "model." + wanted), settings.end())
          << given.name << " " << given.changes << ": " << wanted;
    }
    std::vector<std::string> of_model;
    for (const std::string& setting : settings)
      if (setting.starts_with("model.")) of_model.push_back(setting);
    const config::Model model = config::resolved(config::load("", of_model), 1).model;
    const Family& family = family_for(model);
    const config::Model again =
        config::resolved(config::load("", read_config(family, family.config(model))), 1).model;
    config::Config one, two;
    one.model = model, two.model = again;
    one.model.family = two.model.family = "gpt";
    one.model.moe_layer_freq = two.model.moe_layer_freq = "1";
    // Family::config has no token ids.
    one.model.special_token_ids.clear();
    one.model.generation_config.clear();
    one.model.hf_model_type.clear();
    EXPECT_EQ(config::differences(one, two), std::vector<std::string>{}) << given.name << " " << given.changes;
  }
}

TEST(HfConfig, SequencesAreAtMostTheDefaultLength) {
  for (const int64_t positions : {40, 131072}) {
    const auto settings = settings_with("qwen3", {{"max_position_embeddings", positions}});
    const int64_t length = std::min(positions, config::Train().seq_length);
    EXPECT_EQ(std::count(settings.begin(), settings.end(), base::concat("train.seq_length=", length)), 1)
        << positions;
  }
}

// At either location, in families that read it.
TEST(HfConfig, PartialRotaryFactorIsReadInTheConfigAndInItsRope) {
  for (const char* changes : {R"({"partial_rotary_factor": 0.25, "rope_parameters": {"rope_theta": 1e4}})",
                              R"({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}})"}) {
    const std::vector<std::string> settings = settings_with("glm4", Json::parse(changes));
    EXPECT_EQ(std::count(settings.begin(), settings.end(), "model.rotary_percent=0.25"), 1) << changes;
    EXPECT_TRUE(
        has(catch_error([&] { settings_with("qwen3", Json::parse(changes)); }), "partial_rotary_factor is 0.25"))
        << changes;
  }
}

TEST(HfConfig, OlderSpellingsMeanTheSame) {
  int64_t compared = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::kHfCases)) {
    if (!entry.is_directory()) continue;
    const Json expected = Json::parse(disk.read(entry.path().string() + "/expected.json"));
    if (!expected.contains("config_older_spelling")) continue;
    const test::Folder folder;
    std::ofstream(folder.at("config.json")) << expected.at("config_older_spelling");
    std::filesystem::copy(entry.path() / "generation_config.json", folder.at("generation_config.json"));
    std::vector<std::string> settings = read_settings(disk, entry.path().string());
    std::erase(settings, "model.moe_router_weight_in_fp32=true");  // from the weights
    EXPECT_EQ(read_settings(disk, folder.path()), settings) << entry.path();
    ++compared;
  }
  EXPECT_GE(compared, 16);
}

TEST(HfConfig, WhatIsNoDirectoryOrNoJsonIsNamed) {
  const test::Folder folder;
  EXPECT_TRUE(has(catch_error([&] { read_settings(disk, folder.path()); }), "config.json' is missing"));
  for (const char* text : {"", "{", "[]", "{\"model_type\": 3}", "\xff\xfe"}) {
    std::ofstream(folder.at("config.json")) << text;
    EXPECT_TRUE(has(catch_error([&] { read_settings(disk, folder.path()); }), "config.json")) << text;
  }
}

TEST(HfSource, ShardsThatAreMissingOrTornAreNamed) {
  const std::string from = test::kHfCases + "llama_sharded";
  const config::Model model = test::read_hf_model(from);
  std::string shard;
  for (const std::string& name : disk.list(from)) shard = name.ends_with(".safetensors") ? name : shard;
  const test::Folder folder;
  std::filesystem::copy(from, folder.at("d"));
  std::filesystem::permissions(folder.at("d"), std::filesystem::perms::owner_all);
  std::ofstream(folder.at("d/model.safetensors")) << "torn";  // precedes the shards
  EXPECT_TRUE(has(catch_error([&] { Source(disk, folder.at("d"), model); }), "d/model.safetensors'"));
  std::filesystem::remove(folder.at("d/model.safetensors"));
  EXPECT_NO_THROW(Source(disk, folder.at("d"), model));
  std::filesystem::remove(folder.at("d/" + shard));
  EXPECT_TRUE(has(catch_error([&] { Source(disk, folder.at("d"), model); }), shard + "' is missing"));
  std::ofstream(folder.at("d/" + shard)) << "torn";
  EXPECT_TRUE(has(catch_error([&] { Source(disk, folder.at("d"), model); }), shard));
  std::ofstream(folder.at("d/model.safetensors.index.json")) << R"({"weight_map": {"a": "../b"}})";
  EXPECT_TRUE(
      has(catch_error([&] { Source(disk, folder.at("d"), model); }), "must name a file in the directory for a"));
  std::ofstream(folder.at("d/model.safetensors.index.json")) << "{}";
  EXPECT_TRUE(has(catch_error([&] { Source(disk, folder.at("d"), model); }), "has no weight_map"));
}

TEST(HfFamily, ConfigOfAModelMeansTheModel) {
  for (const auto& entry : std::filesystem::directory_iterator(test::kHfCases)) {
    if (!entry.is_directory()) continue;
    const config::Model model = test::read_hf_model(entry.path().string());
    const Family& family = family_for(model);
    Json json = family.config(model);
    json["model_type"] = family.model_type;
    const config::Model again = config::resolved(config::load("", read_config(family, json)), 1).model;
    config::Config one, two;
    one.model = model, two.model = again;
    // A family of ours with other presets is the same decoder; a pattern of layers has several spellings.
    one.model.family = two.model.family = "gpt";
    one.model.moe_layer_freq = two.model.moe_layer_freq = "1";
    // Family::config has no token ids, no dtype, and for many families no dropout of the residual stream.
    one.model.moe_router_weight_in_fp32 = false;
    one.model.special_token_ids.clear();
    one.model.generation_config.clear();
    one.model.hf_model_type.clear();
    if (!json.contains("residual_dropout") && !json.contains("resid_pdrop"))
      two.model.hidden_dropout = one.model.hidden_dropout;
    EXPECT_EQ(config::differences(one, two), std::vector<std::string>{}) << entry.path();
  }
}

TEST(HfFamily, OfOurModelsIsFoundAndWhatIsNoneIsRefused) {
  const auto family = [](const std::vector<std::string>& settings) {
    return std::string(family_for(config::load("", settings).model).model_type);
  };
  EXPECT_EQ(family({"model.family=llama"}), "llama");
  EXPECT_EQ(family({"model.family=llama", "model.add_qkv_bias=true"}), "qwen2");
  EXPECT_EQ(family({"model.family=llama", "model.qk_layernorm=true"}), "qwen3");
  EXPECT_EQ(family({"model.family=llama", "model.window_size=4"}), "mistral");
  EXPECT_EQ(family({"model.family=llama", "model.rotary_interleaved=true"}), "ernie4_5");
  EXPECT_EQ(family({"model.normalization=RMSNorm", "model.position_embedding_type=rope",
                    "model.add_bias_linear=false", "model.activation=squared_relu"}),
            "arcee");
  EXPECT_EQ(family({"model.family=llama", "model.softmax_scale=0.3"}), "granite");
  EXPECT_EQ(family({"model.family=llama", "model.no_rope_freq=2"}), "smollm3");
  EXPECT_EQ(family({"model.family=llama", "model.rotary_interleaved=true", "model.qk_l2_norm=true"}), "llama4_text");
  EXPECT_EQ(family({"model.family=mixtral"}), "mixtral");
  EXPECT_EQ(family({"model.family=qwen3_moe"}), "qwen3_moe");
  EXPECT_EQ(family({"model.family=gpt"}), "gpt2");
  EXPECT_EQ(family({"model.family=llama", "model.hf_model_type=phi3"}), "phi3");
  EXPECT_EQ(family({"model.family=llama", "model.hf_model_type=qwen2"}), "llama") << "cannot represent it";
  EXPECT_THROW(family({"model.family=gpt", "model.normalization=RMSNorm"}), base::Error);
  for (const char* other :
       {"softmax_type=learnable", "attn_logit_softcapping=5", "final_logit_softcapping=5", "scale_embeddings=true",
        "apply_layernorm_1p=true", "sandwich_norm=true", "activation_func_clamp_value=7", "attention_chunk_size=4"})
    EXPECT_THROW(family({"model.family=llama", std::string("model.") + other}), base::Error) << other;
  EXPECT_EQ(family({"model.family=llama", "model.add_mlp_bias=true"}), "llama");
  const std::vector<std::string> latent = {"model.family=llama", "model.multi_latent_attention=true",
                                           "model.qk_layernorm=true", "model.latent_layernorm_epsilon=1e-6",
                                           "model.rope_type=rope"};
  std::vector<std::string> scaled = latent;
  scaled.insert(scaled.end(), {"model.mscale_all_dim=1", "model.rotary_scaling_factor=4"});
  EXPECT_NO_THROW(family(latent));
  EXPECT_THROW(family(scaled), base::Error);
  EXPECT_THROW(family({"model.family=mixtral", "model.moe_shared_expert_intermediate_size=8"}), base::Error);
  const std::string error = catch_error([&] { family({"model.family=mixtral", "model.moe_latent_size=8"}); });
  EXPECT_TRUE(has(error, "no supported transformers family")) << error;
}

}  // namespace
}  // namespace metroplex::hf::directory_test
