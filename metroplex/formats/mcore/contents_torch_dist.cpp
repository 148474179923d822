// torch_dist: .metadata is a pickle of torch.distributed.checkpoint.metadata.Metadata, common.pt has the arguments,
// and each *.distcp file contains one file of torch.save per chunk. torch_dcp has the arguments in a *.distcp file.
#include "mcore/contents.h"

#include <set>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "mcore/shards.h"

namespace metroplex::mcore {
namespace {

using files::join_path;
using pickle::Document;
using pickle::Kind;
using pickle::Value;

constexpr const char* kMetadata = "torch.distributed.checkpoint.metadata.";

void check_backend(files::FileSystem& disk, const std::string& directory) {
  const std::string path = join_path(directory, "metadata.json");
  if (!disk.exists(path)) return;
  const auto json = nlohmann::json::parse(disk.read(path), nullptr, false);
  const std::string backend =
      json.is_object() && json.contains("sharded_backend") && json["sharded_backend"].is_string()
          ? json["sharded_backend"].get<std::string>()
          : "";
  MPX_CHECK(backend == "torch_dist", "checkpoint", "'", path, "': sharded_backend = '", backend,
            "': must be torch_dist; save the checkpoint with --ckpt-format torch_dist");
}

class MetadataReader {
 public:
  MetadataReader(const Document& document, std::string directory, Contents& out)
      : document_(document), directory_(std::move(directory)), out_(out) {}

  void read() {
    const Value& root = document_.root();
    check_class(root, "Metadata");
    const auto& forms = document_.pairs(document_.get(root, "state_dict_metadata"), "state_dict_metadata");
    for (size_t i = 0; i < forms.size(); i += 2)
      add_tensor(std::string(document_.text(*forms[i], "the name of a tensor")), *forms[i + 1]);
    const auto& places = document_.pairs(document_.get(root, "storage_data"), "storage_data");
    for (size_t i = 0; i < places.size(); i += 2) add_place(*places[i], *places[i + 1]);
    for (const auto* tensors : {&out_.tensors, &buckets_}) {
      for (const auto& [name, tensor] : *tensors) check_places(name, tensor);
    }
    out_.state_problem = join_buckets(buckets_, out_);
    restore_flat_tensors(root);
  }

  // Locations of values other than tensors: "args", "iteration", "samples" of the schedule, "step" of a parameter,
  // and "optimizer", the state of a distributed optimizer that is not in its buckets.
  const std::map<std::string, Chunk>& items() const { return items_; }

 private:
  void check_places(const std::string& name, const StoredTensor& tensor) const {
    for (const Chunk& chunk : tensor.chunks)
      MPX_CHECK(!chunk.file.empty(), "checkpoint", "'", document_.path(), "': storage_data has no entry for ", name,
                " at offset ", checkpoint::describe_shape(chunk.offset), "; the checkpoint is incomplete");
  }

  void check_class(const Value& value, const char* name) const {
    if (!value.is_object(base::concat(kMetadata, name)))
      document_.fail(value, base::concat("expected a ", name, " of torch.distributed.checkpoint"));
  }

  Dims sizes(const Value& value, const char* what) const {
    Dims numbers = document_.integers(value, what);
    for (const int64_t number : numbers) {
      if (number < 0) document_.fail(value, base::concat(what, " has a negative number"));
    }
    return numbers;
  }

