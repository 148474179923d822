#include "verify/gather.h"

#include <ATen/ops/zeros.h>

#include <cstring>

#include "base/error.h"
#include "checkpoint/pieces.h"
#include "comm/collectives.h"
#include "nn/stored_weight.h"
#include "step/state_tensors.h"

namespace metroplex::verify {
namespace {

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

void put_ints(std::string& out, const std::vector<int64_t>& values) {
  put(out, static_cast<int64_t>(values.size()));
  for (const int64_t value : values) put(out, value);
}

std::vector<int64_t> take_ints(Reader& in) {
  std::vector<int64_t> values(static_cast<size_t>(in.integer()));
  for (int64_t& value : values) value = in.integer();
  return values;
}

void put_shard(std::string& out, const ParamShard& slice, at::ScalarType dtype) {
  const at::Tensor values = slice.values.to(at::kCPU, dtype).contiguous();
  const auto element = static_cast<int64_t>(values.element_size());
  for (const topology::BoxRange& box : step::box_ranges(*slice.param, slice.begin, slice.end)) {
    put(out, static_cast<int64_t>(slice.param->name.size()));
    out += slice.param->name;
    put_ints(out, slice.param->global_shape);
    put_ints(out, box.offset);
    put_ints(out, box.size);
    put_ints(out, {box.begin, box.end});
    out.append(static_cast<const char*>(values.const_data_ptr()) + (box.local - slice.begin) * element,
               static_cast<size_t>((box.end - box.begin) * element));
  }
}

void copy_shard(Reader& in, at::ScalarType dtype, std::map<std::string, at::Tensor>& whole) {
  const std::string name = in.text();
  const std::vector<int64_t> shape = take_ints(in), offset = take_ints(in), size = take_ints(in),
                             range = take_ints(in);
  const at::Tensor& tensor = whole.try_emplace(name, at::zeros(shape, dtype)).first->second;
  const auto element = static_cast<int64_t>(tensor.element_size());
  checkpoint::copy_overlap({offset, size, range[0], range[1]},
                           in.take(static_cast<size_t>((range[1] - range[0]) * element)),
                           checkpoint::whole_piece(shape), tensor.mutable_data_ptr(), element);
}

}  // namespace

std::map<std::string, at::Tensor> gather_shards(const step::ProcessContext& process, const step::RankModel& model,
                                                const std::vector<ParamShard>& slices, at::ScalarType dtype) {
  std::string mine;
  for (const ParamShard& slice : slices) {
    if (model.families.data_parallel(slice.param->placement.grid).replicas.first() &&
        slice.param->counts(process.world->coordinates()))
      put_shard(mine, slice, dtype);
  }
  std::map<std::string, at::Tensor> whole;
  for (const std::string& bytes : comm::gather_strings(mine, process.groups().world)) {
    for (Reader in(bytes); !in.done();) copy_shard(in, dtype, whole);
  }
  return whole;
}

std::map<std::string, at::Tensor> gather_whole(const step::ProcessContext& process, const step::RankModel& model,
                                               const step::Optimization& optimization, GatherKind what) {
  std::vector<ParamShard> slices;
  for (const distributed::Shard& slice : what == GatherKind::data ? model.slices : optimization.trained)
    slices.push_back({slice.param, slice.begin, slice.end, what == GatherKind::data ? slice.values : slice.gradient});
  for (const nn::Param* param : model.params) {
    if (param->stored && what == GatherKind::data)
      slices.push_back({param, 0, param->numel(), nn::weight_values(*param).view(-1)});
  }
  const bool narrow = what == GatherKind::data || process.dtype == at::kDouble;
  return gather_shards(process, model, slices, narrow ? process.dtype : at::kFloat);
}

}  // namespace metroplex::verify
