// Full recompute of whole models, partitioned over ranks (ZeRO-R) and offloaded. Checks equal bits to no recompute in
// every type, with dropout, over tensor-parallel ranks, and the bytes that a stage holds.
#include "base/error.h"
#include "device/memory_meter.h"
#include "support/run_ranks.h"
#include "run/whole_stage.h"

namespace metroplex::test::activation_memory_ranks_test {
namespace {

constexpr int64_t kVocab = 53, kLayers = 5, kSequence = 8, kBatch = 3;

config::Memory make_memory(const std::string& method, int64_t layers, bool distribute, const std::string& offload) {
  config::Memory memory;
  memory.recompute_granularity = method.empty() ? "none" : "full";
  memory.recompute_method = method;
  memory.recompute_num_layers = layers;
  memory.distribute_saved_activations = distribute;
  memory.offload_activations = offload;
  return memory;
}

std::string describe(const config::Memory& memory) {
  return base::concat(memory.recompute_granularity, " ", memory.recompute_method, " ", memory.recompute_num_layers,
                      memory.distribute_saved_activations ? " split " : " ", memory.offload_activations);
}

std::vector<config::Model> variants() {
  std::vector<config::Model> all{gpt_model(), llama_model(), gpt_model(), llama_model(), gpt_model()};
  all[2].attention_dropout = 0.2;
  all[2].hidden_dropout = 0.3;
  all[3].qk_layernorm = true;
  all[3].attention_dropout = 0.15;
  all[3].hidden_dropout = 0.1;
  all[4].family = "codegeex";
  all[4].hidden_dropout = 0.1;
  for (config::Model& model : all) model.num_layers = kLayers;
  return all;
}

struct Outcome {
  std::vector<at::Tensor> tensors;  // loss and the gradients of all parameters on this rank
  int64_t held = 0;                 // bytes between forward and backward
};

Outcome run_stage(const config::Model& model, const StagePlace& place, const config::Memory& memory) {
  const auto whole = whole_stage(model, kVocab, place, memory);
  pipeline::Stage& stage = *whole;
  const nn::Microbatch batch = small_batch(kBatch, kSequence, kVocab);
  stage.forward({}, batch, nullptr);  // grows the table of rotary positions
  const device::MemoryMeter meter;
  pipeline::StageRun run;
  at::Tensor loss = stage.forward({}, batch, &run).tensor(nn::kLoss);
  const int64_t held = meter.bytes();
  stage.backward(std::move(run), {at::full({}, 0.25, loss.options())}, {});
  EXPECT_EQ(meter.bytes(), static_cast<int64_t>(loss.nbytes()));
  Outcome outcome{{loss}, held};
  for (nn::Param* param : stage.params()) outcome.tensors.push_back(param->main_grad);
  return outcome;
}

template <class Body>  // body(place)
void for_each_place(const Body& body) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const auto& [tp, sequence_parallel] : {std::pair{1, false}, std::pair{2, false}, std::pair{2, true}}) {
      SCOPED_TRACE(testing::Message() << dtype << " tp " << tp << " sp " << sequence_parallel);
      run_ranks(tp, [&, sequence_parallel = sequence_parallel](const comm::World& world) {
        body(StagePlace{world.groups().tp, sequence_parallel, dtype});
      });
    }
  }
}

TEST(ActivationMemoryRanks, FullRecomputeGivesTheBitsOfKeepingAll) {
  const std::vector<config::Memory> forms{
      make_memory("uniform", 1, false, "none"), make_memory("uniform", 2, false, "none"),
      make_memory("uniform", 5, false, "host"), make_memory("block", 2, false, "none"),
      make_memory("block", 5, false, "none"),   make_memory("uniform", 2, true, "none"),
      make_memory("uniform", 3, true, "file"),  make_memory("block", 3, false, "file"),
      make_memory("", 0, false, "file"),
  };
  for (const config::Model& model : variants()) {
    SCOPED_TRACE(model.family);
    for_each_place([&](const StagePlace& place) {
      const Outcome expected = run_stage(model, place, {});
      for (const config::Memory& memory : forms) {
        if (memory.distribute_saved_activations && place.sequence_parallel) continue;
        SCOPED_TRACE(describe(memory));
        const Outcome got = run_stage(model, place, memory);
        EXPECT_LT(got.held, expected.held);
        ASSERT_EQ(got.tensors.size(), expected.tensors.size());
        for (size_t i = 0; i < got.tensors.size(); ++i)
          EXPECT_TRUE(at::equal(got.tensors[i], expected.tensors[i])) << "tensor " << i;
      }
    });
  }
}

// Five layers of equal size: full recompute saves a multiple of the bytes that a block holds in addition to its
// input.
TEST(ActivationMemoryRanks, AStageHoldsTheInputsOfItsChunksOrTheirParts) {
  for (const config::Model& model : {variants()[0], variants()[3]}) {
    for_each_place([&](const StagePlace& place) {
      const auto held = [&](const config::Memory& memory) { return run_stage(model, place, memory).held; };
      const int64_t tp = place.tp.size(), rows = kSequence * kBatch / (place.sequence_parallel ? tp : 1),
                    input = rows * model.hidden_size * static_cast<int64_t>(c10::elementSize(place.dtype));
      const int64_t all = held({}), blocks = held(make_memory("uniform", 1, false, "none"));
      const int64_t block = (all - blocks) / kLayers;  // one block without its input
      EXPECT_EQ(all - blocks, block * kLayers);
      EXPECT_EQ(held(make_memory("block", 2, false, "none")), all - 2 * block);
      EXPECT_EQ(held(make_memory("uniform", 2, false, "none")), blocks - 2 * input);
      EXPECT_EQ(held(make_memory("uniform", 5, false, "none")), blocks - 4 * input);
      if (place.sequence_parallel) return;
      EXPECT_EQ(held(make_memory("uniform", 1, true, "none")), blocks - kLayers * (input - input / tp));
    });
  }
}

}  // namespace
}  // namespace metroplex::test::activation_memory_ranks_test
