#include "hf/directory.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "base/error.h"
#include "config/load.h"
#include "config/model_function.h"
#include "config/validate.h"
#include "files/convert_dtype.h"
#include "hf/decoder.h"
#include "hf/text_part.h"

namespace metroplex::hf {
namespace {

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kSingleFile = "model.safetensors";

Json read_json(files::FileSystem& disk, const std::string& path) {
  if (!disk.exists(path)) checkpoint::refuse_foreign(disk, files::parent_directory(path));
  MPX_CHECK(disk.exists(path), "checkpoint", "'", path,
            "' is missing; a Hugging Face directory has config.json and safetensors files");
  try {
    return parse_json(disk.read(path));
  } catch (const Json::exception& error) {
    base::throw_error("hf", base::concat("'", path, "' is not JSON: ", error.what(), "; copy it again"));
  }
}

TextPart read_text_part(files::FileSystem& disk, const std::string& directory) {
  const Json json = read_json(disk, files::join_path(directory, "config.json"));
  MPX_CHECK(json.is_object(), "hf", "'", directory, "/config.json' is not a JSON object; copy the directory again");
  return find_text_part(json);
}

// The file of each tensor of the text model, by its name there; empty without an index.
std::map<std::string, std::string> read_index(files::FileSystem& disk, const std::string& directory,
                                              const TextPart& text) {
  std::map<std::string, std::string> files;
  const std::string index = files::join_path(directory, kIndex);
  if (!disk.exists(index)) return files;
  const Json json = read_json(disk, index);
  MPX_CHECK(json.is_object() && json.contains("weight_map") && json.at("weight_map").is_object(), "checkpoint", "'",
            index, "' has no weight_map; copy the directory again");
  for (const auto& [tensor, file] : json.at("weight_map").items()) {
    MPX_CHECK(file.is_string() && file.get<std::string>().find('/') == std::string::npos, "checkpoint", "'", index,
              "' must name a file in the directory for ", tensor, "; copy the directory again");
    if (const auto name = text.name(tensor)) files.emplace(*name, file.get<std::string>());
  }
  return files;
}

// Computes the overlap of two regions; returns false if they are disjoint.
bool overlap(const Dims& dims, const Dims& a_size, const Dims& b, const Dims& b_size, Dims& offset, Dims& size) {
  offset.resize(dims.size()), size.resize(dims.size());
  for (size_t d = 0; d < dims.size(); ++d) {
    offset[d] = std::max(dims[d], b[d]);
    size[d] = std::min(dims[d] + a_size[d], b[d] + b_size[d]) - offset[d];
    if (size[d] <= 0) return false;
  }
  return true;
}

std::string dims_text(const std::vector<uint64_t>& shape) {
  return checkpoint::describe_shape({shape.begin(), shape.end()});
}

struct StoredType {
  const char *name, *setting;
  files::Dtype dtype;
};

const StoredType& stored_type(const ConfigReader& config) {
  static constexpr StoredType kTypes[] = {{"float32", "fp32", files::Dtype::kF32},
                                          {"bfloat16", "bf16", files::Dtype::kBF16},
                                          {"float16", "fp16", files::Dtype::kF16}};
  const char* const otherwise = config.has("quantization_config") ? "bfloat16" : "float32";  // gpt_oss has none
  const std::string name = config.text("dtype", config.text("torch_dtype", otherwise));
  const auto* const found =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const StoredType& type) { return name == type.name; });
  config.require(found != std::end(kTypes), config.has("dtype") ? "dtype" : "torch_dtype",
                 "float32, bfloat16 or float16");
  return *found;
}

// The value of a key of section model that every family sets.
int64_t integer_setting(const Settings& settings, const std::string& key) {
  const std::string begin = "model." + key + "=";
  const auto found = std::find_if(settings.begin(), settings.end(),
                                  [&](const std::string& setting) { return setting.starts_with(begin); });
  MPX_ASSERT(found != settings.end(), "a family without ", begin);
  return std::stoll(found->substr(begin.size()));
}

