#include "nn/param_init.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/philox.h"

namespace metroplex::nn {
namespace {

// Calls visit(local element, global element, count) for runs of elements that are neighbours in both tensors.
template <class Visit>
void for_each_run(const Param& param, const Visit& visit) {
  const auto& shape = param.global_shape;
  if (!param.sharded()) {
    visit(int64_t{0}, int64_t{0}, param.data.numel());
    return;
  }
  const auto dim = static_cast<size_t>(param.shard.dim);
  const auto product = [](auto begin, auto end) {
    return std::accumulate(begin, end, int64_t{1}, std::multiplies<>());
  };
  const int64_t outer = product(shape.begin(), shape.begin() + param.shard.dim);
  const int64_t inner = product(shape.begin() + param.shard.dim + 1, shape.end());
  const int64_t global_rows = shape[dim], local_rows = param.data.size(param.shard.dim);
  for (int64_t o = 0; o < outer; ++o) {
    for (const RowRange& range : param.shard.ranges) {
      visit((o * local_rows + range.local) * inner, (o * global_rows + range.global) * inner, range.size * inner);
    }
  }
}

template <class Fill>  // fill(double* out, int64 global index, count)
void fill_runs(Param& param, const Fill& fill_run) {
  const at::NoGradGuard no_grad;
  at::Tensor values = at::zeros(param.data.sizes(), at::kDouble);
  double* out = values.mutable_data_ptr<double>();
  for_each_run(param, [&](int64_t local, int64_t global, int64_t count) {
    at::parallel_for(0, count, 4096,
                     [&](int64_t begin, int64_t end) { fill_run(out + local + begin, global + begin, end - begin); });
  });
  // Rounded here: a GPU might round another way, and weights are the same everywhere.
  param.data.copy_(param.data.is_cpu() ? values : values.to(param.data.scalar_type()));
}

void fill_normal(Param& param, uint64_t seed, double std) {
  const uint64_t name = base::hash_name(param.name.c_str());
  fill_runs(param, [&](double* out, int64_t global, int64_t count) {
    for (int64_t i = 0; i < count;) {  // element g is half g % 2 of block g / 2
      const int64_t g = global + i;
      const auto pair = base::normal_pair(base::philox4x32(seed, static_cast<uint64_t>(g / 2), name));
      for (int64_t half = g % 2; half < 2 && i < count; ++half) out[i++] = std * pair[static_cast<size_t>(half)];
    }
  });
}

void draw_normal(Param& param, const InitStreams& streams, double std) {
  at::Tensor drawn = at::empty(param.data.sizes(), param.data.options().device(at::kCPU));
  drawn.normal_(0.0, std, param.sharded() ? streams.model_parallel : streams.replicated);
  param.data.zero_();
  if (!param.sharded()) {
    param.data.copy_(drawn);
    return;
  }
  for (const RowRange& range : param.shard.ranges) {  // padding stays 0
    param.data.narrow(param.shard.dim, range.local, range.size)
        .copy_(drawn.narrow(param.shard.dim, range.local, range.size));
  }
}

void give_first_values(Param& param, Init init, const LayerContext& context) {
  if (init == Init::zeros || init == Init::ones) {
    param.data.fill_(init == Init::ones ? 1 : 0);
    return;
  }
  const double depth = 2.0 * static_cast<double>(context.num_layers);
  const double std = init == Init::scaled_normal ? context.init_std / std::sqrt(depth) : context.init_std;
  if (context.streams) {
    draw_normal(param, *context.streams, std);
  } else {
    fill_normal(param, context.seed, std);
  }
}

}  // namespace

RngSeeds rng_seeds(uint64_t seed, const RngPlace& place) {
  const uint64_t base = seed + 100 * static_cast<uint64_t>(place.pp_rank);
  return {base, base + 2718 + static_cast<uint64_t>(place.tp_rank),
          base + 1024 + 100 * static_cast<uint64_t>(place.ep_rank) + static_cast<uint64_t>(place.etp_rank)};
}

std::shared_ptr<InitStreams> make_init_streams(const RngSeeds& seeds) {
  return std::make_shared<InitStreams>(InitStreams{at::detail::createCPUGenerator(seeds.data_parallel),
                                                   at::detail::createCPUGenerator(seeds.model_parallel)});
}

Param make_param(ParamSpec spec, const LayerContext& context) {
  Param param;
  param.weight_decay = spec.shape.size() > 1;
  std::vector<int64_t> local = spec.shape;
  if (spec.shard.dim >= 0) {
    int64_t rows = spec.local_rows;
    if (rows == 0) {
      for (const RowRange& range : spec.shard.ranges) rows += range.size;
    }
    local.at(static_cast<size_t>(spec.shard.dim)) = rows;
  }
  param.name = std::move(spec.name);
  param.global_shape = std::move(spec.shape);
  param.shard = std::move(spec.shard);
  param.init = spec.init;
  param.local_shape = local;
  param.initialize = [init = spec.init, context](Param& made) { give_first_values(made, init, context); };
  if (!context.deferred) materialize(param, at::TensorOptions().dtype(context.dtype).device(context.target.memory()));
  return param;
}

void materialize(Param& param, at::TensorOptions options) {
  param.data = at::empty(param.local_shape, options);
  param.initialize(param);
  param.initialize = nullptr;
}

void fill(Param& param, const std::function<double(int64_t)>& value) {
  fill_runs(param, [&](double* out, int64_t global, int64_t count) {
    for (int64_t i = 0; i < count; ++i) out[i] = value(global + i);
  });
}

}  // namespace metroplex::nn
