#include "mcore/source.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "config/load.h"
#include "config/validate.h"
#include "files/memory_file_system.h"
#include "files/safetensors.h"
#include "mcore/settings.h"
#include "mcore/shards.h"
#include "mcore/write_metadata.h"
#include "support/error_of.h"

namespace metroplex::mcore::source_test {
namespace {

using checkpoint::Dims;
using files::join_path;

const std::string kVectors = std::string(METROPLEX_SOURCE_DIR) + "/tests/vectors/megatron_checkpoints";

// Case and model. Every layout of a model has the weights of its single rank (weights.safetensors).
struct Case {
  const char *name, *model;
};
constexpr Case kCases[] = {
    {"gpt_dist", "gpt"},
    {"gpt_legacy", "gpt"},
    {"gpt_legacy_tp2", "gpt"},
    {"llama_dist", "llama"},
    {"llama_dist_tp2_pp2", "llama"},
    {"llama_dcp_dp2", "llama"},
    {"llama_legacy_tp2_pp2", "llama"},
    {"llama_legacy_pp2_vpp2", "llama"},
    {"moe_dist_ep2", "moe"},
    {"moe_legacy_ep2", "moe"},
    {"moe_dist_single", "moe"},
    {"latent_dist_tp2", "latent"},
    {"latent_legacy_tp2", "latent"},
    {"trained_dist", "trained"},
    {"trained_dist_dp2", "trained"},
    {"adam_legacy_tp2_pp2", "adam"},
    {"adam_legacy_tp2_dp2", "adam"},
    {"adam_legacy_pp2_dp2", "adam"},
    {"adam_buckets_tp2_pp2", "adam"},
    {"adam_buckets_dp2", "adam"},
    {"adam_fsdp_dp2", "adam"},
    {"adam_space_tp2_dp2", "adam"},
    {"adam_space_pp2", "adam"},
    {"adam_moe_space_ep2_dp2", "adam_moe"},
    {"adam_moe_buckets_ep2", "adam_moe"},
    {"adam_moe_legacy_ep2", "adam_moe"},
    {"adam_moe_legacy_ep2_dp2", "adam_moe"},
};

bool is_trained(const Case& test) {
  return test.model == std::string("trained") || std::string(test.model).starts_with("adam");
}

files::PosixFileSystem disk;

std::string find(const Case& test) { return find_directory(disk, join_path(kVectors, test.name), 0); }

config::Config read_config(const std::string& directory) {
  return config::resolved(config::load("", read_settings(read_contents(disk, directory), directory)), 1);
}

// Returns the recorded bytes of one of our tensors. Megatron names each expert.
std::string recorded_bytes(const files::SafetensorsFile& file, const std::string& name) {
  const auto bytes = [&](const std::string& stored) {
    const files::TensorInfo* const info = file.find(stored);
    return info == nullptr ? ""
                           : std::string(reinterpret_cast<const char*>(file.data(*info)), info->end - info->begin);
  };
  const size_t at = name.find(".experts.linear_fc");
  if (at == std::string::npos) return bytes(name);
  std::string all;
  for (int expert = 0; expert < 4; ++expert) {
    const std::string stored =
        base::concat(name.substr(0, at), ".experts.local_experts.", expert, name.substr(at + 8));
    all += bytes(stored);
  }
  return all;
}

std::string read_whole(Source& source, const files::TensorForm& form) {
  std::string bytes(static_cast<size_t>(checkpoint::whole_piece(form.shape).count()) *
                        static_cast<size_t>(files::dtype_bits(form.dtype)) / 8,
                    '\0');
  source.fill({form.name, form.kind, form.shape, Dims(form.shape.size(), 0), form.shape, form.dtype, bytes.data()});
  return bytes;
}

// Calls `check` for every recorded case.
template <class Check>
void each_case(const Check& check) {
  for (const Case& test : kCases) {
    SCOPED_TRACE(test.name);
    check(test);
  }
}

void expect_recorded_tensors(const Case& test) {
  const std::string directory = find(test), path = join_path(join_path(kVectors, test.model), "weights.safetensors");
  Source source(disk, directory, read_config(directory).model);
  const files::SafetensorsFile file(disk.map(path), path);
  size_t compared = 0, recorded = 0;
  for (const files::TensorForm& form : source.tensors()) {
    const bool is_state = form.kind != "weight" && form.kind != "buffer";
    // fsdp_dtensor has the main parameters as weights.
    const bool is_main = form.kind == "weight" && form.dtype == files::Dtype::kF32 && file.find("main/" + form.name);
    const std::string expected = recorded_bytes(file, (is_main    ? "main/"
                                                       : is_state ? form.kind + "/"
                                                                  : "") +
                                                          form.name);
    ASSERT_FALSE(expected.empty()) << form.name;
    EXPECT_TRUE(read_whole(source, form) == expected) << form.name;
    compared += is_main ? expected.size() / 2 : expected.size();  // the recorded weights have 2 bytes
  }
  for (const files::TensorInfo& info : file.tensors()) {
    const bool is_statistic = info.name.ends_with("tokens_per_expert") || info.name.ends_with("inv_freq");
    recorded += is_statistic ? 0 : info.end - info.begin;
  }
  EXPECT_EQ(compared, recorded);
}

// A region that crosses the borders of chunks, and begins and ends within rows.
void expect_regions(const Case& test) {
  const std::string directory = find(test);
  Source source(disk, directory, read_config(directory).model);
  for (const files::TensorForm& form : source.tensors()) {
    const int64_t count = checkpoint::whole_piece(form.shape).count(), begin = count / 3, end = count - count / 5;
    const std::string whole = read_whole(source, form);
    const auto width = static_cast<size_t>(files::dtype_bits(form.dtype)) / 8;
    std::string part(static_cast<size_t>(end - begin) * width, '\0');
    source.fill({form.name, form.kind, form.shape, Dims(form.shape.size(), 0), form.shape, form.dtype, part.data(),
                 begin, end});
    EXPECT_TRUE(part == whole.substr(static_cast<size_t>(begin) * width, part.size())) << form.name;
  }
}

void expect_complete(const Case& test) {
  const std::string directory = find(test);
  const Contents contents = read_contents(disk, directory);
  verify_contents(disk, directory, contents);
  EXPECT_EQ(contents.iteration, 7);
  EXPECT_EQ(consumed_samples(contents), 28);
  EXPECT_EQ(contents.optimizer_steps, is_trained(test) ? 2 : 0);
  EXPECT_EQ(contents.state_problem, "");
  const bool has_schedule = std::string(test.model).starts_with("adam") || test.name == std::string("llama_dcp_dp2");
  EXPECT_EQ(contents.scheduled_samples, has_schedule ? 24 : -1);
  const std::string name = test.name;
  const auto has = [&](const char* word) { return name.find(word) != std::string::npos; };
  EXPECT_EQ(contents.format, has("legacy") ? "torch" : has("dcp") || has("fsdp") ? "torch_dcp" : "torch_dist");
}

TEST(MegatronLayouts, HaveTheRecordedTensors) { each_case(expect_recorded_tensors); }
TEST(MegatronLayouts, ProvideRegions) { each_case(expect_regions); }
TEST(MegatronLayouts, AreComplete) { each_case(expect_complete); }

TEST(MegatronBuckets, SeparateTiedEmbeddings) {
  const Shard norm{"decoder.final_layernorm.weight", files::Dtype::kBF16, {16}};
  const Shard head{"output_layer.weight", files::Dtype::kBF16, {42, 16}};
  const std::vector<const Shard*> last{&norm, &head}, first{&head, &norm};
  const auto sizes = [](const std::vector<const Shard*>& shards, int64_t pp, bool tied) {
    Layout layout;
    layout.pp = pp, layout.tied = tied;
    return place_shards(shards, make_bucket_rule({}, layout, false)).sizes;
  };
  using Sizes = std::vector<int64_t>;
  EXPECT_EQ(sizes(last, 2, true), (Sizes{672, 16}));
  EXPECT_EQ(sizes(first, 2, true), (Sizes{64, 672}));  // up to the beginning of the next parameter
  EXPECT_EQ(sizes(last, 1, true), (Sizes{704 + 16}));
  EXPECT_EQ(sizes(last, 2, false), (Sizes{704 + 16}));
}

TEST(MegatronContents, RejectsItemsOfOtherForms) {
  const std::string directory = find({"gpt_dist", "gpt"});
  const auto error = [&](const auto& change) {
    Contents contents = read_contents(disk, directory);
    StoredTensor& tensor = contents.tensors.at("decoder.final_layernorm.weight");
    change(tensor);
    return test::catch_error([&] { verify_contents(disk, directory, contents); });
  };
  EXPECT_EQ(error([](StoredTensor&) {}), "");
  EXPECT_NE(error([](StoredTensor& tensor) {
              tensor.shape = tensor.chunks[0].size = {8};
            }).find("is F32 [16], but .metadata has F32 [8]"),
            std::string::npos);
  EXPECT_NE(error([](StoredTensor& tensor) {
              tensor.dtype = files::Dtype::kI32;
            }).find("is F32 [16], but .metadata has I32 [16]"),
            std::string::npos);
  EXPECT_NE(error([](StoredTensor& tensor) { tensor.shape = {20}; }), "");
}

// Optimizers of several model chunks store the same tensors, each with other layers.
TEST(MegatronContents, JoinsTensorsOfOptimizers) {
  const std::string recorded = find({"trained_dist", "trained"}), tail = "optimizer.state.exp_avg.decoder.layers.a";
  files::MemoryFileSystem memory;
  memory.make_directories("/c");
  memory.replace_file("/c/common.pt", disk.read(join_path(recorded, "common.pt")));
  const auto read = [&](const std::string& prefix, const std::string& other, const Dims& shape) {
    const Item one{{prefix + tail}, files::Dtype::kF32, {2, 3}, 0, 8},
        two{{other + tail}, files::Dtype::kF32, shape, 8, 8};
    memory.replace_file("/c/.metadata", pickle_items({one, two}));
    return read_contents(memory, "/c").tensors;
  };
  const auto joined = read("chained_0.", "chained_1.", {2, 3});
  const std::vector<Chunk>& chunks = joined.at("exp_avg/decoder.layers.a").chunks;
  ASSERT_EQ(chunks.size(), 2U);
  EXPECT_EQ(chunks[0].begin, 0U);
  EXPECT_EQ(chunks[1].begin, 8U);
  const std::string problem = "there are two tensors exp_avg/decoder.layers.a";
  for (const Dims& shape : {Dims{2, 4}, Dims{2, 3, 1}}) {
    const std::string error = test::catch_error([&] { read("chained_0.", "chained_1.", shape); });
    EXPECT_NE(error.find(problem), std::string::npos) << error;
  }
  EXPECT_NE(test::catch_error([&] { read("", "model.", {2, 3}); }).find(problem), std::string::npos);
}

TEST(MegatronSettings, DescribeTheModel) {
  const auto gpt = read_config(find({"gpt_dist", "gpt"}));
  EXPECT_EQ(gpt.model.normalization, config::Normalization::LayerNorm);
  EXPECT_EQ(gpt.model.activation, config::Activation::gelu);
  EXPECT_TRUE(gpt.model.tied() && gpt.model.add_bias_linear);
  EXPECT_EQ(gpt.model.vocab_size, 40);
  EXPECT_EQ(gpt.train.seq_length, 16);
  EXPECT_FALSE(gpt.model.rotary_interleaved);
  EXPECT_TRUE(read_config(find({"latent_dist_tp2", "latent"})).model.rotary_interleaved);
  const auto moe = read_config(find({"moe_legacy_ep2", "moe"}));
  EXPECT_EQ(moe.model.num_moe_experts, 4);
  EXPECT_EQ(moe.model.moe_layer_freq, "[0,1]");
  EXPECT_TRUE(moe.model.moe_router_enable_expert_bias);
  EXPECT_EQ(moe.model.moe_shared_expert_intermediate_size, 8);
}

TEST(MegatronSettings, AreRequiredWithoutArgs) {
  const std::string directory = find({"plain_dcp", "llama"});
  const Contents contents = read_contents(disk, directory);
  EXPECT_TRUE(contents.arguments.empty());
  const auto error = [&](const std::string& absent) {
    return test::catch_error(
        [&] { read_settings(contents, directory, [&](const std::string& key) { return key != absent; }); });
  };
  EXPECT_EQ(error(""), "");
  EXPECT_NE(error("model.num_attention_heads").find("has no args, and model.num_attention_heads is not given"),
            std::string::npos);
  EXPECT_NE(test::catch_error([&] { read_settings(contents, directory); }).find("model.num_layers"),
            std::string::npos);
  const config::Model model = read_config(find({"llama_dist", "llama"})).model;
  Source source(disk, directory, model), other(disk, find({"llama_dist", "llama"}), model);
  ASSERT_EQ(source.tensors().size(), other.tensors().size());
  for (size_t i = 0; i < source.tensors().size(); ++i)
    EXPECT_TRUE(read_whole(source, source.tensors()[i]) == read_whole(other, other.tensors()[i]));
}

// The files have the names of Megatron's sharded_state_dict; its modules need CUDA.
void expect_mixers(const std::string& name, const std::vector<std::string>& own) {
  std::vector<std::string> settings{"model.hidden_size=16",
                                    "model.num_attention_heads=4",
                                    "model.num_query_groups=2",
                                    "model.ffn_hidden_size=24",
                                    "model.vocab_size=40",
                                    "model.make_vocab_size_divisible_by=1",
                                    "model.normalization=RMSNorm",
                                    "model.gated_linear_unit=true",
                                    "model.add_bias_linear=false",
                                    "model.position_embedding_type=rope",
                                    "model.untie_embeddings_and_output_weights=true"};
  settings.insert(settings.end(), own.begin(), own.end());
  const config::Model model = config::resolved(config::load("", settings), 1).model;
  const std::string path = join_path(join_path(kVectors, name), "weights.safetensors"),
                    directory = find_directory(disk, join_path(kVectors, name + "_dcp_without_args"), 0);
  Source source(disk, directory, model);
  const files::SafetensorsFile file(disk.map(path), path);
  EXPECT_EQ(source.tensors().size(), file.tensors().size());
  for (const files::TensorForm& form : source.tensors())
    EXPECT_TRUE(read_whole(source, form) == recorded_bytes(file, form.name)) << form.name;
  verify_contents(disk, directory, read_contents(disk, directory));
}

TEST(MegatronMixers, HaveTheRecordedTensors) {
  expect_mixers("mamba", {"model.num_layers=4", "model.hybrid_layer_pattern=M*-M", "model.mamba_num_heads=4",
                          "model.mamba_head_dim=8", "model.mamba_num_groups=2", "model.mamba_state_dim=4"});
  expect_mixers("delta_net",
                {"model.num_layers=2", "model.experimental_attention_variant=gated_delta_net",
                 "model.linear_attention_freq=[1,0]", "model.linear_num_key_heads=2", "model.linear_key_head_dim=8",
                 "model.linear_num_value_heads=4", "model.linear_value_head_dim=8"});
}

TEST(MegatronSource, ListsEveryProblem) {
  const std::string directory = find({"llama_dist", "llama"});
  config::Model model = read_config(directory).model;
  model.ffn_hidden_size = 32;
  model.add_qkv_bias = false;
  const std::string error = test::catch_error([&] { Source(disk, directory, model); });
  EXPECT_NE(error.find("decoder.layers.0.mlp.linear_fc1.weight has shape [48, 16]"), std::string::npos) << error;
  EXPECT_NE(error.find("decoder.layers.0.self_attention.linear_qkv.bias does not belong"), std::string::npos)
      << error;
}

TEST(MegatronSource, DropsRowsOfPadding) {
  const std::string directory = find({"llama_dist", "llama"});
  config::Model model = read_config(directory).model;
  model.vocab_size = 37;
  Source source(disk, directory, model);
  const files::TensorForm& form = source.tensors().front();
  EXPECT_EQ(form.shape, (Dims{37, 16}));
  EXPECT_EQ(read_whole(source, form).size(), 37U * 16 * 4);
  model.vocab_size = 41;
  EXPECT_THROW(Source(disk, directory, model), base::Error);
}

TEST(MegatronFlatState, DropsRowsOfPadding) {
  const std::string directory = find({"adam_space_tp2_dp2", "adam"});
  config::Model model = read_config(directory).model;
  Source whole(disk, directory, model);
  model.vocab_size = 37;
  Source source(disk, directory, model);
  for (const char* kind : kStateKinds) {
    const files::TensorForm* const form = source.find(kEmbedding, kind);
    ASSERT_NE(form, nullptr);
    EXPECT_EQ(read_whole(source, *form), read_whole(whole, *whole.find(kEmbedding, kind)).substr(0, 37UL * 16 * 4));
  }
}

}  // namespace
}  // namespace metroplex::mcore::source_test