// The first tensor of the text model that `is_wanted`, or nothing.
std::optional<files::TensorInfo> find_tensor(files::FileSystem& disk, const std::string& directory,
                                             const TextPart& text,
                                             const std::function<bool(const std::string&)>& is_wanted) {
  std::string path = files::join_path(directory, kSingleFile);
  if (!disk.exists(path)) {
    const std::map<std::string, std::string> files = read_index(disk, directory, text);
    const auto found =
        std::find_if(files.begin(), files.end(), [&](const auto& file) { return is_wanted(file.first); });
    if (found == files.end()) return std::nullopt;
    path = files::join_path(directory, found->second);
    if (!disk.exists(path)) return std::nullopt;
  }
  const files::SafetensorsFile file(disk.map(path), path);
  for (const files::TensorInfo& info : file.tensors()) {
    const auto name = text.name(info.name);
    if (name && is_wanted(*name)) return info;
  }
  return std::nullopt;
}

// transformers writes no multi-token prediction layers, even if config.json has num_nextn_predict_layers.
bool has_multi_token(files::FileSystem& disk, const std::string& directory, const TextPart& text) {
  const ConfigReader config(text.config);
  if (config.integer("num_nextn_predict_layers", 1) == 0) return true;
  const std::string prefix = multi_token_prefix(config.integer("num_hidden_layers"));
  return find_tensor(disk, directory, text, [&](const std::string& name) { return name.starts_with(prefix); })
      .has_value();
}

// transformers keeps the routers of some families in float32.
bool has_wide_router(files::FileSystem& disk, const std::string& directory, const TextPart& text,
                     const Family& family, const Settings& settings) {
  const config::Model model = config::resolved(config::load("", settings), 1).model;
  if (!model.has_experts() || !has_weights(disk, directory)) return false;
  std::string router;
  for (const MappedTensor& tensor : family.tensors(model)) {
    if (router.empty() && tensor.name.ends_with(".mlp.router.weight")) router = tensor.parts.front().name;
  }
  const auto found = find_tensor(disk, directory, text, [&](const std::string& name) { return name == router; });
  return found && found->dtype == files::Dtype::kF32;
}

}  // namespace

std::string list_problems(const std::vector<std::string>& problems) {
  constexpr size_t kMost = 12;
  std::string text;
  for (size_t i = 0; i < std::min(problems.size(), kMost); ++i) text += "\n  " + problems[i];
  return text + (problems.size() > kMost ? base::concat("\n  and ", problems.size() - kMost, " more") : "");
}

std::vector<std::string> read_settings(files::FileSystem& disk, const std::string& directory) {
  const TextPart text = read_text_part(disk, directory);
  const Json& json = text.config;
  const ConfigReader config(json);
  const Quantization quantization(json);  // checks its keys
  const Family& family = find_family(config.text("model_type", ""));
  std::vector<std::string> settings = read_config(family, json);
  if (family.multi_token && !has_multi_token(disk, directory, text))
    std::erase_if(settings, [](const std::string& key) { return key.starts_with("model.mtp_num_layers="); });
  const std::string type = stored_type(config).setting;
  settings.push_back("precision.params_dtype=" + type);
  settings.push_back(std::string("model.hf_model_type=") +
                     (family.written_as ? family.written_as : family.model_type));
  if (type != "fp32" && !quantization.is_used() && has_wide_router(disk, directory, text, family, settings))
    set(settings, "moe_router_weight_in_fp32", true);
  const int64_t positions = integer_setting(settings, "max_position_embeddings");
  settings.push_back(base::concat("train.seq_length=", std::min(positions, config::Train().seq_length)));
  const std::string generation = files::join_path(directory, "generation_config.json");
  for (std::string& setting :
       special_id_settings(json, disk.exists(generation) ? read_json(disk, generation) : Json()))
    settings.push_back(std::move(setting));
  for (const auto& [file, tokenizer] :
       {std::pair{"tokenizer.json", "bpe"}, {"tokenizer.model", "sentencepiece"}, {"vocab.json", "bpe"}}) {
    if (!disk.exists(files::join_path(directory, file))) continue;
    settings.push_back(base::concat("data.tokenizer_type=", tokenizer));
    settings.push_back("data.tokenizer_model=" + files::join_path(directory, file));
    break;
  }
  return settings;
}

Quantization read_quantization(files::FileSystem& disk, const std::string& directory) {
  return Quantization(read_text_part(disk, directory).config);
}

