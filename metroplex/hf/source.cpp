#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "hf/decoder.h"
#include "hf/directory.h"

namespace metroplex::hf {
namespace {

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kOne = "model.safetensors";

Json read_json(files::FileSystem& disk, const std::string& path) {
  MPX_CHECK(disk.exists(path), "checkpoint", "'", path,
            "' is missing; a Hugging Face directory has config.json and safetensors files");
  try {
    return Json::parse(disk.read(path));
  } catch (const Json::exception& error) {
    base::throw_error("hf", base::concat("'", path, "' is no JSON: ", error.what()));
  }
}

// The overlap of two boxes; false where there is none.
bool overlap(const Dims& a, const Dims& a_size, const Dims& b, const Dims& b_size, Dims& offset, Dims& size) {
  offset.resize(a.size()), size.resize(a.size());
  for (size_t d = 0; d < a.size(); ++d) {
    offset[d] = std::max(a[d], b[d]);
    size[d] = std::min(a[d] + a_size[d], b[d] + b_size[d]) - offset[d];
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

}  // namespace

std::vector<std::string> settings_of(files::FileSystem& disk, const std::string& directory) {
  const Json json = read_json(disk, files::join_path(directory, "config.json"));
  MPX_CHECK(json.is_object(), "hf", "'", directory, "/config.json' is no JSON object");
  const ConfigReader config(json);
  config.require(!config.has("quantization_config"), "quantization_config", "a model of plain weights (null)");
  std::vector<std::string> settings = family_of(config.text("model_type", "")).settings(json);
  const std::string type = config.text("dtype", config.text("torch_dtype", "float32"));
  const std::map<std::string, std::string> types{{"float32", "fp32"}, {"bfloat16", "bf16"}, {"float16", "fp16"}};
  config.require(types.count(type) > 0, config.has("dtype") ? "dtype" : "torch_dtype",
                 "float32, bfloat16 or float16");
  settings.push_back("precision.params_dtype=" + types.at(type));
  const int64_t positions = config.integer("max_position_embeddings", config.integer("n_positions", 1024));
  settings.push_back(base::concat("train.seq_length=", std::min(positions, config::Train().seq_length)));
  for (const auto& [file, tokenizer] :
       {std::pair{"tokenizer.json", "bpe"}, std::pair{"tokenizer.model", "sentencepiece"}}) {
    if (!disk.exists(files::join_path(directory, file))) continue;
    settings.push_back(base::concat("data.tokenizer_type=", tokenizer));
    settings.push_back("data.tokenizer_model=" + files::join_path(directory, file));
    break;
  }
  return settings;
}

Source::Source(files::FileSystem& disk, const std::string& directory, const config::Model& model,
               const Wanted& is_wanted)
    : TensorSource(directory), disk_(disk) {
  list_tensors();
  const Json json = read_json(disk, files::join_path(directory, "config.json"));
  check_numbers(model);
  std::vector<MappedTensor> unwanted;
  for (MappedTensor& tensor : family_of(ConfigReader(json).text("model_type", "")).tensors(model))
    (!is_wanted || is_wanted(tensor.name) ? mapped_ : unwanted).push_back(std::move(tensor));
  check(unwanted);
  for (const MappedTensor& tensor : mapped_)
    add({tensor.name, tensor.kind, stored_.at(tensor.parts.front().name).info.dtype, tensor.shape});
}

// Lists grow with these numbers: before they are made, there must be a byte of weights for each entry.
void Source::check_numbers(const config::Model& model) const {
  int64_t bytes = 0;
  for (const auto& [name, stored] : stored_) bytes += static_cast<int64_t>(stored.info.end - stored.info.begin);
  const int64_t entries = std::max({model.num_attention_heads, model.num_moe_experts, int64_t{1}});
  MPX_CHECK(model.num_layers <= bytes / entries, "checkpoint", "'", directory(), "': config.json means ",
            model.num_layers, " layers, ", model.num_attention_heads, " heads, ", model.num_moe_experts,
            " experts, and there are ", bytes, " bytes of weights");
}

void Source::list_tensors() {
  std::set<std::string> names;
  if (const std::string index = files::join_path(directory(), kIndex); disk_.exists(index)) {
    const Json json = read_json(disk_, index);
    MPX_CHECK(json.contains("weight_map") && json.at("weight_map").is_object(), "checkpoint", "'", index,
              "' has no weight_map");
    for (const auto& [tensor, file] : json.at("weight_map").items()) {
      MPX_CHECK(file.is_string() && file.get<std::string>().find('/') == std::string::npos, "checkpoint", "'", index,
                "' names no file of the directory for ", tensor);
      names.insert(file.get<std::string>());
    }
  } else {
    names.insert(kOne);
  }
  for (const std::string& name : names) {
    MPX_CHECK(disk_.exists(files::join_path(directory(), name)), "checkpoint", "'",
              files::join_path(directory(), name), "' is missing; weights are read from safetensors files only");
    for (const files::TensorInfo& info : open(name).tensors()) {
      const bool fresh = stored_.emplace(info.name, Stored{name, info}).second;
      MPX_CHECK(fresh, "checkpoint", "tensor '", info.name, "' is in ", stored_.at(info.name).file, " and in ", name,
                " of '", directory(), "'");
    }
  }
}

void Source::check(const std::vector<MappedTensor>& unwanted) const {
  std::vector<std::string> problems;
  std::set<std::string> wanted;
  for (const MappedTensor& tensor : mapped_) {
    const auto first = stored_.find(tensor.parts.front().name);
    for (const TensorPart& part : tensor.parts) {
      if (!wanted.insert(part.name).second) continue;
      const auto found = stored_.find(part.name);
      if (found == stored_.end()) {
        problems.push_back(part.name + " is missing");
        continue;
      }
      const files::TensorInfo& info = found->second.info;
      if (!std::equal(info.shape.begin(), info.shape.end(), part.shape.begin(), part.shape.end()))
        problems.push_back(base::concat(part.name, " has shape ", dims_text(info.shape), ", config.json means ",
                                        checkpoint::describe_shape(part.shape)));
      if (first != stored_.end() && info.dtype != first->second.info.dtype)
        problems.push_back(base::concat(part.name, " is ", files::dtype_name(info.dtype), " and ", first->first, " ",
                                        files::dtype_name(first->second.info.dtype)));
    }
  }
  for (const MappedTensor& tensor : unwanted) {
    for (const TensorPart& part : tensor.parts) wanted.insert(part.name);
  }
  for (const auto& [name, stored] : stored_) {
    // Tied weights, positions of rotations and masks that older files hold follow from the rest.
    const bool follows = name == "lm_head.weight" || name.ends_with(".rotary_emb.inv_freq") ||
                         name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
    if (wanted.count(name) == 0 && !follows) problems.push_back(name + " has no place in this model");
  }
  MPX_CHECK(problems.empty(), "checkpoint", "'", directory(),
            "' does not hold the weights of the model that its config.json means:", some(problems));
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
  for (const checkpoint::Piece& box : checkpoint::boxes_of(region)) {
    for (const TensorPart& part : mapped_[tensor].parts) {
      Dims offset, size;
      if (!overlap(box.offset, box.size, part.offset, part.size, offset, size)) continue;
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
  }
}

}  // namespace metroplex::hf
