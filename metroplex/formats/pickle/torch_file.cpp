#include "pickle/torch_file.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::pickle {
namespace {

using files::Dtype;

struct DtypeName {
  const char* dtype;
  const char* storage;
  Dtype ours;
};
constexpr DtypeName kDtypes[] = {
    {"torch.float32", "torch.FloatStorage", Dtype::kF32}, {"torch.bfloat16", "torch.BFloat16Storage", Dtype::kBF16},
    {"torch.float16", "torch.HalfStorage", Dtype::kF16},  {"torch.float64", "torch.DoubleStorage", Dtype::kF64},
    {"torch.int64", "torch.LongStorage", Dtype::kI64},    {"torch.int32", "torch.IntStorage", Dtype::kI32},
    {"torch.int16", "torch.ShortStorage", Dtype::kI16},   {"torch.int8", "torch.CharStorage", Dtype::kI8},
    {"torch.uint8", "torch.ByteStorage", Dtype::kU8},     {"torch.bool", "torch.BoolStorage", Dtype::kBool},
};

constexpr const char *kTensor = "torch._utils._rebuild_tensor_v2", *kParameter = "torch._utils._rebuild_parameter",
                     *kWithAttributes = "torch._tensor._rebuild_from_type_v2";

// Whether this is a tensor with Python attributes: a function, a type, the function's arguments and the attributes.
bool has_attributes(const Value& value) {
  if (!value.is_object(kWithAttributes) || value.arguments->items.size() < 3) return false;
  const auto& items = value.arguments->items;
  return items[0]->is_global(kTensor) && items[1]->is_global("torch.Tensor") && items[2]->kind == Kind::tuple;
}

// Returns the number of elements, or nothing if it does not fit into `limit`.
std::optional<int64_t> count_elements(const std::vector<int64_t>& shape, int64_t limit) {
  int64_t count = 1;
  for (const int64_t size : shape) {
    if (size < 0 || (size > 0 && count > limit / size)) return std::nullopt;
    count *= size;
  }
  return count;
}

bool is_contiguous(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  int64_t expected = 1;
  for (size_t dim = shape.size(); dim-- > 0;) {
    if (shape[dim] != 1 && strides[dim] != expected) return false;
    expected *= shape[dim];
  }
  return true;
}

const DtypeName& find_row(Dtype dtype) {
  const auto row =
      std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const DtypeName& name) { return name.ours == dtype; });
  MPX_CHECK(row != std::end(kDtypes), "pickle", "a tensor is ", files::dtype_name(dtype),
            ": must be a type of PyTorch; convert it first");
  return *row;
}

void write_contiguous_strides(ValueWriter& writer, const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t dim = shape.size(); dim > 1; --dim) strides[dim - 2] = strides[dim - 1] * shape[dim - 1];
  writer.integers(strides);
}

// The pickle of a tensor whose storage is the entry data/0.
std::string pickle_tensor(Dtype dtype, const std::vector<int64_t>& shape, int64_t elements) {
  ValueWriter writer;
  writer.global(kTensor);
  writer.begin_tuple();
  writer.begin_tuple();
  writer.text("storage");
  writer.global(find_row(dtype).storage);
  writer.text("0");
  writer.text("cpu");
  writer.integer(elements);
  writer.end_tuple();
  writer.persistent();
  writer.integer(0);  // offset in the storage
  writer.integers(shape);
  write_contiguous_strides(writer, shape);
  writer.boolean(false);  // requires_grad
  writer.global("collections.OrderedDict");
  writer.integers({});
  writer.call();  // no hooks
  writer.end_tuple();
  writer.call();
  return writer.take();
}

}  // namespace

std::optional<Dtype> find_dtype(const Value& value) {
  for (const DtypeName& row : kDtypes) {
    if (value.is_global(row.dtype)) return row.ours;
  }
  return std::nullopt;
}

TorchFile::TorchFile(files::Bytes file, const std::string& path, uint64_t offset, uint64_t size)
    : file_(std::move(file)), path_(path) {
  MPX_CHECK(offset <= file_.size && size <= file_.size - offset, "pickle", "'", path, "' has ", file_.size,
            " bytes, but an item at byte ", offset, " has ", size, " bytes; the file is damaged or incomplete");
  static constexpr std::string_view kPickle = "/data.pkl";
  const std::vector<ArchiveEntry> entries = read_archive(file_.text().substr(offset, size), path);
  const auto root = std::find_if(entries.begin(), entries.end(),
                                 [](const ArchiveEntry& entry) { return entry.name.ends_with(kPickle); });
  MPX_CHECK(root != entries.end(), "pickle", "'", path,
            "' contains no data.pkl; expected a file that torch.save of PyTorch 1.6 or newer has written");
  const size_t folder = root->name.size() - kPickle.size() + 1;
  for (const ArchiveEntry& entry : entries) {
    if (entry.name.substr(0, folder) == root->name.substr(0, folder))
      entries_[entry.name.substr(folder)] = {entry.data, entry.crc32};
  }
  const auto order = entries_.find("byteorder");
  MPX_CHECK(order == entries_.end() || order->second.data == "little", "pickle", "'", path,
            "': byteorder = ", order->second.data,
            ": must be little; save the file again on a little-endian machine");
  document_ =
      std::make_unique<Document>(root->data, path, static_cast<size_t>(root->data.data() - file_.text().data()));
}

