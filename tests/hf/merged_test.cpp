// Weights merged with their adapters, read in any region, against plain loops over integers, which are exact.
#include "hf/merged.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "checkpoint/save.h"
#include "config/load.h"
#include "config/validate.h"
#include "hf/adapters.h"
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
  std::vector<int64_t> shape;  // of `rows` rows
  float at(int64_t row, int64_t column) const { return values[static_cast<size_t>(row * columns + column)]; }
};

Tensor tensor(const std::string& name, int64_t rows, int64_t columns, std::mt19937& random) {
  Tensor made{name, rows, columns, {}, {rows, columns}};
  for (int64_t i = 0; i < rows * columns; ++i) made.values.push_back(static_cast<float>(random() % 17) - 8);
  return made;
}

Tensor stack(const std::string& name, int64_t experts, int64_t rows, int64_t columns, std::mt19937& random) {
  Tensor made = tensor(name, experts * rows, columns, random);
  made.shape = {experts, rows, columns};
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
    const std::vector<int64_t> start(each->shape.size(), 0);
    pieces.push_back(
        {each->name, "weight", each->shape, start, each->shape, files::Dtype::kF32, each->values.data()});
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

std::vector<float> read_whole(checkpoint::TensorSource& source, const Tensor& tensor) {
  std::vector<float> values(tensor.values.size());
  const std::vector<int64_t> start(tensor.shape.size(), 0);
  source.fill({tensor.name, "weight", tensor.shape, start, tensor.shape, files::Dtype::kF32, values.data()});
  return values;
}

constexpr int64_t kExperts = 3, kExpertWidth = 4;

config::Config config_with_experts() {
  return config::load("", {"model.family=mixtral", "model.num_layers=1", "model.hidden_size=8",
                           "model.num_attention_heads=4", "model.num_query_groups=2", "model.ffn_hidden_size=4",
                           "model.num_moe_experts=3", "model.vocab_size=8", "peft.lora_rank=2", "peft.lora_alpha=6",
                           "peft.lora_target_modules=experts.gate_proj,experts.up_proj,experts.down_proj"});
}

// A and B of each of the three layers of routed experts, in this order.
std::vector<Tensor> expert_adapters(std::mt19937& random) {
  const std::string experts = "decoder.layers.0.mlp.experts.";
  std::vector<Tensor> made;
  for (const char* word : {"gate_proj", "up_proj", "down_proj"}) {
    const bool down = word == std::string("down_proj");
    const int64_t in = down ? kExpertWidth : kHidden, out = down ? kHidden : kExpertWidth;
    made.push_back(stack(experts + word + ".lora_A.weight", kExperts, kRank, in, random));
    made.push_back(stack(experts + word + ".lora_B.weight", kExperts, out, kRank, random));
  }
  return made;
}

TEST(Merged, RoutedExpertsHaveTheirOwnAdapters) {
  std::mt19937 random(3);
  const std::string experts = "decoder.layers.0.mlp.experts.";
  const Tensor fc1 = stack(experts + "linear_fc1.weight", kExperts, 2 * kExpertWidth, kHidden, random),
               fc2 = stack(experts + "linear_fc2.weight", kExperts, kHidden, kExpertWidth, random);
  const std::vector<Tensor> adapters = expert_adapters(random);
  std::vector<const Tensor*> all{&fc1, &fc2};
  for (const Tensor& adapter : adapters) all.push_back(&adapter);
  files::MemoryFileSystem disk;
  checkpoint::Reader run(disk, saved(disk, all));
  MergedWeights merged(run, config_with_experts());
  const auto expect = [&](const Tensor& weight, int64_t first_row, const Tensor& lora_a, const Tensor& lora_b) {
    const std::vector<float> found = read_whole(merged, weight);
    for (int64_t row_of_b = 0; row_of_b < lora_b.rows; ++row_of_b) {
      const int64_t expert = row_of_b / lora_b.shape[1];
      const int64_t row = expert * weight.shape[1] + first_row + row_of_b % lora_b.shape[1];
      for (int64_t column = 0; column < weight.columns; ++column) {
        float expected = weight.at(row, column);
        for (int64_t k = 0; k < kRank; ++k)
          expected += 3 * lora_b.at(row_of_b, k) * lora_a.at(expert * kRank + k, column);
        EXPECT_EQ(found[static_cast<size_t>(row * weight.columns + column)], expected)
            << weight.name << " row " << row;
      }
    }
  };
  expect(fc1, 0, adapters[0], adapters[1]);
  expect(fc1, kExpertWidth, adapters[2], adapters[3]);
  expect(fc2, 0, adapters[4], adapters[5]);
}

// q_proj has an adapter, v_proj begins without one. A length is a sum of eight squares in double, rounded once to
// fp32; a scaled element is rounded once.
TEST(Merged, DoraScalesRowsAndBeginsWithTheirLengths) {
  std::mt19937 random(3);
  const std::string attention = "decoder.layers.0.self_attention.";
  const Tensor qkv = tensor(attention + "linear_qkv.weight", kGroups * kGroupRows, kHidden, random),
               lora_a = tensor(attention + "q_proj.lora_A.weight", kRank, kHidden, random),
               lora_b = tensor(attention + "q_proj.lora_B.weight", kGroups * kQueryRows, kRank, random);
  Tensor magnitude = tensor(attention + "q_proj.lora_magnitude_vector", kGroups * kQueryRows, 1, random);
  magnitude.shape = {magnitude.rows};
  config::Config config = config_with_adapters();
  config.peft.use_dora = true, config.peft.lora_target_modules = {"q_proj", "v_proj"};
  const auto unscaled = [&](int64_t query, int64_t column) {
    double sum = qkv.at(query / kQueryRows * kGroupRows + query % kQueryRows, column);
    for (int64_t k = 0; k < kRank; ++k) sum += 3 * lora_b.at(query, k) * lora_a.at(k, column);
    return sum;
  };
  const auto length = [&](const auto& element) {
    double squares = 0;
    for (int64_t column = 0; column < kHidden; ++column) squares += element(column) * element(column);
    return std::sqrt(squares);
  };
  files::MemoryFileSystem disk;
  checkpoint::Reader run(disk, saved(disk, {&qkv, &lora_a, &lora_b, &magnitude}));
  MergedWeights merged(run, config);
  const std::vector<float> found = read_whole(merged, qkv);
  for (int64_t query = 0; query < magnitude.rows; ++query) {
    const double factor = magnitude.at(query, 0) / length([&](int64_t column) { return unscaled(query, column); });
    for (int64_t column = 0; column < kHidden; ++column) {
      const int64_t row = query / kQueryRows * kGroupRows + query % kQueryRows;
      const double expected = factor * unscaled(query, column);
      EXPECT_NEAR(found[static_cast<size_t>(row * kHidden + column)], expected, 0x1p-23 * std::abs(expected)) << row;
    }
  }
  checkpoint::Reader fresh(disk, saved(disk, {&qkv, &lora_a, &lora_b}));
  DoraWeights begun(fresh, config);
  Tensor other = magnitude;
  other.name = attention + "v_proj.lora_magnitude_vector", other.rows = 4, other.shape = {4}, other.values.resize(4);
  const std::vector<float> of_q = read_whole(begun, magnitude), of_v = read_whole(begun, other);
  for (int64_t query = 0; query < magnitude.rows; ++query) {
    const double expected = length([&](int64_t column) { return unscaled(query, column); });
    EXPECT_NEAR(of_q[static_cast<size_t>(query)], expected, 0x1p-23 * expected);
  }
  for (int64_t i = 0; i < 4; ++i) {
    const double expected =
        length([&](int64_t column) -> double { return qkv.at(i / 2 * kGroupRows + 6 + i % 2, column); });
    EXPECT_NEAR(of_v[static_cast<size_t>(i)], expected, 0x1p-23 * expected);
  }
  EXPECT_EQ(begun.find(attention + "k_proj.lora_magnitude_vector", "weight"), nullptr);
}

// Writes the adapters, reads them back over another checkpoint, and compares all values.
void expect_read_back(const config::Config& config, const std::vector<const Tensor*>& adapters,
                      const Settings& settings) {
  files::MemoryFileSystem disk;
  const std::string directory = saved(disk, adapters, config::dump(config));
  checkpoint::Reader run(disk, directory);
  write_adapters(disk, run, "/out", "");
  const config::Model model = config::resolved(config, 1).model;
  const Settings read = read_adapter_settings(disk, "/out", model);
  for (const std::string& setting : settings)
    EXPECT_TRUE(std::find(read.begin(), read.end(), setting) != read.end()) << setting;
  std::mt19937 random(9);
  const Tensor other = tensor("other.weight", 2, 2, random);
  files::MemoryFileSystem base;
  AdaptedWeights weights(disk, "/out", std::make_unique<checkpoint::Reader>(base, saved(base, {&other})), model);
  EXPECT_EQ(read_whole(weights, other), other.values);
  for (const Tensor* adapter : adapters) EXPECT_EQ(read_whole(weights, *adapter), adapter->values) << adapter->name;
}

TEST(Adapters, AreReadAsTheyWereWritten) {
  std::mt19937 random(3);
  const std::vector<Tensor> stacks = expert_adapters(random);
  std::vector<const Tensor*> all;
  for (const Tensor& stack : stacks) all.push_back(&stack);
  expect_read_back(config_with_experts(), all,
                   {"peft.lora_target_modules=experts.down_proj,experts.gate_proj,experts.up_proj"});
  const std::string module = "decoder.layers.0.self_attention.o_proj";
  const Tensor lora_a = tensor(module + ".lora_A.weight", 1, kHidden, random),
               lora_b = tensor(module + ".lora_B.weight", kHidden, 1, random);
  Tensor magnitude = tensor(module + ".lora_magnitude_vector", kHidden, 1, random);
  magnitude.shape = {kHidden};
  config::Config config = config_with_adapters();
  config.peft.use_dora = true, config.peft.lora_target_modules = {"o_proj"};
  config.peft.rank_pattern = {"o_.*=1"}, config.peft.alpha_pattern = {"o_proj=0.5"};
  expect_read_back(config, {&lora_a, &lora_b, &magnitude},
                   {"peft.use_dora=true", "peft.rank_pattern=o_proj=1", "peft.alpha_pattern=o_proj=0.5",
                    "peft.lora_target_modules=o_proj", "peft.lora_rank=2"});
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
