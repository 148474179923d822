#include "forecast/calibrate.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <thread>

#include "base/error.h"
#include "comm/launch.h"
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

  Steps(const config::Config& config, const comm::World& world, const nn::Microbatch& batch)
      : assembly(step::assemble(config, world, config.model.vocab_size)) {
    const int64_t count = config.train.global_batch_size / (config.train.micro_batch_size * world.groups().dp.size());
    batches.assign(static_cast<size_t>(count), batch);
  }
  void run() {
    step::train_step(*assembly, {batches, done + 1, done * static_cast<int64_t>(batches.size()), false, {}});
    ++done;
  }
};

constexpr int kWarmup = 1;

// The median time of each operator, for each pair of FLOPs and bytes.
std::map<std::string, std::vector<price::MeasuredOperator>> measured_operators(const std::vector<MeasuredStep>& all) {
  std::map<std::string, std::map<std::pair<double, int64_t>, std::vector<double>>> samples;
  for (const MeasuredStep& model : all) {
    for (const replay::TraceOperation& one : model.operators) {
      if ((one.flops > 0 || one.bytes > 0) && one.seconds > 0)
        samples[base::concat(one.name, " ", one.dtype)][{one.flops, one.bytes}].push_back(one.seconds);
    }
  }
  std::map<std::string, std::vector<price::MeasuredOperator>> measured;
  for (const auto& [name, sizes] : samples) {
    for (const auto& [size, seconds] : sizes)
      measured[name].push_back({size.first, static_cast<double>(size.second), median(seconds)});
  }
  return measured;
}

// Host time: the part of a step outside its operators, and its causes.
struct HostRow {
  double rest = 0;                 // fraction of the step
  std::array<double, 3> causes{};  // library calls, own calls, bytes; divided by the time of the step
};

HostRow host_row(const MeasuredStep& model) {
  HostRow row;
  for (const replay::TraceOperation& one : model.operators) {
    row.causes[one.name.find("::") != std::string::npos ? 0 : 1] += 1;
    row.causes[2] += static_cast<double>(one.bytes);
  }
  for (double& cause : row.causes) cause /= model.step_s;
  row.rest = 1 - model.operators_s() / model.step_s;
  return row;
}

// The largest rate of a product by dtype.
std::map<std::string, double> best_products(const std::map<std::string, std::vector<price::MeasuredOperator>>& all) {
  std::map<std::string, double> best;
  for (const auto& [name, sizes] : all) {
    for (const price::MeasuredOperator& one : sizes) {
      if (one.flops <= 0) continue;
      double& rate = best[name.substr(name.rfind(' ') + 1)];
      rate = std::max(rate, one.flops / one.seconds);
    }
  }
  return best;
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

// Large new tensors of zeros, such as the buckets of ZeRO-2, need new pages. Models on one rank have none.
void measure_zeros(price::Machine& machine) {
  for (int64_t numel = 1 << 14; numel <= 1 << 24; numel *= 8) {
    std::vector<double> times;
    for (int i = 0; i < 10; ++i) {
      const double start = device::thread_cpu_seconds();
      const at::Tensor zeros = at::zeros({numel});
      times.push_back(device::thread_cpu_seconds() - start);
    }
    machine.measured["aten::zeros fp32"].push_back({0, static_cast<double>(4 * numel), median(times)});
  }
}

price::Operator priced(const replay::TraceOperation& one) {
  return {one.name, one.dtype, one.flops, static_cast<double>(one.bytes)};
}

// One step, including host times of the machine.
double predicted_seconds(const price::Machine& machine, const MeasuredStep& model) {
  double sum = 0;
  for (const replay::TraceOperation& one : model.operators)
    sum += price::operator_seconds(machine, priced(one)) + price::issue_seconds(machine, priced(one));
  return sum;
}

}  // namespace

double MeasuredStep::operators_s() const {
  double sum = 0;
  for (const replay::TraceOperation& one : operators) sum += one.seconds;
  return sum;
}

void MeasuredStep::keep_faster(MeasuredStep other) {
  if (operators.empty() || other.operators_s() < operators_s()) operators = std::move(other.operators);
  step_s = std::min(step_s, other.step_s);
}

MeasuredStep measure_step(const config::Config& config, int steps) {
  return measure_step(config, single_rank(config), random_microbatch(config, 0), steps);
}

