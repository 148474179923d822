// Quantized weights: every way to store scales against the product of code and scale, and rejected directories.
#include "hf/quantization.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/error.h"
#include "config/load.h"
#include "config/validate.h"
#include "files/convert_dtype.h"
#include "hf/directories.h"
#include "hf/directory.h"
#include "support/error_of.h"
#include "support/folder.h"

namespace metroplex::hf::quantization_test {
namespace {

using files::Dtype;
using test::catch_error;
using test::has;
using test::read_tensors;
using test::Tensor;
using test::Tensors;

files::PosixFileSystem disk;

void write_tensors(const std::string& path, const Tensors& tensors) {
  std::vector<files::TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) infos.push_back({name, tensor.dtype, tensor.shape, 0, 0});
  files::order_tensors(infos);
  files::SafetensorsWriter writer(disk, path, infos, {});
  for (const files::TensorInfo& info : infos) writer.write(tensors.at(info.name).bytes.data(), info.end - info.begin);
  writer.finish();
}

std::vector<std::byte> floats_as(Dtype dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(files::dtype_bits(dtype) / 8));
  files::convert_elements(Dtype::kF32, reinterpret_cast<const std::byte*>(values.data()), dtype, bytes.data(),
                          values.size());
  return bytes;
}

// How a directory stores scales. A size of 0 is all of a weight.
struct Storage {
  const char* config;
  uint64_t block_rows, block_columns;
  const char* suffix;
  Dtype dtype;
  bool flat;  // the shape has no dims of size 1
};

const Storage kBlocks{R"({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [20, 28],
                          "modules_to_not_convert": ["lm_head"]})",
                      20,
                      28,
                      "_scale_inv",
                      Dtype::kF32,
                      false};

// qwen3 with codes in place of the weights of its projections.
struct Directory {
  explicit Directory(const Storage& storage) {
    std::filesystem::create_directory(path);
    config = Json::parse(disk.read(test::kHfCases + "qwen3/config.json"));
    config["quantization_config"] = Json::parse(storage.config);
    config["dtype"] = "bfloat16";
    tensors = read_tensors(test::kHfCases + "qwen3/model.safetensors");
    for (auto& [name, tensor] : tensors) tensor = {Dtype::kBF16, tensor.shape, convert(tensor)};
    uint32_t seed = 1;
    for (auto& [name, tensor] : Tensors(tensors)) {
      if (name.ends_with("_proj.weight")) quantize(name, storage, seed += 7);
    }
    write();
  }
  void write() {
    std::ofstream(path + "/config.json") << config;
    write_tensors(path + "/model.safetensors", tensors);
  }

  const test::Folder folder;
  const std::string path = folder.at("d");
  Json config;
  Tensors tensors;
  std::map<std::string, std::vector<float>> values;  // of the quantized weights

 private:
  static std::vector<std::byte> convert(const Tensor& tensor) {
    std::vector<std::byte> bytes(tensor.bytes.size() / 2);
    files::convert_elements(tensor.dtype, tensor.bytes.data(), Dtype::kBF16, bytes.data(), bytes.size() / 2);
    return bytes;
  }

  void quantize(const std::string& name, const Storage& storage, uint32_t seed) {
    const std::vector<uint64_t> shape = tensors.at(name).shape;
    const uint64_t height = storage.block_rows == 0 ? shape[0] : storage.block_rows;
    const uint64_t width = storage.block_columns == 0 ? shape[1] : storage.block_columns;
    const uint64_t down = (shape[0] + height - 1) / height, across = (shape[1] + width - 1) / width;
    std::vector<float> scales;
    for (uint64_t i = 0; i < down * across; ++i) scales.push_back(0.001F * static_cast<float>(i + seed));
    std::vector<uint64_t> scale_shape{down, across};
    if (storage.flat) std::erase(scale_shape, 1);
    const Tensor stored{storage.dtype, scale_shape, floats_as(storage.dtype, scales)};
    tensors[name + storage.suffix] = stored;
    std::vector<std::byte> codes(shape[0] * shape[1]);
    for (uint64_t i = 0; i < codes.size(); ++i) {
      const auto code = static_cast<std::byte>((i * 37 + seed) % 126);  // no NaN
      codes[i] = code;
      const uint64_t block = i / shape[1] / height * across + i % shape[1] / width;
      const auto scale = static_cast<float>(files::element_as_double(storage.dtype, stored.bytes.data(), block));
      values[name].push_back(static_cast<float>(files::element_as_double(Dtype::kF8E4M3, &code, 0)) * scale);
    }
    tensors[name] = {Dtype::kF8E4M3, shape, codes};
  }
};

