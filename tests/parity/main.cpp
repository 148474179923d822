// metroplex_parity SPEC.json [--backend threads|gloo|nccl] [--device cpu|cuda] [--nproc N --tp N --pp N --vpp N --ep
// N --etp N --sp]: replays a golden run, on its own layout or another one. Compares losses, gradient norms, the
// gradients of the first iteration and the final parameters. Exit 0 only within tolerance (tolerances.h), for
// half-precision runs within the yardstick (yardstick.h).
#include <CLI/CLI.hpp>

#include <ATen/ATen.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <iostream>

#include "base/error.h"
#include "parity/replay.h"
#include "parity/spec.h"
#include "parity/tolerances.h"
#include "parity/yardstick.h"
#include "parity/yardstick_trial.h"
#include "upper/launch.h"

namespace metroplex::parity {
namespace {

using Json = nlohmann::json;
using NamedTensors = std::map<std::string, at::Tensor>;

struct LargestError {
  double ratio = 0, difference = 0;  // ratio to the tolerance
  std::string where = "nothing compared";
  void see(double difference_seen, double allowed, const std::string& place) {
    if (!(difference_seen / allowed <= ratio)) {  // a NaN is the worst
      ratio = std::isnan(difference_seen) ? INFINITY : difference_seen / allowed;
      difference = difference_seen;
      where = place;
    } else if (where == "nothing compared") {
      where = place;
    }
  }
};

void compare_tensor(const std::string& name, const at::Tensor& flat, const Json& expected, double allowed,
                    LargestError& worst) {
  const auto see = [&](int64_t at, double value) {
    worst.see(std::abs(flat[at].item<double>() - value), allowed, name + " element " + std::to_string(at));
  };
  worst.see(std::abs(flat.sum().item<double>() - expected.at("sum").get<double>()), allowed, name + " sum");
  worst.see(std::abs(flat.norm().item<double>() - expected.at("l2").get<double>()), allowed, name + " l2");
  const auto first = expected.value("first", std::vector<double>{}),
             last = expected.value("last", std::vector<double>{});
  for (size_t i = 0; i < first.size(); ++i) see(static_cast<int64_t>(i), first[i]);
  for (size_t i = 0; i < last.size(); ++i)
    see(flat.numel() - static_cast<int64_t>(last.size()) + static_cast<int64_t>(i), last[i]);
}

bool compare_all(const char* what, const NamedTensors& tensors, const Json& expected,
                 const std::function<double(const std::string&)>& tolerance) {
  LargestError worst;
  for (const auto& [name, values] : expected.items()) {
    const auto found = tensors.find(name);
    MPX_CHECK(found != tensors.end(), "parity", "the run has a tensor ", name, " that this model lacks");
    const int64_t numel = values.at("numel");
    MPX_CHECK(found->second.numel() == numel, "parity", name, " has ", found->second.numel(),
              " elements, the run had ", numel);
    compare_tensor(name, found->second.flatten(), values, tolerance(name), worst);
  }
  std::printf("%s: worst difference %.3e (%.2f of its tolerance) at %s\n", what, worst.difference, worst.ratio,
              worst.where.c_str());
  return worst.ratio <= 1.0;
}

// Compares one iteration with its line of the history, in words on stdout. In half precision the yardstick evaluates
// losses and norms all together; the decision to update, the rate and the scale are equal in any precision.
bool fits_history(const step::StepOutcome& outcome, const Json& line, const Spec& spec) {
  const bool half = spec.config.precision.half();
  const double loss = line.at("loss");
  // The run has no norm for a skipped update.
  const bool has_norm = line.contains("grad_norm") && line.at("grad_norm").is_number() && outcome.updated;
  const double norm = has_norm ? line.at("grad_norm").get<double>() : outcome.grad_norm;
  const bool near =
      half || (std::abs(outcome.loss - loss) <= kLossTolerance &&
               (!has_norm || std::abs(outcome.grad_norm - norm) <= kGradNormTolerance * std::abs(norm)));
  // The rate comes from the same formula in double: 1e-12 allows another order of its operations.
  const bool fits = near && std::abs(outcome.lr - line.value("lr_used", outcome.lr)) <= 1e-12 &&
                    outcome.updated == line.value("update_ok", true) &&
                    (!line.contains("loss_scale_used") ||
                     outcome.loss_scale == line.at("loss_scale_used").get<double>() * spec.loss_scale_ratio);
  std::printf("iteration %2ld  loss %.7f (%+.1e)  grad norm %.6f (%+.1e relative)  lr %.6e  scale %g%s  %s\n",
              static_cast<long>(line.value("iter", 0)), outcome.loss, outcome.loss - loss, outcome.grad_norm,
              has_norm ? (outcome.grad_norm - norm) / norm : 0.0, outcome.lr, outcome.loss_scale,
              outcome.updated ? "" : "  skipped", fits ? "ok" : "DIFFERS");
  return fits;
}

bool fits_fp32(const Spec& spec, const Trajectory& ours) {
  const Json& recorded = spec.json;
  const bool rotary = spec.config.model.position_embedding_type == config::PositionEmbedding::rope;
  bool good = true;
  if (!ours.gradients.empty() && recorded.contains("grads_iter1") && recorded.at("grads_iter1").is_object())
    good = compare_all("gradients of iteration 1", ours.gradients, recorded.at("grads_iter1"),
                       [](const std::string&) { return kGradientTolerance; });
  return compare_all("final parameters", ours.parameters, recorded.at("final_params"),
                     [&](const std::string& name) { return parameter_tolerance(name, rotary); }) &&
         good;
}

bool fits_half(const Json& recorded, const Trajectory& ours, const Trajectory& exact) {
  const ComparisonResult comparison = compare_half(recorded, ours, exact);
  for (const std::string& line : comparison.lines) std::printf("%s\n", line.c_str());
  for (const std::string& line : comparison.failures) std::printf("TOO FAR: %s\n", line.c_str());
  return comparison.failures.empty();
}

// Collective; rank 0 prints and decides.
bool compare_run(const Spec& spec, const comm::World& world, Fault fault) {
  const auto& history = spec.json.at("history");
  MPX_CHECK(static_cast<int64_t>(history.size()) >= spec.iters, "parity", "the run has ", history.size(), " of ",
            spec.iters, " iterations");
  const bool half = spec.config.precision.half();
  const Trajectory ours = replay(spec, world, {false, fault});
  const Trajectory exact = half ? replay(spec, world, {true, Fault::none}) : Trajectory{};
  if (world.rank() != 0) return true;
  bool good = true;
  for (size_t i = 0; i < ours.steps.size(); ++i) good = fits_history(ours.steps[i], history[i], spec) && good;
  return (half ? fits_half(spec.json, ours, exact) : fits_fp32(spec, ours)) && good;
}

int run(int argc, char** argv) {
  CLI::App app("Replays a golden training run and compares it.", "metroplex_parity");
  std::string path, backend = "threads", device = "cpu", plant = "none";
  OtherLayout other;
  bool trial = false;
  app.add_option("spec", path, "golden run (JSON)");
  app.add_flag("--yardstick", trial, "no run: hold the yardstick of half precision against made-up programs");
  app.add_option("--backend", backend, "threads, gloo or nccl")->check(CLI::IsMember({"threads", "gloo", "nccl"}));
  app.add_option("--device", device, "cpu or cuda (with threads: all ranks on one GPU); nccl implies cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  const std::pair<const char*, int64_t*> sizes[] = {{"--nproc", &other.nproc}, {"--tp", &other.tp},
                                                    {"--pp", &other.pp},       {"--vpp", &other.vpp},
                                                    {"--ep", &other.ep},       {"--etp", &other.etp}};
  for (const auto& [name, size] : sizes)
    app.add_option(name, *size, "default: the run's own")->check(CLI::PositiveNumber);
  app.add_flag("--sp", other.sequence_parallel, "sequence parallelism; on by itself for experts where tp is above 1");
  app.add_option("--data-parallel-sharding-strategy", other.sharding_strategy,
                 "no_shard, optim, optim_grads or optim_grads_params");
  app.add_option("--set", other.settings, "section.key=value: another setting that must not change the results");
  app.add_option("--cuda-graph-impl", other.cuda_graph_impl,
                 "none, local, transformer_engine or full_iteration: replays graphs from the fourth step on");
  app.add_option("--cuda-graph-modules", other.cuda_graph_modules,
                 "of local and transformer_engine; none: whole layers");
  app.add_option("--plant", plant,
                 "a mistake to make on purpose, which must not pass: no_update, learning_rate, zero_layer_gradient, "
                 "half_main_params, no_clip or absent_rank");
  CLI11_PARSE(app, argc, argv);
  if (trial) return try_yardstick() ? 0 : 1;
  MPX_CHECK(!path.empty(), "parity", "a golden run (JSON) is needed; --help");
  Spec spec = read_spec(path, other);
  spec.config.run.backend = backend;
  spec.config.run.device = backend == "nccl" ? "cuda" : device;
  bool good = true;  // only rank 0 writes it
  const int code = apps::launch_ranks(spec.config, {argv, argv + argc}, [&](const comm::World& world) {
    const bool fits = compare_run(spec, world, parse_fault(plant));
    if (world.rank() == 0) {
      const config::Parallel& parallel = spec.config.parallel;
      std::printf("%s %s: tp %ld pp %ld vpp %ld dp %d ep %ld etp %ld\n", fits ? "PASS" : "FAIL", path.c_str(),
                  static_cast<long>(parallel.tp()), static_cast<long>(parallel.pp()),
                  static_cast<long>(parallel.vpp()), world.groups().dp.size(), static_cast<long>(parallel.ep()),
                  static_cast<long>(parallel.etp()));
      std::fflush(stdout);
      good = fits;
    }
    MPX_CHECK(fits, "parity", "the replay of ", path, " differs from the golden run");
  });
  return code != 0 ? code : good ? 0 : 1;
}

}  // namespace
}  // namespace metroplex::parity

int main(int argc, char** argv) {
  try {
    return metroplex::parity::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "metroplex_parity: " << metroplex::apps::message_of(error, false) << "\n";
    return 1;
  }
}
