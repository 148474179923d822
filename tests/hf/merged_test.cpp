// Weights merged with their adapters, read in any region, against plain loops over integers, which are exact.
#include "hf/merged.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>

#include "checkpoint/save.h"
#include "config/load.h"
#include "hf/directory.h"
#include "files/memory_file_system.h"
#include "files/safetensors.h"

namespace metroplex::hf::merged_test {
namespace {

constexpr int64_t kRank = 2, kHidden = 8, kGroups = 2, kGroupRows = 8, kQueryRows = 4;  // of a group: q, q, k, v

config::Config config_with_adapters() {
  return config::load("", {"model.family=llama", "model.num_layers=1", "model.hidden_size=8",
                           "model.num_attention_heads=4", "model.num_query_groups=2", "model.ffn_hidden_size=8",
                           "model.vocab_size=8", "peft.lora_rank=2", "peft.lora_alpha=6"});
}

struct Tensor {
  std::string name;
  int64_t rows, columns;
  std::vector<float> values;
  float at(int64_t row, int64_t column) const { return values[static_cast<size_t>(row * columns + column)]; }
};

Tensor tensor(const std::string& name, int64_t rows, int64_t columns, std::mt19937& random) {
  Tensor made{name, rows, columns, {}};
  for (int64_t i = 0; i < rows * columns; ++i) made.values.push_back(static_cast<float>(random() % 17) - 8);
  return made;
}

// Fills random regions of `weight` and compares each element with W + 3 B A; `row_of_b` is -1 outside the adapter.
void expect_merged(MergedWeights& merged, const Tensor& weight, const Tensor& a, const Tensor& b,
                   const std::function<int64_t(int64_t)>& row_of_b) {
  std::mt19937 random(5);
  const auto draw = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
  };
  for (int turn = 0; turn < 100; ++turn) {
    const int64_t row = draw(0, weight.rows - 1), rows = draw(1, weight.rows - row);
    const int64_t column = draw(0, weight.columns - 1), columns = draw(1, weight.columns - column);
    const int64_t begin = draw(0, rows * columns - 1), end = draw(begin + 1, rows * columns);
    std::vector<float> found(static_cast<size_t>(end - begin));
    merged.fill({weight.name,
                 "weight",
                 {weight.rows, weight.columns},
                 {row, column},
                 {rows, columns},
                 files::Dtype::kF32,
                 found.data(),
                 begin,
                 end});
    for (int64_t i = begin; i < end; ++i) {
      const int64_t r = row + i / columns, c = column + i % columns, of_b = row_of_b(r);
      float expected = weight.at(r, c);
      for (int64_t k = 0; of_b >= 0 && k < kRank; ++k) expected += 3 * b.at(of_b, k) * a.at(k, c);
      ASSERT_EQ(found[static_cast<size_t>(i - begin)], expected) << weight.name << " row " << r << " column " << c;
    }
  }
}

std::string saved(files::FileSystem& disk, const std::vector<const Tensor*>& tensors, const std::string& yaml = "") {
  std::vector<checkpoint::LocalPiece> pieces;
  for (const Tensor* each : tensors) {
    const std::vector<int64_t> shape{each->rows, each->columns};
    pieces.push_back({each->name, "weight", shape, {0, 0}, shape, files::Dtype::kF32, each->values.data()});
  }
  checkpoint::Alone alone;
  const auto all = [&] { return pieces; };
  const auto result = checkpoint::save(disk, "/run", {.iteration = 1, .config_yaml = yaml}, all, alone);
  EXPECT_EQ(result.error, "");
  return result.directory;
}

TEST(Merged, AnyRegionHoldsTheWeightAndItsAdapters) {
  std::mt19937 random(3);
  const std::string attention = "decoder.layers.0.self_attention.";
  const Tensor qkv = tensor(attention + "linear_qkv.weight", kGroups * kGroupRows, kHidden, random),
               proj = tensor(attention + "linear_proj.weight", kHidden, kHidden, random),
               qa = tensor(attention + "q_proj.lora_A.weight", kRank, kHidden, random),
               qb = tensor(attention + "q_proj.lora_B.weight", kGroups * kQueryRows, kRank, random),
               oa = tensor(attention + "o_proj.lora_A.weight", kRank, kHidden, random),
               ob = tensor(attention + "o_proj.lora_B.weight", kHidden, kRank, random);
  files::MemoryFileSystem disk;
  checkpoint::Reader run(disk, saved(disk, {&qkv, &proj, &qa, &qb, &oa, &ob}));
  MergedWeights merged(run, config_with_adapters());
  expect_merged(merged, proj, oa, ob, [](int64_t row) { return row; });
  expect_merged(merged, qkv, qa, qb, [](int64_t row) {
    const int64_t inside = row % kGroupRows;
    return inside < kQueryRows ? row / kGroupRows * kQueryRows + inside : -1;
  });
}

TEST(Adapters, AreWrittenWithAllTheirSettings) {
  std::mt19937 random(3);
  const std::string attention = "decoder.layers.0.self_attention.";
  const Tensor a = tensor(attention + "o_proj.lora_A.weight", kRank, kHidden, random),
               b = tensor(attention + "o_proj.lora_B.weight", kHidden, kRank, random);
  config::Config config = config_with_adapters();
  config.peft.use_rslora = true, config.peft.lora_dropout = 0.25;
  files::MemoryFileSystem disk;
  checkpoint::Reader run(disk, saved(disk, {&a, &b}, config::dump(config)));
  write_adapters(disk, run, "/out", "/base");
  const Json written = Json::parse(disk.read("/out/adapter_config.json"));
  const Json expected{{"r", 2},
                      {"lora_alpha", 6.0},
                      {"lora_dropout", 0.25},
                      {"use_rslora", true},
                      {"target_modules", Json::array({"o_proj"})},
                      {"base_model_name_or_path", "/base"}};
  for (const auto& [key, value] : expected.items()) EXPECT_EQ(written.value(key, Json()), value) << key;
  EXPECT_EQ(written.at("modules_to_save"), Json());
}

TEST(Adapters, AreWrittenWithTheModulesTrainedNextToThem) {
  std::mt19937 random(3);
  const std::string attention = "decoder.layers.0.self_attention.";
  const Tensor a = tensor(attention + "o_proj.lora_A.weight", kRank, kHidden, random),
               b = tensor(attention + "o_proj.lora_B.weight", kHidden, kRank, random),
               words = tensor("embedding.word_embeddings.weight", 11, kHidden, random),
               head = tensor("output_layer.weight", 11, kHidden, random);
  for (const bool tied : {false, true}) {
    SCOPED_TRACE(tied);
    config::Config config = config_with_adapters();
    config.peft.modules_to_save = {"embed_tokens"};
    if (!tied) config.peft.modules_to_save.push_back("lm_head");
    config.model.untie_embeddings_and_output_weights = !tied;
    std::vector<const Tensor*> all{&a, &b, &words};
    if (!tied) all.push_back(&head);
    files::MemoryFileSystem disk;
    checkpoint::Reader run(disk, saved(disk, all, config::dump(config)));
    write_adapters(disk, run, "/out", "");
    const Json written = Json::parse(disk.read("/out/adapter_config.json"));
    EXPECT_EQ(written.at("modules_to_save"), Json(config.peft.modules_to_save));
    EXPECT_EQ(written.at("ensure_weight_tying"), Json(tied));
    EXPECT_EQ(written.at("target_modules"), Json::array({"o_proj"}));
    const std::string bytes = disk.read("/out/adapter_model.safetensors");
    const files::SafetensorsHeader file = files::parse_safetensors(bytes, "adapter_model.safetensors");
    EXPECT_EQ(file.tensors.size(), 4u);
    const auto expect_tensor = [&](const std::string& name, const Tensor& expected) {
      const auto found = std::find_if(file.tensors.begin(), file.tensors.end(), [&](const files::TensorInfo& info) {
        return info.name == "base_model.model." + name;
      });
      ASSERT_NE(found, file.tensors.end()) << name;
      const std::string_view stored = std::string_view(bytes).substr(file.data_begin + found->begin);
      const size_t size = expected.values.size() * sizeof(float);
      EXPECT_EQ(std::memcmp(stored.data(), expected.values.data(), size), 0) << name;
    };
    expect_tensor("model.embed_tokens.weight", words);
    expect_tensor("lm_head.weight", tied ? words : head);
  }
}

}  // namespace
}  // namespace metroplex::hf::merged_test
