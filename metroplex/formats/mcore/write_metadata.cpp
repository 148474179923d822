#include "mcore/write_metadata.h"

#include "pickle/torch_file.h"

namespace metroplex::mcore {
namespace {

using checkpoint::Dims;
using pickle::ValueWriter;

class MetadataWriter {
 public:
  std::string write(const std::vector<Item>& items) {
    create("metadata.Metadata");
    out_.begin_dict();
    out_.text("state_dict_metadata");
    out_.begin_dict();
    for (const Item& item : items) add_forms(item);
    out_.end_dict();
    none("planner_data");
    out_.text("storage_data");
    out_.begin_dict();
    for (const Item& item : items) add_places(item);
    out_.end_dict();
    none("storage_meta");
    out_.text("version");
    out_.text("1.0.0");
    out_.end_dict();
    out_.set_state();
    return out_.take();
  }

 private:
  void create(const char* name) {
    out_.global(std::string("torch.distributed.checkpoint.") + name);
    out_.integers({});
    out_.create();
  }
  void none(const char* key) {
    out_.text(key);
    out_.none();
  }
  void size(const char* key, const Dims& sizes) {
    out_.text(key);
    out_.global("torch.Size");
    out_.begin_tuple();
    out_.integers(sizes);
    out_.end_tuple();
    out_.call();
  }

  void add_forms(const Item& item) {
    for (const std::string& name : item.names) {
      out_.text(name);
      create(item.is_tensor() ? "metadata.TensorStorageMetadata" : "metadata.BytesStorageMetadata");
      if (item.is_tensor()) add_form(item);
    }
  }
  void add_form(const Item& item) {
    out_.begin_dict();
    out_.text("properties");
    add_properties(item.dtype);
    size("size", item.shape);
    out_.text("chunks");
    out_.begin_list();
    create("metadata.ChunkStorageMetadata");
    out_.begin_dict();
    size("offsets", Dims(item.shape.size(), 0));
    size("sizes", item.shape);
    out_.end_dict();
    out_.set_state();
    out_.end_list();
    out_.end_dict();
    out_.set_state();
  }
  // The state is a tuple: dtype, layout, requires_grad, memory format (0: contiguous), pin_memory.
  void add_properties(files::Dtype dtype) {
    create("metadata.TensorProperties");
    out_.begin_tuple();
    pickle::write_dtype(out_, dtype);
    out_.global("torch.serialization._get_layout");
    out_.begin_tuple();
    out_.text("torch.strided");
    out_.end_tuple();
    out_.call();
    out_.boolean(false);
    out_.global("torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING");
    out_.integers({0});
    out_.call();
    out_.boolean(false);
    out_.end_tuple();
    out_.set_state();
  }

  void add_places(const Item& item) {
    for (const std::string& name : item.names) {
      create("metadata.MetadataIndex");
      out_.begin_dict();
      out_.text("fqn");
      out_.text(name);
      if (item.is_tensor()) size("offset", Dims(item.shape.size(), 0));
      else none("offset");
      none("index");
      out_.end_dict();
      out_.set_state();
      add_place(item);
    }
  }
  void add_place(const Item& item) {
    create("filesystem._StorageInfo");
    out_.begin_dict();
    out_.text("relative_path");
    out_.text(kDataFile);
    out_.text("offset");
    out_.integer(static_cast<int64_t>(item.offset));
    out_.text("length");
    out_.integer(static_cast<int64_t>(item.bytes));
    out_.end_dict();
    out_.set_state();
  }

  ValueWriter out_;
};

}  // namespace

std::string pickle_items(const std::vector<Item>& items) { return MetadataWriter().write(items); }

}  // namespace metroplex::mcore