MeasuredStep measure_step(const config::Config& config, const comm::World& world, const nn::Microbatch& batch,
                          int steps) {
  MeasuredStep out;
  // Plain and recorded steps take turns, since the speed of a shared machine changes within seconds.
  Steps plain(config, world, batch);
  TraceRecorder recorder(1);
  recorder.time_operators();
  const comm::World recorded = world.recorded(recorder);
  Steps observed(config, recorded, batch);
  for (int i = 0; i < steps + kWarmup; ++i) {
    const double start = device::thread_cpu_seconds();
    plain.run();
    const double seconds = device::thread_cpu_seconds() - start;
    if (i == kWarmup) {
      recorder.take();
      recorder.start();
    }
    const graph::TapeHooks hooks(&recorder, nullptr);
    observed.run();
    if (i < kWarmup) continue;
    MeasuredStep step{{}, seconds};
    for (replay::IslandTrace& region : recorder.take())
      std::move(region.operations.begin(), region.operations.end(), std::back_inserter(step.operators));
    out.keep_faster(std::move(step));
  }
  return out;
}

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
    int64_t hidden, ffn, heads, width, seq, batch, vocab, experts;  // width: of a head
  };
  // Small models on a CPU, from launch-bound to compute-bound. Some have fewer heads and a narrower MLP than usual,
  // like the shards of tensor parallelism.
  constexpr Sizes kSizes[] = {
      {64, 96, 4, 16, 32, 1, 256, 0},      {64, 192, 4, 16, 64, 2, 512, 0},     {128, 256, 4, 32, 64, 1, 1024, 0},
      {128, 352, 8, 16, 128, 2, 1024, 0},  {256, 384, 8, 32, 128, 1, 1024, 0},  {256, 704, 8, 32, 128, 4, 4096, 0},
      {256, 704, 4, 64, 256, 2, 1024, 0},  {384, 1024, 6, 64, 256, 1, 4096, 0}, {512, 1408, 8, 64, 256, 2, 4096, 0},
      {192, 512, 6, 32, 64, 2, 1024, 0},   {320, 896, 10, 32, 64, 2, 2048, 0},  {256, 320, 4, 32, 128, 2, 1024, 0},
      {256, 192, 2, 32, 128, 2, 512, 0},   {512, 640, 4, 64, 128, 1, 2048, 0},  {320, 448, 5, 32, 128, 2, 1024, 0},
      {64, 96, 4, 16, 64, 1, 512, 4},      {128, 256, 4, 32, 128, 1, 512, 8},   {128, 128, 4, 32, 128, 2, 1024, 4},
      {256, 256, 8, 32, 128, 2, 1024, 8},  {256, 512, 8, 32, 256, 2, 1024, 4},  {320, 448, 10, 32, 128, 2, 1024, 8},
      {256, 320, 8, 32, 128, 2, 1024, 16}, {256, 416, 8, 32, 64, 2, 1024, 4}};
  std::vector<config::Config> models;
  for (const Sizes& sizes : kSizes) {
    config::Config& config = models.emplace_back();
    config.model.num_layers = 2;
    config.model.hidden_size = sizes.hidden;
    config.model.ffn_hidden_size = sizes.ffn;
    config.model.num_attention_heads = sizes.heads;
    config.model.kv_channels = sizes.width;
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

HostCosts fit_host_costs(const std::vector<MeasuredStep>& steps) {
  std::vector<HostRow> rows;
  for (const MeasuredStep& step : steps) rows.push_back(host_row(step));
  std::array<double, 3> costs{};
  constexpr int kRounds = 20000;  // of coordinate descent
  for (int round = 0; round < kRounds; ++round) {
    for (size_t k = 0; k < costs.size(); ++k) {
      double slope = 0, curvature = 0;
      for (const HostRow& row : rows) {
        double left = row.rest;
        for (size_t j = 0; j < costs.size(); ++j) left -= j == k ? 0 : row.causes[j] * costs[j];
        slope += row.causes[k] * left;
        curvature += row.causes[k] * row.causes[k];
      }
      costs[k] = curvature > 0 ? std::max(0.0, slope / curvature) : 0;
    }
  }
  return {costs[0], costs[1], costs[2]};
}

namespace {

std::vector<MeasuredStep> measure_at_once(const config::Config& config, int ranks, int steps) {
  std::vector<MeasuredStep> all(static_cast<size_t>(ranks));
  comm::run_threads(ranks, topology::RankGrid(ranks, {}), {}, [&](const comm::World& world) {
    all[static_cast<size_t>(world.rank())] = measure_step(config, steps);
  });
  return all;
}

}  // namespace

price::Machine calibrate(const CalibrateOptions& options) {
  const int ranks =
      options.ranks > 0 ? options.ranks : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<config::Config> models = options.models;
  if (models.empty()) {
    for (const config::ParamsDtype dtype : {config::ParamsDtype::fp32, config::ParamsDtype::bf16}) {
      for (config::Config& config : calibration_models(dtype)) models.push_back(std::move(config));
    }
  }
  price::Machine machine;
  machine.name = "calibrated";
  measure_memory(machine);
  std::vector<MeasuredStep> all(models.size() * static_cast<size_t>(ranks));
  // Other programs disturb a measurement for seconds, so each model is measured at two times.
  constexpr int kRounds = 2;
  for (int round = 0; round < kRounds; ++round) {
    size_t next = 0;
    for (const config::Config& config : models) {
      std::vector<MeasuredStep> steps = measure_at_once(config, ranks, options.steps);
      if (options.progress)
        options.progress(base::concat("hidden ", config.model.hidden_size, ", sequence ", config.train.seq_length,
                                      ", ", config.model.num_moe_experts, " experts: ", steps.back().step_s * 1e3,
                                      " ms"));
      for (MeasuredStep& step : steps) all[next++].keep_faster(std::move(step));
    }
  }
  machine.measured = measured_operators(all);
  measure_zeros(machine);
  machine.peak_flops = best_products(machine.measured);
  const HostCosts host = fit_host_costs(all);
  machine.library_call_s = host.library_call_s, machine.own_call_s = host.own_call_s, machine.byte_s = host.byte_s;
  machine.error = 0;
  for (const MeasuredStep& model : all)
    machine.error = std::max(machine.error, std::abs(predicted_seconds(machine, model) / model.step_s - 1));
  machine.error = std::min(machine.error, 1.0);  // the largest that read_machine accepts
  machine.sources["measured"] =
      base::concat("metroplex calibrate: steps of ", models.size(), " models on ", ranks, " threads at once");
  machine.sources["device.peak_flops"] = "the best measured product";
  return machine;
}

}  // namespace metroplex::forecast