int64_t vocabulary_size(files::FileSystem& disk, const std::string& directory) {
  const Json json = read_text_part(disk, directory).config;
  return integer_setting(read_config(find_family(ConfigReader(json).text("model_type", "")), json), "vocab_size");
}

std::vector<std::string> directory_notes(files::FileSystem& disk, const std::string& directory) {
  const std::string path = files::join_path(directory, "config.json");
  const TextPart text = read_text_part(disk, directory);
  std::vector<std::string> notes;
  if (!text.other_configs.empty()) {
    notes.push_back(base::concat("'", path, "' has ", text.other_configs,
                                 ": only the text model (text_config) is read, and exports contain only it"));
  }
  if (ConfigReader(read_json(disk, path)).has("auto_map")) {
    notes.push_back(base::concat("'", path,
                                 "' has auto_map: the Python code of the directory is not run, and exports have "
                                 "neither it nor auto_map"));
  }
  const ConfigReader config(text.config);
  const int64_t layers = config.integer("num_nextn_predict_layers", 0);
  const bool reads_layers = find_family(config.text("model_type", "")).multi_token && has_weights(disk, directory);
  if (layers > 0 && reads_layers && !has_multi_token(disk, directory, text)) {
    notes.push_back(base::concat("'", path, "': num_nextn_predict_layers = ", layers,
                                 ": the weight files have no such layers, and neither has the model; copy files "
                                 "with these layers to train multi-token prediction"));
  }
  return notes;
}

bool has_weights(files::FileSystem& disk, const std::string& directory) {
  return disk.exists(files::join_path(directory, kIndex)) || disk.exists(files::join_path(directory, kSingleFile));
}

Source::Source(files::FileSystem& disk, const std::string& directory, const config::Model& model,
               const Wanted& is_wanted)
    : TensorSource(directory), disk_(disk), quantization_(read_quantization(disk, directory)) {
  const TextPart text = read_text_part(disk, directory);
  list_tensors(text);
  MPX_CHECK(!stored_.empty(), "checkpoint", "'", directory, "' has ",
            text.multimodal ? "no tensor of the text model; its names begin with model.language_model. or "
                              "language_model."
                            : "no tensors; copy the safetensors files again");
  config_dtype_ = stored_type(ConfigReader(text.config)).dtype;
  check_numbers(model);
  const Family& family = find_family(ConfigReader(text.config).text("model_type", ""));
  std::vector<MappedTensor> unwanted;
  for (MappedTensor& tensor : family.tensors(model))
    (!is_wanted || is_wanted(tensor.name) ? mapped_ : unwanted).push_back(std::move(tensor));
  std::vector<std::string> unread;  // multi-token prediction layers that the model does not use
  for (int64_t i = model.mtp_num_layers; family.multi_token && i < kMaxMultiToken; ++i)
    unread.push_back(multi_token_prefix(model.num_layers + i));
  grow_vocabulary();
  map_quantized();
  check(model, unwanted, unread, check_constants(family, model));
  if (model.tied()) check_tied();
  add_tensors();
}

void Source::add_tensors() {
  const auto add_as = [&](size_t i, const std::string& kind, files::Dtype dtype) {
    add({mapped_[i].name, kind, dtype, mapped_[i].shape});
    in_mapped_.push_back(i);
  };
  for (size_t i = 0; i < mapped_.size(); ++i) add_as(i, mapped_[i].kind, value_dtype(mapped_[i]));
  for (size_t i = 0; i < mapped_.size(); ++i) {
    if (is_rounded(mapped_[i])) add_as(i, "main", files::Dtype::kF32);
  }
}

files::Dtype Source::value_dtype(const MappedTensor& tensor) const {
  const bool follows_config = quantization_.is_used() && tensor.kind == "weight";
  return follows_config ? config_dtype_ : stored_.at(tensor.parts.front().name).info.dtype;
}

bool Source::is_rounded(const MappedTensor& tensor) const {
  const int bits = files::dtype_bits(value_dtype(tensor));
  return bits < 32 && std::any_of(tensor.parts.begin(), tensor.parts.end(), [&](const TensorPart& part) {
           const auto stored = stored_.find(part.name);  // a copy may be missing
           return quantized_.contains(part.name) ||
                  (stored != stored_.end() && files::dtype_bits(stored->second.info.dtype) > bits);
         });
}

