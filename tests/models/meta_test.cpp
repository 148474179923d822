// A model whose tensors are on the meta device takes the paths of its target, a GPU or the CPU, with the shapes of a
// real run and without a value.
#include <algorithm>

#include "models/tools.h"

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

nn::Microbatch moved(nn::Microbatch batch, at::Device device) {
  for (at::Tensor* x : {&batch.tokens, &batch.labels, &batch.loss_mask, &batch.position_ids, &batch.sample_ids})
    *x = x->to(device);
  return batch;
}

// One microbatch forward and backward.
std::vector<Call> calls_of(const config::Model& model, const cuda::Target& where) {
  Log log;
  models::ModelContext context;
  context.model = model;
  context.vocab_size = 30;
  context.target = where;
  context.target.recorder = &log;
  const nn::Blocks blocks = models::build_stage(context, {0, 2, true, true});
  const std::vector<nn::Param*> params = nn::params_of(blocks);
  give_main_grad(params);
  const nn::Microbatch batch = moved(small_batch(2, 8, 30), where.memory());
  const std::vector<nn::Island> islands = islands_of(blocks);
  std::vector<nn::IslandRun> runs(islands.size());
  nn::Values x;
  for (size_t i = 0; i < islands.size(); ++i) x = nn::run_forward(islands[i], x, {batch}, &runs[i]);
  const at::Tensor loss = x.tensor(nn::kLoss);
  EXPECT_EQ(loss.device().type(), where.memory().type());
  nn::Gradients dy{at::ones({}, loss.options())};
  for (size_t i = islands.size(); i-- > 0;) dy = nn::run_backward(std::move(runs[i]), dy, {});
  for (const nn::Param* param : params) EXPECT_EQ(param->main_grad.is_meta(), where.meta) << param->name;
  return log.calls;
}

config::Model plain_attention(config::Model model) {
  model.attention_dropout = model.hidden_dropout = 0.1;  // libtorch has no fused attention for meta tensors
  return model;
}

TEST(MetaDevice, TheCpusPathsHaveTheCallsAndShapesOfARealRun) {
  for (const config::Model& model : {plain_attention(gpt_model()), plain_attention(llama_model())}) {
    const std::vector<Call> real = calls_of(model, {}), meta = calls_of(model, {at::kCPU, nullptr, true});
    EXPECT_GT(real.size(), 15u);
    ASSERT_EQ(meta.size(), real.size());
    for (size_t i = 0; i < real.size(); ++i) EXPECT_TRUE(meta[i] == real[i]) << i << ": " << real[i].name;
  }
}

TEST(MetaDevice, AGpusPathsAreTakenWithoutAGpu) {
  const auto find = [](const std::vector<Call>& calls, const std::string& name) {
    return *std::find_if(calls.begin(), calls.end(), [&](const Call& call) { return call.name == name; });
  };
  const config::Model model = plain_attention(gpt_model());
  const std::vector<Call> cpu = calls_of(model, {}), gpu = calls_of(model, {at::Device(at::kCUDA, 0), nullptr, true});
  EXPECT_EQ(gpu.size(), cpu.size());
  EXPECT_EQ(find(cpu, "scatter_add_rows").reads.size(), 3u);
  EXPECT_EQ(find(gpu, "scatter_add_rows").reads.size(), 4u) << "sorted indices and where they stood";
  EXPECT_EQ(find(cpu, "norm_backward").writes.size(), 3u);
  EXPECT_EQ(find(gpu, "norm_backward").writes.size(), 4u) << "room for lines of weight gradients";
}

}  // namespace
}  // namespace metroplex::test
