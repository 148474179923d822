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

nn::Microbatch batch_of(const Case& c, at::Device device) {
  nn::Microbatch batch = small_batch(2, 8, kVocab);
  if (c.documents) batch.document_ids = at::arange(16, at::kLong).view({2, 8}).floor_divide(3);
  for (at::Tensor* x : {&batch.tokens, &batch.labels, &batch.loss_mask, &batch.position_ids, &batch.document_ids,
                        &batch.sample_counters}) {
    if (x->defined()) *x = x->to(device);
  }
  return batch;
}

// Forward and backward of the first microbatch, as a stage runs it; the table of rotary positions exists.
void run(const nn::Blocks& blocks, const Case& c, const nn::Microbatch& batch, nn::ActivationStore* store) {
  const std::vector<nn::Island> islands = islands_of(blocks);
  std::vector<nn::IslandRun> runs(islands.size());
  std::vector<nn::SavedInput> inputs(islands.size());
  nn::Values x;
  for (size_t i = 0; i < islands.size(); ++i) {
    const bool again = c.full && blocks[i].is_layer;
    if (again) inputs[i] = nn::SavedInput(x, c.tp, store);
    x = nn::run_forward(islands[i], x, {batch, again ? nullptr : store}, again ? nullptr : &runs[i]);
  }
  nn::Gradients dy{at::ones({}, x.tensor(nn::kLoss).options())};
  EXPECT_EQ(dy[0].device(), batch.tokens.device());
  x = nn::Values();
  for (size_t i = islands.size(); i-- > 0;) {
    if (i > 0) runs[i - 1].saved.prefetch();
    if (i > 0) inputs[i - 1].prefetch();
    if (c.full && blocks[i].is_layer) nn::run_forward(islands[i], inputs[i].take(), {batch}, &runs[i]);
    dy = nn::run_backward(std::move(runs[i]), dy, {});
  }
}

Trace trace(const Case& c, const device::Target& where) {
  CallLog log;
  models::ModelContext context(c.model);
  context.vocab_size = kVocab;
  context.dtype = c.dtype;
  context.target = where;
  context.target.recorder = &log;
  nn::set_tensor_parallel(context, c.tp, c.sequence_parallel);
  context.fp32_residual_connection = c.fp32_residual;
  context.saving = nn::save_policy(c.memory, nn::make_activation_store(c.memory, where));
  const nn::Blocks blocks = models::build_stage(context, {0, c.model.num_layers, true, true});
  const std::vector<nn::Param*> params = nn::params_of(blocks);
  give_main_grad(params);
  nn::count_uses({&blocks});
  const nn::Microbatch batch = batch_of(c, where.memory());
  Trace trace;
  trace.allocations = allocations_of([&] { run(blocks, c, batch, context.saving.store.get()); });
  for (const nn::Param* param : params) EXPECT_EQ(param->main_grad.is_meta(), where.meta) << param->name;
  trace.calls = std::move(log.calls);
  return trace;
}

std::vector<Case> models_in_every_type() {
  Case gpt{"gpt", gpt_model()}, llama{"llama", llama_model()}, codegeex{"codegeex", gpt_model()},
      rich{"llama with one group", llama_model()};
  codegeex.model.family = "codegeex";
  rich.model.qk_layernorm = rich.model.add_qkv_bias = true;
  rich.model.num_query_groups = 1;
  rich.documents = true;
  std::vector<Case> all;
  for (const Case& c : {gpt, llama, codegeex, rich}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const double dropout : {0.0, 0.1}) {
        all.push_back(c);
        all.back().name += std::string(" ") + c10::toString(dtype) + (dropout > 0 ? " dropout" : "");
        all.back().dtype = dtype;
        all.back().model.attention_dropout = all.back().model.hidden_dropout = dropout;
        all.back().fp32_residual = c.documents && (dtype == at::kBFloat16 || dtype == at::kHalf);
      }
    }
  }
  return all;
}

Case with(Case c, const std::string& modules, config::Offload offload = config::Offload::none) {
  std::istringstream words(modules);
  for (std::string word; words >> word;) {
    c.full = word == "full";
    if (!c.full) c.memory.recompute_modules.push_back(word);
  }
  if (!c.memory.recompute_modules.empty()) c.memory.recompute_granularity = "selective";
  c.memory.offload_activations = offload;
  c.name += " " + modules + (offload == config::Offload::none ? "" : " offloaded");
  return c;
}

std::vector<Case> forms_of(const Case& c) {
  using config::Offload;
  return {c,
          with(c, "core_attn"),
          with(c, "mlp"),
          with(c, "layernorm"),
          with(c, "activation"),
          with(c, "core_attn mlp layernorm activation"),
          with(c, "full"),
          with(c, "", Offload::host),
          with(c, "", Offload::file),
          with(c, "core_attn", Offload::file),
          with(c, "full", Offload::file)};
}

const device::Target kMetaCpu{at::kCPU, nullptr, true}, kMetaGpu{at::Device(at::kCUDA, 0), nullptr, true};

