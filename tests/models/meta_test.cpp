// A model on the meta device runs the code paths of its target, a GPU or the CPU. It has the calls, shapes and
// allocations of a real run, without values.
#include <algorithm>
#include <sstream>

#include "comm/backends/counting.h"
#include "models/tools.h"
#include "nn/recompute.h"
#include "support/allocations.h"
#include "support/call_log.h"
#include "support/operators.h"
#include "nn/with_products.h"
#include "support/without_onednn.h"

namespace metroplex::test::meta_test {
namespace {

struct Case {
  std::string name;
  config::Model model;
  at::ScalarType dtype = at::kFloat;
  config::Memory memory{};
  bool full = false;  // recompute of whole layers
  bool documents = false, fp32_residual = false, sequence_parallel = false;
  comm::Group tp{};
};

struct Trace {
  std::vector<RecordedCall> calls;
  Allocations allocations;
};

constexpr int64_t kVocab = 30;

nn::Microbatch make_batch(const Case& test_case, at::Device device) {
  nn::Microbatch batch = small_batch(2, 8, kVocab);
  if (test_case.documents) batch.documents.ids = at::arange(16, at::kLong).view({2, 8}).floor_divide(3);
  for (at::Tensor* x : {&batch.tokens, &batch.labels, &batch.loss_mask, &batch.position_ids, &batch.documents.ids,
                        &batch.counters.samples}) {
    if (x->defined()) *x = x->to(device);
  }
  return batch;
}

// Forward and backward of the first microbatch, as a stage runs it; the table of rotary positions exists.
void run(const nn::Blocks& blocks, const Case& test_case, const nn::Microbatch& batch, nn::ActivationStore* store) {
  const std::vector<nn::Region> regions = make_regions(blocks);
  std::vector<nn::RegionRun> runs(regions.size());
  std::vector<nn::SavedInput> inputs(regions.size());
  nn::Values x;
  for (size_t i = 0; i < regions.size(); ++i) {
    const bool again = test_case.full && blocks[i].is_layer;
    if (again) inputs[i] = nn::SavedInput(x, test_case.tp, store);
    x = nn::run_forward(regions[i], x, {batch, again ? nullptr : store}, again ? nullptr : &runs[i]);
  }
  nn::Gradients dy{at::ones({}, x.tensor(nn::kLoss).options())};
  EXPECT_EQ(dy[0].device(), batch.tokens.device());
  x = nn::Values();
  for (size_t i = regions.size(); i-- > 0;) {
    if (i > 0) runs[i - 1].saved.prefetch();
    if (i > 0) inputs[i - 1].prefetch();
    if (test_case.full && blocks[i].is_layer) nn::run_forward(regions[i], inputs[i].take(), {batch}, &runs[i]);
    dy = nn::run_backward(std::move(runs[i]), dy, {});
  }
}

Trace trace(const Case& test_case, const device::Target& where) {
  CallLog log;
  models::ModelContext context(test_case.model);
  context.vocab_size = kVocab;
  context.dtype = test_case.dtype;
  context.target = where;
  context.target.recorder = &log;
  nn::set_tensor_parallel(context, test_case.tp, test_case.sequence_parallel);
  context.fp32_residual_connection = test_case.fp32_residual;
  context.saving = nn::save_policy(test_case.memory, nn::make_activation_store(test_case.memory, where));
  const nn::Blocks blocks = models::build_stage(context, {0, test_case.model.num_layers, true, true});
  const std::vector<nn::Param*> params = nn::list_params(blocks);
  give_main_grad(params);
  nn::count_uses({&blocks});
  const nn::Microbatch batch = make_batch(test_case, where.memory());
  Trace trace;
  trace.allocations = record_allocations([&] { run(blocks, test_case, batch, context.saving.store.get()); });
  for (const nn::Param* param : params) EXPECT_EQ(param->main_grad.is_meta(), where.meta) << param->name;
  trace.calls = std::move(log.calls);
  return trace;
}

std::vector<Case> list_model_cases() {
  Case gpt{"gpt", gpt_model()}, llama{"llama", llama_model()}, codegeex{"codegeex", gpt_model()},
      rich{"llama with one group", llama_model()};
  codegeex.model.family = "codegeex";
  rich.model.qk_layernorm = rich.model.add_qkv_bias = true;
  rich.model.num_query_groups = 1;
  rich.documents = true;
  std::vector<Case> all;
  for (const Case& test_case : {gpt, llama, codegeex, rich}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const double dropout : {0.0, 0.1}) {
        all.push_back(test_case);
        all.back().name += std::string(" ") + c10::toString(dtype) + (dropout > 0 ? " dropout" : "");
        all.back().dtype = dtype;
        all.back().model.attention_dropout = all.back().model.hidden_dropout = dropout;
        all.back().fp32_residual = test_case.documents && (dtype == at::kBFloat16 || dtype == at::kHalf);
      }
    }
  }
  return all;
}

