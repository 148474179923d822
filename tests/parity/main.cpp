// metroplex_parity SPEC.json [--backend threads|gloo] [--nproc N]: replays a golden run and compares losses, gradient
// norms, the gradients of the first iteration and the final parameters. Exit 0 only within tolerance.
#include <CLI/CLI.hpp>

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <cstdio>
#include <iostream>

#include "base/error.h"
#include "launch.h"
#include "nn/param_init.h"
#include "parity/spec.h"
#include "train/batch.h"
#include "train/gather.h"
#include "train/step.h"

namespace metroplex::parity {
namespace {

// The tolerances of the golden runs, fp32: rounding of a few thousand additions, and of other addition orders.
constexpr double kLoss = 2e-6;       // absolute
constexpr double kGradNorm = 2e-5;   // relative
constexpr double kParameter = 2e-5;  // absolute: sums, l2 and elements
// The gradient of the key bias is zero in exact arithmetic, so Adam turns its rounding noise into whole steps.
constexpr double kQkvBias = 1e-3;

double tolerance(const std::string& name) {
  return name.find("linear_qkv.bias") != std::string::npos ? kQkvBias : kParameter;
}

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
    batches.push_back(train::stack_samples(host, at::kFloat));
  }
  return batches;
}

void set_recipe_weights(train::Assembly& a) {
  for (nn::Param* param : a.params) {
    const bool flat = param->global_shape.size() == 1;
    nn::fill(*param, [&](int64_t index) {
      return static_cast<double>(static_cast<float>(recipe_weight(param->name, flat, index)));
    });
  }
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

void compare_tensor(const std::string& name, const at::Tensor& tensor, const nlohmann::json& expected, Worst& worst) {
  const at::Tensor flat = tensor.to(at::kDouble).flatten();
  MPX_CHECK(flat.numel() == expected.at("numel").get<int64_t>(), "parity", name, " has ", flat.numel(),
            " elements, the run had ", expected.at("numel").dump());
  const double allowed = tolerance(name);
  worst.see(std::abs(flat.sum().item<double>() - expected.at("sum").get<double>()), allowed, name + " sum");
  worst.see(std::abs(flat.norm().item<double>() - expected.at("l2").get<double>()), allowed, name + " l2");
  const auto first = expected.value("first", std::vector<double>{}),
             last = expected.value("last", std::vector<double>{});
  for (size_t i = 0; i < first.size(); ++i) {
    worst.see(std::abs(flat[i].item<double>() - first[i]), allowed, name + " element " + std::to_string(i));
  }
  for (size_t i = 0; i < last.size(); ++i) {
    const int64_t at = flat.numel() - static_cast<int64_t>(last.size()) + static_cast<int64_t>(i);
    worst.see(std::abs(flat[at].item<double>() - last[i]), allowed, name + " element " + std::to_string(at));
  }
}

Worst compare_all(const std::map<std::string, at::Tensor>& tensors, const nlohmann::json& expected) {
  Worst worst;
  for (const auto& [name, values] : expected.items()) {
    const auto found = tensors.find(name);
    MPX_CHECK(found != tensors.end(), "parity", "the run has a tensor ", name, " that this model lacks");
    compare_tensor(name, found->second, values, worst);
  }
  return worst;
}

bool report(const char* what, const Worst& worst) {
  std::printf("%s: worst difference %.3e (%.2f of its tolerance) at %s\n", what, worst.difference, worst.ratio,
              worst.where.c_str());
  return worst.ratio <= 1.0;
}

// On every rank; rank 0 speaks and decides.
bool replay(const Spec& spec, const comm::World& world) {
  const bool speaks = world.rank() == 0;
  auto a = train::assemble(spec.config, world, spec.vocab);
  set_recipe_weights(*a);
  bool good = true;
  const auto& history = spec.json.at("history");
  MPX_CHECK(static_cast<int64_t>(history.size()) >= spec.iters, "parity", "the run has ", history.size(), " of ",
            spec.iters, " iterations");
  for (int64_t it = 0; it < spec.iters; ++it) {
    const auto batches = make_batches(spec, *a, it);
    train::StepInput input{batches, it + 1, it * spec.gbs, false, {}};
    if (it == 0 && spec.json.contains("grads_iter1")) {
      input.on_gradients = [&] {
        const auto whole = train::gather_whole(*a, train::Part::main_grad);
        if (speaks)
          good = report("gradients of iteration 1", compare_all(whole, spec.json.at("grads_iter1"))) && good;
      };
    }
    const train::StepOutcome outcome = train::train_step(*a, input);
    if (!speaks) continue;
    const double loss = history[it].at("loss"), norm = history[it].at("grad_norm");
    const bool fits = std::abs(outcome.loss - loss) <= kLoss &&
                      std::abs(outcome.grad_norm - norm) <= kGradNorm * std::abs(norm) &&
                      std::abs(outcome.lr - history[it].value("lr_used", outcome.lr)) <= 1e-12;
    std::printf("iteration %2ld  loss %.7f (%+.1e)  grad norm %.6f (%+.1e relative)  lr %.6e  %s\n",
                static_cast<long>(it + 1), outcome.loss, outcome.loss - loss, outcome.grad_norm,
                (outcome.grad_norm - norm) / norm, outcome.lr, fits ? "ok" : "DIFFERS");
    good = good && fits;
  }
  const auto whole = train::gather_whole(*a, train::Part::data);
  if (speaks) good = report("final parameters", compare_all(whole, spec.json.at("final_params"))) && good;
  return good;
}

int run(int argc, char** argv) {
  CLI::App app("Replays a golden training run and compares it.", "metroplex_parity");
  std::string path, backend = "threads";
  int64_t nproc = 0;
  app.add_option("spec", path, "golden run (JSON)")->required();
  app.add_option("--backend", backend, "threads or gloo")->check(CLI::IsMember({"threads", "gloo"}));
  app.add_option("--nproc", nproc, "ranks; default: the run's own")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  Spec spec = read_spec(path, nproc);
  spec.config.run.backend = backend;
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
    std::cerr << "metroplex_parity: " << metroplex::apps::message_of(error) << "\n";
    return 1;
  }
}
