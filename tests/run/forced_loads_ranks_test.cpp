// The trace of one run forces the routing of another; a trace that does not fit the model is rejected.
#include "step/forced_loads.h"

#include <fstream>
#include <numeric>

#include "base/error.h"
#include "files/expert_trace.h"
#include "support/error_of.h"
#include "support/folder.h"
#include "run/support.h"

namespace metroplex::test::forced_loads_ranks_test {
namespace {

files::PosixFileSystem disk;

struct NullLog final : base::Log {
  void info(const std::string&) override {}
  void warn(const std::string&) override {}
};

// Layers 1 and 3 have experts; every rank has one microbatch per step.
config::Config make_config(int64_t ep, uint64_t seed) {
  config::Config config = small_llama();
  config.model.num_moe_experts = 4;
  config.model.moe_layer_freq = "[0,1,0,1]";
  config.model.init_method_std = 0.3;  // makes loads uneven
  config.run.seed = static_cast<int64_t>(seed);
  config.parallel.expert_model_parallel_size = ep;
  return config;
}

files::ExpertTrace train_on(config::Config config, const TestLayout& layout, const std::string& trace_file) {
  config.train.expert_trace_file = trace_file;
  config = cut(config, layout);
  config.train.micro_batch_size = config.train.global_batch_size / layout.dp;
  run_sharded(config, layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    NullLog quiet;
    run::ExpertLoads loads(assembly->process, assembly->model, disk, quiet);
    for (int64_t step = 0; step < 3; ++step) {
      step_at(*assembly, step);
      loads.after_step(step + 1);
    }
  });
  return files::read_expert_trace(disk, trace_file);
}

TEST(ForcedLoads, ARunRepeatsTheLoadsOfAnother) {
  const Folder folder;
  const TestLayout two{1, 1, 1, 2, false};
  const files::ExpertTrace first = train_on(make_config(2, 1), two, folder.at("first"));
  config::Config other = make_config(2, 2);
  const files::ExpertTrace unlike = train_on(other, two, folder.at("unlike"));
  other.model.moe_router_force_trace = folder.at("first");
  const files::ExpertTrace again = train_on(other, two, folder.at("again"));
  config::Config alone = make_config(1, 3);
  alone.model.moe_router_force_trace = folder.at("first");
  const files::ExpertTrace summed = train_on(alone, {}, folder.at("summed"));
  for (size_t step = 0; step < 3; ++step) {
    EXPECT_NE(unlike.steps.at(step).tokens, first.steps.at(step).tokens);
    EXPECT_EQ(again.steps.at(step).tokens, first.steps.at(step).tokens) << "source by source";
    for (size_t layer = 0; layer < 2; ++layer) {
      for (int64_t e = 0; e < 4; ++e)
        EXPECT_EQ(summed.tokens(summed.steps.at(step), layer, e), first.tokens(first.steps.at(step), layer, e));
    }
  }
}

TEST(ForcedLoads, WhatDoesNotFitTheModelIsRefused) {
  const Folder folder;
  const std::string steps = "{\"dropped\":[0,0],\"iteration\":1,\"tokens\":[[[4,3,2,1]],[[1,2,3,4]]]}\n";
  const auto refusal = [&](const std::string& head, const std::string& lines) -> std::string {
    config::Model model = make_config(1, 1).model;
    model.moe_router_force_trace = folder.at("trace");
    std::ofstream(folder.at("trace")) << head << "\n" << lines;
    return catch_error([&] { step::forced_loads(model, {}, disk); });
  };
  const std::string head = R"({"ep":1,"etp":1,"expert_trace":1,"layers":[1,3],"num_experts":4,"topk":2})";
  EXPECT_EQ(refusal(head, steps), "");
  const auto expect = [&](const std::string& what, const std::string& part) {
    EXPECT_NE(what.find("model.moe_router_force_trace"), std::string::npos) << what;
    EXPECT_NE(what.find(part), std::string::npos) << what;
  };
  expect(refusal(head, ""), "has no iteration");
  expect(refusal(R"({"ep":1,"etp":1,"expert_trace":1,"layers":[1,2],"num_experts":4,"topk":2})", steps), "layer 3");
  expect(refusal(R"({"ep":1,"etp":1,"expert_trace":1,"layers":[1,3],"num_experts":2,"topk":2})",
                 "{\"dropped\":[0,0],\"iteration\":1,\"tokens\":[[[4,3]],[[1,2]]]}\n"),
         "2 experts");
  config::Model model = make_config(1, 1).model;
  EXPECT_EQ(step::forced_loads(model, {}, disk), nullptr);
  model.moe_router_force_trace = folder.at("nowhere");
  EXPECT_THROW(step::forced_loads(model, {}, disk), base::Error);
}

}  // namespace
}  // namespace metroplex::test::forced_loads_ranks_test