Case with(Case test_case, const std::string& modules, config::Offload offload = config::Offload::none) {
  std::istringstream words(modules);
  for (std::string word; words >> word;) {
    test_case.full = word == "full";
    if (!test_case.full) test_case.memory.recompute_modules.push_back(word);
  }
  if (!test_case.memory.recompute_modules.empty()) test_case.memory.recompute_granularity = "selective";
  test_case.memory.offload_activations = offload;
  test_case.name += " " + modules + (offload == config::Offload::none ? "" : " offloaded");
  return test_case;
}

std::vector<Case> make_variants(const Case& test_case) {
  using config::Offload;
  return {test_case,
          with(test_case, "core_attn"),
          with(test_case, "mlp"),
          with(test_case, "layernorm"),
          with(test_case, "activation"),
          with(test_case, "core_attn mlp layernorm activation"),
          with(test_case, "full"),
          with(test_case, "", Offload::host),
          with(test_case, "", Offload::file),
          with(test_case, "core_attn", Offload::file),
          with(test_case, "full", Offload::file)};
}

const device::Target kMetaCpu{at::kCPU, nullptr, true}, kMetaGpu{at::Device(at::kCUDA, 0), nullptr, true};

void expect_equals_real_run(const Case& test_case) {
  SCOPED_TRACE(test_case.name);
  const Trace real = trace(test_case, {}), meta = trace(test_case, kMetaCpu);
  EXPECT_GT(real.calls.size(), 15u);
  ASSERT_EQ(meta.calls.size(), real.calls.size());
  for (size_t i = 0; i < real.calls.size(); ++i) EXPECT_TRUE(meta.calls[i] == real.calls[i]) << real.calls[i].name;
  EXPECT_TRUE(held(meta.allocations) == held(real.allocations))
      << held(meta.allocations).peak << " for " << held(real.allocations).peak;
  // The CPU widens an fp16 gradient before it adds it; the copy never determines the peak.
  if (test_case.dtype != at::kHalf) expect_same_allocations(meta.allocations, real.allocations);
}

TEST(MetaDevice, TheCpusPathsHaveTheCallsShapesAndAllocationsOfARealRun) {
  const WithoutOneDnn without;
  for (const Case& model : list_model_cases()) {
    for (const Case& test_case : make_variants(model)) {
      // A file is slow, and its contents have no type.
      if (test_case.memory.offload_activations != config::Offload::file || test_case.dtype == at::kBFloat16)
        expect_equals_real_run(test_case);
    }
  }
}

// The group's backend moves no data: the comparison does not depend on values.
TEST(MetaDevice, TensorParallelRanksHaveThemToo) {
  const WithoutOneDnn without;
  for (Case test_case : list_model_cases()) {
    if (test_case.model.num_query_groups == 1) continue;
    for (const bool sequence_parallel : {false, true}) {
      test_case.sequence_parallel = sequence_parallel;
      test_case.tp = comm::Group({"tp", comm::Purpose::layers, {0, 1}}, 1,
                                 comm::make_counting_backend("tp", std::make_shared<comm::Traffic>()));
      expect_equals_real_run(test_case);
      expect_equals_real_run(with(test_case, "full"));
    }
  }
}

