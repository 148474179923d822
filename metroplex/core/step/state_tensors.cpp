#include "step/state_tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <iterator>

#include "checkpoint/pieces.h"
#include "nn/stored_weight.h"

namespace metroplex::step {
namespace {

// Passes elements [begin, end) of `values` to `sink`. Device tensors are copied through a host buffer.
void write_to_sink(const at::Tensor& values, int64_t begin, int64_t end, const checkpoint::Sink& sink) {
  const auto width = static_cast<int64_t>(values.element_size());
  if (values.is_cpu()) {
    sink(static_cast<const char*>(values.const_data_ptr()) + begin * width,
         static_cast<size_t>((end - begin) * width));
    return;
  }
  const int64_t buffer_elements = std::min(end - begin, kHostBufferBytes / width);
  const at::Tensor buffer = at::empty({buffer_elements}, values.options().device(at::kCPU));
  for (int64_t at = begin; at < end; at += buffer_elements) {
    const int64_t size = std::min(buffer_elements, end - at);
    buffer.narrow(0, 0, size).copy_(values.narrow(0, at, size));
    sink(buffer.const_data_ptr(), static_cast<size_t>(size * width));
  }
}

// A range of elements, relative to the begin of a state.
struct ElementRange {
  int64_t begin, end;
};

// The range of each state that one of several replicas writes. Call next() for all states in order.
class ReplicaShare {
 public:
  ReplicaShare(int64_t total_bytes, int index, int size)
      : first_(total_bytes * index / size), last_(total_bytes * (index + 1) / size) {}

  ElementRange next(const optim::State& state) {
    const auto width = static_cast<int64_t>(c10::elementSize(state.dtype));
    const int64_t count = state.end - state.begin, here = at_;
    at_ += count * width;
    const auto element = [&](int64_t byte) {
      return std::clamp<int64_t>((byte - here + width - 1) / width, 0, count);
    };
    return {element(first_), element(last_)};
  }

 private:
  int64_t first_, last_;  // bytes, over all states
  int64_t at_ = 0;
};

int64_t total_bytes(const std::vector<optim::State>& states) {
  int64_t bytes = 0;
  for (const optim::State& state : states)
    bytes += (state.end - state.begin) * static_cast<int64_t>(c10::elementSize(state.dtype));
  return bytes;
}

void add_regions(const optim::State& state, const ElementRange& part, std::vector<checkpoint::LocalPiece>& pieces) {
  for (const topology::BoxRange& box : box_ranges(*state.param, state.begin + part.begin, state.begin + part.end)) {
    checkpoint::LocalPiece piece{state.param->name, state.kind, state.param->global_shape,
                                 box.offset,        box.size,   file_dtype(state.dtype)};
    piece.begin = box.begin;
    piece.end = box.end;
    const int64_t from = box.local - state.begin, to = from + box.end - box.begin;
    piece.produce = [values = state.values, from, to](const checkpoint::Sink& sink) {
      write_to_sink(values(), from, to, sink);
    };
    pieces.push_back(std::move(piece));
  }
}

}  // namespace

std::vector<optim::State> weight_states(const RankModel& model) {
  std::vector<optim::State> all;
  for (const distributed::Shard& slice : model.slices) {
    all.push_back({slice.param, "weight", slice.begin, slice.begin + slice.values.numel(), slice.values.scalar_type(),
                   [values = slice.values] { return values; }});
  }
  for (nn::Param* param : model.params) {
    if (!param->stored) continue;
    all.push_back(
        {param, "weight", 0, param->numel(), param->dtype, [param] { return nn::weight_values(*param).view(-1); },
         [param](const at::Tensor& values) { nn::set_weight_values(*param, values.view(param->local_shape)); }});
  }
  return all;
}

std::vector<optim::State> buffer_states(const RankModel& model) {
  std::vector<optim::State> all;
  for (const nn::Buffer* buffer : model.buffers) {
    const at::Tensor values = buffer->data.view(-1);
    all.push_back({buffer, "buffer", 0, buffer->numel(), values.scalar_type(), [values] { return values; }});
  }
  return all;
}

std::vector<optim::State> training_states(const RankModel& model, const Optimization& optimization) {
  std::vector<optim::State> all = weight_states(model);
  if (!optimization.optimizer) return all;
  for (optim::State& state : optimization.optimizer->state()) all.push_back(std::move(state));
  return all;
}

std::vector<checkpoint::LocalPiece> regions_to_write(const ProcessContext& process, const RankModel& model,
                                                     const Optimization& optimization) {
  std::vector<checkpoint::LocalPiece> pieces;
  std::vector<optim::State> states =
      process.config.checkpoint.no_save_optim ? weight_states(model) : training_states(model, optimization);
  for (const topology::Grid grid : {topology::Grid::dense, topology::Grid::expert}) {
    const distributed::DataParallel& ranks = model.families.data_parallel(grid);
    for (const bool sharded : {true, false}) {
      std::vector<optim::State> mine;
      std::copy_if(states.begin(), states.end(), std::back_inserter(mine), [&](const optim::State& state) {
        return state.param->placement.grid == grid && (state.store == nullptr) == sharded &&
               state.param->counts(process.world->coordinates());
      });
      ReplicaShare share(total_bytes(mine), sharded ? ranks.replicas.index() : ranks.index(),
                         sharded ? ranks.replicas.size() : ranks.size());
      for (const optim::State& state : mine) add_regions(state, share.next(state), pieces);
    }
  }
  for (const optim::State& state : buffer_states(model)) {
    const bool first =
        model.families.data_parallel(state.param->placement.grid).first();  // every rank holds it whole
    if (first && state.param->counts(process.world->coordinates())) add_regions(state, {0, state.end}, pieces);
  }
  return pieces;
}

void fill(checkpoint::TensorSource& source, const optim::State& state, const at::Tensor& values,
          const std::string& kind) {
  const files::TensorForm* stored = source.find(state.param->name, kind);
  const at::ScalarType dtype = values.scalar_type();
  const at::ScalarType from = stored != nullptr ? to_scalar_type(stored->dtype) : dtype;
  const bool direct = from == dtype && values.is_cpu();
  // Padding is in no region and stays 0.
  const at::Tensor target = direct ? values : at::zeros(values.sizes(), from);
  auto* const bytes = static_cast<char*>(target.mutable_data_ptr());
  for (const topology::BoxRange& box : box_ranges(*state.param, state.begin, state.end)) {
    source.fill({state.param->name, kind, state.param->global_shape, box.offset, box.size, file_dtype(from),
                 bytes + (box.local - state.begin) * static_cast<int64_t>(target.element_size()), box.begin,
                 box.end});
  }
  if (!direct) values.copy_(target);
}

// A multiple of kAlign, which makes copies fastest.
int64_t copy_bytes(const checkpoint::LocalPiece& piece) {
  constexpr int64_t kAlign = 64;
  const int64_t bytes = checkpoint::region_of(piece).count() * files::dtype_bits(piece.dtype) / 8;
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

int64_t copy_bytes(const ProcessContext& process, const RankModel& model, const Optimization& optimization) {
  if (!process.config.checkpoint.async_save || process.config.checkpoint.save.empty()) return 0;
  int64_t total = 0;
  for (const checkpoint::LocalPiece& piece : regions_to_write(process, model, optimization))
    total += copy_bytes(piece);
  return total;
}

}  // namespace metroplex::step