  // fully_sharded_model_space stores a tensor [X, Y] with shards [x, y] flat, as [X / x, Y / y, x * y]. A chunk is a
  // range of one shard. torch 2.9 and higher omit mcore_data, so that state has the shape of its weight.
  void restore_flat_tensors(const Value& root) {
    std::map<std::string, Dims> shapes;
    if (const Value* const data = document_.find(root, "mcore_data"); data != nullptr) {
      const auto& pairs = document_.pairs(*data, "mcore_data");
      for (size_t i = 0; i < pairs.size(); i += 2) {
        const Value* const shape = document_.find(*pairs[i + 1], "nd_reformulated_orig_global_shape");
        const std::string name = find_key(std::string(document_.text(*pairs[i], "the name of a tensor")));
        if (shape != nullptr) shapes[name] = sizes(*shape, "a tensor's original shape");
      }
    }
    std::string problem;
    for (auto& [name, tensor] : out_.tensors) {
      const auto shape = shapes.find(name), end = shapes.end();
      const std::string weight_name = name.substr(name.find('/') + 1);
      const auto weight = out_.tensors.find(weight_name);
      const bool is_state = weight_name != name && weight != out_.tensors.end();
      if (shape == end && (!is_state || tensor.shape.size() != weight->second.shape.size() + 1)) continue;
      if (problem.empty())
        problem = restore_flat_tensor(name, shape != end ? shape->second : weight->second.shape, tensor);
      if (problem.empty() && is_state) problem = compare_shards(name, tensor, weight->second);
    }
    if (problem.empty()) return;
    out_.state_problem = problem;
    std::erase_if(out_.tensors, [](const auto& item) { return item.first.find('/') != std::string::npos; });
  }

  // Returns "", or why the tensor cannot have this shape.
  static std::string restore_flat_tensor(const std::string& name, const Dims& shape, StoredTensor& tensor) {
    Dims shard = shape;
    bool fits = !shape.empty() && tensor.shape.size() == shape.size() + 1;
    for (size_t dim = 0; fits && dim < shape.size(); ++dim) {
      fits = tensor.shape[dim] > 0 && shape[dim] % tensor.shape[dim] == 0;
      if (fits) shard[dim] /= tensor.shape[dim];
    }
    if (!fits || tensor.shape.back() != files::element_count(shard))
      return base::concat(name, " of shape ", checkpoint::describe_shape(shape), " is stored as ",
                          checkpoint::describe_shape(tensor.shape));
    for (Chunk& chunk : tensor.chunks) {
      chunk.from = chunk.offset.back(), chunk.to = chunk.from + chunk.size.back();
      chunk.offset.pop_back(), chunk.size.pop_back();
      if (files::element_count(chunk.size) != 1) return base::concat("a chunk of ", name, " is not inside one shard");
      for (size_t dim = 0; dim < shard.size(); ++dim) chunk.offset[dim] *= shard[dim];
      chunk.size = shard;
    }
    tensor.shape = shape;
    return "";
  }

  // Flat state has the shards of its weight, except that of grouped experts without Transformer Engine: their weights
  // are stored transposed, their state is not.
  std::string compare_shards(const std::string& name, const StoredTensor& state, const StoredTensor& weight) const {
    const bool is_grouped =
        name.find(".experts.experts.") != std::string::npos && is_true(out_.arguments, "moe_grouped_gemm");
    bool same = !is_grouped || !(is_local(out_.arguments) || is_true(out_.arguments, "moe_use_legacy_grouped_gemm"));
    std::set<std::pair<Dims, Dims>> shards;
    for (const Chunk& chunk : weight.chunks) shards.emplace(chunk.offset, chunk.size);
    for (const Chunk& chunk : state.chunks) same = same && shards.contains({chunk.offset, chunk.size});
    return same ? "" : name + " is not divided like its weight";
  }

