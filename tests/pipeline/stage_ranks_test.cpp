// Features around the segments of a stage: moments, full recompute, inputs split over tensor-parallel ranks.
#include "pipeline/stage.h"

#include <ATen/ATen.h>

#include <cstdio>

#include "base/error.h"
#include "device/memory_meter.h"
#include "pipeline/toy.h"
#include "support/run_ranks.h"

namespace metroplex::test::stage_ranks_test {
namespace {

// Blocks that count as layers of the model, except for the first and the last one.
nn::Block toy_block(int64_t layer, const std::function<void(const nn::Microbatch&)>& on_forward = {}) {
  return one_segment(std::make_unique<ToyLayer>(layer, on_forward), layer > 0 && layer + 1 < kToyLayers);
}

nn::Blocks toy_blocks(const std::function<void(const nn::Microbatch&)>& on_forward = {}) {
  nn::Blocks blocks;
  for (int64_t i = 0; i < kToyLayers; ++i) blocks.push_back(toy_block(i, on_forward));
  return blocks;
}

config::Memory full(const std::string& method, int64_t layers) {
  config::Memory memory;
  memory.recompute_granularity = "full";
  memory.recompute_method = method;
  memory.recompute_num_layers = layers;
  return memory;
}

std::unique_ptr<pipeline::Stage> make_stage(nn::Blocks blocks, const config::Memory& memory,
                                            const comm::Group& tp = {}) {
  auto how = pipeline::stage_saving(memory, blocks, tp, nn::make_activation_store(memory));
  return std::make_unique<pipeline::Stage>(std::move(blocks), std::move(how));
}

at::Tensor stack_gradients(pipeline::Stage& stage) {
  std::vector<at::Tensor> all;
  for (nn::Param* param : stage.params()) all.push_back(param->main_grad);
  return at::stack(all);
}

struct EventLog final : nn::StageObserver {
  std::string text;
  void before(const nn::RegionEvent& event) override {
    text += (event.pass == nn::Pass::forward ? " F" : " B") + std::to_string(event.block) + ">" +
            std::to_string(event.next);
  }
  void after(const nn::RegionEvent&) override { text += "."; }
};

// Toy layers 0 to 7; layers 1 to 6 are blocks.
std::string format_chunks(const config::Memory& memory) {
  std::string text;
  for (const nn::RecomputedChunk& chunk : nn::recomputed_chunks(memory, toy_blocks()))
    text += "[" + std::to_string(chunk.begin) + "," + std::to_string(chunk.end) + ")";
  return text;
}

TEST(RecomputedChunks, AreBlocksInChunksOrTheFirstOnes) {
  EXPECT_EQ(format_chunks({}), "");
  EXPECT_EQ(format_chunks(full("uniform", 1)), "[1,2)[2,3)[3,4)[4,5)[5,6)[6,7)");
  EXPECT_EQ(format_chunks(full("uniform", 4)), "[1,5)[5,7)");
  EXPECT_EQ(format_chunks(full("uniform", 9)), "[1,7)");
  EXPECT_EQ(format_chunks(full("block", 2)), "[1,2)[2,3)");
  EXPECT_EQ(format_chunks(full("block", 9)), "[1,2)[2,3)[3,4)[4,5)[5,6)[6,7)");
  EXPECT_THROW(format_chunks(full("rows", 1)), base::Error);
  EXPECT_THROW(format_chunks(full("block", 0)), base::Error);
}

TEST(StageMoments, TellWhoseTurnItIsAndWhoIsNext) {
  const auto batches = toy_batches(1);
  const auto diary_of = [&](const config::Memory& memory, bool evaluate) {
    EventLog event_log;
    const auto stage = make_stage(toy_blocks(), memory);
    stage->add_observer("diary", event_log);
    pipeline::StageRun run;
    const at::Tensor loss = stage->forward({}, batches[0], evaluate ? nullptr : &run).tensor(nn::kLoss);
    event_log.text += " |";
    if (!evaluate) stage->backward(std::move(run), {at::ones_like(loss)}, at::ones({}));
    return event_log.text;
  };
  const std::string forward = " F0>1. F1>2. F2>3. F3>4. F4>5. F5>6. F6>7. F7>-1. |";
  EXPECT_EQ(diary_of({}, true), forward);
  EXPECT_EQ(diary_of(full("uniform", 4), true), forward);
  EXPECT_EQ(diary_of({}, false), forward + " B7>6. B6>5. B5>4. B4>3. B3>2. B2>1. B1>0. B0>-1.");
  EXPECT_EQ(diary_of(full("uniform", 4), false),
            forward + " B7>5. F5>6. F6>6. B6>5. B5>1. F1>2. F2>3. F3>4. F4>4. B4>3. B3>2. B2>1. B1>0. B0>-1.");
  EXPECT_EQ(diary_of(full("block", 1), false), forward + " B7>6. B6>5. B5>4. B4>3. B3>2. B2>1. F1>1. B1>0. B0>-1.");
}

TEST(StageRecompute, IsBitEqualAndRunsEachRecomputedBlockTwice) {
  const auto batches = toy_batches(1);
  const auto run_once = [&](const config::Memory& memory, int* forwards) {
    const auto stage = make_stage(toy_blocks([&](const nn::Microbatch&) { ++*forwards; }), memory);
    pipeline::StageRun run;
    const at::Tensor loss = stage->forward({}, batches[0], &run).tensor(nn::kLoss);
    stage->backward(std::move(run), {at::ones_like(loss)}, at::ones({}));
    return std::make_pair(loss, stack_gradients(*stage));
  };
  int forwards = 0;
  const auto plain = run_once({}, &forwards);
  EXPECT_EQ(forwards, 8);
  for (const char* offload : {"none", "host", "file"}) {
    for (const auto& [memory, again] : {std::pair{full("uniform", 1), 6}, std::pair{full("uniform", 4), 6},
                                        std::pair{full("block", 2), 2}, std::pair{config::Memory(), 0}}) {
      config::Memory with_offload = memory;
      with_offload.offload_activations = offload;
      forwards = 0;
      const auto got = run_once(with_offload, &forwards);
      EXPECT_EQ(forwards, 8 + again);
      EXPECT_TRUE(at::equal(got.first, plain.first));
      EXPECT_TRUE(at::equal(got.second, plain.second));
    }
  }
}

// Each toy layer holds its input of s b width doubles; the last one also its product.
TEST(StageRecompute, ARunHoldsTheInputsOfItsChunks) {
  const auto batches = toy_batches(1);
  const int64_t row = 4 * 2 * kToyWidth * 8;
  const auto held = [&](const config::Memory& memory, const comm::Group& tp) {
    const auto stage = make_stage(toy_blocks(), memory, tp);
    const device::MemoryMeter meter;
    pipeline::StageRun run;
    at::Tensor loss = stage->forward({}, batches[0], &run).tensor(nn::kLoss);
    const int64_t bytes = meter.bytes() - static_cast<int64_t>(loss.nbytes());
    const at::Tensor dy = at::ones_like(loss);
    stage->backward(std::move(run), {dy}, at::ones({}));
    EXPECT_EQ(meter.bytes(), static_cast<int64_t>(loss.nbytes() + dy.nbytes()));
    loss = at::Tensor();
    return bytes;
  };
  const int64_t ends = held({}, {}) - 6 * row;  // the two outer layers
  EXPECT_EQ(held(full("uniform", 1), {}), ends + 6 * row);
  EXPECT_EQ(held(full("uniform", 4), {}), ends + 2 * row);
  EXPECT_EQ(held(full("uniform", 6), {}), ends + row);
  EXPECT_EQ(held(full("block", 2), {}), ends + 6 * row);
  run_ranks(2, [&](const comm::World& world) {
    config::Memory memory = full("uniform", 3);
    EXPECT_EQ(held(memory, world.groups().tp), ends + 2 * row);
    memory.distribute_saved_activations = true;
    EXPECT_EQ(held(memory, world.groups().tp), ends + row);
    memory.offload_activations = "file";
    EXPECT_EQ(held(memory, world.groups().tp), ends);
  });
}

TEST(StageRecompute, InputsSplitOverRanksComeBackWhole) {
  const auto batches = toy_batches(1);
  const auto plain = make_stage(toy_blocks(), {});
  pipeline::StageRun run;
  at::Tensor loss = plain->forward({}, batches[0], &run).tensor(nn::kLoss);
  plain->backward(std::move(run), {at::ones_like(loss)}, at::ones({}));
  run_ranks(2, [&](const comm::World& world) {
    config::Memory memory = full("uniform", 2);
    memory.distribute_saved_activations = true;
    const auto stage = make_stage(toy_blocks(), memory, world.groups().tp);
    pipeline::StageRun split;
    const at::Tensor again = stage->forward({}, batches[0], &split).tensor(nn::kLoss);
    stage->backward(std::move(split), {at::ones_like(again)}, at::ones({}));
    EXPECT_TRUE(at::equal(again, loss));
    EXPECT_TRUE(at::equal(stack_gradients(*stage), stack_gradients(*plain)));
  });
}

// With recompute the executor still holds exactly the table's tensors, and the values equal the formula.
TEST(StageRecompute, ThroughThePipelineNothingOutlivesItsStep) {
  plan::ScheduleRequest request;
  request.num_stages = 2;
  request.num_microbatches = 6;
  const plan::PipelineTable table = plan::build_schedule("1f1b", request);
  const auto batches = toy_batches(6);
  const ToyResult expected = toy_by_formula(batches);
  run_ranks(2, {.pp = 2}, [&](const comm::World& world) {
    std::vector<std::vector<size_t>> num_live;
    for (const char* granularity : {"none", "full"}) {
      config::Memory memory = full("uniform", 2);
      memory.recompute_granularity = granularity;
      nn::Blocks mine;
      for (int64_t i = 0; i < 4; ++i) mine.push_back(toy_block(4 * world.rank() + i));
      const auto stage = make_stage(std::move(mine), memory);
      pipeline::Executor executor({stage.get()}, world.groups().pp);
      num_live.emplace_back();
      executor.observers().add("live",
                               [&](const plan::Action&, double) { num_live.back().push_back(executor.num_live()); });
      executor.run({table, batches, toy_factors(6), toy_border(batches, false)});
      EXPECT_EQ(executor.num_live(), 0u);
      const at::Tensor got = stack_gradients(*stage);
      EXPECT_TRUE(at::allclose(got, expected.gradients.narrow(0, 4 * world.rank(), 4), 1e-13, 0.0));
    }
    EXPECT_EQ(num_live[0], num_live[1]);
  });
}

}  // namespace
}  // namespace metroplex::test::stage_ranks_test