void Source::map_quantized() {
  const auto find = [&](const std::string& name) {
    const auto found = stored_.find(name);
    return found == stored_.end() ? nullptr : &found->second.info;
  };
  for (MappedTensor& tensor : mapped_) {
    for (TensorPart& part : tensor.parts) {
      const auto form = quantization_.apply(part, find);
      if (form) quantized_.emplace(part.name, *form);
    }
  }
}

// Bounds the allocations that depend on these sizes: each entry needs at least one byte of weights.
void Source::check_numbers(const config::Model& model) const {
  int64_t bytes = 0;
  for (const auto& [name, stored] : stored_) bytes += static_cast<int64_t>(stored.info.end - stored.info.begin);
  const int64_t entries = std::max({model.num_attention_heads, model.num_moe_experts, int64_t{1}});
  MPX_CHECK(model.num_layers <= bytes / entries, "checkpoint", "'", directory(), "': config.json has ",
            model.num_layers, " layers, ", model.num_attention_heads, " heads, ", model.num_moe_experts,
            " experts, but there are only ", bytes, " bytes of weights; correct it, or copy all weight files");
}

void Source::list_tensors(const TextPart& text) {
  std::set<std::string> names;
  // As in transformers, the single file takes precedence.
  if (disk_.exists(files::join_path(directory(), kSingleFile)) ||
      !disk_.exists(files::join_path(directory(), kIndex)))
    names.insert(kSingleFile);
  else
    for (const auto& [tensor, file] : read_index(disk_, directory(), text)) names.insert(file);
  for (const std::string& name : names) {
    MPX_CHECK(disk_.exists(files::join_path(directory(), name)), "checkpoint", "'",
              files::join_path(directory(), name), "' is missing; weights are read from safetensors files only");
    for (const files::TensorInfo& info : open(name).tensors()) {
      const auto own = text.name(info.name);
      if (!own) continue;
      const bool inserted = stored_.emplace(*own, Stored{name, info}).second;
      MPX_CHECK(inserted, "checkpoint", "tensor '", info.name, "' is in ", stored_.at(*own).file, " and in ", name,
                " of '", directory(), "'; remove one of the files");
    }
  }
}

// "\nset as in config.json: model.num_layers = 3, not 4" for the keys that differ from it; empty: none.
static std::string list_overrides(files::FileSystem& disk, const std::string& directory, const config::Model& model) {
  std::string text;
  for (const config::Difference& difference :
       config::differing_keys(model, config::load("", read_settings(disk, directory)).model))
    text += base::concat(text.empty() ? "\nset as in config.json: " : "; ", difference.key, " = ", difference.there,
                         ", not ", difference.here);
  return text;
}

void Source::check(const config::Model& model, const std::vector<MappedTensor>& unwanted,
                   const std::vector<std::string>& unread, const std::set<std::string>& constants) const {
  std::vector<std::string> problems;
  std::set<std::string> wanted = constants;
  bool lacks_ahead = false;
  for (const MappedTensor& tensor : mapped_) {
    for (const TensorPart& part : tensor.parts) {
      if (!wanted.insert(part.name).second) continue;
      const auto form = quantized_.find(part.name);
      if (form != quantized_.end()) wanted.insert(form->second.scales);
      check_part(part, tensor.parts.front(), problems);
      lacks_ahead = lacks_ahead || (!part.copy && !stored_.contains(part.name) && tensor.name.starts_with("mtp."));
    }
  }
  for (const MappedTensor& tensor : unwanted) {
    for (const TensorPart& part : tensor.parts) wanted.merge(quantization_.names_of_weight(part.name));
  }
  for (const auto& [name, stored] : stored_) {
    // Older files contain tied weights, rotary frequencies and masks, which are redundant.
    const std::string& theirs = name;  // clang 14 cannot capture a structured binding
    const auto begins = [&theirs](const std::string& prefix) { return theirs.starts_with(prefix); };
    const bool follows = name == "lm_head.weight" || std::any_of(unread.begin(), unread.end(), begins) ||
                         quantization_.is_for_activations(name) || name.ends_with(".rotary_emb.inv_freq") ||
                         name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
    if (wanted.count(name) == 0 && !follows) problems.push_back(name + " does not belong to this model");
  }
  if (problems.empty()) return;
  const std::string overrides = list_overrides(disk_, directory(), model);
  MPX_CHECK(false, "checkpoint", "'", directory(), "' does not contain the weights of the model",
            overrides.empty() ? " in its config.json:" : ":", list_problems(problems),
            lacks_ahead ? "\nmodel.mtp_num_layers needs layers that the directory does not have: set it to 0, "
                          "or initialize them with checkpoint.load_except = mtp.*"
            : overrides.empty() ? "\ncorrect config.json, or copy all weight files of the model"
                                : overrides);
}

