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
#include "parity/spec.h"
#include "parity/tolerances.h"
#include "train/batch.h"
#include "train/gather.h"
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

std::vector<nn::Microbatch> make_batches(const Spec& spec, const train::Assembly& a, int64_t iteration) {
  const int64_t dp = a.groups().dp.size(), dp_rank = a.groups().dp.index();
  std::vector<nn::Microbatch> batches;
  for (int64_t m = 0; m < spec.gbs / (spec.mbs * dp); ++m) {
    train::HostBatch host;
    host.first_sample = iteration * spec.gbs + (m * dp + dp_rank) * spec.mbs;
    for (int64_t s = 0; s < spec.mbs; ++s) {
      data::Sample sample;
      for (int64_t t = 0; t < spec.seq; ++t) {
        sample.tokens.push_back(recipe_token(host.first_sample + s, t, spec.vocab));
        sample.labels.push_back(recipe_token(host.first_sample + s, t + 1, spec.vocab));
        sample.position_ids.push_back(t);
        sample.loss_mask.push_back(t < spec.seq - spec.mask_last ? 1.0f : 0.0f);
      }
      host.samples.push_back(std::move(sample));
    }
    batches.push_back(train::on_device(train::stack_samples(host, at::kFloat), a.world->device()));
  }
  return batches;
}

// Every parameter gets its whole values on a copy of its own, of which the own part is written.
void set_recipe_weights(train::Assembly& a) {
  for (const optim::Slice& slice : a.slices) {
    nn::Param whole = *slice.param;
    const bool flat = whole.global_shape.size() == 1;
    whole.data = at::zeros(whole.local_shape, at::kFloat);
    nn::fill(whole, [&](int64_t index) {
      return static_cast<double>(static_cast<float>(recipe_weight(whole.name, flat, index)));
    });
    slice.values.copy_(whole.data.view(-1).narrow(0, slice.begin, slice.size()));
  }
  a.param_buffer->updated();
  a.optimizer->params_changed();
}

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
bool replay(const Spec& spec, const comm::World& world) {
  const bool speaks = world.rank() == 0;
  const Tolerances allowed = tolerances(spec);
  auto a = train::assemble(spec.config, world, spec.vocab);
  set_recipe_weights(*a);
  bool good = true;
  const auto& history = spec.json.at("history");
  MPX_CHECK(static_cast<int64_t>(history.size()) >= spec.iters, "parity", "the run has ", history.size(), " of ",
            spec.iters, " iterations");
  int64_t scheduled = 0;
  for (int64_t it = 0; it < spec.iters; ++it) {
    const auto batches = make_batches(spec, *a, it);
    train::StepInput input{batches, it + 1, scheduled, false, {}};
    // Gradients that overflowed are not numbers to compare.
    const bool recorded = spec.json.contains("grads_iter1") && !spec.json.at("grads_iter1").is_null();
    if (it == 0 && recorded && history[0].value("update_ok", true)) {
      input.on_gradients = [&](double unscale) {
        auto whole = train::gather_whole(*a, train::Part::main_grad);
        for (auto& [name, gradient] : whole) gradient = gradient.to(at::kDouble).mul_(unscale);
        if (speaks)
          good = report("gradients of iteration 1",
                        compare_all(whole, spec.json.at("grads_iter1"), Kind::gradient, allowed)) &&
                 good;
      };
    }
    const train::StepOutcome outcome = train::train_step(*a, input);
    if (outcome.updated) scheduled += spec.gbs;
    if (speaks) good = fits_history(outcome, history[it], allowed) && good;
  }
  const auto whole = train::gather_whole(*a, train::Part::data);
  if (speaks)
    good = report("final parameters", compare_all(whole, spec.json.at("final_params"), Kind::parameter, allowed)) &&
           good;
  return good;
}

int run(int argc, char** argv) {
  CLI::App app("Replays a golden training run and compares it.", "metroplex_parity");
  std::string path, backend = "threads", device = "cpu", strategy;
  int64_t nproc = 0;
  app.add_option("spec", path, "golden run (JSON)")->required();
  app.add_option("--backend", backend, "threads, gloo or nccl")->check(CLI::IsMember({"threads", "gloo", "nccl"}));
  app.add_option("--device", device, "cpu or cuda (with threads: all ranks on one GPU); nccl implies cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--nproc", nproc, "ranks; default: the run's own")->check(CLI::PositiveNumber);
  app.add_option("--data-parallel-sharding-strategy", strategy, "no_shard, optim, optim_grads or optim_grads_params");
  CLI11_PARSE(app, argc, argv);
  Spec spec = read_spec(path, nproc, strategy);
  spec.config.run.backend = backend;
  spec.config.run.device = backend == "nccl" ? "cuda" : device;
  bool good = true;  // rank 0 alone writes it
  const int code = apps::launch_ranks(spec.config, {argv, argv + argc}, [&](const comm::World& world) {
    const bool fits = replay(spec, world);
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