  void add_tensor(const std::string& full_name, const Value& form) {
    if (!form.is_object(base::concat(kMetadata, "TensorStorageMetadata"))) return;  // bytes
    const bool in_bucket = is_bucket(full_name);
    const std::string name = in_bucket ? full_name : find_key(full_name);
    if (name.empty()) {
      ++out_.other_tensors;
      return;
    }
    StoredTensor tensor;
    const Value& properties = document_.get(form, "properties");
    if (properties.kind != Kind::object || properties.state == nullptr)
      document_.fail(properties, "expected TensorProperties");
    const auto& values = document_.sequence(*properties.state, "TensorProperties");
    if (values.empty()) document_.fail(properties, "TensorProperties is empty");
    const Value& dtype = *values.front();
    const auto ours = pickle::find_dtype(dtype);
    if (!ours) document_.fail(dtype, base::concat(name, " has dtype ", dtype.text, ", which is not supported"));
    tensor.dtype = *ours;
    tensor.shape = sizes(document_.get(form, "size"), "a tensor's size");
    auto& index = chunks_[full_name];
    StoredTensor& known = (in_bucket ? buckets_ : out_.tensors).try_emplace(name, tensor).first->second;
    // Optimizers of different model chunks store other layers of the same tensor.
    const bool joins = full_name.starts_with(kChained) && known.shape == tensor.shape && known.dtype == tensor.dtype;
    if (!known.chunks.empty() && !joins) document_.fail(form, base::concat("there are two tensors ", name));
    for (const Value* chunk : document_.sequence(document_.get(form, "chunks"), "a tensor's chunks")) {
      const Dims offset = sizes(document_.get(*chunk, "offsets"), "a chunk's offsets"),
                 size = sizes(document_.get(*chunk, "sizes"), "a chunk's sizes");
      bool inside = offset.size() == tensor.shape.size() && size.size() == tensor.shape.size();
      for (size_t dim = 0; inside && dim < size.size(); ++dim)
        inside = size[dim] <= tensor.shape[dim] && offset[dim] <= tensor.shape[dim] - size[dim];
      if (!inside) document_.fail(*chunk, base::concat("a chunk of ", name, " is not inside its tensor"));
      index[offset] = known.chunks.size();
      known.chunks.push_back({offset, size});
    }
  }

  void add_place(const Value& index, const Value& info) {
    const std::string full_name(document_.text(document_.get(index, "fqn"), "the name of an item"));
    const auto known = chunks_.find(full_name);
    if (const std::string item = item_key(full_name); !item.empty()) read_place(full_name, info, items_[item]);
    if (known == chunks_.end()) return;
    const auto bucket = buckets_.find(full_name);
    StoredTensor& tensor = bucket != buckets_.end() ? bucket->second : out_.tensors.at(find_key(full_name));
    const Value* const offset = document_.find(index, "offset");
    const bool has_offset = offset != nullptr && offset->kind != Kind::none;
    const auto chunk = known->second.find(has_offset ? document_.integers(*offset, "an item's offset")
                                                     : Dims(tensor.shape.size(), 0));
    if (chunk == known->second.end()) document_.fail(index, base::concat(full_name, " has no chunk at this offset"));
    read_place(full_name, info, tensor.chunks[chunk->second]);
  }

  static std::string item_key(const std::string& name) {
    if (name == "args" || name == "iteration") return name;
    if (name == "opt_param_scheduler.num_steps") return "samples";
    if (name.ends_with("optimizer.distributed.dp_group_idx_0.optimizer/shard_0_1")) return "optimizer";
    return name.starts_with("optimizer.") && name.ends_with(".step") ? "step" : "";
  }

  void read_place(const std::string& full_name, const Value& info, Chunk& place) const {
    if (const Value* transforms = document_.find(info, "transform_descriptors");
        transforms != nullptr && transforms->kind != Kind::none)
      document_.fail(*transforms, "compressed items are not supported", "save the checkpoint without them");
    const std::string file(document_.text(document_.get(info, "relative_path"), "the file of an item"));
    const int64_t begin = document_.integer(document_.get(info, "offset"), "the offset of an item"),
                  bytes = document_.integer(document_.get(info, "length"), "the length of an item");
    if (file.empty() || file.find('/') != std::string::npos || begin < 0 || bytes < 0)
      document_.fail(info, base::concat("an item of ", full_name, " is not inside a file of the directory"));
    place.file = join_path(directory_, file);
    place.begin = static_cast<uint64_t>(begin);
    place.bytes = static_cast<uint64_t>(bytes);
  }