TEST(MetaDevice, ProductsGoToOneDnnWhereTheyReallyDo) {
  Case test_case{"large", gpt_model()};
  test_case.model.hidden_size = 256;
  const WithProducts onednn({.onednn_floats = true, .mkl_bf16_sums = false});
  const Trace real = trace(test_case, {}), meta = trace(test_case, kMetaCpu);
  EXPECT_TRUE(meta.calls == real.calls);
}

TEST(MetaDevice, AGpusPathsAreTakenWithoutAGpu) {
  const auto find = [](const std::vector<RecordedCall>& calls, const std::string& name) {
    return *std::find_if(calls.begin(), calls.end(), [&](const RecordedCall& call) { return call.name == name; });
  };
  const Case test_case{"gpt", gpt_model()};
  const std::vector<RecordedCall> cpu = trace(test_case, kMetaCpu).calls, gpu = trace(test_case, kMetaGpu).calls;
  EXPECT_EQ(gpu.size() + 2 * 2, cpu.size())
      << "on a GPU, libtorch computes the attention of two layers, forward and backward";
  EXPECT_EQ(find(gpu, "column_sums").writes.size(), 2u) << "space for lines of the sums";
  EXPECT_EQ(find(cpu, "scatter_add_rows").reads.size(), 3u);
  EXPECT_EQ(find(gpu, "scatter_add_rows").reads.size(), 4u) << "sorted indices and where they stood";
  for (const std::vector<RecordedCall>* const calls : {&cpu, &gpu})
    EXPECT_EQ(find(*calls, "norm_backward").writes.size(), 2u) << "dx and lines of weight gradients";
}

// Casts made once per model, such as that of the labels' mask, do not depend on the number of layers.
TEST(MetaDevice, LayersOnAGpuReadHalfParametersAsTheyAreStored) {
  const auto casts = [](Case test_case, int layers) {
    test_case.model.num_layers = layers;
    const Operators operators;
    trace(test_case, kMetaGpu);
    return std::array<int64_t, 2>{operators.count("aten::_to_copy"), operators.count("aten::add")};
  };
  for (const bool fp32_residual : {false, true}) {
    for (const double dropout : {0.0, 0.1}) {
      if (fp32_residual && dropout == 0) continue;  // the gradient after each residual is cast
      for (const bool gemma : {false, true}) {
        Case test_case{"bf16", gemma ? llama_model() : gpt_model(), at::kBFloat16};
        test_case.model.apply_layernorm_1p = gemma;
        test_case.model.hidden_dropout = dropout;
        test_case.fp32_residual = fp32_residual;
        EXPECT_EQ(casts(test_case, 4), casts(test_case, 2))
            << "fp32 residual " << fp32_residual << " dropout " << dropout;
      }
    }
  }
}

TEST(MetaDevice, EveryFormOfEveryModelRunsForAGpuAndFreesWhatItTook) {
  for (const Case& model : list_model_cases()) {
    for (const Case& test_case : make_variants(model)) {
      SCOPED_TRACE(test_case.name);
      const HeldMemory gpu = held(trace(test_case, kMetaGpu).allocations);
      EXPECT_GT(gpu.peak, 0);
      EXPECT_EQ(gpu.kept, 0);
    }
  }
}

// GPU tensors are offloaded to the host, and host tensors stay: bytes held from forward to backward.
TEST(MetaDevice, OffloadedBytesAreGoneFromTheDeviceThatTheyWereOn) {
  Case kept{"gpt", gpt_model()};
  kept.model.num_layers = 4;
  const auto peak = [&](config::Offload offload, const device::Target& where) {
    return held(trace(with(kept, "", offload), where).allocations).peak;
  };
  using config::Offload;
  EXPECT_EQ(peak(Offload::host, kMetaCpu), peak(Offload::none, kMetaCpu));
  EXPECT_LT(peak(Offload::host, kMetaGpu), peak(Offload::none, kMetaGpu));
  EXPECT_LT(peak(Offload::file, kMetaGpu), peak(Offload::host, kMetaGpu)) << "prefetch needs no memory for a file";
}

}  // namespace
}  // namespace metroplex::test::meta_test