bool TorchFile::is_tensor(const Value& value) {
  return value.is_object(kTensor) || value.is_object(kParameter) || has_attributes(value);
}

Tensor TorchFile::tensor(const Value& given) const {
  const Value* value = &given;
  if (value->is_object(kParameter) && !value->arguments->items.empty()) value = value->arguments->items[0];
  const Document& document = *document_;
  const Value* const arguments = has_attributes(*value)      ? value->arguments->items[2]
                                 : value->is_object(kTensor) ? value->arguments
                                                             : nullptr;
  if (arguments == nullptr || arguments->items.size() < 4)
    document.fail(*value, "expected a tensor", "save plain tensors, which are not quantized, sparse or subclasses");
  const auto& fields = arguments->items;
  if (fields[0]->kind != Kind::persistent) document.fail(*value, "a tensor has no storage");
  const auto& id = document.sequence(*fields[0]->arguments, "the id of a storage");
  if (id.size() < 5) document.fail(*value, "the id of a storage has fewer than 5 fields");
  const auto row = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                [&](const DtypeName& name) { return id[1]->is_global(name.storage); });
  if (row == std::end(kDtypes))
    document.fail(*id[1], base::concat("a tensor has storage type ", id[1]->text, ", which is not supported"));
  const std::string name = base::concat("data/", document.text(*id[2], "the name of a storage"));
  const auto found = entries_.find(name);
  if (found == entries_.end()) document.fail(*value, base::concat("the archive has no entry ", name));
  const auto width = static_cast<int64_t>(files::dtype_bits(row->ours) / 8);
  const int64_t stored = static_cast<int64_t>(found->second.data.size()) / width;
  Tensor tensor{row->ours, document.integers(*fields[2], "a tensor's shape"), nullptr};
  const int64_t offset = document.integer(*fields[1], "a tensor's offset");
  const std::vector<int64_t> strides = document.integers(*fields[3], "a tensor's strides");
  const std::optional<int64_t> count = count_elements(tensor.shape, stored);
  if (!count || offset < 0 || offset > stored - *count)
    document.fail(*value, base::concat("a tensor exceeds its storage ", name, " of ", stored, " elements"));
  if (strides.size() != tensor.shape.size() || (*count > 0 && !is_contiguous(tensor.shape, strides)))
    document.fail(*value, "a tensor is not contiguous", "save it with .contiguous()");
  tensor.data = reinterpret_cast<const std::byte*>(found->second.data.data()) + offset * width;
  return tensor;
}

uint64_t write_torch_file(const Sink& sink, const std::string& folder, std::string_view pickle) {
  ArchiveWriter archive(sink, folder);
  archive.add("data.pkl", pickle);
  archive.add("byteorder", "little");
  archive.add("version", "3\n");
  return archive.finish();
}

uint64_t write_tensor_file(const Sink& sink, Dtype dtype, const std::vector<int64_t>& shape,
                           const std::function<void(const Sink&)>& produce) {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  ArchiveWriter archive(sink, "archive");
  archive.add("data.pkl", pickle_tensor(dtype, shape, elements));
  archive.add("byteorder", "little");
  archive.begin("data/0", static_cast<uint64_t>(elements) * static_cast<uint64_t>(files::dtype_bits(dtype)) / 8);
  produce([&](const void* data, size_t size) { archive.write({static_cast<const char*>(data), size}); });
  archive.end();
  archive.add("version", "3\n");
  return archive.finish();
}

void write_dtype(ValueWriter& writer, Dtype dtype) { writer.global(find_row(dtype).dtype); }

void TorchFile::verify() const {
  for (const auto& [name, entry] : entries_) {
    MPX_CHECK(compute_crc32(entry.data) == entry.crc32, "pickle", "'", path_, "': the checksum of ", name,
              " is wrong; the file is damaged");
  }
}

}  // namespace metroplex::pickle
