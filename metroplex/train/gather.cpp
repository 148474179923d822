#include "train/gather.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <cstring>

#include "base/error.h"
#include "comm/collectives.h"

namespace metroplex::train {
namespace {

// A piece on the wire: the index of the parameter's name in a header would save little; names are short.
void put(std::string& out, int64_t value) { out.append(reinterpret_cast<const char*>(&value), sizeof value); }

class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}
  bool done() const { return at_ == bytes_.size(); }
  int64_t integer() {
    int64_t value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  std::string text() {
    const int64_t size = integer();
    return {take(size), static_cast<size_t>(size)};
  }
  const char* take(size_t count) {
    MPX_ASSERT(at_ + count <= bytes_.size(), "a gathered message is short");
    const char* begin = bytes_.data() + at_;
    at_ += count;
    return begin;
  }

 private:
  const std::string& bytes_;
  size_t at_ = 0;
};

void put_piece(std::string& out, const nn::Param& param, const at::Tensor& local, int64_t dim,
               const nn::RowRange& range) {
  const at::Tensor piece = (dim < 0 ? local : local.narrow(dim, range.local, range.size)).contiguous();
  put(out, static_cast<int64_t>(param.name.size()));
  out += param.name;
  put(out, static_cast<int64_t>(param.global_shape.size()));
  for (const int64_t size : param.global_shape) put(out, size);
  put(out, dim);
  put(out, range.global);
  put(out, range.size);
  out.append(static_cast<const char*>(piece.const_data_ptr()), piece.nbytes());
}

void place_piece(Reader& in, at::ScalarType dtype, std::map<std::string, at::Tensor>& whole) {
  const std::string name = in.text();
  std::vector<int64_t> shape(in.integer());
  for (int64_t& size : shape) size = in.integer();
  const int64_t dim = in.integer(), begin = in.integer(), size = in.integer();
  at::Tensor& tensor = whole.try_emplace(name, at::zeros(shape, dtype)).first->second;
  at::Tensor target = dim < 0 ? tensor : tensor.narrow(dim, begin, size);
  const size_t bytes = target.numel() * target.element_size();
  at::Tensor source = at::empty(target.sizes(), dtype);
  std::memcpy(source.mutable_data_ptr(), in.take(bytes), bytes);
  target.copy_(source);
}

}  // namespace

std::map<std::string, at::Tensor> gather_whole(const Assembly& a, Part part) {
  std::string mine;
  for (const nn::Param* param : a.params) {
    const bool counts = a.groups().dp_cp.first() && param->counts(a.groups().tp.first());
    if (!counts) continue;
    const at::Tensor& local = part == Part::data ? param->data : param->main_grad;
    if (!param->sharded()) put_piece(mine, *param, local, -1, {});
    for (const nn::RowRange& range : param->shard.ranges) put_piece(mine, *param, local, param->shard.dim, range);
  }
  std::map<std::string, at::Tensor> whole;
  for (const std::string& bytes : comm::all_gather_strings(mine, a.groups().world)) {
    if (a.world->rank() != 0) break;
    for (Reader in(bytes); !in.done();) place_piece(in, a.dtype, whole);
  }
  return whole;
}

}  // namespace metroplex::train
