// torch_dist: .metadata is a pickle of torch.distributed.checkpoint.metadata.Metadata, common.pt has the arguments,
// and each *.distcp file contains one file of torch.save per chunk.
#include "mcore/contents.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

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
    for (const auto& [name, tensor] : out_.tensors) {
      for (const Chunk& chunk : tensor.chunks)
        MPX_CHECK(!chunk.file.empty(), "checkpoint", "'", document_.path(), "': storage_data has no entry for ", name,
                  " at offset ", checkpoint::describe_shape(chunk.offset), "; the checkpoint is incomplete");
    }
  }

 private:
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

  void add_tensor(const std::string& full_name, const Value& form) {
    if (!form.is_object(base::concat(kMetadata, "TensorStorageMetadata"))) return;  // bytes
    const std::string name = find_key(full_name);
    if (name.empty()) {
      ++out_.other_tensors;
      return;
    }
    StoredTensor tensor;
    const Value& properties = document_.get(form, "properties");
    if (properties.kind != Kind::object || properties.state == nullptr)
      document_.fail(properties, "expected TensorProperties");
    const Value& dtype = *document_.sequence(*properties.state, "TensorProperties").at(0);
    const auto ours = pickle::find_dtype(dtype);
    if (!ours) document_.fail(dtype, base::concat(name, " has dtype ", dtype.text, ", which is not supported"));
    tensor.dtype = *ours;
    tensor.shape = sizes(document_.get(form, "size"), "a tensor's size");
    auto& index = chunks_[full_name];
    for (const Value* chunk : document_.sequence(document_.get(form, "chunks"), "a tensor's chunks")) {
      const Dims offset = sizes(document_.get(*chunk, "offsets"), "a chunk's offsets"),
                 size = sizes(document_.get(*chunk, "sizes"), "a chunk's sizes");
      bool inside = offset.size() == tensor.shape.size() && size.size() == tensor.shape.size();
      for (size_t dim = 0; inside && dim < size.size(); ++dim)
        inside = size[dim] <= tensor.shape[dim] && offset[dim] <= tensor.shape[dim] - size[dim];
      if (!inside) document_.fail(*chunk, base::concat("a chunk of ", name, " is not inside its tensor"));
      index[offset] = tensor.chunks.size();
      tensor.chunks.push_back({offset, size});
    }
    if (!out_.tensors.emplace(name, std::move(tensor)).second)
      document_.fail(form, base::concat("there are two tensors ", name));
  }

  void add_place(const Value& index, const Value& info) {
    const std::string full_name(document_.text(document_.get(index, "fqn"), "the name of an item"));
    const auto known = chunks_.find(full_name);
    if (known == chunks_.end()) return;
    StoredTensor& tensor = out_.tensors.at(find_key(full_name));
    const Value* const offset = document_.find(index, "offset");
    const bool has_offset = offset != nullptr && offset->kind != Kind::none;
    const auto chunk = known->second.find(has_offset ? document_.integers(*offset, "an item's offset")
                                                     : Dims(tensor.shape.size(), 0));
    if (chunk == known->second.end()) document_.fail(index, base::concat(full_name, " has no chunk at this offset"));
    if (const Value* transforms = document_.find(info, "transform_descriptors");
        transforms != nullptr && transforms->kind != Kind::none)
      document_.fail(*transforms, "compressed items are not supported", "save the checkpoint without them");
    const std::string file(document_.text(document_.get(info, "relative_path"), "the file of an item"));
    const int64_t begin = document_.integer(document_.get(info, "offset"), "the offset of an item"),
                  bytes = document_.integer(document_.get(info, "length"), "the length of an item");
    if (file.empty() || file.find('/') != std::string::npos || begin < 0 || bytes < 0)
      document_.fail(info, base::concat("an item of ", full_name, " is not inside a file of the directory"));
    Chunk& place = tensor.chunks[chunk->second];
    place.file = join_path(directory_, file);
    place.begin = static_cast<uint64_t>(begin);
    place.bytes = static_cast<uint64_t>(bytes);
  }

  const Document& document_;
  const std::string directory_;
  Contents& out_;
  std::map<std::string, std::map<Dims, size_t>> chunks_;  // by full name and offset
};

}  // namespace

pickle::Tensor read_item(const pickle::TorchFile& item, const StoredTensor& tensor, const Chunk& chunk) {
  const pickle::Tensor read = item.tensor(item.document().root());
  const bool fits = read.dtype == tensor.dtype &&
                    checkpoint::whole_piece(read.shape).count() == checkpoint::whole_piece(chunk.size).count();
  MPX_CHECK(fits, "checkpoint", "'", chunk.file, "': the item at byte ", chunk.begin, " is ",
            files::dtype_name(read.dtype), " ", checkpoint::describe_shape(read.shape), ", but .metadata has ",
            files::dtype_name(tensor.dtype), " ", checkpoint::describe_shape(chunk.size),
            "; the checkpoint is damaged");
  return read;
}

// Returns a number, also of a tensor with one element; 0 for other values.
static int64_t read_count(const pickle::TorchFile& file, const Value& value) {
  if (value.kind == Kind::integer) return value.integer;
  double number = value.kind == Kind::real ? value.real : 0;
  if (pickle::TorchFile::is_tensor(value)) {
    const pickle::Tensor tensor = file.tensor(value);
    if (checkpoint::whole_piece(tensor.shape).count() == 1)
      number = files::element_as_double(tensor.dtype, tensor.data, 0);
  }
  return number >= 1 && number <= 0x1p53 ? static_cast<int64_t>(number) : 0;
}

// Returns the steps of the optimizer, or of the first of several: of all parameters, or of the first group. 0 if
// there is no optimizer.
static int64_t read_optimizer_steps(const pickle::TorchFile& file) {
  const Document& document = file.document();
  const Value* state = document.find(document.root(), "optimizer");
  if (state != nullptr && state->kind == Kind::dict && state->items.size() > 1 &&
      state->items[0]->kind == Kind::integer)
    state = state->items[1];
  if (state != nullptr && document.find(*state, "optimizer") != nullptr) state = document.find(*state, "optimizer");
  if (state == nullptr) return 0;
  const Value* const params = document.find(*state, "state");
  const Value* const common = params == nullptr ? nullptr : document.find(*params, "common_step");
  if (common != nullptr) return read_count(file, *common);
  const Value* const groups = document.find(*state, "param_groups");
  if (groups == nullptr || groups->kind != Kind::list || groups->items.empty()) return 0;
  const Value* const step = document.find(*groups->items.front(), "step");
  return step == nullptr ? 0 : read_count(file, *step);
}

Contents read_torch_dist(files::FileSystem& disk, const std::string& directory) {
  check_backend(disk, directory);
  Contents contents;
  contents.format = "torch_dist";
  const std::string common_path = join_path(directory, "common.pt"), path = join_path(directory, ".metadata");
  const pickle::TorchFile common(disk.map(common_path), common_path);
  const Document& document = common.document();
  contents.arguments = read_arguments(document, document.get(document.root(), "args"));
  if (const Value* iteration = document.find(document.root(), "iteration"))
    contents.iteration = document.integer(*iteration, "iteration");
  contents.optimizer_steps = read_optimizer_steps(common);
  const files::Bytes bytes = disk.map(path);
  const Document metadata(bytes.text(), path);
  MetadataReader(metadata, directory, contents).read();
  return contents;
}

}  // namespace metroplex::mcore