void expect_like_a_real_run(const Case& c) {
  SCOPED_TRACE(c.name);
  const Trace real = trace(c, {}), meta = trace(c, kMetaCpu);
  EXPECT_GT(real.calls.size(), 15u);
  ASSERT_EQ(meta.calls.size(), real.calls.size());
  for (size_t i = 0; i < real.calls.size(); ++i) EXPECT_TRUE(meta.calls[i] == real.calls[i]) << real.calls[i].name;
  EXPECT_TRUE(held(meta.allocations) == held(real.allocations))
      << held(meta.allocations).peak << " for " << held(real.allocations).peak;
  // The CPU widens an fp16 gradient before it adds it; the copy never determines the peak.
  if (c.dtype != at::kHalf) expect_same_allocations(meta.allocations, real.allocations);
}

TEST(MetaDevice, TheCpusPathsHaveTheCallsShapesAndAllocationsOfARealRun) {
  const WithoutOneDnn without;
  for (const Case& model : models_in_every_type()) {
    for (const Case& c : forms_of(model)) {
      // A file is slow, and its contents have no type.
      if (c.memory.offload_activations != config::Offload::file || c.dtype == at::kBFloat16)
        expect_like_a_real_run(c);
    }
  }
}

// The group's backend moves no data: the comparison does not depend on values.
TEST(MetaDevice, TensorParallelRanksHaveThemToo) {
  const WithoutOneDnn without;
  for (Case c : models_in_every_type()) {
    if (c.model.num_query_groups == 1) continue;
    for (const bool sequence_parallel : {false, true}) {
      c.sequence_parallel = sequence_parallel;
      c.tp = comm::Group({"tp", comm::Purpose::layers, {0, 1}}, 1,
                         comm::make_counting_backend("tp", std::make_shared<comm::Traffic>()));
      expect_like_a_real_run(c);
      expect_like_a_real_run(with(c, "full"));
    }
  }
}

TEST(MetaDevice, ProductsGoToOneDnnWhereTheyReallyDo) {
  Case c{"large", gpt_model()};
  c.model.hidden_size = 256;
  const WithProducts onednn({.onednn_floats = true, .mkl_bf16_sums = false});
  const Trace real = trace(c, {}), meta = trace(c, kMetaCpu);
  EXPECT_TRUE(meta.calls == real.calls);
}

TEST(MetaDevice, AGpusPathsAreTakenWithoutAGpu) {
  const auto find = [](const std::vector<RecordedCall>& calls, const std::string& name) {
    return *std::find_if(calls.begin(), calls.end(), [&](const RecordedCall& call) { return call.name == name; });
  };
  const Case c{"gpt", gpt_model()};
  const std::vector<RecordedCall> cpu = trace(c, kMetaCpu).calls, gpu = trace(c, kMetaGpu).calls;
  EXPECT_EQ(gpu.size() + 2 * 2, cpu.size() + 2 * 4) << "of two layers attention, forward and backward, is libtorch's "
                                                       "on a GPU, and in fp64 the sums of the gradients of "
                                                       "four biases are libtorch's on the CPU";
  EXPECT_EQ(find(gpu, "column_sums").writes.size(), 2u) << "room for lines of the sums";
  EXPECT_EQ(find(cpu, "scatter_add_rows").reads.size(), 3u);
  EXPECT_EQ(find(gpu, "scatter_add_rows").reads.size(), 4u) << "sorted indices and where they stood";
  EXPECT_EQ(find(cpu, "norm_backward").writes.size(), 3u);
  EXPECT_EQ(find(gpu, "norm_backward").writes.size(), 4u) << "room for lines of weight gradients";
}

// Casts made once per model, such as that of the labels' mask, do not depend on the number of layers.
TEST(MetaDevice, LayersOnAGpuReadHalfParametersAsTheyAreStored) {
  const auto casts = [](Case c, int layers) {
    c.model.num_layers = layers;
    const Operators operators;
    trace(c, kMetaGpu);
    return std::array<int64_t, 2>{operators.count("aten::_to_copy"), operators.count("aten::add")};
  };
  for (const bool fp32_residual : {false, true}) {
    for (const double dropout : {0.0, 0.1}) {
      if (fp32_residual && dropout == 0) continue;  // the gradient after each residual is cast
      for (const bool gemma : {false, true}) {
        Case c{"bf16", gemma ? llama_model() : gpt_model(), at::kBFloat16};
        c.model.apply_layernorm_1p = gemma;
        c.model.hidden_dropout = dropout;
        c.fp32_residual = fp32_residual;
        EXPECT_EQ(casts(c, 4), casts(c, 2)) << "fp32 residual " << fp32_residual << " dropout " << dropout;
      }
    }
  }
}

TEST(MetaDevice, EveryFormOfEveryModelRunsForAGpuAndFreesWhatItTook) {
  for (const Case& model : models_in_every_type()) {
    for (const Case& c : forms_of(model)) {
      SCOPED_TRACE(c.name);
      const Held gpu = held(trace(c, kMetaGpu).allocations);
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
  EXPECT_LT(peak(Offload::file, kMetaGpu), peak(Offload::host, kMetaGpu)) << "prefetch takes no room for a file";
}

}  // namespace
}  // namespace metroplex::test::meta_test
