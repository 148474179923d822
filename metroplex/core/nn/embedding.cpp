#include "nn/embedding.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <tuple>

#include "nn/autograd_node.h"
#include "comm/collectives.h"
#include "kernels/embedding.h"
#include "nn/param_init.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

kernels::TableShape table_shape(const at::Tensor& table, const at::Tensor& indices) {
  return {table.size(0), table.size(1), indices.numel()};
}

void gather(const device::Target& target, const at::Tensor& table, const at::Tensor& indices, const at::Tensor& out,
            bool add) {
  const kernels::TableShape shape = table_shape(table, indices);
  dispatch_element(table.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    device::launch(target, {"gather_rows", {&table, &indices, add ? &out : nullptr}, {&out}, {{"add", add}}},
                   kernels::gather_rows<T>, kernels::gather_rows_cuda<T>, elements<T>(table),
                   static_cast<const int64_t*>(indices.const_data_ptr()), elements<T>(out), add, shape);
  });
}

// Indices in the form that the device's scatter-add kernel takes: sorted on a GPU.
class ScatterIndices {
 public:
  ScatterIndices(const device::Target& target, const at::Tensor& indices)
      : target_(target), indices_(indices.view({-1})) {
    if (target_.gpu()) std::tie(indices_, order_) = indices_.sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  }
  template <class Table, class Dout>
  void add(const at::Tensor& table, const at::Tensor& rows) const {
    const kernels::TableShape shape = table_shape(table, indices_);
    const kernels::SortedIndices index{
        static_cast<const int64_t*>(indices_.const_data_ptr()),
        order_.defined() ? static_cast<const int64_t*>(order_.const_data_ptr()) : nullptr};
    device::launch(
        target_, {"scatter_add_rows", {&table, &indices_, &order_, &rows}, {&table}},
        [](Table* to, const kernels::SortedIndices& from, const Dout* dout, const kernels::TableShape& shape) {
          kernels::scatter_add_rows<Table, Dout>(to, from.indices, dout, shape);
        },
        kernels::scatter_add_rows_cuda<Table, Dout>, elements<Table>(table), index, elements<Dout>(rows), shape);
  }

 private:
  device::Target target_;
  at::Tensor indices_, order_;
};

void scatter_add(const device::Target& target, Param& param, const at::Tensor& indices, const at::Tensor& dout) {
  param.accumulate([target, indices, dout](at::Tensor& main_grad) {
    const bool half_rows = main_grad.scalar_type() == at::kFloat && acc_type(dout.scalar_type()) == at::kFloat;
    const at::Tensor rows = (half_rows ? dout : dout.to(main_grad.scalar_type())).contiguous();
    const ScatterIndices scatter(target, indices);
    dispatch_element(rows.scalar_type(), [&](auto zero) {
      using Dout = decltype(zero);
      if constexpr (kernels::kIsHalf<Dout>) {
        if (main_grad.scalar_type() == at::kFloat) return scatter.add<float, Dout>(main_grad, rows);
      }
      scatter.add<Dout, Dout>(main_grad, rows);
    });
  });
}

}  // namespace

ReplicatedEmbedding::ReplicatedEmbedding(const std::string& name, int64_t rows, int64_t width, topology::Role role,
                                         const LayerContext& context)
    : sp_(context.sp),
      target_(context.target),
      weight_(make_param({name + ".weight", {rows, width}, {.partial = context.sp_axes, .role = role}, Init::normal},
                         context)) {}

at::Tensor ReplicatedEmbedding::local_indices(const at::Tensor& indices_bs) const {
  return comm::select_shard(indices_bs.t(), 0, sp_).contiguous();
}

void ReplicatedEmbedding::add_to(const at::Tensor& out, const at::Tensor& indices_bs) const {
  gather(target_, weight_.data, local_indices(indices_bs), out, true);
}

void ReplicatedEmbedding::add_gradient(const at::Tensor& dout, const at::Tensor& indices_bs) {
  scatter_add(target_, weight_, local_indices(indices_bs), dout);
}

at::Tensor ReplicatedEmbedding::forward(const at::Tensor& indices_bs) {
  at::Tensor out;
  {
    const at::NoGradGuard no_grad;
    const int64_t rows = indices_bs.size(1) / sp_.size();
    out = at::zeros({rows, indices_bs.size(0), weight_.data.size(1)}, weight_.data.options());
    add_to(out, indices_bs);
  }
  return attach(out, {}, [this, indices_bs](const at::Tensor& dout) -> Gradients {
    const at::NoGradGuard no_grad;
    add_gradient(dout, indices_bs);
    return {};
  });
}

std::shared_ptr<Param> make_vocabulary_param(const VocabularyParamSpec& spec, const VocabularyShard& shard,
                                             const LayerContext& context) {
  return std::make_shared<Param>(make_param({spec.name,
                                             {spec.vocab_size, spec.width},
                                             {.cuts = {vocabulary_dim_shard(shard)}, .role = spec.role},
                                             Init::normal},
                                            context));
}

VocabParallelEmbedding::VocabParallelEmbedding(std::shared_ptr<Param> weight, const VocabularyShard& shard,
                                               const LayerContext& context)
    : sp_(context.sp),
      tp_reduce_(context.tp_reduce),
      target_(context.target),
      shard_(shard),
      weight_(std::move(weight)) {}

at::Tensor VocabParallelEmbedding::apply(const at::Tensor& tokens_bs) const {
  const at::NoGradGuard no_grad;
  const at::Tensor local = tokens_bs.t().contiguous() - shard_.begin;
  at::Tensor out = at::empty({local.size(0), local.size(1), weight_->data.size(1)}, weight_->data.options());
  gather(target_, weight_->data, local, out, false);
  out = comm::reduce_scatter(out, 0, sp_);
  comm::all_reduce(out, tp_reduce_);
  return out;
}

void VocabParallelEmbedding::add_gradient(const at::Tensor& dout, const at::Tensor& tokens_bs) {
  const at::Tensor whole = comm::all_gather(dout, 0, sp_);
  scatter_add(target_, *weight_, tokens_bs.t().contiguous() - shard_.begin, whole);
}

}  // namespace metroplex::nn
