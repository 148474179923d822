#include "step/step_vector.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "comm/collectives.h"
#include "device/launch_point.h"

namespace metroplex::step {
namespace {

constexpr int64_t kSums = sizeof(kernels::StepSums) / sizeof(double);
constexpr int64_t kDecision = sizeof(kernels::StepVerdict) / sizeof(double);

const double* data_or_null(const at::Tensor& x) {
  return x.defined() ? static_cast<const double*>(x.const_data_ptr()) : nullptr;
}

}  // namespace

StepVector::StepVector(const device::Target& target, int64_t num_terms, int64_t microbatches)
    : tensor_(at::zeros({kSums + num_terms + kDecision + microbatches},
                        at::TensorOptions().dtype(at::kDouble).device(target.memory()))),
      num_terms_(num_terms),
      microbatches_(microbatches) {}

at::Tensor StepVector::summed() const { return tensor_.narrow(0, 0, kSums + num_terms_); }
at::Tensor StepVector::decision_tensor() const { return tensor_.narrow(0, kSums + num_terms_, kDecision); }
at::Tensor StepVector::own() const { return tensor_.narrow(0, kSums + num_terms_ + kDecision, microbatches_); }
kernels::StepSums* StepVector::sums() const { return static_cast<kernels::StepSums*>(tensor_.mutable_data_ptr()); }
double* StepVector::terms() const { return reinterpret_cast<double*>(sums() + 1); }
kernels::StepVerdict* StepVector::decision() const {
  return reinterpret_cast<kernels::StepVerdict*>(terms() + num_terms_);
}
double* StepVector::losses() const { return reinterpret_cast<double*>(decision() + 1); }

StepVector StepVector::on_host(const device::Target& target) const {
  StepVector copy = *this;
  copy.tensor_ = device::read_on_host(target, tensor_);
  return copy;
}

void write_step_inputs(const ProcessContext& process, StepBuffers& step_buffers,
                       const std::vector<nn::Microbatch>& batches, bool stop) {
  const device::Target& target = process.world->target();
  const auto count = static_cast<int64_t>(batches.size());
  const at::Tensor host = at::empty({1 + 2 * count}, at::kDouble);
  double* numbers = host.mutable_data_ptr<double>();
  numbers[0] = stop ? 1 : 0;
  for (size_t m = 0; m < batches.size(); ++m) {
    const nn::Microbatch& batch = batches[m];
    numbers[1 + m] = batch.mask_sum;
    numbers[1 + batches.size() + m] =
        (batch.sequence.context_ranks > 0 ? batch.sequence.counts_tokens : process.groups().cp.first()) ? 1 : 0;
  }
  if (!step_buffers.inputs.defined() || step_buffers.inputs.numel() != host.numel())
    step_buffers.inputs = at::empty(host.sizes(), at::TensorOptions().dtype(at::kDouble).device(target.memory()));
  if (!step_buffers.loss_factors.defined() || step_buffers.loss_factors.numel() != count)
    step_buffers.loss_factors = at::empty({count}, step_buffers.inputs.options());
  device::write_from_host(target, step_buffers.inputs, host);
}

// Only the last stage has losses. Its tensor-parallel ranks hold equal losses, so only the first rank counts; the
// same applies to loss terms on every stage. Under context parallelism, the losses of a sequence's shards add up,
// while its tokens are counted once.
StepVector reduce_losses(const ProcessContext& process, StepBuffers& step_buffers,
                         const pipeline::PipelineOutput& output, int64_t microbatches) {
  const device::Target& target = process.world->target();
  const ReportedTerms terms = step_buffers.loss_terms.of(output.terms, target);
  const at::Tensor losses = output.last.empty() ? at::Tensor() : at::stack(output.last).to(at::kDouble);
  StepVector vector(target, step_buffers.loss_terms.size(), microbatches);
  kernels::OwnLosses own;
  own.microbatches = microbatches;
  own.losses = data_or_null(losses);
  own.stop = data_or_null(step_buffers.inputs);
  own.tokens = own.stop + 1;
  own.counts = own.tokens + microbatches;
  own.flags = static_cast<const int32_t*>(step_buffers.flags.const_data_ptr());
  own.reports = data_or_null(terms.sums);
  own.reported = terms.terms.defined() ? terms.terms.numel() : 0;
  own.terms = terms.terms.defined() ? static_cast<const int64_t*>(terms.terms.const_data_ptr()) : nullptr;
  own.per_token = process.config.train.calculate_per_token_loss;
  own.counts_terms = process.groups().tp.first();
  own.counts_losses = process.last_stage() && own.counts_terms;
  own.counts_tokens = own.counts_losses;
  const kernels::SumsPlace place{vector.sums(), vector.terms(), vector.num_terms(), vector.losses()};
  const at::Tensor summed = vector.summed(), local_losses = vector.own();
  device::launch(target,
                 {"own_sums",
                  {&step_buffers.inputs, &losses, &step_buffers.flags, &terms.sums, &terms.terms},
                  {&summed, &local_losses}},
                 kernels::own_sums, kernels::own_sums_cuda, own, place);
  comm::all_reduce(summed, process.groups().world);
  return vector;
}

}  // namespace metroplex::step
