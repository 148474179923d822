#include "hf/directory.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "config/load.h"
#include "config/validate.h"
#include "files/convert_dtype.h"
#include "hf/decoder.h"

namespace metroplex::hf {
namespace {

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kSingleFile = "model.safetensors";

Json read_json(files::FileSystem& disk, const std::string& path) {
  if (!disk.exists(path)) checkpoint::refuse_foreign(disk, files::parent_directory(path));
  MPX_CHECK(disk.exists(path), "checkpoint", "'", path,
            "' is missing; a Hugging Face directory has config.json and safetensors files");
  try {
    return Json::parse(disk.read(path));
  } catch (const Json::exception& error) {
    base::throw_error("hf", base::concat("'", path, "' is not JSON: ", error.what()));
  }
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

std::string some(const std::vector<std::string>& lines) {
  constexpr size_t kMost = 12;
  std::string text;
  for (size_t i = 0; i < std::min(lines.size(), kMost); ++i) text += "\n  " + lines[i];
  return text + (lines.size() > kMost ? base::concat("\n  and ", lines.size() - kMost, " more") : "");
}

// transformers writes no multi-token prediction layers, even if config.json has num_nextn_predict_layers.
bool has_multi_token(files::FileSystem& disk, const std::string& directory, const ConfigReader& config) {
  if (config.integer("num_nextn_predict_layers", 1) == 0) return true;
  const std::string prefix = multi_token_prefix(config.integer("num_hidden_layers"));
  const std::string index = files::join_path(directory, kIndex), one = files::join_path(directory, kSingleFile);
  const auto named = [&](const std::string& name) { return name.starts_with(prefix); };
  if (disk.exists(index)) {
    const Json json = read_json(disk, index);
    const Json map = json.is_object() ? json.value("weight_map", Json::object()) : Json::object();
    for (const auto& [name, file] : map.items()) {
      if (named(name)) return true;
    }
    return false;
  }
  if (!disk.exists(one)) return false;
  const files::SafetensorsFile file(disk.map(one), one);
  return std::any_of(file.tensors().begin(), file.tensors().end(),
                     [&](const auto& info) { return named(info.name); });
}

// transformers keeps the routers of some families in float32.
bool has_wide_router(files::FileSystem& disk, const std::string& directory, const Family& family,
                     const Settings& settings) {
  const config::Model model = config::resolved(config::load("", settings), 1).model;
  if (!model.has_experts() || !has_weights(disk, directory)) return false;
  std::string name;
  for (const MappedTensor& tensor : family.tensors(model)) {
    if (name.empty() && tensor.name.ends_with(".mlp.router.weight")) name = tensor.parts.front().name;
  }
  std::string path = files::join_path(directory, kSingleFile);
  if (!disk.exists(path)) {
    const Json map = read_json(disk, files::join_path(directory, kIndex)).value("weight_map", Json::object());
    if (!map.contains(name) || !map.at(name).is_string()) return false;
    path = files::join_path(directory, map.at(name).get<std::string>());
    if (!disk.exists(path)) return false;
  }
  const files::SafetensorsFile file(disk.map(path), path);
  return std::any_of(file.tensors().begin(), file.tensors().end(),
                     [&](const auto& info) { return info.name == name && info.dtype == files::Dtype::kF32; });
}

}  // namespace

std::vector<std::string> read_settings(files::FileSystem& disk, const std::string& directory) {
  const Json json = read_json(disk, files::join_path(directory, "config.json"));
  MPX_CHECK(json.is_object(), "hf", "'", directory, "/config.json' is not a JSON object");
  const ConfigReader config(json);
  config.require(!config.has("quantization_config"), "quantization_config",
                 "a model without quantized weights (null)");
  const Family& family = find_family(config.text("model_type", ""));
  std::vector<std::string> settings = read_config(family, json);
  if (family.multi_token && !has_multi_token(disk, directory, config))
    std::erase_if(settings, [](const std::string& key) { return key.starts_with("model.mtp_num_layers="); });
  const std::string type = config.text("dtype", config.text("torch_dtype", "float32"));
  const std::map<std::string, std::string> types{{"float32", "fp32"}, {"bfloat16", "bf16"}, {"float16", "fp16"}};
  config.require(types.count(type) > 0, config.has("dtype") ? "dtype" : "torch_dtype",
                 "float32, bfloat16 or float16");
  settings.push_back("precision.params_dtype=" + types.at(type));
  settings.push_back(std::string("model.hf_model_type=") +
                     (family.written_as ? family.written_as : family.model_type));
  if (type != "float32" && has_wide_router(disk, directory, family, settings))
    set(settings, "moe_router_weight_in_fp32", true);
  const std::string key = "model.max_position_embeddings=";
  const auto named = [&](const std::string& setting) { return setting.starts_with(key); };
  const int64_t positions = std::stoll(std::find_if(settings.begin(), settings.end(), named)->substr(key.size()));
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

int64_t vocabulary_size(files::FileSystem& disk, const std::string& directory) {
  const Json json = read_json(disk, files::join_path(directory, "config.json"));
  return ConfigReader(json).integer("vocab_size");
}

std::string custom_code_note(files::FileSystem& disk, const std::string& directory) {
  const std::string path = files::join_path(directory, "config.json");
  if (!ConfigReader(read_json(disk, path)).has("auto_map")) return "";
  return base::concat("'", path,
                      "' has auto_map: the Python code of the directory is not run, and exports have neither "
                      "it nor auto_map");
}

bool has_weights(files::FileSystem& disk, const std::string& directory) {
  return disk.exists(files::join_path(directory, kIndex)) || disk.exists(files::join_path(directory, kSingleFile));
}

Source::Source(files::FileSystem& disk, const std::string& directory, const config::Model& model,
               const Wanted& is_wanted)
    : TensorSource(directory), disk_(disk) {
  list_tensors();
  const Json json = read_json(disk, files::join_path(directory, "config.json"));
  check_numbers(model);
  const Family& family = find_family(ConfigReader(json).text("model_type", ""));
  std::vector<MappedTensor> unwanted;
  for (MappedTensor& tensor : family.tensors(model))
    (!is_wanted || is_wanted(tensor.name) ? mapped_ : unwanted).push_back(std::move(tensor));
  std::vector<std::string> unread;  // multi-token prediction layers that the model does not use
  for (int64_t i = model.mtp_num_layers; family.multi_token && i < kMaxMultiToken; ++i)
    unread.push_back(multi_token_prefix(model.num_layers + i));
  grow_vocabulary();
  check(unwanted, unread);
  if (model.tied()) check_tied();
  for (const MappedTensor& tensor : mapped_)
    add({tensor.name, tensor.kind, stored_.at(tensor.parts.front().name).info.dtype, tensor.shape});
}

// Bounds the allocations that depend on these sizes: each entry needs at least one byte of weights.
void Source::check_numbers(const config::Model& model) const {
  int64_t bytes = 0;
  for (const auto& [name, stored] : stored_) bytes += static_cast<int64_t>(stored.info.end - stored.info.begin);
  const int64_t entries = std::max({model.num_attention_heads, model.num_moe_experts, int64_t{1}});
  MPX_CHECK(model.num_layers <= bytes / entries, "checkpoint", "'", directory(), "': config.json has ",
            model.num_layers, " layers, ", model.num_attention_heads, " heads, ", model.num_moe_experts,
            " experts, but there are only ", bytes, " bytes of weights");
}

void Source::list_tensors() {
  std::set<std::string> names;
  // As in transformers, the single file takes precedence.
  const std::string index = files::join_path(directory(), kIndex);
  if (!disk_.exists(files::join_path(directory(), kSingleFile)) && disk_.exists(index)) {
    const Json json = read_json(disk_, index);
    MPX_CHECK(json.contains("weight_map") && json.at("weight_map").is_object(), "checkpoint", "'", index,
              "' has no weight_map");
    for (const auto& [tensor, file] : json.at("weight_map").items()) {
      MPX_CHECK(file.is_string() && file.get<std::string>().find('/') == std::string::npos, "checkpoint", "'", index,
                "' must name a file in the directory for ", tensor);
      names.insert(file.get<std::string>());
    }
  } else {
    names.insert(kSingleFile);
  }
  for (const std::string& name : names) {
    MPX_CHECK(disk_.exists(files::join_path(directory(), name)), "checkpoint", "'",
              files::join_path(directory(), name), "' is missing; weights are read from safetensors files only");
    for (const files::TensorInfo& info : open(name).tensors()) {
      const bool inserted = stored_.emplace(info.name, Stored{name, info}).second;
      MPX_CHECK(inserted, "checkpoint", "tensor '", info.name, "' is in ", stored_.at(info.name).file, " and in ",
                name, " of '", directory(), "'");
    }
  }
}

void Source::check(const std::vector<MappedTensor>& unwanted, const std::vector<std::string>& unread) const {
  std::vector<std::string> problems;
  std::set<std::string> wanted;
  bool lacks_ahead = false;
  for (const MappedTensor& tensor : mapped_) {
    const auto first = stored_.find(tensor.parts.front().name);
    for (const TensorPart& part : tensor.parts) {
      if (!wanted.insert(part.name).second) continue;
      const auto found = stored_.find(part.name);
      if (found == stored_.end() && part.copy) continue;
      if (found == stored_.end()) {
        problems.push_back(part.name + " is missing");
        lacks_ahead = lacks_ahead || tensor.name.starts_with("mtp.");
        continue;
      }
      const files::TensorInfo& info = found->second.info;
      if (!files::is_float(info.dtype))
        problems.push_back(
            base::concat(part.name, " is ", files::dtype_name(info.dtype), ", not F64, F32, BF16 or F16"));
      if (!std::equal(info.shape.begin(), info.shape.end(), part.shape.begin(), part.shape.end()))
        problems.push_back(base::concat(part.name, " has shape ", dims_text(info.shape),
                                        ", but config.json requires ", checkpoint::describe_shape(part.shape)));
      if (first != stored_.end() && info.dtype != first->second.info.dtype)
        problems.push_back(base::concat(part.name, " is ", files::dtype_name(info.dtype), ", but ", first->first,
                                        " is ", files::dtype_name(first->second.info.dtype)));
    }
  }
  for (const MappedTensor& tensor : unwanted) {
    for (const TensorPart& part : tensor.parts) wanted.insert(part.name);
  }
  for (const auto& [name, stored] : stored_) {
    // Older files contain tied weights, rotary frequencies and masks, which are redundant.
    const std::string& theirs = name;  // clang 14 cannot capture a structured binding
    const auto begins = [&theirs](const std::string& prefix) { return theirs.starts_with(prefix); };
    const bool follows = name == "lm_head.weight" || std::any_of(unread.begin(), unread.end(), begins) ||
                         name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.bias") ||
                         name.ends_with(".attn.masked_bias");
    if (wanted.count(name) == 0 && !follows) problems.push_back(name + " does not belong to this model");
  }
  MPX_CHECK(problems.empty(), "checkpoint", "'", directory(),
            "' does not contain the weights of the model in its config.json:", some(problems),
            lacks_ahead ? "\nmodel.mtp_num_layers needs layers that the directory does not have: set it to 0, or "
                          "initialize them with checkpoint.load_except = mtp.*"
                        : "");
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

const std::vector<std::byte>& Source::mean_row(size_t tensor) {
  std::vector<std::byte>& mean = mean_rows_.at(tensor);
  if (!mean.empty()) return mean;
  const Stored& stored = stored_.at(mapped_[tensor].parts.front().name);
  const std::byte* theirs = open(stored.file).data(stored.info);
  const uint64_t rows = stored.info.shape[0], columns = stored.info.shape[1];
  const uint64_t width = columns * static_cast<uint64_t>(files::dtype_bits(stored.info.dtype) / 8);
  std::vector<double> sum(columns), row(columns);
  const auto as_bytes = [](std::vector<double>& numbers) { return reinterpret_cast<std::byte*>(numbers.data()); };
  for (uint64_t r = 0; r < rows; ++r) {
    files::convert_elements(stored.info.dtype, theirs + r * width, files::Dtype::kF64, as_bytes(row), columns);
    for (uint64_t c = 0; c < columns; ++c) sum[c] += row[c];
  }
  for (double& number : sum) number /= static_cast<double>(rows);
  mean.resize(width);
  files::convert_elements(files::Dtype::kF64, as_bytes(sum), stored.info.dtype, mean.data(), columns);
  return mean;
}

void Source::fill_new_rows(size_t tensor, const checkpoint::Piece& box, const checkpoint::Piece& region, void* data) {
  const TensorPart& part = mapped_[tensor].parts.front();
  const int64_t begin = std::max(box.offset[0], part.shape[0]), rows = box.offset[0] + box.size[0] - begin;
  if (rows <= 0) return;
  const std::vector<std::byte>& mean = mean_row(tensor);
  const auto width = static_cast<int64_t>(mean.size()) / part.shape[1];
  std::vector<std::byte> filled;
  for (int64_t r = 0; r < rows; ++r) {
    const auto first = mean.begin() + box.offset[1] * width;
    filled.insert(filled.end(), first, first + box.size[1] * width);
  }
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

void Source::read(size_t tensor, const checkpoint::Piece& region, void* data) {
  std::vector<std::byte> rows;
  for (const checkpoint::Piece& box : checkpoint::split_into_boxes(region)) {
    for (const TensorPart& part : mapped_[tensor].parts) {
      Dims offset, size;
      if (part.copy || !overlap(box.offset, box.size, part.offset, part.size, offset, size)) continue;
      const Stored& stored = stored_.at(part.name);
      const files::SafetensorsFile& file = open(stored.file);
      const auto width = static_cast<int64_t>(files::dtype_bits(stored.info.dtype) / 8);
      const std::byte* const theirs = file.data(stored.info);
      const checkpoint::Piece piece = checkpoint::box_piece(offset, size);
      rows.resize(static_cast<size_t>(piece.count() * width));
      const int64_t length = size.back(), step = part.strides.back();
      std::byte* to = rows.data();
      for_each_row(part, offset, size, [&](int64_t from) {
        for (int64_t i = 0; i < (step == 1 ? 1 : length); ++i)
          std::memcpy(to + i * width, theirs + (from + i * step) * width,
                      static_cast<size_t>((step == 1 ? length : 1) * width));
        to += length * width;
      });
      checkpoint::copy_overlap(piece, rows.data(), region, data, width);
    }
    if (mean_rows_.contains(tensor)) fill_new_rows(tensor, box, region, data);
  }
}

}  // namespace metroplex::hf
