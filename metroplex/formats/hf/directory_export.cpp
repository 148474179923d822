#include "hf/directory.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "config/load.h"
#include "files/convert_dtype.h"
#include "hf/merged.h"
#include "hf/quantized_export.h"

namespace metroplex::hf {
namespace {

// An output tensor and the parts of our tensors that it consists of.
struct HfTensor {
  files::TensorInfo info;
  files::Dtype stored;  // dtype in the checkpoint
  std::string kind;
  struct Piece {
    size_t ours;  // index into the mapping
    const TensorPart* part;
  };
  std::vector<Piece> pieces;
  std::optional<QuantizedForm> form = std::nullopt;  // then `info` is that of the codes
  const Constant* constant = nullptr;                // then there are no pieces

  std::vector<files::TensorInfo> written() const {
    if (!form) return {info};
    const files::Dtype scales = form->codes == files::Dtype::kF4 ? files::Dtype::kU8 : files::Dtype::kF32;
    const Dims& shape = form->scale_shapes.front();
    return {info, {form->scales, scales, {shape.begin(), shape.end()}}};
  }
  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const files::TensorInfo& tensor : written())
      sum += files::tensor_bytes(tensor.dtype, tensor.shape, tensor.name);
    return sum;
  }
  // Number of elements in the order of the parts.
  uint64_t elements() const {
    uint64_t count = 1;
    for (const uint64_t length : info.shape) count *= length;
    return form && form->codes == files::Dtype::kF4 ? 2 * count : count;
  }
};
using Forms = std::map<std::string, QuantizedForm>;

constexpr const char* kEmbedding = "embedding.word_embeddings.weight";

const files::TensorForm& find_form(const checkpoint::TensorSource& run, const std::string& name,
                                   const std::string& kind) {
  const files::TensorForm* form = run.find(name, kind);
  MPX_CHECK(form != nullptr, "checkpoint", "'", run.directory(), "' has no ", kind, " ", name,
            "; convert a complete checkpoint");
  return *form;
}

// A tensor whose dtype differs from the embedding's (a float32 bias of a bf16 model) keeps it. Converted tensors are
// rounded once, from the main parameters if the run has them.
HfTensor make_hf_tensor(const checkpoint::TensorSource& run, const MappedTensor& ours, const TensorPart& part,
                        std::optional<files::Dtype> wanted, const Forms& forms) {
  const files::TensorForm& form = find_form(run, ours.name, ours.kind);
  HfTensor theirs{{part.name, form.dtype, {part.shape.begin(), part.shape.end()}}, form.dtype, ours.kind, {}};
  const auto quantized = forms.find(part.name);
  if (quantized != forms.end()) {
    theirs.form = quantized->second;
    theirs.info.dtype = theirs.form->stored;
    theirs.info.shape = {theirs.form->shape.begin(), theirs.form->shape.end()};
  } else {
    if (!wanted || *wanted == form.dtype || form.dtype != find_form(run, kEmbedding, "weight").dtype) return theirs;
    theirs.info.dtype = *wanted;
  }
  if (const files::TensorForm* main = run.find(ours.name, "main"); main != nullptr)
    theirs.stored = main->dtype, theirs.kind = "main";
  return theirs;
}

// In the order of the model.
std::vector<HfTensor> map_to_hf(const std::vector<MappedTensor>& mapped, const checkpoint::TensorSource& run,
                                std::optional<files::Dtype> wanted, const Forms& forms) {
  std::vector<HfTensor> all;
  std::map<std::string, size_t> index;
  for (size_t i = 0; i < mapped.size(); ++i) {
    const files::TensorForm& form = find_form(run, mapped[i].name, mapped[i].kind);
    MPX_CHECK(form.shape == mapped[i].shape, "checkpoint", "'", run.directory(), "': ", mapped[i].name, " has shape ",
              checkpoint::describe_shape(form.shape), ", but its config requires ",
              checkpoint::describe_shape(mapped[i].shape), "; convert a checkpoint with its own configuration");
    for (const TensorPart& part : mapped[i].parts) {
      const auto [at, inserted] = index.emplace(part.name, all.size());
      if (inserted) all.push_back(make_hf_tensor(run, mapped[i], part, wanted, forms));
      all[at->second].pieces.push_back({i, &part});
    }
  }
  return all;
}

void scatter(const TensorPart& part, const std::byte* ours, std::byte* theirs, int64_t width) {
  const int64_t length = part.size.back(), step = part.strides.back();
  for_each_row(part, part.offset, part.size, [&](int64_t to) {
    for (int64_t i = 0; i < length; ++i)
      std::memcpy(theirs + (to + i * step) * width, ours + i * width, static_cast<size_t>(width));
    ours += length * width;
  });
}