  const Document& document_;
  const std::string directory_;
  Contents& out_;
  std::map<std::string, std::map<Dims, size_t>> chunks_;  // by full name and offset
  std::map<std::string, StoredTensor> buckets_;           // of the distributed optimizer
  std::map<std::string, Chunk> items_;
};

}  // namespace

pickle::Tensor read_item(const pickle::TorchFile& item, const StoredTensor& tensor, const Chunk& chunk) {
  const pickle::Tensor read = item.tensor(item.document().root());
  const bool fits =
      read.dtype == tensor.dtype && checkpoint::whole_piece(read.shape).count() ==
                                        (chunk.item_elements < 0 ? chunk.piece().count() : chunk.item_elements);
  MPX_CHECK(fits, "checkpoint", "'", chunk.file, "': the item at byte ", chunk.begin, " is ",
            files::dtype_name(read.dtype), " ", checkpoint::describe_shape(read.shape), ", but .metadata has ",
            files::dtype_name(tensor.dtype), " ", checkpoint::describe_shape(chunk.size),
            "; the checkpoint is damaged");
  return read;
}

// Returns a file that verify_contents() also checks.
static const pickle::TorchFile& add_file(pickle::TorchFile file, Contents& contents) {
  contents.files.push_back(std::make_unique<pickle::TorchFile>(std::move(file)));
  return *contents.files.back();
}

// Calls `use` with the file of an item if there is one.
template <class Use>
static void read_item_value(files::FileSystem& disk, const std::map<std::string, Chunk>& items, const char* key,
                            Contents& contents, const Use& use) {
  const auto item = items.find(key);
  if (item == items.end()) return;
  const Chunk& place = item->second;
  use(add_file({disk.map(place.file), place.file, place.begin, place.bytes}, contents));
}

Contents read_torch_dist(files::FileSystem& disk, const std::string& directory) {
  check_backend(disk, directory);
  Contents contents;
  contents.format = "torch_dist";
  const std::string common_path = join_path(directory, "common.pt"), path = join_path(directory, ".metadata");
  const pickle::TorchFile& common = add_file({disk.map(common_path), common_path}, contents);
  const Document& document = common.document();
  contents.arguments = read_arguments(document, document.get(document.root(), "args"));
  if (const Value* iteration = document.find(document.root(), "iteration"))
    contents.iteration = document.integer(*iteration, "iteration");
  if (const Value* optimizer = document.find(document.root(), "optimizer"))
    contents.optimizer_steps = read_steps(common, *optimizer);
  contents.scheduled_samples = read_scheduled_samples(document);
  const files::Bytes bytes = disk.map(path);
  const Document metadata(bytes.text(), path);
  MetadataReader reader(metadata, directory, contents);
  reader.read();
  read_item_value(disk, reader.items(), "optimizer", contents, [&](const pickle::TorchFile& file) {
    if (contents.optimizer_steps == 0) contents.optimizer_steps = read_steps(file, file.document().root());
  });
  return contents;
}

// Megatron-FSDP stores main parameters as the weights of a model in bf16 or fp16.
static void add_main_params(Contents& contents) {
  if (!is_true(contents.arguments, "bf16") && !is_true(contents.arguments, "fp16")) return;
  std::map<std::string, StoredTensor> mains;
  for (const auto& [name, tensor] : contents.tensors) {
    if (name.find('/') == std::string::npos && tensor.dtype == files::Dtype::kF32 &&
        contents.tensors.contains("exp_avg/" + name))
      mains["main/" + name] = tensor;
  }
  contents.tensors.merge(mains);
}

Contents read_torch_dcp(files::FileSystem& disk, const std::string& directory) {
  Contents contents;
  contents.format = "torch_dcp";
  const std::string path = join_path(directory, ".metadata");
  const files::Bytes bytes = disk.map(path);
  const Document metadata(bytes.text(), path);
  MetadataReader reader(metadata, directory, contents);
  reader.read();
  const auto read = [&](const char* key, const auto& use) {
    read_item_value(disk, reader.items(), key, contents, use);
  };
  read("args", [&](const pickle::TorchFile& file) {
    contents.arguments = read_arguments(file.document(), file.document().root());
  });
  const auto integer = [](const pickle::TorchFile& file, const char* what) {
    return file.document().integer(file.document().root(), what);
  };
  read("iteration", [&](const pickle::TorchFile& file) { contents.iteration = integer(file, "iteration"); });
  read("samples", [&](const pickle::TorchFile& file) { contents.scheduled_samples = integer(file, "num_steps"); });
  read("step",
       [&](const pickle::TorchFile& file) { contents.optimizer_steps = read_steps(file, file.document().root()); });
  add_main_params(contents);
  return contents;
}

}  // namespace metroplex::mcore