std::string opening_error(const Directory& directory) {
  return catch_error([&] { Source(disk, directory.path, test::read_hf_model(directory.path)); });
}

constexpr const char* kCompressed = R"({"quant_method": "compressed-tensors", "format": "float-quantized",
  "ignore": ["lm_head", "re:.*router$"], "quantization_status": "compressed", "kv_cache_scheme": null,
  "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": {"num_bits": 8, "type": "float"},
    "weights": {"num_bits": 8, "type": "float", "symmetric": true, "dynamic": false, "observer": "minmax", %s}}}})";

std::string compressed(const std::string& strategy) {
  std::string text = kCompressed;
  return text.replace(text.find("%s"), 2, strategy);
}

TEST(Quantization, WeightsAreCodesTimesScales) {
  const std::string channel = compressed(R"("strategy": "channel")"), tensor = compressed(R"("strategy": "tensor")"),
                    group = compressed(R"("strategy": "group", "group_size": 32)"),
                    block = compressed(R"("strategy": "block", "block_structure": [7, 48])");
  const Storage kStorages[] = {
      kBlocks,
      {R"({"quant_method": "fp8", "ignored_layers": ["lm_head"], "activation_scheme": "static"})", 0, 0, "_scale",
       Dtype::kF32, true},
      {R"({"quant_method": "fp8", "fmt": "float8_e4m3fn", "weight_block_size": null})", 0, 0, "_scale_inv",
       Dtype::kBF16, false},
      {channel.c_str(), 1, 0, "_scale", Dtype::kBF16, false},
      {channel.c_str(), 1, 0, "_scale", Dtype::kF32, true},
      {tensor.c_str(), 0, 0, "_scale", Dtype::kF32, true},
      {group.c_str(), 1, 32, "_scale", Dtype::kF16, false},
      {block.c_str(), 7, 48, "_scale", Dtype::kF32, false}};
  for (const Storage& storage : kStorages) {
    Directory directory(storage);
    directory.tensors["model.layers.0.self_attn.q_proj.input_scale"] = {Dtype::kF32, {}, floats_as(Dtype::kF32, {3})};
    directory.write();
    const config::Model model = test::read_hf_model(directory.path);
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      Source source(disk, directory.path, model);
      const std::string out = directory.folder.at(files::dtype_name(dtype));
      write_weights_directory(disk, source, model, {}, out, {.dtype = dtype});
      const Tensors written = read_tensors(out + "/model.safetensors");
      for (const auto& [name, tensor] : read_tensors(test::kHfCases + "qwen3/model.safetensors"))
        EXPECT_EQ(written.at(name).dtype, dtype) << name;
      ASSERT_EQ(directory.values.size(), 21U);  // 7 projections of 3 layers
      for (const auto& [name, values] : directory.values)
        EXPECT_EQ(written.at(name).bytes, floats_as(dtype, values)) << name << " " << storage.config;
      EXPECT_FALSE(has(disk.read(out + "/config.json"), "quantization_config"));
    }
  }
}

