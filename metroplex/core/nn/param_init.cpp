#include "nn/param_init.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "base/philox.h"
#include "topology/placement.h"

namespace metroplex::nn {
namespace {

template <class Fill>  // fill(double* out, int64 global index, count)
void fill_ranges(Param& param, const Fill& fill_range) {
  const at::NoGradGuard no_grad;
  at::Tensor values = at::zeros(param.data.sizes(), at::kDouble);
  double* out = values.mutable_data_ptr<double>();
  topology::for_each_range(param.global_shape, param.placement, [&](int64_t local, int64_t global, int64_t count) {
    at::parallel_for(0, count, 4096, [&](int64_t begin, int64_t end) {
      fill_range(out + local + begin, global + begin, end - begin);
    });
  });
  // Rounds on the host: a GPU might round differently, and initial weights must be equal on all devices.
  param.data.copy_(param.data.is_cpu() ? values : values.to(param.data.scalar_type()));
}

void fill_normal(Param& param, uint64_t seed, double std) {
  const uint64_t name = base::hash_name(param.name.c_str());
  fill_ranges(param, [&](double* out, int64_t global, int64_t count) {
    for (int64_t i = 0; i < count;) {  // element g is half g % 2 of block g / 2
      const int64_t g = global + i;
      const auto pair = base::normal_pair(base::philox4x32(seed, static_cast<uint64_t>(g / 2), name));
      for (int64_t half = g % 2; half < 2 && i < count; ++half) out[i++] = std * pair[static_cast<size_t>(half)];
    }
  });
}

// Sets elements to map(uniform in -1 to 1).
template <class Map>
void fill_uniform(Param& param, uint64_t seed, const Map& map) {
  const uint64_t name = base::hash_name(param.name.c_str());
  fill_ranges(param, [&](double* out, int64_t global, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const auto block = base::philox4x32(seed, static_cast<uint64_t>(global + i), name);
      out[i] = map((static_cast<double>(block[0]) + 0.5) * 0x1p-31 - 1.0);
    }
  });
}

// Megatron's expert tensors have a separate generator, which no two expert-parallel ranks share.
const at::Generator& select_stream(const InitStreams& streams, const topology::Placement& placement) {
  if (placement.grid == topology::Grid::expert) return streams.expert_parallel;
  return placement.cuts.empty() ? streams.replicated : streams.model_parallel;
}

template <class Sample>  // draw(tensor, generator)
void sample_param(Param& param, const InitStreams& streams, const Sample& sample) {
  at::Tensor sampled = at::empty(param.data.sizes(), param.data.options().device(at::kCPU));
  sample(sampled, select_stream(streams, param.placement));
  for (const topology::DimShard& cut : param.placement.cuts) {  // padding is 0
    int64_t end = 0;
    for (const topology::RowRange& range : cut.ranges) {
      sampled.narrow(cut.dim, end, range.local - end).zero_();
      end = range.local + range.size;
    }
    sampled.narrow(cut.dim, end, cut.local_rows() - end).zero_();
  }
  param.data.copy_(sampled);
}

void initialize_values(Param& param, Init init, const LayerContext& context) {
  if (context.target.meta) return;
  if (init == Init::zeros || init == Init::ones) {
    param.data.fill_(init == Init::ones ? 1 : 0);
    return;
  }
  if (init == Init::uniform_fan_in) {  // adapters: sampled even if a model is loaded, because it may have none
    const double bound = 1 / std::sqrt(static_cast<double>(param.global_shape.back()));
    if (!context.streams) return fill_uniform(param, context.seed, [&](double x) { return bound * x; });
    return sample_param(param, *context.streams,
                        [&](at::Tensor& x, const at::Generator& from) { x.uniform_(-bound, bound, from); });
  }
  if (init == Init::log_uniform) {
    if (!context.streams) return fill_uniform(param, context.seed, [](double x) { return std::log(8.5 + 7.5 * x); });
    return sample_param(param, *context.streams,
                        [](at::Tensor& x, const at::Generator& from) { x.uniform_(1, 16, from).log_(); });
  }
  if (init == Init::time_step) {
    const auto inverse_softplus = [](double x) { return x + std::log(-std::expm1(-x)); };
    if (!context.streams)
      return fill_uniform(param, context.seed, [&](double x) { return inverse_softplus(0.01 * std::pow(10, x)); });
    return sample_param(param, *context.streams, [](at::Tensor& x, const at::Generator& from) {
      const at::Tensor step = at::exp(x.uniform_(std::log(0.001), std::log(0.1), from));
      x.copy_(at::add(step, at::log(at::neg(at::expm1(at::neg(step))))));
    });
  }
  const double depth = 2.0 * static_cast<double>(context.num_layers);
  const double std = init == Init::scaled_normal ? context.init_std / std::sqrt(depth) : context.init_std;
  if (std == 0) {  // the caller loads a model: nothing is sampled
    param.data.zero_();
  } else if (context.streams) {
    sample_param(param, *context.streams,
                 [&](at::Tensor& x, const at::Generator& from) { x.normal_(0.0, std, from); });
  } else {
    fill_normal(param, context.seed, std);
  }
}

}  // namespace

RngSeeds rng_seeds(uint64_t seed, const RngRanks& ranks) {
  const uint64_t base = seed + 100 * static_cast<uint64_t>(ranks.pp_rank);
  return {base, base + 2718 + static_cast<uint64_t>(ranks.tp_rank),
          base + 1024 + 100 * static_cast<uint64_t>(ranks.ep_rank) + static_cast<uint64_t>(ranks.etp_rank)};
}

std::shared_ptr<InitStreams> make_init_streams(const RngSeeds& seeds) {
  return std::make_shared<InitStreams>(InitStreams{at::detail::createCPUGenerator(seeds.data_parallel),
                                                   at::detail::createCPUGenerator(seeds.model_parallel),
                                                   at::detail::createCPUGenerator(seeds.expert_parallel)});
}

Param make_param(ParamSpec spec, const LayerContext& context) {
  Param param;
  param.name = std::move(spec.name);
  param.global_shape = std::move(spec.shape);
  param.placement = std::move(spec.placement);
  param.init = spec.init;
  param.dtype = spec.dtype.value_or(context.dtype);
  param.local_shape = topology::local_shape(param.global_shape, param.placement);
  param.initialize = [init = spec.init, context](Param& made) { initialize_values(made, init, context); };
  if (!context.deferred) materialize(param, at::TensorOptions().dtype(param.dtype).device(context.target.memory()));
  return param;
}

Param make_head_param(const std::string& name, int64_t heads, Init init, const LayerContext& context) {
  const comm::Group& tp = context.tp;
  const topology::DimShard shard = topology::even_shard(0, topology::Axis::tp, heads, tp.size(), tp.index());
  return make_param({name, {heads}, {.cuts = {shard}, .role = topology::Role::bias}, init}, context);
}

void materialize(Param& param, at::TensorOptions options) {
  param.data = at::empty(param.local_shape, options);
  param.initialize(param);
  param.initialize = nullptr;
}

void fill(Param& param, const std::function<double(int64_t)>& value) {
  fill_ranges(param, [&](double* out, int64_t global, int64_t count) {
    for (int64_t i = 0; i < count; ++i) out[i] = value(global + i);
  });
}

}  // namespace metroplex::nn
