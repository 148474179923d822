// A model whose tensors are on the meta device takes the paths of its target, a GPU or the CPU, with the calls,
// shapes and allocations of a real run and without a value.
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>

#include "cuda/meta_meter.h"
#include "models/tools.h"
#include "nn/recompute.h"

namespace metroplex::test {
namespace {

struct Call {
  std::string name;
  std::vector<std::vector<int64_t>> reads, writes;
  bool operator==(const Call&) const = default;
};

struct Log final : cuda::Recorder {
  std::vector<Call> calls;
  void run(cuda::Operation operation) override {
    operation.run();
    Call call{operation.name, {}, {}};
    for (const at::Tensor& x : operation.reads) call.reads.push_back(x.sizes().vec());
    for (const at::Tensor& x : operation.writes) call.writes.push_back(x.sizes().vec());
    calls.push_back(std::move(call));
  }
};

// Bytes allocated (positive) and freed (negative), in order.
using Allocations = std::vector<int64_t>;

struct OnMeta final : cuda::MetaMemory::Listener {
  Allocations& all;
  explicit OnMeta(Allocations& to) : all(to) {}
  void allocated(int64_t bytes) override { all.push_back(bytes); }
  void freed(int64_t bytes) override { all.push_back(-bytes); }
};

struct OnHost final : c10::MemoryReportingInfoBase {
  Allocations& all;
  explicit OnHost(Allocations& to) : all(to) {}
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (device.is_cpu() && bytes != 0) all.push_back(bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }
};

nn::Microbatch moved(nn::Microbatch batch, at::Device device) {
  for (at::Tensor* x : {&batch.tokens, &batch.labels, &batch.loss_mask, &batch.position_ids, &batch.document_ids,
                        &batch.sample_ids}) {
    if (x->defined()) *x = x->to(device);
  }
  return batch;
}

struct Case {
  std::string name;
  config::Model model;
  at::ScalarType dtype = at::kFloat;
  config::Memory memory;
  bool documents = false, fp32_residual = false;
};

struct Trace {
  std::vector<Call> calls;
  Allocations allocations;
};

// One microbatch forward and backward.
Trace trace(const Case& c, const cuda::Target& where) {
  Log log;
  Trace result;
  models::ModelContext context;
  context.model = c.model;
  context.vocab_size = 30;
  context.dtype = c.dtype;
  context.target = where;
  context.target.recorder = &log;
  context.fp32_residual_connection = c.fp32_residual;
  context.saving = nn::save_policy(c.memory, nn::make_activation_store(c.memory, where));
  const nn::Blocks blocks = models::build_stage(context, {0, 2, true, true});
  const std::vector<nn::Param*> params = nn::params_of(blocks);
  give_main_grad(params);
  nn::count_uses({&blocks});
  nn::Microbatch host = small_batch(2, 8, 30);
  if (c.documents) host.document_ids = at::arange(16, at::kLong).view({2, 8}).floor_divide(3);
  const nn::Microbatch batch = moved(host, where.memory());
  const std::vector<nn::Island> islands = islands_of(blocks);
  {
    nn::Values x;
    for (const nn::Island& island : islands) x = nn::run_forward(island, x, {batch}, nullptr);
  }
  log.calls.clear();
  {
    OnMeta meta(result.allocations);
    const cuda::MetaMemory listening(meta);
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<OnHost>(result.allocations));
    std::vector<nn::IslandRun> runs(islands.size());
    nn::Values x;
    for (size_t i = 0; i < islands.size(); ++i)
      x = nn::run_forward(islands[i], x, {batch, context.saving.store.get()}, &runs[i]);
    const at::Tensor loss = x.tensor(nn::kLoss);
    EXPECT_EQ(loss.device().type(), where.memory().type());
    nn::Gradients dy{at::ones({}, loss.options())};
    for (size_t i = islands.size(); i-- > 0;) {
      if (i > 0) runs[i - 1].saved.prefetch();
      dy = nn::run_backward(std::move(runs[i]), dy, 1.0);
    }
  }
  for (const nn::Param* param : params) EXPECT_EQ(param->main_grad.is_meta(), where.meta) << param->name;
  result.calls = std::move(log.calls);
  return result;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  config::Model codegeex = gpt_model();
  codegeex.family = "codegeex";
  config::Model rich = llama_model();
  rich.qk_layernorm = true;
  rich.add_qkv_bias = true;
  rich.num_query_groups = 1;
  config::Model large = gpt_model();
  large.hidden_size = 256;
  const std::vector<std::pair<std::string, config::Model>> models{
      {"gpt", gpt_model()}, {"llama", llama_model()}, {"codegeex", codegeex}, {"llama mqa", rich}, {"large", large}};
  for (const auto& [name, model] : models) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const char* modules : {"", "core_attn", "mlp", "layernorm", "activation", "core_attn mlp layernorm activation"}) {
        for (const char* offload : {"none", "host", "file"}) {
          for (const double dropout : {0.0, 0.1}) {
            for (const bool documents : {false, true}) {
              for (const bool fp32 : {false, true}) {
                Case c{name + std::string(" ") + c10::toString(dtype) + " " + modules + " " + offload +
                           (dropout > 0 ? " dropout" : "") + (documents ? " documents" : "") + (fp32 ? " fp32" : ""),
                       model, dtype, {}, documents, fp32};
                c.model.attention_dropout = c.model.hidden_dropout = dropout;
                std::istringstream in(modules);
                std::vector<std::string> list;
                for (std::string m; in >> m;) list.push_back(m);
                c.memory.recompute_granularity = list.empty() ? "none" : "selective";
                c.memory.recompute_modules = list;
                c.memory.offload_activations = std::string(offload);
                all.push_back(std::move(c));
              }
            }
          }
        }
      }
    }
  }
  return all;
}

TEST(MetaDevice, Probe) {
  at::set_num_threads(1);
  int shown = 0;
  for (const Case& c : cases()) {
    Trace real, meta;
    try { real = trace(c, {}); } catch (const std::exception& e) { std::printf("REAL %s: %.200s\n", c.name.c_str(), e.what()); continue; }
    try { meta = trace(c, {at::kCPU, nullptr, true}); } catch (const std::exception& e) { std::printf("META %s: %.300s\n", c.name.c_str(), e.what()); if (++shown > 5) return; continue; }
    try { trace(c, {at::Device(at::kCUDA, 0), nullptr, true}); } catch (const std::exception& e) { std::printf("GPU %s: %.300s\n", c.name.c_str(), e.what()); if (++shown > 5) return; continue; }
    if (real.calls != meta.calls) std::printf("CALLS %s\n", c.name.c_str());
    if (real.allocations != meta.allocations) {
      size_t i = 0;
      while (i < real.allocations.size() && i < meta.allocations.size() && real.allocations[i] == meta.allocations[i]) ++i;
      std::printf("ALLOC %s: %zu %zu at %zu:", c.name.c_str(), real.allocations.size(), meta.allocations.size(), i);
      for (size_t j = i; j < i + 8 && j < real.allocations.size(); ++j) std::printf(" %ld", real.allocations[j]);
      std::printf(" |");
      for (size_t j = i; j < i + 8 && j < meta.allocations.size(); ++j) std::printf(" %ld", meta.allocations[j]);
      std::printf("\n");
      if (++shown > 40) return;
    }
  }
}

}  // namespace
}  // namespace metroplex::test