// The codes of an input dimension that is not a multiple of 32 are padded.
TEST(Quantization, Mxfp4IsTransposedAndPadded) {
  const int64_t experts = 2, inputs = 40, outputs = 6, padded = 64;
  std::vector<std::byte> codes(static_cast<size_t>(experts * outputs * padded / 2));
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i * 29 % 256);
  std::vector<std::byte> scales(codes.size() / 16);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::byte>(120 + i);
  const files::TensorInfo stored{"w_blocks", Dtype::kU8, {}, 0, 0};
  const auto find = [&](const std::string& name) { return name == "w_blocks" ? &stored : nullptr; };
  // Every other output, as the gate in gpt_oss: ours is [expert, output / 2, input].
  for (const int64_t half : {0, 1}) {
    TensorPart part{"w",  {experts, inputs, outputs},    {0, 0, 0}, {experts, outputs / 2, inputs},
                    half, {inputs * outputs, 2, outputs}};
    const auto form = Quantization(Json{{"quantization_config", {{"quant_method", "mxfp4"}}}}).apply(part, find);
    ASSERT_TRUE(form.has_value());
    EXPECT_EQ(form->shape, (Dims{experts, outputs, 2, 16}));
    EXPECT_EQ(form->scale_shapes, (std::vector<Dims>{{experts, outputs, 2}}));
    const CodeReader reader(*form, codes.data(), scales.data(), Dtype::kF8E8M0);
    int64_t row = 0;
    for_each_row(part, part.offset, part.size, [&](int64_t first) {
      std::vector<float> got(static_cast<size_t>(inputs));
      reader.read(first, part.strides.back(), inputs, got.data());
      const int64_t stored_row = row / (outputs / 2) * outputs + row % (outputs / 2) * 2 + half;
      for (int64_t i = 0; i < inputs; ++i) {
        const int64_t at = stored_row * padded + i;
        const auto value = files::element_as_double(Dtype::kF4, codes.data(), static_cast<uint64_t>(at));
        const auto scale = files::element_as_double(Dtype::kF8E8M0, scales.data(), static_cast<uint64_t>(at / 32));
        ASSERT_EQ(got[static_cast<size_t>(i)], static_cast<float>(value * scale)) << row << " " << i;
      }
      ++row;
    });
    EXPECT_EQ(row, experts * outputs / 2);
  }
}

TEST(Quantization, OtherMethodsAreRejectedByKey) {
  const std::pair<std::string, const char*> kWrong[] = {
      {R"([1])", "quantization_config = [1]: must be an object"},
      {R"({"bits": 4})", "quantization_config.quant_method = null: must be fp8, mxfp4 or compressed-tensors"},
      {R"({"quant_method": "gptq", "bits": 4})", "quantization_config.quant_method = \"gptq\": must be fp8"},
      {R"({"quant_method": "awq"})", "quant_method = \"awq\": must be fp8, mxfp4 or compressed-tensors; convert the"},
      {R"({"quant_method": "bitsandbytes", "load_in_4bit": true})", "quant_method = \"bitsandbytes\""},
      {R"({"quant_method": "nvfp4"})", "quant_method = \"nvfp4\""},
      {R"({"quant_method": "fp8", "weight_block_size": [128]})", "weight_block_size is [128]"},
      {R"({"quant_method": "fp8", "weight_block_size": [128, 0]})", "weight_block_size is [128,0]"},
      {R"({"quant_method": "fp8", "fmt": "e5m2"})", "fmt is \"e5m2\""},
      {R"({"quant_method": "fp8", "modules_to_not_convert": "lm_head"})", "modules_to_not_convert is \"lm_head\""},
      {R"({"quant_method": "fp8", "weight_zero_point": true})", "weight_zero_point = true: not supported in quant"},
      {R"({"quant_method": "mxfp4", "weight_block_size": [1, 32]})", "weight_block_size = [1,32]: not supported"},
      {R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"})",
       "format is \"nvfp4-pack-quantized\""},
      {R"({"quant_method": "compressed-tensors", "format": "float-quantized"})", "config_groups is missing"},
      {compressed(R"("strategy": "token")"), "strategy is \"token\""},
      {compressed(R"("strategy": "group", "group_size": 0)"), "group_size is 0"},
      {compressed(R"("num_bits": 4)"), "num_bits is 4"},
      {compressed(R"("symmetric": false)"), "symmetric is false"},
      {compressed(R"("type": "int")"), "type is \"int\""},
      {compressed(R"("zero_point": 1)"), "zero_point = 1: not supported in the weights of config_groups"}};
  for (const auto& [text, problem] : kWrong) {
    const Json quantization = Json::parse(text);
    const std::string error = catch_error([&quantization] {
      Quantization(Json{{"quantization_config", quantization}});
    });
    EXPECT_TRUE(has(error, problem)) << text << ": " << error;
  }
  Json json = Json::parse(compressed(R"("strategy": "tensor")"));
  json["config_groups"]["group_1"] = json["config_groups"]["group_0"];
  EXPECT_EQ(catch_error([&] { Quantization(Json{{"quantization_config", json}}); }), "");
  json["config_groups"]["group_1"]["weights"]["strategy"] = "channel";
  EXPECT_TRUE(has(catch_error([&] {
                    Quantization(Json{{"quantization_config", json}});
                  }),
                  "expected the same strategy for all weights"));
  json["ignore"] = {"re:("};
  json["config_groups"].erase("group_1");
  EXPECT_TRUE(has(catch_error([&] { Quantization(Json{{"quantization_config", json}}); }), "ignore = re:(: must be"));
}