// Whether one part covers the whole tensor in our element order, so that no temporary buffer is needed.
bool is_contiguous(const HfTensor& theirs) {
  const TensorPart& part = *theirs.pieces.front().part;
  int64_t stride = 1;
  for (size_t d = part.size.size(); d-- > 0; stride *= part.size[d]) {
    if (part.size[d] != 1 && part.strides[d] != stride) return false;
  }
  return part.base == 0 && static_cast<uint64_t>(stride) == theirs.elements();
}

// In the dtype of the other weights.
void add_constants(const std::vector<Constant>& constants, checkpoint::TensorSource& run,
                   std::optional<files::Dtype> wanted, std::vector<HfTensor>& all) {
  const files::Dtype dtype = wanted.value_or(find_form(run, kEmbedding, "weight").dtype);
  for (const Constant& constant : constants) {
    const std::vector<uint64_t> shape(constant.shape.begin(), constant.shape.end());
    all.push_back({{constant.name, dtype, shape}, files::Dtype::kF32, "", {}, std::nullopt, &constant});
  }
}

std::vector<std::byte> pack_bytes(const HfTensor& theirs, const std::vector<MappedTensor>& mapped,
                                  checkpoint::TensorSource& run) {
  if (theirs.constant != nullptr) {
    const std::vector<float> values = theirs.constant->values();
    const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
    return {bytes, bytes + values.size() * sizeof(float)};
  }
  const auto width = static_cast<int64_t>(files::dtype_bits(theirs.stored) / 8);
  std::vector<std::byte> whole(theirs.elements() * static_cast<uint64_t>(width)), box;
  const bool direct = is_contiguous(theirs);
  for (const auto& [ours, part] : theirs.pieces) {
    if (!direct) box.resize(static_cast<size_t>(checkpoint::whole_piece(part->size).count() * width));
    run.fill({mapped[ours].name, theirs.kind, mapped[ours].shape, part->offset, part->size, theirs.stored,
              direct ? whole.data() : box.data()});
    if (!direct) scatter(*part, box.data(), whole.data(), width);
  }
  return whole;
}

void write_as(files::SafetensorsWriter& writer, const HfTensor& theirs, const std::vector<std::byte>& bytes) {
  if (theirs.info.dtype == theirs.stored) return writer.write(bytes.data(), bytes.size());
  constexpr uint64_t kElements = 1 << 20;
  const auto from = static_cast<uint64_t>(files::dtype_bits(theirs.stored) / 8);
  const auto to = static_cast<uint64_t>(files::dtype_bits(theirs.info.dtype) / 8);
  const uint64_t count = bytes.size() / from;
  std::vector<std::byte> converted(std::min(count, kElements) * to);
  for (uint64_t i = 0; i < count; i += kElements) {
    const uint64_t now = std::min(kElements, count - i);
    files::convert_elements(theirs.stored, bytes.data() + i * from, theirs.info.dtype, converted.data(), now);
    writer.write(converted.data(), now * to);
  }
}

// Codes and scales are apart in a file, so that a weight is read and quantized for each of them.
void write_quantized(files::SafetensorsWriter& writer, const HfTensor& theirs, const std::vector<std::byte>& bytes,
                     bool scales) {
  std::vector<float> values(theirs.elements());
  files::convert_elements(theirs.stored, bytes.data(), files::Dtype::kF32,
                          reinterpret_cast<std::byte*>(values.data()), values.size());
  const QuantizedWeight weight = quantize(*theirs.form, values, theirs.info.name);
  const std::vector<std::byte>& out = scales ? weight.scales : weight.codes;
  writer.write(out.data(), out.size());
}

std::vector<std::vector<const HfTensor*>> split_shards(const std::vector<HfTensor>& all, int64_t most) {
  std::vector<std::vector<const HfTensor*>> shards(1);
  uint64_t held = 0;
  for (const HfTensor& tensor : all) {
    const uint64_t bytes = tensor.bytes();
    if (!shards.back().empty() && held + bytes > static_cast<uint64_t>(most)) shards.emplace_back(), held = 0;
    shards.back().push_back(&tensor);
    held += bytes;
  }
  return shards;
}

