// metroplex_parity SPEC.json [--backend threads|gloo|nccl] [--device cpu|cuda] [--nproc N]: replays a golden run and
// compares losses, gradient norms, the gradients of the first iteration and the final parameters. Exit 0 only within
// tolerance.
#include <CLI/CLI.hpp>

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <cstdio>
#include <iostream>

#include "base/error.h"
#include "upper/launch.h"
#include "nn/param_init.h"
#include "parity/replay.h"
#include "parity/spec.h"
#include "parity/tolerances.h"
#include "train/batch.h"
#include "train/gather.h"
#include "parity/yardstick.h"
#include "train/step.h"

namespace metroplex::parity {
namespace {

Tolerances tolerances(const Spec& spec) {
  double moved = 0;
  for (const auto& line : spec.json.at("history"))
    moved += line.value("update_ok", true) ? line.value("lr_used", 0.0) : 0;
  return {spec.config.precision.params_dtype, spec.config.model.num_layers, moved};
}

enum class Kind { gradient, parameter };

struct Worst {
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

// A recorded tensor beside ours.
struct Compared {
  at::Tensor flat;
  Recorded recorded;
  const nlohmann::json& expected;
};

void compare_tensor(const Compared& c, Kind kind, const Tolerances& allowed, Worst& worst) {
  const std::string& name = c.recorded.name;
  const bool gradient = kind == Kind::gradient;
  const double of_sum = gradient ? allowed.gradient_sum(c.recorded) : allowed.parameter_sum(c.recorded);
  const auto see_element = [&](int64_t at, double value) {
    const double of_element =
        gradient ? allowed.gradient_element(c.recorded, value) : allowed.parameter_element(c.recorded, value);
    worst.see(std::abs(c.flat[at].item<double>() - value), of_element, name + " element " + std::to_string(at));
  };
  worst.see(std::abs(c.flat.sum().item<double>() - c.expected.at("sum").get<double>()), of_sum, name + " sum");
  worst.see(std::abs(c.flat.norm().item<double>() - c.recorded.l2), of_sum, name + " l2");
  const auto first = c.expected.value("first", std::vector<double>{}),
             last = c.expected.value("last", std::vector<double>{});
  for (size_t i = 0; i < first.size(); ++i) see_element(static_cast<int64_t>(i), first[i]);
  for (size_t i = 0; i < last.size(); ++i) {
    see_element(c.flat.numel() - static_cast<int64_t>(last.size()) + static_cast<int64_t>(i), last[i]);
  }
}

Worst compare_all(const std::map<std::string, at::Tensor>& tensors, const nlohmann::json& expected, Kind kind,
                  const Tolerances& allowed) {
  Worst worst;
  for (const auto& [name, values] : expected.items()) {
    const auto found = tensors.find(name);
    MPX_CHECK(found != tensors.end(), "parity", "the run has a tensor ", name, " that this model lacks");
    const int64_t numel = values.at("numel");
    MPX_CHECK(found->second.numel() == numel, "parity", name, " has ", found->second.numel(),
              " elements, the run had ", numel);
    compare_tensor({found->second.to(at::kDouble).flatten(), {name, numel, values.at("l2")}, values}, kind, allowed,
                   worst);
  }
  return worst;
}

bool report(const char* what, const Worst& worst) {
  std::printf("%s: worst difference %.3e (%.2f of its tolerance) at %s\n", what, worst.difference, worst.ratio,
              worst.where.c_str());
  return worst.ratio <= 1.0;
}

// One iteration against its line of the history, in words on stdout.
bool fits_history(const train::StepOutcome& outcome, const nlohmann::json& line, const Tolerances& allowed) {
  const double loss = line.at("loss");
  // Of a skipped update the run has no norm.
  const bool has_norm = line.contains("grad_norm") && line.at("grad_norm").is_number() && outcome.updated;
  const double norm = has_norm ? line.at("grad_norm").get<double>() : outcome.grad_norm;
  const bool fits = std::abs(outcome.loss - loss) <= allowed.loss() &&
                    (!has_norm || std::abs(outcome.grad_norm - norm) <= allowed.grad_norm() * std::abs(norm)) &&
                    std::abs(outcome.lr - line.value("lr_used", outcome.lr)) <= 1e-12 &&
                    outcome.updated == line.value("update_ok", true) &&
                    outcome.loss_scale == line.value("loss_scale_used", outcome.loss_scale);
  std::printf("iteration %2ld  loss %.7f (%+.1e)  grad norm %.6f (%+.1e relative)  lr %.6e  scale %g%s  %s\n",
              static_cast<long>(line.value("iter", 0)), outcome.loss, outcome.loss - loss, outcome.grad_norm,
              has_norm ? (outcome.grad_norm - norm) / norm : 0.0, outcome.lr, outcome.loss_scale,
              outcome.updated ? "" : "  skipped", fits ? "ok" : "DIFFERS");
  return fits;
}

// On every rank; rank 0 speaks and decides.
bool compare_run(const Spec& spec, const comm::World& world, Fault fault) {
  const Trajectory ours = replay(spec, world, {false, fault});
  const bool half = spec.config.precision.half();
  const Trajectory exact = half ? replay(spec, world, {true, Fault::none}) : Trajectory{};
  if (world.rank() != 0) return true;
  const Tolerances allowed = tolerances(spec);
  const auto& history = spec.json.at("history");
  bool good = true;
  for (size_t i = 0; i < ours.steps.size(); ++i) good = fits_history(ours.steps[i], history[i], allowed) && good;
  if (half) {
    for (const Distance& d : distances(spec.json, ours, exact))
      std::printf("DIST %s %d ours %.3e theirs %.3e exact %.3e ratio %.3f\n", d.what.c_str(), (int)d.count, d.ours,
                  d.theirs, d.exact, d.ours / d.theirs);
    return good;
  }
  if (!ours.gradients.empty() && spec.json.contains("grads_iter1") && spec.json.at("grads_iter1").is_object())
    good = report("gradients of iteration 1",
                  compare_all(ours.gradients, spec.json.at("grads_iter1"), Kind::gradient, allowed)) &&
           good;
  return report("final parameters",
                compare_all(ours.parameters, spec.json.at("final_params"), Kind::parameter, allowed)) &&
         good;
}

int run(int argc, char** argv) {
  CLI::App app("Replays a golden training run and compares it.", "metroplex_parity");
  std::string path, backend = "threads", device = "cpu", strategy, plant = "none";
  int64_t nproc = 0;
  app.add_option("spec", path, "golden run (JSON)")->required();
  app.add_option("--backend", backend, "threads, gloo or nccl")->check(CLI::IsMember({"threads", "gloo", "nccl"}));
  app.add_option("--device", device, "cpu or cuda (with threads: all ranks on one GPU); nccl implies cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--nproc", nproc, "ranks; default: the run's own")->check(CLI::PositiveNumber);
  app.add_option("--data-parallel-sharding-strategy", strategy, "no_shard, optim, optim_grads or optim_grads_params");
  app.add_option("--plant", plant, "a fault");
  CLI11_PARSE(app, argc, argv);
  Spec spec = read_spec(path, nproc, strategy);
  spec.config.run.backend = backend;
  spec.config.run.device = backend == "nccl" ? "cuda" : device;
  bool good = true;  // rank 0 alone writes it
  const int code = apps::launch_ranks(spec.config, {argv, argv + argc}, [&](const comm::World& world) {
    const bool fits = compare_run(spec, world, fault_of(plant));
    if (world.rank() == 0) {
      std::printf("%s %s: tp %ld pp %ld vpp %ld dp %d\n", fits ? "PASS" : "FAIL", path.c_str(),
                  static_cast<long>(spec.config.parallel.tp()), static_cast<long>(spec.config.parallel.pp()),
                  static_cast<long>(spec.config.parallel.vpp()), world.groups().dp.size());
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
