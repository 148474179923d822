#include "forecast/calibrate.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>

#include "base/error.h"
#include "comm/world.h"
#include "config/validate.h"
#include "device/thread_time.h"
#include "forecast/trace_recorder.h"
#include "graph/tape_recorder.h"
#include "step/step.h"

namespace metroplex::forecast {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// One model: its operators, and the time of a plain step.
struct Measured {
  std::vector<replay::TraceOperation> operators;         // of all timed steps
  double regions = 0, library_calls = 0, own_calls = 0;  // per step
  double step_s = 0;                                     // of a step without a recorder
  int steps = 0;
};

class RegionCounter final : public nn::StageObserver {
 public:
  void before(const nn::RegionEvent& /*event*/) override { ++count; }
  void after(const nn::RegionEvent& /*event*/) override {}
  int64_t count = 0;
};

comm::World single_rank(const config::Config& config) {
  return comm::make_world(0, topology::RankGrid(1, config.parallel), [](const comm::GroupSpec& spec) {
    MPX_ASSERT(false, "group ", spec.name, " of a single rank");
    return std::shared_ptr<comm::GroupBackend>();
  });
}

struct Steps {
  std::unique_ptr<step::Assembly> assembly;
  std::vector<nn::Microbatch> batches;
  int64_t done = 0;

  Steps(const config::Config& config, const comm::World& world)
      : assembly(step::assemble(config, world, config.model.vocab_size)) {
    const int64_t count = config.train.global_batch_size / config.train.micro_batch_size;
    batches.assign(static_cast<size_t>(count), random_microbatch(config, 0));
  }
  void run() {
    step::train_step(*assembly, {batches, done + 1, done * static_cast<int64_t>(batches.size()), false, {}});
    ++done;
  }
};

constexpr int kWarmup = 2;

Measured measure(const config::Config& config, int steps) {
  Measured out;
  out.steps = steps;
  const comm::World world = single_rank(config);
  {
    Steps plain(config, world);
    std::vector<double> times;
    for (int i = 0; i < steps + kWarmup; ++i) {
      const double start = device::thread_cpu_seconds();
      plain.run();
      if (i >= kWarmup) times.push_back(device::thread_cpu_seconds() - start);
    }
    out.step_s = median(times);
  }
  TraceRecorder recorder(1);
  recorder.time_operators();
  const comm::World recorded = world.recorded(recorder);
  Steps observed(config, recorded);
  RegionCounter counter;
  for (const auto& stage : observed.assembly->model.stages) stage->add_observer("calibration", counter);
  for (int i = 0; i < kWarmup; ++i) observed.run();
  counter.count = 0;
  const graph::TapeHooks hooks(&recorder, nullptr);
  recorder.take();
  recorder.start();
  for (int i = 0; i < steps; ++i) observed.run();
  for (replay::IslandTrace& region : recorder.take())
    std::move(region.operations.begin(), region.operations.end(), std::back_inserter(out.operators));
  for (const auto& stage : observed.assembly->model.stages) stage->remove_observer("calibration");
  out.regions = static_cast<double>(counter.count) / steps;
  for (const replay::TraceOperation& one : out.operators)
    (one.name.find("::") != std::string::npos ? out.library_calls : out.own_calls) += 1.0 / steps;
  return out;
}

double work(const replay::TraceOperation& one) { return one.flops > 0 ? one.flops : static_cast<double>(one.bytes); }

// Curves of the operators: the median time at each size. Sizes within 2 % count as one.
std::map<std::string, price::Curve> curves(const std::vector<Measured>& all) {
  std::map<std::string, std::map<double, std::vector<double>>> samples;
  for (const Measured& model : all) {
    for (const replay::TraceOperation& one : model.operators) {
      if (work(one) <= 0 || one.seconds <= 0) continue;
      const double size = std::exp(std::round(std::log(work(one)) / 0.02) * 0.02);
      samples[base::concat(one.name, " ", one.dtype)][size].push_back(one.seconds);
    }
  }
  std::map<std::string, price::Curve> curves;
  for (const auto& [name, sizes] : samples) {
    for (const auto& [size, seconds] : sizes) curves[name].push_back({size, size / median(seconds)});
  }
  return curves;
}

// Non-negative weights w that minimize the sum over rows of (1 - row w)^2, by coordinate descent.
template <size_t N>
std::array<double, N> fit_weights(const std::vector<std::array<double, N>>& rows) {
  std::array<double, N> weights{};
  constexpr int kRounds = 20000;
  for (int round = 0; round < kRounds; ++round) {
    for (size_t k = 0; k < N; ++k) {
      double slope = 0, curvature = 0;
      for (const auto& row : rows) {
        double left = 1;
        for (size_t j = 0; j < N; ++j) left -= j == k ? 0 : row[j] * weights[j];
        slope += row[k] * left;
        curvature += row[k] * row[k];
      }
      weights[k] = curvature > 0 ? std::max(0.0, slope / curvature) : 0;
    }
  }
  return weights;
}

// Bandwidth of a copy by bytes read and written, and its largest value.
void measure_memory(price::Machine& machine) {
  price::Curve curve;
  for (int64_t numel = 256; numel <= int64_t{1} << 23; numel *= 4) {
    const at::Tensor from = at::ones({numel}), to = at::ones({numel});
    std::vector<double> times;
    for (int i = 0; i < 20; ++i) {
      const double start = device::thread_cpu_seconds();
      to.copy_(from);
      times.push_back(device::thread_cpu_seconds() - start);
    }
    const double bytes = 2.0 * static_cast<double>(from.nbytes());
    curve.push_back({bytes, bytes / median(times)});
  }
  for (const price::CurvePoint& point : curve)
    machine.memory_bytes_per_s = std::max(machine.memory_bytes_per_s, point.value);
  for (price::CurvePoint& point : curve) point.value /= machine.memory_bytes_per_s;
  machine.shares["memory"] = curve;
  machine.cluster.domains = {{"memory", 0, {1e-6, machine.memory_bytes_per_s / 2}}};
}

double operators_seconds(const price::Machine& machine, const Measured& model) {
  double sum = 0;
  for (const replay::TraceOperation& one : model.operators)
    sum += price::operator_seconds(machine, {one.name, one.dtype, one.flops, static_cast<double>(one.bytes)});
  return sum / model.steps;
}

}  // namespace

