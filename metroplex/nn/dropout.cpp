#include "nn/dropout.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <vector>

#include "base/error.h"
#include "comm/autograd_node.h"
#include "cuda/kernels/dropout.h"
#include "nn/linear.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

namespace kernels = cuda::kernels;

// The finaliser of splitmix64: spreads small numbers over 64 bits.
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

uint64_t philox_key(const DropoutKey& key) {
  return mix(mix(key.seed) ^ (static_cast<uint64_t>(key.layer) * 4 + static_cast<uint64_t>(key.site)));
}

std::vector<uint64_t> sample_counters(const Microbatch& batch, int64_t samples) {
  MPX_ASSERT(batch.sample_ids.defined() && batch.sample_ids.numel() == samples,
             "dropout needs the global sample numbers of the microbatch");
  const at::Tensor ids = batch.sample_ids.to(at::kCPU, at::kLong).contiguous();
  std::vector<uint64_t> counters;
  for (int64_t i = 0; i < samples; ++i) {
    counters.push_back(mix(static_cast<uint64_t>(batch.step)) +
                       static_cast<uint64_t>(ids.const_data_ptr<int64_t>()[i]));
  }
  return counters;
}

std::vector<kernels::DropoutRow> hidden_rows(const at::Tensor& x, const SequencePlace& place,
                                             const Microbatch& batch) {
  const int64_t s = x.size(0), b = x.size(1), h = x.size(2);
  const auto counters = sample_counters(batch, b);
  std::vector<kernels::DropoutRow> rows;
  rows.reserve(static_cast<size_t>(s * b));
  for (int64_t i = 0; i < s; ++i) {
    for (int64_t j = 0; j < b; ++j) rows.push_back({counters[static_cast<size_t>(j)], (place.first_row + i) * h});
  }
  return rows;
}

// x and out may differ in type: one of them is then half, the other fp32. bias is wide, residual like out.
struct Pass {
  at::Tensor x, bias, residual, out;
};

template <class In, class Out>
void run_as(const Pass& pass, const kernels::DropoutShape& shape) {
  kernels::bias_dropout_add<In, Out>(elements<In>(pass.x), elements<kernels::Wide<In>>(pass.bias),
                                     elements<Out>(pass.residual), elements<Out>(pass.out), shape);
}

void run(const Pass& pass, const std::vector<kernels::DropoutRow>& rows, const DropoutKey& key) {
  const int64_t width = pass.x.size(-1);
  const kernels::DropoutShape shape{rows.data(), pass.x.numel() / std::max<int64_t>(1, width), width, philox_key(key),
                                    rows.empty() ? 0.0 : key.probability};
  const at::ScalarType in = pass.x.scalar_type(), out = pass.out.scalar_type();
  dispatch_element(in == at::kFloat ? out : in, [&](auto zero) {
    using T = decltype(zero);
    if (in == out) {
      run_as<T, T>(pass, shape);
    } else if constexpr (kernels::kIsHalf<T>) {
      in == at::kFloat ? run_as<float, T>(pass, shape) : run_as<T, float>(pass, shape);
    }
  });
}

// x as the residual stream has it.
at::Tensor like_residual(const at::Tensor& x, const at::Tensor& residual) {
  const bool same = !residual.defined() || residual.scalar_type() == x.scalar_type();
  return same ? x : at::empty(x.sizes(), residual.options());
}

}  // namespace

SequencePlace sequence_place(const at::Tensor& x_sbh, const comm::Group& tp, bool sequence_parallel) {
  return {sequence_parallel ? x_sbh.size(0) * tp.index() : 0};
}

at::Tensor bias_dropout_add(const at::Tensor& x_sbh, const at::Tensor& residual, const BiasDropoutAdd& how,
                            const Microbatch& batch) {
  const bool drops = how.key.active(batch);
  std::vector<kernels::DropoutRow> rows;
  at::Tensor out;
  {
    const at::NoGradGuard no_grad;
    if (drops) rows = hidden_rows(x_sbh, how.place, batch);
    const at::Tensor x = x_sbh.detach();
    const at::Tensor bias = how.bias != nullptr ? to_wide(how.bias->data) : at::Tensor();
    out = like_residual(x, residual.defined() ? residual.detach() : residual);
    run({x, bias, residual.defined() ? residual.detach().contiguous() : residual, out}, rows, how.key);
  }
  return comm::attach(
      out, {x_sbh, residual},
      [how, drops, dtype = x_sbh.scalar_type(), rows = std::move(rows)](const at::Tensor& dy) -> comm::Gradients {
        const at::NoGradGuard no_grad;
        at::Tensor dx = drops ? at::empty(dy.sizes(), dy.options().dtype(dtype)) : dy.to(dtype);
        if (drops) run({dy.contiguous(), {}, {}, dx}, rows, how.key);
        if (how.bias != nullptr) accumulate_bias_gradient(*how.bias, dx);
        return {dx, dy};
      });
}

void dropout_probabilities(at::Tensor& probabilities, const DropoutKey& key, int64_t first_head,
                           const Microbatch& batch) {
  if (!key.active(batch)) return;
  const at::NoGradGuard no_grad;
  const int64_t b = probabilities.size(0), heads = probabilities.size(1), queries = probabilities.size(2),
                keys = probabilities.size(3);
  const auto counters = sample_counters(batch, b);
  std::vector<kernels::DropoutRow> rows;
  rows.reserve(static_cast<size_t>(b * heads * queries));
  for (int64_t i = 0; i < b; ++i) {
    for (int64_t r = 0; r < heads * queries; ++r)
      rows.push_back({counters[static_cast<size_t>(i)], (first_head * queries + r) * keys});
  }
  run({probabilities, {}, {}, probabilities}, rows, key);
}

}  // namespace metroplex::nn
