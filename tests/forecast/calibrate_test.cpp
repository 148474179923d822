// Measured steps of one rank, and what a calibration makes of them. Times themselves are not tested.
#include "forecast/calibrate.h"

#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include <map>
#include <tuple>

#include "forecast/trace_step.h"

namespace metroplex::test::calibrate_test {
namespace {

config::Config tiny_model(int64_t experts) {
  config::Config config = forecast::calibration_models(config::ParamsDtype::fp32).front();
  if (experts == 0) return config;
  for (const config::Config& other : forecast::calibration_models(config::ParamsDtype::fp32))
    if (other.model.num_moe_experts == experts && other.model.hidden_size == 64) config = other;
  return config;
}

// Number of operators by name, dtype, FLOPs and bytes.
using Operators = std::map<std::tuple<std::string, std::string, double, int64_t>, int>;

TEST(MeasuredStep, HasTheOperatorsOfThePredictedStep) {
  at::set_num_threads(1);
  for (const int64_t experts : {0, 4}) {
    const config::Config config = tiny_model(experts);
    Operators measured, predicted;
    const forecast::MeasuredStep step = forecast::measure_step(config, 1);
    EXPECT_GT(step.step_s, 0);
    for (const replay::TraceOperation& one : step.operators) ++measured[{one.name, one.dtype, one.flops, one.bytes}];
    const replay::StepTrace trace =
        forecast::trace_step({.config = config, .world_size = 1, .vocab_size = config.model.vocab_size});
    const auto add = [&](const std::vector<replay::IslandTrace>& regions) {
      for (const replay::IslandTrace& region : regions)
        for (const replay::TraceOperation& one : region.operations)
          ++predicted[{one.name, one.dtype, one.flops, one.bytes}];
    };
    for (const replay::TracedAction& action : trace.actions) add(action.regions);
    add(trace.after);
    // optim::RateTable is written once in many steps. The predicted step is one that writes it. It does not read the
    // outcome.
    std::erase_if(predicted, [&](const auto& one) {
      return std::get<0>(one.first) == "aten::copy_" && std::get<1>(one.first) == "fp64" &&
             !measured.contains(one.first);
    });
    EXPECT_EQ(std::erase_if(measured, [](const auto& one) { return std::get<0>(one.first) == "read_on_host"; }), 1);
    EXPECT_EQ(measured.size(), predicted.size());
    for (const auto& [one, count] : predicted)
      EXPECT_EQ(measured[one], count) << std::get<0>(one) << " " << std::get<1>(one) << " of " << std::get<2>(one)
                                      << " FLOPs and " << std::get<3>(one) << " bytes, " << experts << " experts";
  }
}

TEST(MeasuredStep, KeepsTheFasterOfBothParts) {
  const auto make = [](double operators_s, double step_s) {
    return forecast::MeasuredStep{{{"mm", "", 0, 0, "fp32", 0, operators_s}}, step_s};
  };
  forecast::MeasuredStep kept;
  for (const auto& [operators_s, step_s] :
       {std::pair(3.0, 5.0), std::pair(4.0, 4.0), std::pair(2.0, 6.0), std::pair(4.0, 5.0)})
    kept.keep_faster(make(operators_s, step_s));
  EXPECT_EQ(kept.operators_s(), 2);
  EXPECT_EQ(kept.step_s, 4);
}

// Steps with known costs of calls and bytes.
TEST(HostCosts, AreFoundFromSteps) {
  constexpr double kLibrary = 4e-6, kOwn = 3e-6, kByte = 5e-12;
  std::vector<forecast::MeasuredStep> steps;
  for (const auto& [library, own, bytes] :
       std::vector<std::tuple<int, int, int64_t>>{{50, 100, 1'000}, {60, 300, 2'000'000}, {200, 110, 100'000'000}}) {
    forecast::MeasuredStep step;
    for (int i = 0; i < library + own; ++i)
      step.operators.push_back({i < library ? "aten::add" : "norm", "", 0, bytes, "fp32", 0, 1e-5});
    const double calls = library + own;
    step.step_s = library * kLibrary + own * kOwn + calls * static_cast<double>(bytes) * kByte + calls * 1e-5;
    steps.push_back(step);
  }
  const forecast::HostCosts costs = forecast::fit_host_costs(steps);
  EXPECT_NEAR(costs.library_call_s / kLibrary, 1, 1e-6);
  EXPECT_NEAR(costs.own_call_s / kOwn, 1, 1e-6);
  EXPECT_NEAR(costs.byte_s / kByte, 1, 1e-6);
}

TEST(Calibration, DescribesAMachineThatPredictsItsModels) {
  at::set_num_threads(1);
  const std::vector<config::Config> models{tiny_model(0), tiny_model(4)};
  int lines = 0;
  const price::Machine machine = forecast::calibrate(
      {.models = models, .ranks = 2, .steps = 1, .progress = [&](const std::string&) { ++lines; }});
  EXPECT_EQ(lines, 4);  // two models, two rounds
  EXPECT_FALSE(machine.gpu);
  EXPECT_TRUE(machine.measured.contains("mm fp32"));
  EXPECT_GT(machine.peak_flops.at("fp32"), 0);
  EXPECT_FALSE(machine.sources.at("measured").empty());
  const price::Machine read = price::read_machine(price::write_machine(machine), "a test");
  EXPECT_EQ(read.measured.size(), machine.measured.size());
}

}  // namespace
}  // namespace metroplex::test::calibrate_test