TEST(Quantization, MissingAndMisshapedScalesAreNamed) {
  const std::string name = "model.layers.1.mlp.up_proj.weight", scale = name + "_scale_inv";
  const auto error_with = [&](const auto& change) {
    Directory directory(kBlocks);
    change(directory);
    directory.write();
    return opening_error(directory);
  };
  const auto expect = [&](const std::string& error, const std::string& problem) {
    EXPECT_TRUE(has(error, problem)) << problem << ": " << error;
    EXPECT_FALSE(has(error, "model.layers.0")) << error;
  };
  EXPECT_EQ(error_with([](Directory&) {}), "");
  expect(error_with([&](Directory& changed) { changed.tensors.erase(scale); }),
         scale + " is missing; " + name + " needs it");
  expect(error_with([&](Directory& changed) {
           std::swap(changed.tensors[scale].shape[0], changed.tensors[scale].shape[1]);
         }),
         scale + " has shape");
  expect(error_with([&](Directory& changed) { changed.tensors[scale].dtype = Dtype::kI32; }),
         scale + " is I32, not F32");
  expect(error_with(
             [&](Directory& changed) { std::swap(changed.tensors[name].shape[0], changed.tensors[name].shape[1]); }),
         name + " has shape");
  expect(error_with([&](Directory& changed) { changed.tensors[name].dtype = Dtype::kF8E5M2; }),
         name + " is F8_E5M2, not");
  expect(error_with([&](Directory& changed) {
           changed.config["quantization_config"]["modules_to_not_convert"] = {"layers.1.mlp.up_proj"};
         }),
         name + " is quantized, but quantization_config excludes its module");
  // A weight that is not quantized needs no scale and may not have one.
  const auto keep = [&](Directory& changed) {
    changed.tensors[name] = {Dtype::kBF16, changed.tensors[name].shape,
                             floats_as(Dtype::kBF16, changed.values[name])};
    changed.config["quantization_config"]["modules_to_not_convert"] = {"model.layers.1.mlp.up_proj"};
  };
  EXPECT_EQ(error_with([&](Directory& changed) { keep(changed), changed.tensors.erase(scale); }), "");
  expect(error_with(keep), scale + " does not belong to this model");
  const std::string unquantized = error_with([](Directory& changed) { changed.config.erase("quantization_config"); });
  EXPECT_TRUE(has(unquantized, "mlp.down_proj.weight is F8_E4M3, not F64, F32, BF16 or F16")) << unquantized;
}

TEST(Quantization, DtypeIsBfloat16ByDefault) {
  Directory changed(kBlocks);
  changed.config.erase("dtype");
  changed.write();
  const std::vector<std::string> settings = read_settings(disk, changed.path);
  EXPECT_EQ(std::count(settings.begin(), settings.end(), "precision.params_dtype=bf16"), 1);
  const Source source(disk, changed.path, test::read_hf_model(changed.path));
  const std::string projection = "decoder.layers.0.mlp.linear_fc2.weight";
  EXPECT_EQ(source.find(projection, "weight")->dtype, Dtype::kBF16);
  ASSERT_NE(source.find(projection, "main"), nullptr);
  EXPECT_EQ(source.find(projection, "main")->dtype, Dtype::kF32);
  EXPECT_EQ(source.find("decoder.final_layernorm.weight", "main"), nullptr);
}

