// A stage split at every border, with one autograd region per segment and every sum materialized, has the bits of a
// stage of whole blocks.
#include "pipeline/stage.h"

#include "pipeline/cutter.h"
#include "support/run_ranks.h"
#include "run/whole_stage.h"

namespace metroplex::test::stage_cuts_ranks_test {
namespace {

constexpr int64_t kVocab = 53;

std::vector<config::Model> models_with_dropout() {
  std::vector<config::Model> all{gpt_model(), llama_model(), gpt_model()};
  all[2].family = "codegeex";
  for (config::Model& model : all) model.hidden_dropout = model.attention_dropout = 0.1;
  return all;
}

// Counts autograd regions (`Region`) in both passes and in repeated forwards.
struct Counter final : nn::StageObserver {
  int runs = 0;
  void before(const nn::RegionEvent&) override { ++runs; }
  void after(const nn::RegionEvent&) override {}
};

// Loss and gradients of one microbatch; `steps`: number of autograd regions that ran.
std::vector<at::Tensor> run(pipeline::Stage& stage, int* steps) {
  for (nn::Param* param : stage.params()) param->main_grad.zero_();
  const nn::Microbatch batch = small_batch(3, 8, kVocab);
  Counter counter;
  stage.add_observer("counter", counter);
  pipeline::StageRun run;
  const at::Tensor loss = stage.forward({}, batch, &run).tensor(nn::kLoss);
  EXPECT_TRUE(stage.backward(std::move(run), {at::full({}, 0.25, loss.options())}, {}).empty());
  stage.remove_observer("counter");
  *steps = counter.runs;
  std::vector<at::Tensor> all{loss};
  for (nn::Param* param : stage.params()) all.push_back(param->main_grad.clone());
  return all;
}

TEST(StageCutsRanks, OneSegmentAtATimeGivesTheBitsOfTheWholeStage) {
  config::Memory full, modules;
  full.recompute_granularity = "full";
  full.recompute_method = "uniform";
  full.recompute_num_layers = 2;
  modules.recompute_granularity = "selective";
  modules.recompute_modules = {"core_attn", "mlp", "layernorm"};
  modules.offload_activations = "file";
  for (const config::Model& model : models_with_dropout()) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      for (const auto& [tp, sequence_parallel] : {std::pair{1, false}, std::pair{2, true}}) {
        SCOPED_TRACE(testing::Message() << model.family << " " << dtype << " tp " << tp);
        run_ranks(tp, [&, sequence_parallel = sequence_parallel](const comm::World& world) {
          for (const config::Memory& memory : {config::Memory(), full, modules}) {
            const auto stage = whole_stage(model, kVocab, {world.groups().tp, sequence_parallel, dtype}, memory);
            int whole = 0, steps = 0;
            const auto expected = run(*stage, &whole);
            NoopObserver noop_observer;
            stage->add_observer("cuts", noop_observer, true);
            const auto got = run(*stage, &steps);
            const int blocks = static_cast<int>(stage->blocks().size()), top = model.family == "codegeex" ? 2 : 0;
            const int again = memory.recomputes_all() ? 2 : 0;  // layers, of two segments each
            EXPECT_EQ(whole, 2 * blocks + again);
            EXPECT_EQ(steps, 2 * (blocks + 2 + top) + 2 * again);
            for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << "tensor " << i;
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace metroplex::test::stage_cuts_ranks_test