// With rounding unit u, an exponent x has a relative error of 2 u, so that exp(-x) has an error of 2 u x exp(-x) < u,
// plus u for its own rounding. Another program may round one more intermediate value.
std::set<std::string> Source::check_constants(const Family& family, const config::Model& model) {
  std::set<std::string> names;
  if (family.constants == nullptr) return names;
  for (const Constant& constant : family.constants(model)) {
    names.insert(constant.name);
    const auto found = stored_.find(constant.name);
    if (found == stored_.end()) continue;
    const files::TensorInfo& info = found->second.info;
    MPX_CHECK(files::is_float(info.dtype) && Dims(info.shape.begin(), info.shape.end()) == constant.shape,
              "checkpoint", "'", directory(), "': ", constant.name, " is ", files::dtype_name(info.dtype),
              " of shape ", dims_text(info.shape), ", but config.json requires ",
              checkpoint::describe_shape(constant.shape), "; correct config.json, or remove the tensor");
    const std::vector<float> values = constant.values();
    std::vector<float> stored(values.size());
    files::convert_elements(info.dtype, tensor_data(constant.name), files::Dtype::kF32,
                            reinterpret_cast<std::byte*>(stored.data()), stored.size());
    const int bits = info.dtype == files::Dtype::kBF16 ? 8 : info.dtype == files::Dtype::kF16 ? 11 : 24;
    const float allowed = std::ldexp(4.0F, -bits);
    for (size_t i = 0; i < values.size(); ++i)
      MPX_CHECK(std::abs(stored[i] - values[i]) <= allowed, "checkpoint", "'", directory(), "': element ", i, " of ",
                constant.name, " is ", stored[i], ", but config.json determines ", values[i],
                "; correct config.json, or remove the tensor");
  }
  return names;
}

void Source::check_part(const TensorPart& part, const TensorPart& first, std::vector<std::string>& problems) const {
  const auto found = stored_.find(part.name);
  if (found == stored_.end()) {
    if (!part.copy) problems.push_back(part.name + " is missing");
    return;
  }
  const auto form = quantized_.find(part.name);
  if (form != quantized_.end()) return check_codes(part.name, form->second, problems);
  const files::TensorInfo& info = found->second.info;
  if (!files::is_float(info.dtype))
    problems.push_back(base::concat(part.name, " is ", files::dtype_name(info.dtype), ", not F64, F32, BF16 or F16"));
  if (!std::equal(info.shape.begin(), info.shape.end(), part.shape.begin(), part.shape.end()))
    problems.push_back(base::concat(part.name, " has shape ", dims_text(info.shape), ", but the model requires ",
                                    checkpoint::describe_shape(part.shape)));
  const auto other = stored_.find(first.name);
  if (!quantization_.is_used() && other != stored_.end() && info.dtype != other->second.info.dtype)
    problems.push_back(base::concat(part.name, " is ", files::dtype_name(info.dtype), ", but ", first.name, " is ",
                                    files::dtype_name(other->second.info.dtype)));
}

