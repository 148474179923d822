// Quantized weights of a Hugging Face directory: quantization_config of config.json, and the stored form of a weight.
// A weight is a code times the scale of its block. Scales of activations do not change weights and are not used.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "files/safetensors.h"
#include "hf/config_reader.h"
#include "hf/family.h"

namespace metroplex::hf {

// The stored form of a quantized weight: matrices of rows x columns codes, and one scale for each block of a matrix.
// Blocks at the ends may be smaller.
struct QuantizedForm {
  files::Dtype codes;              // kF8E4M3 or kF4
  files::Dtype stored;             // the dtype of the tensor with the codes
  Dims shape;                      // its shape
  std::string scales;              // name of the tensor with the scales
  std::vector<Dims> scale_shapes;  // accepted shapes; the first is the usual one
  int64_t rows, columns, block_rows, block_columns;
};

// Values of a stored weight, rounded once, to float32.
class CodeReader {
 public:
  // The form and the bytes must outlive the object. `scale_dtype`: kF8E8M0 for scales that are stored as U8.
  CodeReader(const QuantizedForm& form, const std::byte* codes, const std::byte* scales, files::Dtype scale_dtype);
  // Writes `count` elements from index `first` on, `step` apart, in row-major order of the codes.
  void read(int64_t first, int64_t step, int64_t count, float* out) const;

 private:
  const QuantizedForm& form_;
  const std::byte *codes_, *scales_;
  files::Dtype scale_dtype_;
  std::array<float, 256> values_{};  // of each code
};

class Quantization {
 public:
  using Find = std::function<const files::TensorInfo*(const std::string& name)>;  // nullptr: not stored

  Quantization() = default;  // weights that are not quantized
  // Reads quantization_config of config.json, which may be missing. Throws base::Error("hf") for a method, a format
  // or a key that is not supported.
  explicit Quantization(const Json& config);

  bool is_used() const { return !method_.empty(); }
  // "fp8, a scale for each 128 x 128 block"; "" if the weights are not quantized.
  std::string to_string() const;
  // Returns the form of a weight that `find` has as codes, and changes name, shape and strides of `part` to the
  // codes'.
  std::optional<QuantizedForm> apply(TensorPart& part, const Find& find) const;
  // Whether the configuration excludes the module of a tensor from quantization.
  bool is_excluded(const std::string& tensor) const;
  // Whether a stored tensor belongs to the quantization of activations.
  bool is_for_activations(const std::string& name) const;
  // Returns all names that tensors of the weight may have.
  std::set<std::string> names_of_weight(const std::string& weight) const;
  // Returns the number of weights in a stored tensor; 0 for scales.
  uint64_t count_weights(const files::TensorInfo& info) const;

 private:
  void read_fp8(const ConfigReader& config);
  void read_mxfp4(const ConfigReader& config);
  void read_compressed_tensors(const ConfigReader& config);
  void read_excluded(const ConfigReader& config, const char* key);
  std::optional<QuantizedForm> apply_fp8(const TensorPart& part, const Find& find) const;
  std::optional<QuantizedForm> apply_mxfp4(TensorPart& part, const Find& find) const;

  std::string method_;
  int64_t block_rows_ = 0, block_columns_ = 0;  // 0: all of a matrix
  std::set<std::string> excluded_modules_;
  std::vector<std::regex> excluded_patterns_;
};

}  // namespace metroplex::hf