// Tensors that are not requested may be stored in any form, or be missing.
TEST(Quantization, OtherTensorsAreNotChecked) {
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  Directory changed(kBlocks);
  changed.tensors.erase(name + "_scale_inv");
  changed.write();
  const config::Model model = test::read_hf_model(changed.path);
  const auto error_without = [&](const std::string& part) {
    return catch_error([&] {
      Source(disk, changed.path, model,
             [&](const std::string& ours) { return ours.find(part) == std::string::npos; });
    });
  };
  EXPECT_EQ(error_without("layers.1.mlp"), "");
  EXPECT_TRUE(has(error_without("layers.0.mlp"), name + "_scale_inv is missing"));
}

TEST(Quantization, ExcludedModulesAreWholeNames) {
  const auto excludes = [](const char* pattern, const char* tensor) {
    Json json{{"quantization_config", {{"quant_method", "fp8"}}}};
    json["quantization_config"]["modules_to_not_convert"] = Json::array({pattern});
    return Quantization(json).is_excluded(tensor);
  };
  const struct {
    const char *pattern, *tensor;
    bool excluded;
  } kPatterns[] = {{"lm_head", "lm_head.weight", true},
                   {"model.layers.1.mlp.gate", "model.layers.1.mlp.gate.weight", true},
                   {"model.layers.1.mlp.gate", "model.layers.1.mlp.gate_proj.weight", false},
                   {"model.layers.1", "model.layers.1.mlp.gate_proj.weight", true},
                   {"model.layers.1", "model.layers.10.mlp.gate_proj.weight", false},
                   {"mlp.gate", "model.layers.3.mlp.gate.weight", true},
                   {"gate", "model.layers.3.mlp.gate.weight", true},
                   {"late", "model.layers.3.mlp.plate.weight", false},
                   {"model.layers.*.self_attn", "model.layers.3.self_attn.q_proj.weight", true},
                   {"model.layers.*.self_attn", "model.layers.3.mlp.up_proj.weight", false},
                   {"layers.*.mlp", "model.layers.3.mlp_norm.weight", false},
                   {"model+layers.*", "modellayers.3.weight", false},
                   {"re:.*mlp.gate$", "model.layers.3.mlp.gate.weight", true},
                   {"re:.*mlp.gate$", "model.layers.3.mlp.gate_proj.weight", false},
                   {"re:layers", "model.layers.3.mlp.gate.weight", false}};
  for (const auto& [pattern, tensor, excluded] : kPatterns)
    EXPECT_EQ(excludes(pattern, tensor), excluded) << pattern << " " << tensor;
}

TEST(Quantization, CountsWeightsWithoutScales) {
  const auto count = [](const Quantization& quantization, const std::string& file) {
    uint64_t weights = 0;
    const files::SafetensorsFile opened(disk.map(file), file);
    for (const files::TensorInfo& info : opened.tensors()) weights += quantization.count_weights(info);
    return weights;
  };
  for (const char* name : {"deepseek_v3_fp8", "gpt_oss_mxfp4"}) {
    const std::string directory = test::kHfCases + name;
    const config::Model model = test::read_hf_model(directory);
    const test::Folder folder;
    Source source(disk, directory, model);
    write_weights_directory(disk, source, model, {}, folder.at("d"));
    EXPECT_EQ(count(read_quantization(disk, directory), directory + "/model.safetensors"),
              count({}, folder.at("d") + "/model.safetensors"));
  }
  EXPECT_EQ(read_quantization(disk, test::kHfCases + "deepseek_v3_fp8").to_string(),
            "fp8, a scale for each block of 128 x 128");
  EXPECT_EQ(read_quantization(disk, test::kHfCases + "qwen3").to_string(), "");
}

}  // namespace
}  // namespace metroplex::hf::quantization_test