void Source::check_codes(const std::string& name, const QuantizedForm& form,
                         std::vector<std::string>& problems) const {
  const auto check_shape = [&](const files::TensorInfo& info, const std::vector<Dims>& accepted) {
    const Dims shape(info.shape.begin(), info.shape.end());
    if (std::find(accepted.begin(), accepted.end(), shape) == accepted.end())
      problems.push_back(base::concat(info.name, " has shape ", dims_text(info.shape),
                                      ", but config.json and its quantization_config require ",
                                      checkpoint::describe_shape(accepted.front())));
  };
  const auto check_dtype = [&](const files::TensorInfo& info, bool valid, const char* expected) {
    if (!valid)
      problems.push_back(base::concat(info.name, " is ", files::dtype_name(info.dtype), ", not ", expected));
  };
  const files::TensorInfo& codes = stored_.at(name).info;
  check_dtype(codes, codes.dtype == form.stored, files::dtype_name(form.stored));
  check_shape(codes, {form.shape});
  if (quantization_.is_excluded(name))
    problems.push_back(base::concat(name, " is quantized, but quantization_config excludes its module"));
  const auto scales = stored_.find(form.scales);
  if (scales == stored_.end()) {
    problems.push_back(base::concat(form.scales, " is missing; ", name, " needs it"));
    return;
  }
  const files::TensorInfo& info = scales->second.info;
  if (form.codes == files::Dtype::kF4) check_dtype(info, info.dtype == files::Dtype::kU8, "U8");
  else
    check_dtype(info, files::is_float(info.dtype) || info.dtype == files::Dtype::kF8E8M0,
                "F32, BF16, F16 or F8_E8M0");
  check_shape(info, form.scale_shapes);
}

// Files may store tied weights once or twice; transformers unties them if the two differ.
void Source::check_tied() {
  const auto output = stored_.find("lm_head.weight");
  const auto words = std::find_if(mapped_.begin(), mapped_.end(), [](const MappedTensor& tensor) {
    return tensor.name == "embedding.word_embeddings.weight";
  });
  if (output == stored_.end() || words == mapped_.end()) return;
  const Stored& one = output->second;
  const Stored& other = stored_.at(words->parts.front().name);
  const uint64_t bytes = one.info.end - one.info.begin;
  const bool same = one.info.dtype == other.info.dtype && bytes == other.info.end - other.info.begin &&
                    std::memcmp(open(one.file).data(one.info), open(other.file).data(other.info), bytes) == 0;
  MPX_CHECK(same, "checkpoint", "'", directory(),
            "' ties lm_head.weight to the embedding, but contains a different lm_head.weight; ",
            "set model.untie_embeddings_and_output_weights = true to use that one, or remove it from the file");
}

// Shrinks the parts of a tensor to the stored rows if the file has fewer rows than ours.
void Source::grow_vocabulary() {
  for (size_t i = 0; i < mapped_.size(); ++i) {
    MappedTensor& tensor = mapped_[i];
    if (tensor.name != "embedding.word_embeddings.weight" && tensor.name != "output_layer.weight") continue;
    for (TensorPart& part : tensor.parts) {
      const auto found = stored_.find(part.name);
      if (found == stored_.end() || found->second.info.shape.size() != 2 || part.shape.size() != 2) continue;
      const auto rows = static_cast<int64_t>(found->second.info.shape[0]);
      if (rows == 0 || rows >= part.shape[0]) continue;
      part.shape[0] = part.size[0] = rows;
      mean_rows_[i];
    }
  }
}

// Reads rows of a part of one of our tensors, as elements of `to`.
class Source::PartReader {
 public:
  PartReader(Source& source, const TensorPart& part, files::Dtype to)
      : from_(source.stored_.at(part.name).info.dtype),
        to_(to),
        step_(part.strides.back()),
        theirs_(source.tensor_data(part.name)) {
    const auto form = source.quantized_.find(part.name);
    if (form == source.quantized_.end()) return;
    const files::Dtype stored = source.stored_.at(form->second.scales).info.dtype;
    const files::Dtype scales = stored == files::Dtype::kU8 ? files::Dtype::kF8E8M0 : stored;
    codes_.emplace(form->second, theirs_, source.tensor_data(form->second.scales), scales);
  }

