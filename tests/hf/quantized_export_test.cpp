// Quantized exports: an imported form is written again, values are rounded to the nearest code, and families without
// a quantized form are rejected.
#include "hf/quantized_export.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "files/small_float.h"
#include "hf/directories.h"
#include "hf/directory.h"
#include "support/error_of.h"
#include "support/folder.h"

namespace metroplex::hf::quantized_export_test {
namespace {

using files::Dtype;
using test::catch_error;
using test::has;
using test::read_tensors;
using test::Tensor;
using test::Tensors;

files::PosixFileSystem disk;
const std::string kFile = "/model.safetensors";

std::string export_error(const std::string& name, const std::string& quantization, const std::string& out) {
  const std::string directory = test::kHfCases + name;
  const config::Model model = test::read_hf_model(directory);
  Source source(disk, directory, model);
  return catch_error([&] { write_weights_directory(disk, source, model, {}, out, {.quantization = quantization}); });
}

TEST(QuantizedExport, ImportedFormIsWrittenAgain) {
  for (const auto& [name, method] : {std::pair{"deepseek_v3_fp8", "fp8"}, {"gpt_oss_mxfp4", "mxfp4"}}) {
    const test::Folder folder;
    ASSERT_EQ(export_error(name, method, folder.at("d")), "");
    const Tensors expected = read_tensors(test::kHfCases + name + kFile);
    const Tensors written = read_tensors(folder.at("d") + kFile);
    ASSERT_EQ(written.size(), expected.size()) << name;
    for (const auto& [tensor, value] : expected) {
      // Routers take the dtype of config.json, as without quantization.
      const bool router = tensor.ends_with("mlp.gate.weight");
      EXPECT_TRUE(router || written.at(tensor) == value) << name << " " << tensor;
    }
    const Quantization quantization = read_quantization(disk, folder.at("d"));
    EXPECT_EQ(quantization.to_string(), read_quantization(disk, test::kHfCases + name).to_string());
    const std::string experts = "model.layers.1.mlp.experts.";
    EXPECT_FALSE(quantization.is_excluded(experts + "0.gate_proj.weight") || quantization.is_excluded(experts + "x"));
    for (const char* excluded :
         {"lm_head.weight", "model.layers.1.mlp.gate.weight", "model.layers.1.mlp.router.weight"})
      EXPECT_EQ(quantization.is_excluded(excluded), expected.contains(excluded)) << name << " " << excluded;
  }
}

// transformers would replace a linear layer that is neither quantized nor listed.
TEST(QuantizedExport, OtherMatricesAreListed) {
  const test::Folder folder;
  ASSERT_EQ(export_error("qwen2_moe", "fp8", folder.at("d")), "");
  const Quantization quantization = read_quantization(disk, folder.at("d"));
  for (const auto& [name, tensor] : read_tensors(folder.at("d") + kFile)) {
    const bool module =
        name.ends_with(".weight") && tensor.shape.size() == 2 && !name.ends_with("embed_tokens.weight");
    EXPECT_TRUE(!module || quantization.is_excluded(name) == (tensor.dtype != Dtype::kF8E4M3)) << name;
  }
}

TEST(QuantizedExport, RoundsToNearestCode) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const Dtype codes : {Dtype::kF8E4M3, Dtype::kF4}) {
    const bool pairs = codes == Dtype::kF4;
    const int64_t matrices = 2, rows = 5, columns = 64, height = pairs ? 1 : 3, width = pairs ? 32 : 48;
    const QuantizedForm form{codes, codes, {}, "", {}, rows, columns, height, width};
    std::vector<float> values(static_cast<size_t>(matrices * rows * columns));
    for (float& value : values) value = normal(random);
    const QuantizedWeight weight = quantize(form, values, "w");
    const CodeReader reader(form, weight.codes.data(), weight.scales.data(), pairs ? Dtype::kF8E8M0 : Dtype::kF32);
    std::vector<float> got(values.size());
    reader.read(0, 1, static_cast<int64_t>(got.size()), got.data());
    const int64_t down = (rows + height - 1) / height, across = (columns + width - 1) / width;
    ASSERT_EQ(weight.scales.size(), static_cast<size_t>(matrices * down * across) * (pairs ? 1 : 4));
    for (size_t i = 0; i < values.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const int64_t row = at / columns % rows,
                    block = (at / (rows * columns) * down + row / height) * across + at % columns / width;
      const double scale = files::element_as_double(pairs ? Dtype::kF8E8M0 : Dtype::kF32, weight.scales.data(),
                                                    static_cast<uint64_t>(block));
      // Half a step of the code, and two roundings of float32. E2M1 also reduces values in (6, 8) to 6.
      const double steps = std::abs(values[i]) / scale, fraction = pairs ? 0x1p-2 : 0x1p-4,
                   smallest = pairs ? 1 : 0x1p-6;
      const double bound = scale * (std::max(steps, smallest) * (fraction + 0x1p-23));
      EXPECT_LE(std::abs(got[i] - values[i]), pairs && steps > 7 ? scale * 2 : bound) << i << " " << pairs;
      EXPECT_LE(std::abs(got[i]), scale * (pairs ? 6 : files::kMaxE4m3) * (1 + 0x1p-23));
    }
  }
}

TEST(QuantizedExport, FormOfAnEarlierQuantizationIsFound) {
  const QuantizedForm form{Dtype::kF8E4M3, Dtype::kF8E4M3, {}, "", {}, 1, 6, 1, 6};
  // Neither scale is the largest magnitude / 448: 240 is not the largest code, and 0.3F * 448 is rounded.
  for (const auto& [scale, largest] : {std::pair{0x1p-9F, 240.0F}, {0.3F, 448.0F}, {0.0123F, 448.0F}}) {
    std::vector<float> values;
    for (const float code : {0.0F, 1.0F, -1.75F, 0x1p-9F, 60.0F, largest}) values.push_back(code * scale);
    const QuantizedWeight weight = quantize(form, values, "w");
    EXPECT_EQ(files::element_as_double(Dtype::kF32, weight.scales.data(), 0), scale);
  }
  const QuantizedWeight zero = quantize(form, std::vector<float>(6), "w");
  EXPECT_EQ(files::element_as_double(Dtype::kF32, zero.scales.data(), 0), 1);
  EXPECT_EQ(zero.codes, std::vector<std::byte>(6));
}

TEST(QuantizedExport, OthersAreRejected) {
  const test::Folder folder;
  const std::string out = folder.at("d");
  EXPECT_TRUE(has(export_error("granitemoe", "fp8", out), "input_linear.weight transposed or with all experts"));
  EXPECT_TRUE(has(export_error("mamba2", "fp8", out), "--quantization = fp8: mamba2 has no FP8 form"));
  EXPECT_TRUE(has(export_error("gpt2", "fp8", out), "--quantization = fp8: gpt2 stores transformer.h.0."));
  EXPECT_TRUE(
      has(export_error("qwen3", "mxfp4", out), "--quantization = mxfp4: transformers reads it only for gpt_oss"));
  EXPECT_FALSE(disk.exists(out));
  const QuantizedForm form{Dtype::kF8E4M3, Dtype::kF8E4M3, {}, "", {}, 1, 2, 1, 2};
  EXPECT_TRUE(has(catch_error([&] { quantize(form, {1, NAN}, "w"); }), "w has the value nan: must be finite"));
}

}  // namespace
}  // namespace metroplex::hf::quantized_export_test
