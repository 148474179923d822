#include "hf/quantized_export.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "files/small_float.h"

namespace metroplex::hf {
namespace {

constexpr int64_t kFp8Block = 128;

bool is_matrix(const TensorPart& part) { return part.name.ends_with(".weight") && part.shape.size() >= 2; }

bool is_quantized(const MappedTensor& tensor, const std::string& method) {
  const bool linear = tensor.name.ends_with(".weight") && tensor.parts.front().shape.size() >= 2 &&
                      tensor.name.find(".linear_") != std::string::npos;
  return linear && (method == "fp8" || tensor.name.find(".experts.") != std::string::npos);
}

// "mlp.gate" of "model.layers.3.mlp.gate.weight", which transformers compares with the end of a module's name.
std::string module_suffix(const std::string& tensor) {
  const std::string module = tensor.substr(0, tensor.rfind(".weight"));
  const size_t last = module.rfind('.');
  const size_t previous = last == std::string::npos ? last : module.rfind('.', last - 1);
  return previous == std::string::npos ? module : module.substr(previous + 1);
}

float largest_magnitude(const std::vector<float>& block, const std::string& name) {
  float largest = 0;
  for (const float value : block) {
    MPX_CHECK(std::isfinite(value), "hf", name, " has the value ", value,
              ": must be finite to be quantized; export without --quantization, or use an earlier checkpoint");
    largest = std::max(largest, std::abs(value));
  }
  return largest;
}

float e4m3_product(float value, float scale) {
  return static_cast<float>(files::e4m3_value(files::e4m3_code(value / scale))) * scale;
}

float find_e4m3_scale(const std::vector<float>& block, const std::string& name) {
  const float largest = largest_magnitude(block, name);
  if (largest == 0) return 1;
  const float quotient = std::max(largest / static_cast<float>(files::kMaxE4m3), FLT_MIN);
  for (const float scale : {quotient, std::nextafter(quotient, 0.0F), std::nextafter(quotient, FLT_MAX),
                            std::exp2(std::ceil(std::log2(quotient)))}) {
    if (std::all_of(block.begin(), block.end(), [&](float value) { return e4m3_product(value, scale) == value; }))
      return scale;
  }
  return quotient;
}

// The code of the scale in E8M0: 2^(floor(log2 largest) - 2), because 4 is the largest power of two in E2M1.
int find_e8m0_code(const std::vector<float>& block, const std::string& name) {
  const float largest = largest_magnitude(block, name);
  return largest == 0 ? 127 : std::clamp(std::ilogb(largest) - 2 + 127, 0, 254);
}

// Writes a block; `at` has the index of each element.
void write_e4m3(const std::vector<float>& block, const std::vector<int64_t>& at, const std::string& name,
                QuantizedWeight& out) {
  const float scale = find_e4m3_scale(block, name);
  for (size_t i = 0; i < block.size(); ++i)
    out.codes[static_cast<size_t>(at[i])] = static_cast<std::byte>(files::e4m3_code(block[i] / scale));
  const auto* const bytes = reinterpret_cast<const std::byte*>(&scale);
  out.scales.insert(out.scales.end(), bytes, bytes + sizeof scale);
}

void write_e2m1(const std::vector<float>& block, const std::vector<int64_t>& at, const std::string& name,
                QuantizedWeight& out) {
  const int code = find_e8m0_code(block, name);
  const double scale = files::e8m0_value(static_cast<uint8_t>(code));
  for (size_t i = 0; i < block.size(); ++i)
    out.codes[static_cast<size_t>(at[i] / 2)] |=
        static_cast<std::byte>(files::e2m1_code(block[i] / scale) << (at[i] % 2 == 0 ? 0 : 4));
  out.scales.push_back(static_cast<std::byte>(code));
}

}  // namespace

Json export_quantization(const std::string& method, const std::vector<MappedTensor>& mapped) {
  std::set<std::string> excluded{"lm_head"};  // also if it is tied
  for (const MappedTensor& tensor : mapped) {
    if (is_quantized(tensor, method) || tensor.name.find("embedding") != std::string::npos) continue;
    for (const TensorPart& part : tensor.parts)
      if (is_matrix(part)) excluded.insert(module_suffix(part.name));
  }
  Json config{{"quant_method", method}, {"modules_to_not_convert", excluded}};
  if (method == "fp8")
    config.update({{"activation_scheme", "dynamic"}, {"fmt", "e4m3"}, {"weight_block_size", {kFp8Block, kFp8Block}}});
  return config;
}

std::map<std::string, QuantizedForm> quantize_parts(const Json& quantization_config, const Family& family,
                                                    std::vector<MappedTensor>& mapped) {
  const Quantization quantization(Json{{"quantization_config", quantization_config}});
  const std::string method = quantization_config.at("quant_method");
  MPX_CHECK(method == "fp8" || family.model_type == std::string("gpt_oss"), "hf", "--quantization = ", method,
            ": transformers reads it only for gpt_oss, not for ", family.model_type, "; use fp8");
  std::map<std::string, QuantizedForm> forms;
  for (MappedTensor& tensor : mapped) {
    if (!is_quantized(tensor, method)) continue;
    for (TensorPart& part : tensor.parts) {
      MPX_CHECK(method != "fp8" || (part.strides.back() == 1 && part.shape.size() == 2), "hf",
                "--quantization = fp8: ", family.model_type, " stores ", part.name,
                " transposed or with all experts, for which transformers has no FP8 form; leave it out");
      const std::string codes = method == "fp8" ? part.name : part.name + "_blocks";
      const files::TensorInfo stored{codes, method == "fp8" ? files::Dtype::kF8E4M3 : files::Dtype::kU8, {}};
      const auto form =
          quantization.apply(part, [&](const std::string& name) { return name == codes ? &stored : nullptr; });
      forms.emplace(codes, *form);
    }
  }
  MPX_CHECK(!forms.empty(), "hf", "--quantization = ", method, ": ", family.model_type,
            " has no FP8 form, because it ", "has no attention and no MLP; leave it out");
  return forms;
}

QuantizedWeight quantize(const QuantizedForm& form, const std::vector<float>& values, const std::string& name) {
  const bool pairs = form.codes == files::Dtype::kF4;
  QuantizedWeight out;
  out.codes.resize(values.size() / (pairs ? 2 : 1));
  std::vector<float> block;
  std::vector<int64_t> at;
  const int64_t matrix = form.rows * form.columns;
  for (int64_t begin = 0; begin < static_cast<int64_t>(values.size()); begin += matrix) {
    for (int64_t row = 0; row < form.rows; row += form.block_rows) {
      for (int64_t column = 0; column < form.columns; column += form.block_columns) {
        block.clear(), at.clear();
        const int64_t width = std::min(form.block_columns, form.columns - column);
        const int64_t elements = width * std::min(form.block_rows, form.rows - row);
        for (int64_t i = 0; i < elements; ++i) {
          at.push_back(begin + (row + i / width) * form.columns + column + i % width);
          block.push_back(values[static_cast<size_t>(at.back())]);
        }
        (pairs ? write_e2m1 : write_e4m3)(block, at, name, out);
      }
    }
  }
  return out;
}

}  // namespace metroplex::hf