  // `first`: index into their tensor.
  void read(int64_t first, int64_t count, std::byte* out) {
    const int64_t width = files::dtype_bits(from_) / 8;
    if (codes_) {
      row_.resize(static_cast<size_t>(count) * sizeof(float));
      codes_->read(first, step_, count, reinterpret_cast<float*>(row_.data()));
    } else if (step_ != 1) {
      row_.resize(static_cast<size_t>(count * width));
      for (int64_t i = 0; i < count; ++i)
        std::memcpy(row_.data() + i * width, theirs_ + (first + i * step_) * width, static_cast<size_t>(width));
    }
    const std::byte* const values = codes_ || step_ != 1 ? row_.data() : theirs_ + first * width;
    files::convert_elements(codes_ ? files::Dtype::kF32 : from_, values, to_, out, static_cast<uint64_t>(count));
  }

 private:
  files::Dtype from_, to_;
  int64_t step_;
  const std::byte* theirs_;
  std::optional<CodeReader> codes_;
  std::vector<std::byte> row_;
};

const std::vector<double>& Source::mean_row(size_t mapped) {
  std::vector<double>& mean = mean_rows_.at(mapped);
  if (!mean.empty()) return mean;
  const TensorPart& part = mapped_[mapped].parts.front();
  PartReader reader(*this, part, files::Dtype::kF64);
  const int64_t rows = part.shape[0], columns = part.shape[1];
  mean.resize(static_cast<size_t>(columns));
  std::vector<double> row(mean.size());
  for (int64_t r = 0; r < rows; ++r) {
    reader.read(r * columns, columns, reinterpret_cast<std::byte*>(row.data()));
    for (size_t c = 0; c < row.size(); ++c) mean[c] += row[c];
  }
  for (double& number : mean) number /= static_cast<double>(rows);
  return mean;
}

void Source::fill_new_rows(size_t mapped, files::Dtype dtype, const checkpoint::Piece& box,
                           const checkpoint::Piece& region, void* data) {
  const TensorPart& part = mapped_[mapped].parts.front();
  const int64_t begin = std::max(box.offset[0], part.shape[0]), rows = box.offset[0] + box.size[0] - begin;
  if (rows <= 0) return;
  const std::vector<double>& mean = mean_row(mapped);
  const int64_t width = files::dtype_bits(dtype) / 8;
  std::vector<std::byte> row(static_cast<size_t>(box.size[1] * width)), filled;
  files::convert_elements(files::Dtype::kF64, reinterpret_cast<const std::byte*>(mean.data() + box.offset[1]), dtype,
                          row.data(), static_cast<uint64_t>(box.size[1]));
  for (int64_t r = 0; r < rows; ++r) filled.insert(filled.end(), row.begin(), row.end());
  const checkpoint::Piece piece = checkpoint::box_piece({begin, box.offset[1]}, {rows, box.size[1]});
  checkpoint::copy_overlap(piece, filled.data(), region, data, width);
}

const files::SafetensorsFile& Source::open(const std::string& file) {
  auto& opened = files_[file];
  if (!opened) {
    const std::string path = files::join_path(directory(), file);
    opened = std::make_unique<files::SafetensorsFile>(disk_.map(path), path);
  }
  return *opened;
}

const std::byte* Source::tensor_data(const std::string& name) {
  const Stored& stored = stored_.at(name);
  return open(stored.file).data(stored.info);
}

void Source::read(size_t tensor, const checkpoint::Piece& region, void* data) {
  const size_t mapped = in_mapped_[tensor];
  const files::Dtype dtype = tensors()[tensor].dtype;
  const int64_t width = files::dtype_bits(dtype) / 8;
  std::vector<std::byte> rows;
  for (const checkpoint::Piece& box : checkpoint::split_into_boxes(region)) {
    for (const TensorPart& part : mapped_[mapped].parts) {
      Dims offset, size;
      if (part.copy || !overlap(box.offset, box.size, part.offset, part.size, offset, size)) continue;
      PartReader reader(*this, part, dtype);
      const checkpoint::Piece piece = checkpoint::box_piece(offset, size);
      rows.resize(static_cast<size_t>(piece.count() * width));
      std::byte* to = rows.data();
      for_each_row(part, offset, size, [&](int64_t from) {
        reader.read(from, size.back(), to);
        to += size.back() * width;
      });
      checkpoint::copy_overlap(piece, rows.data(), region, data, width);
    }
    if (mean_rows_.contains(mapped)) fill_new_rows(mapped, dtype, box, region, data);
  }
}

}  // namespace metroplex::hf