std::string shard_name(size_t index, size_t count) {
  if (count == 1) return "model.safetensors";
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

// The tensors of a directory.
struct Mapping {
  std::vector<MappedTensor> tensors;
  Forms forms;
  std::vector<Constant> constants;
};

void write_weights(files::FileSystem& disk, checkpoint::TensorSource& run, const Mapping& mapping,
                   const std::string& directory, const ExportOptions& options) {
  const std::vector<MappedTensor>& mapped = mapping.tensors;
  std::vector<HfTensor> all = map_to_hf(mapped, run, options.dtype, mapping.forms);
  add_constants(mapping.constants, run, options.dtype, all);
  std::map<std::string, const HfTensor*> by_name;
  for (const HfTensor& tensor : all) {
    for (const files::TensorInfo& info : tensor.written()) by_name[info.name] = &tensor;
  }
  const auto shards = split_shards(all, options.max_shard_bytes);
  Json index{{"metadata", {{"total_size", 0}}}, {"weight_map", Json::object()}};
  uint64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(i, shards.size());
    std::vector<files::TensorInfo> infos;
    for (const HfTensor* tensor : shards[i]) {
      for (files::TensorInfo& info : tensor->written()) infos.push_back(std::move(info));
    }
    files::order_tensors(infos);
    files::SafetensorsWriter writer(disk, files::join_path(directory, name), infos, {{"format", "pt"}});
    for (const files::TensorInfo& info : infos) {
      const HfTensor& theirs = *by_name.at(info.name);
      const std::vector<std::byte> bytes = pack_bytes(theirs, mapped, run);
      if (theirs.form) write_quantized(writer, theirs, bytes, info.name == theirs.form->scales);
      else write_as(writer, theirs, bytes);
      index["weight_map"][info.name] = name;
      total += files::tensor_bytes(info.dtype, info.shape, info.name);
    }
    writer.finish();
  }
  index["metadata"]["total_size"] = total;
  if (shards.size() > 1)
    disk.replace_file(files::join_path(directory, "model.safetensors.index.json"), index.dump(2) + "\n");
}

const char* torch_name(files::Dtype dtype) {
  if (dtype == files::Dtype::kBF16) return "bfloat16";
  return dtype == files::Dtype::kF16 ? "float16" : dtype == files::Dtype::kF64 ? "float64" : "float32";
}

void write_files(files::FileSystem& disk, checkpoint::TensorSource& weights, const config::Model& model,
                 const std::vector<checkpoint::SideFile>& tokenizer, const std::string& part,
                 const ExportOptions& options) {
  const Family& family = family_for(model);
  Mapping mapping{family.tensors(model), {}, {}};
  if (family.constants != nullptr) mapping.constants = family.constants(model);
  Json config = family.config(model);
  if (!options.quantization.empty()) {
    config["quantization_config"] = export_quantization(options.quantization, mapping.tensors);
    mapping.forms = quantize_parts(config["quantization_config"], family, mapping.tensors);
  }
  write_weights(disk, weights, mapping, part, options);
  config["architectures"] = {family.architecture};
  config["model_type"] = family.model_type;
  config["dtype"] = torch_name(options.dtype.value_or(find_form(weights, kEmbedding, "weight").dtype));
  add_special_ids(model, config);
  disk.replace_file(files::join_path(part, "config.json"), config.dump(2) + "\n");
  for (const checkpoint::SideFile& file : tokenizer) {
    const std::string folder =
        file.name == "tool_use.jinja" ? files::join_path(part, "additional_chat_templates") : part;
    disk.make_directories(folder);
    disk.replace_file(files::join_path(folder, file.name), file.text);
  }
  // The tokenizer's folder may contain another generation_config.json.
  disk.replace_file(files::join_path(part, "generation_config.json"), generation_config(model).dump(2) + "\n");
}

std::vector<checkpoint::SideFile> tokenizer_files(files::FileSystem& disk, const checkpoint::Reader& run) {
  std::vector<checkpoint::SideFile> all;
  const Json tokenizer = Json::parse(run.manifest().extra).value("tokenizer", Json());
  if (!tokenizer.is_object()) return all;
  for (const std::string& name : tokenizer.value("files", std::vector<std::string>{}))
    all.push_back({name, disk.read(files::join_path(run.directory(), name))});
  return all;
}

}  // namespace

void check_writable(files::FileSystem& disk, const config::Model& model, const std::string& directory) {
  disk.check_new_directory(directory);
  family_for(model);
}

void write_directory(files::FileSystem& disk, checkpoint::Reader& run, const std::string& directory,
                     const ExportOptions& options) {
  const config::Config saved = config::parse_saved(run.manifest().config_yaml);
  check_writable(disk, saved.model, directory);
  MergedWeights weights(run, saved);
  write_weights_directory(disk, weights, saved.model, tokenizer_files(disk, run), directory, options);
}

void write_weights_directory(files::FileSystem& disk, checkpoint::TensorSource& weights, config::Model model,
                             const std::vector<checkpoint::SideFile>& tokenizer, const std::string& directory,
                             const ExportOptions& options) {
  check_writable(disk, model, directory);
  model.vocab_size = find_form(weights, kEmbedding, "weight").shape.at(0);
  disk.make_whole(directory,
                  [&](const std::string& part) { write_files(disk, weights, model, tokenizer, part, options); });
}

}  // namespace metroplex::hf