nn::Microbatch random_microbatch(const config::Config& config, int64_t rank) {
  const int64_t samples = config.train.micro_batch_size, length = config.train.seq_length,
                vocab = config.model.vocab_size;
  const bool wide = config.precision.params_dtype == config::ParamsDtype::fp64;
  nn::Microbatch batch;
  batch.tokens = at::randint(0, vocab, {samples, length}, at::kLong);
  batch.labels = at::randint(0, vocab, {samples, length}, at::kLong);
  batch.position_ids = at::arange(length, at::kLong).expand({samples, length}).contiguous();
  batch.loss_mask = at::ones({samples, length}, wide ? at::kDouble : at::kFloat);
  batch.mask_sum = static_cast<double>(samples * length);
  batch.counters.samples = nn::make_sample_counters(0, at::arange(samples, at::kLong) + rank * samples);
  return batch;
}

std::vector<config::Config> calibration_models(config::ParamsDtype dtype) {
  struct Sizes {
    int64_t hidden, ffn, heads, seq, batch, vocab, experts;
  };
  // Sizes of small models on a CPU, from launch-bound to compute-bound.
  constexpr Sizes kSizes[] = {
      {64, 96, 4, 32, 1, 256, 0},     {64, 192, 4, 64, 2, 512, 0},     {128, 256, 4, 64, 1, 1024, 0},
      {128, 352, 8, 128, 2, 1024, 0}, {256, 384, 8, 128, 1, 1024, 0},  {256, 704, 8, 128, 4, 4096, 0},
      {256, 704, 4, 256, 2, 1024, 0}, {384, 1024, 6, 256, 1, 4096, 0}, {512, 1408, 8, 256, 2, 4096, 0},
      {64, 96, 4, 64, 1, 512, 4},     {128, 256, 4, 128, 1, 512, 8},   {128, 128, 4, 128, 2, 1024, 4},
      {256, 256, 8, 128, 2, 1024, 8}, {256, 512, 8, 256, 2, 1024, 4}};
  std::vector<config::Config> models;
  for (const Sizes& sizes : kSizes) {
    config::Config& config = models.emplace_back();
    config.model.num_layers = 2;
    config.model.hidden_size = sizes.hidden;
    config.model.ffn_hidden_size = sizes.ffn;
    config.model.num_attention_heads = sizes.heads;
    config.model.vocab_size = sizes.vocab;
    config.model.max_position_embeddings = sizes.seq;
    config.model.normalization = "RMSNorm";
    config.model.activation = "silu";
    config.model.gated_linear_unit = true;
    config.model.add_bias_linear = false;
    if (sizes.experts > 0) {
      config.model.num_moe_experts = sizes.experts;
      config.model.moe_router_topk = 2;
      config.model.moe_router_force_load_balancing = true;
    }
    config.precision.params_dtype = dtype;
    config.train.seq_length = sizes.seq;
    config.train.micro_batch_size = sizes.batch;
    config.train.global_batch_size = 2 * sizes.batch;
    config.train.train_iters = 1000;
    config.optim.lr = 1e-4;
    config.optim.lr_decay_style = "constant";
    config.data.mock_data = true;
    config::check(config, 1);
    config = config::resolved(config, 1);
  }
  return models;
}

price::Machine calibrate(const CalibrateOptions& options) {
  price::Machine machine;
  machine.name = "calibrated";
  measure_memory(machine);
  std::vector<Measured> all;
  for (const config::ParamsDtype dtype : options.dtypes) {
    for (const config::Config& config : calibration_models(dtype)) {
      all.push_back(measure(config, options.steps));
      if (options.progress)
        options.progress(base::concat("hidden ", config.model.hidden_size, ", sequence ", config.train.seq_length,
                                      ", ", config.model.num_moe_experts, " experts: ", all.back().step_s * 1e3,
                                      " ms"));
    }
  }
  machine.measured = curves(all);
  // Time outside operators: per library call, own call, region, and step.
  std::vector<std::array<double, 5>> rows;
  for (const Measured& model : all)
    rows.push_back({model.library_calls / model.step_s, model.own_calls / model.step_s, model.regions / model.step_s,
                    1 / model.step_s, operators_seconds(machine, model) / model.step_s});
  std::vector<std::array<double, 4>> rest;
  for (const auto& row : rows) {
    const double left = 1 - row[4];
    if (left > 0) rest.push_back({row[0] / left, row[1] / left, row[2] / left, row[3] / left});
  }
  const std::array<double, 4> host = fit_weights<4>(rest);
  machine.library_call_s = host[0], machine.own_call_s = host[1], machine.region_s = host[2],
  machine.step_s = host[3];
  machine.error = 0;
  for (const auto& row : rows) {
    double predicted = row[4];
    for (size_t k = 0; k < 4; ++k) predicted += row[k] * host[k];
    machine.error = std::max(machine.error, std::abs(predicted - 1));
  }
  return machine;
}

}  // namespace metroplex::forecast
