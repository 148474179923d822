#include "hf/quantization.h"

#include <algorithm>
#include <cctype>
#include <tuple>

#include "base/error.h"

namespace metroplex::hf {
namespace {

constexpr const char *kFp8 = "fp8", *kMxfp4 = "mxfp4", *kCompressed = "compressed-tensors";
constexpr int64_t kMxBlock = 32;  // elements that share a scale

int64_t divide_up(int64_t number, int64_t by) { return (number + by - 1) / by; }

// Returns the index in [.., outputs, padded inputs] of an element of [.., inputs, outputs]; both are row-major.
int64_t transpose_index(int64_t index, int64_t inputs, int64_t outputs, int64_t padded_inputs) {
  const int64_t matrix = index / (inputs * outputs), input = index % (inputs * outputs) / outputs;
  return (matrix * outputs + index % outputs) * padded_inputs + input;
}

// In `pattern`, * matches any text.
std::string glob_expression(const std::string& pattern) {
  std::string expression;
  for (const char letter : pattern) {
    if (letter == '*') expression += '.';
    else if (std::isalnum(static_cast<unsigned char>(letter)) == 0 && letter != '_') expression += '\\';
    expression += letter;
  }
  return "(.*\\.)?" + expression + "(\\..*)?$";
}

using Block = std::pair<int64_t, int64_t>;

Block read_block(const ConfigReader& config, const char* key) {
  const Json& sizes = config.value(key);
  const auto is_size = [](const Json& size) { return size.is_number_integer() && size.get<int64_t>() > 0; };
  config.require(sizes.is_array() && sizes.size() == 2 && std::all_of(sizes.begin(), sizes.end(), is_size), key,
                 "two numbers above 0, such as [128, 128]");
  return {sizes[0], sizes[1]};
}

// A group of config_groups.
Block read_group(const Json& group) {
  const ConfigReader reader(group.is_object() ? group : Json::object());
  reader.require(reader.value("weights").is_object(), "weights", "an object in each group of config_groups");
  reader.ignore({"input_activations", "output_activations", "targets", "format"});
  reader.refuse_unread("config_groups");
  const ConfigReader weights(reader.value("weights"));
  weights.require(weights.text("type", "") == "float", "type", "float");
  weights.require(weights.integer("num_bits") == 8, "num_bits", "8");
  weights.require(weights.flag("symmetric", true), "symmetric", "true");
  const std::string strategy = weights.text("strategy", "tensor");
  const bool known = strategy == "tensor" || strategy == "channel" || strategy == "block" || strategy == "group";
  weights.require(known, "strategy", "tensor, channel, block or group");
  weights.ignore({"block_structure", "group_size", "dynamic", "observer", "observer_kwargs", "actorder",
                  "scale_dtype", "zp_dtype"});
  weights.refuse_unread("the weights of config_groups");
  if (strategy == "block") return read_block(weights, "block_structure");
  if (strategy == "tensor") return {0, 0};
  if (strategy == "channel") return {1, 0};
  const int64_t size = weights.integer("group_size");
  weights.require(size > 0, "group_size", "a number above 0");
  return {1, size};
}

std::vector<Dims> scale_shapes(const Dims& matrices, int64_t row_blocks, int64_t column_blocks) {
  const auto with = [&](std::initializer_list<int64_t> last) {
    Dims shape = matrices;
    shape.insert(shape.end(), last);
    return shape;
  };
  std::vector<Dims> shapes{with({row_blocks, column_blocks})};
  if (column_blocks == 1) shapes.push_back(with({row_blocks}));
  return shapes;
}

}  // namespace

CodeReader::CodeReader(const QuantizedForm& form, const std::byte* codes, const std::byte* scales,
                       files::Dtype scale_dtype)
    : form_(form), codes_(codes), scales_(scales), scale_dtype_(scale_dtype) {
  for (int code = 0; code < 1 << files::dtype_bits(form.codes); ++code) {
    const auto byte = static_cast<std::byte>(code);
    values_[static_cast<size_t>(code)] = static_cast<float>(files::element_as_double(form.codes, &byte, 0));
  }
}

void CodeReader::read(int64_t first, int64_t step, int64_t count, float* out) const {
  const QuantizedForm& form = form_;
  const bool pairs = form.codes == files::Dtype::kF4;
  const int64_t row_blocks = divide_up(form.rows, form.block_rows);
  const int64_t column_blocks = divide_up(form.columns, form.block_columns);
  for (int64_t done = 0, index = first; done < count;) {
    const int64_t row = index / form.columns, column = index % form.columns;
    const int64_t block_row = row / form.rows * row_blocks + row % form.rows / form.block_rows;
    const int64_t block_column = column / form.block_columns;
    const auto scale = static_cast<float>(files::element_as_double(
        scale_dtype_, scales_, static_cast<uint64_t>(block_row * column_blocks + block_column)));
    const int64_t end = std::min((block_column + 1) * form.block_columns, form.columns);
    const int64_t stop = std::min(done + divide_up(end - column, step), count);
    for (; done < stop; ++done, index += step) {
      const auto byte = static_cast<size_t>(codes_[pairs ? index / 2 : index]);
      out[done] = values_[pairs ? byte >> (index % 2 == 0 ? 0 : 4) & 15 : byte] * scale;
    }
  }
}

Quantization::Quantization(const Json& config) {
  const auto found = config.find("quantization_config");
  if (found == config.end() || found->is_null()) return;
  MPX_CHECK(found->is_object(), "hf", "config.json: quantization_config = ", found->dump(),
            ": must be an object; remove it if the weights are not quantized");
  const ConfigReader reader(*found);
  method_ = reader.text("quant_method", "");
  if (method_ == kFp8) read_fp8(reader);
  else if (method_ == kMxfp4) read_mxfp4(reader);
  else if (method_ == kCompressed) read_compressed_tensors(reader);
  else
    base::throw_error("hf", base::concat("config.json: quantization_config.quant_method = ",
                                         reader.value("quant_method").dump(), ": must be ", kFp8, ", ", kMxfp4,
                                         " or ", kCompressed, "; convert the weights to bfloat16 with transformers"));
  reader.refuse_unread("quantization_config");
}

void Quantization::read_fp8(const ConfigReader& config) {
  const std::string codes = config.text("fmt", "e4m3");
  config.require(codes == "e4m3" || codes == "float8_e4m3fn", "fmt", "e4m3 or float8_e4m3fn");
  if (config.has("weight_block_size"))
    std::tie(block_rows_, block_columns_) = read_block(config, "weight_block_size");
  read_excluded(config, "modules_to_not_convert");
  read_excluded(config, "ignored_layers");
  config.ignore({"activation_scheme", "scale_fmt", "kv_cache_scheme", "dequantize"});
}

void Quantization::read_mxfp4(const ConfigReader& config) {
  block_rows_ = 1, block_columns_ = kMxBlock;
  read_excluded(config, "modules_to_not_convert");
  config.ignore({"dequantize"});
}

void Quantization::read_compressed_tensors(const ConfigReader& config) {
  const std::string format = config.text("format", "");
  config.require(format == "float-quantized", "format", "float-quantized");
  const Json& groups = config.value("config_groups");
  config.require(groups.is_object() && !groups.empty(), "config_groups", "an object with a group");
  std::set<Block> blocks;
  for (const Json& group : groups) blocks.insert(read_group(group));
  config.require(blocks.size() == 1, "config_groups", "the same strategy for all weights");
  std::tie(block_rows_, block_columns_) = *blocks.begin();
  read_excluded(config, "ignore");
  for (const char* const key : {"sparsity_config", "transform_config"})
    config.require(config.value(key).empty(), key, "null or {}");
  config.ignore({"quantization_status", "global_compression_ratio", "kv_cache_scheme", "version"});
}

void Quantization::read_excluded(const ConfigReader& config, const char* key) {
  if (!config.has(key)) return;
  const Json& names = config.value(key);
  const auto is_text = [](const Json& name) { return name.is_string(); };
  config.require(names.is_array() && std::all_of(names.begin(), names.end(), is_text), key, "a list of modules");
  for (const std::string name : names) {
    const bool expression = name.starts_with("re:");
    if (!expression && name.find('*') == std::string::npos) {
      excluded_modules_.insert(name);
      continue;
    }
    try {
      excluded_patterns_.emplace_back(expression ? name.substr(3) : glob_expression(name));
    } catch (const std::regex_error& error) {
      base::throw_error("hf", base::concat("config.json: ", key, " = ", name, ": must be a regular expression (",
                                           error.what(), "); correct it"));
    }
  }
}

std::string Quantization::to_string() const {
  if (!is_used()) return "";
  const auto size = [](int64_t length) { return length == 0 ? std::string("all") : std::to_string(length); };
  return base::concat(method_, ", a scale for each block of ", size(block_rows_), " x ", size(block_columns_));
}

std::optional<QuantizedForm> Quantization::apply(TensorPart& part, const Find& find) const {
  if (!is_used() || part.shape.size() < 2) return std::nullopt;
  return method_ == kMxfp4 ? apply_mxfp4(part, find) : apply_fp8(part, find);
}

std::optional<QuantizedForm> Quantization::apply_fp8(const TensorPart& part, const Find& find) const {
  const files::TensorInfo* const codes = find(part.name);
  if (codes == nullptr || codes->dtype != files::Dtype::kF8E4M3) return std::nullopt;
  const int64_t rows = part.shape.end()[-2], columns = part.shape.back();
  const int64_t block_rows = block_rows_ == 0 ? rows : std::min(block_rows_, rows);
  const int64_t block_columns = block_columns_ == 0 ? columns : std::min(block_columns_, columns);
  const Dims matrices(part.shape.begin(), part.shape.end() - 2);
  const bool inverse =
      find(part.name + "_scale_inv") != nullptr || (method_ == kFp8 && find(part.name + "_scale") == nullptr);
  QuantizedForm form{codes->dtype,
                     codes->dtype,
                     part.shape,
                     part.name + (inverse ? "_scale_inv" : "_scale"),
                     scale_shapes(matrices, divide_up(rows, block_rows), divide_up(columns, block_columns)),
                     rows,
                     columns,
                     block_rows,
                     block_columns};
  if (block_rows_ == 0) form.scale_shapes.push_back(matrices);  // one scale for a matrix
  return form;
}

// The unquantized tensor is [.., inputs, outputs]. The codes are [.., outputs, inputs / 32, 16 bytes].
std::optional<QuantizedForm> Quantization::apply_mxfp4(TensorPart& part, const Find& find) const {
  const std::string blocks = part.name + "_blocks", scales = part.name + "_scales";
  if (find(part.name) != nullptr || (find(blocks) == nullptr && find(scales) == nullptr)) return std::nullopt;
  const int64_t inputs = part.shape.end()[-2], outputs = part.shape.back();
  const int64_t row_blocks = divide_up(inputs, kMxBlock), padded = row_blocks * kMxBlock;
  Dims shape(part.shape.begin(), part.shape.end() - 2);
  part.name = blocks;
  part.base = transpose_index(part.base, inputs, outputs, padded);
  for (int64_t& stride : part.strides) stride = transpose_index(stride, inputs, outputs, padded);
  shape.push_back(outputs), shape.push_back(row_blocks);
  QuantizedForm form{files::Dtype::kF4, files::Dtype::kU8, shape, scales, {shape}, outputs, padded, 1, kMxBlock};
  form.shape.push_back(kMxBlock / 2);
  return form;
}

// A name in the list is the module, a module that contains it, or the last components of one of these.
bool Quantization::is_excluded(const std::string& tensor) const {
  const std::string module = tensor.substr(0, tensor.rfind(".weight"));
  for (size_t begin = 0; !excluded_modules_.empty() && begin != std::string::npos;) {
    for (size_t end = begin; end != std::string::npos;) {
      end = module.find('.', end + 1);
      if (excluded_modules_.contains(module.substr(begin, end == std::string::npos ? end : end - begin))) return true;
    }
    const size_t dot = module.find('.', begin);
    begin = dot == std::string::npos ? dot : dot + 1;
  }
  return std::any_of(excluded_patterns_.begin(), excluded_patterns_.end(), [&](const std::regex& pattern) {
    return std::regex_search(module, pattern, std::regex_constants::match_continuous);
  });
}

bool Quantization::is_for_activations(const std::string& name) const {
  const auto ends = [&](const char* suffix) { return name.ends_with(suffix); };
  constexpr std::array kSuffixes{".input_scale", ".activation_scale", ".output_scale", ".k_scale", ".v_scale"};
  return is_used() && std::any_of(kSuffixes.begin(), kSuffixes.end(), ends);
}

std::set<std::string> Quantization::names_of_weight(const std::string& weight) const {
  std::set<std::string> names{weight};
  if (!is_used()) return names;
  for (const char* const suffix : {"_scale_inv", "_scale", "_blocks", "_scales"}) names.insert(weight + suffix);
  return names;
}

uint64_t Quantization::count_weights(const files::TensorInfo& info) const {
  const auto ends = [&](const char* suffix) { return info.name.ends_with(suffix); };
  if (is_used() && (ends("_scale") || ends("_scale_inv") || ends("_scales"))) return 0;
  uint64_t elements = 1;
  for (const uint64_t length : info.shape) elements *= length;
  return method_ == kMxfp4 && ends("_blocks") ? 2 * elements : elements;
}

}  // namespace metroplex::hf
