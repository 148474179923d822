// The optimizer step on the CPU: chunks in order through two buffers, with the bits of a step on the parameters'
// device.
#include "optim/host_chunks.h"

#include "optim/optimizer.h"
#include "distributed/tools.h"
#include "optim/judged.h"

namespace metroplex::test::host_chunks_test {
namespace {

TEST(HostChunks, EveryChunkIsWorkedOnInOrderAndItsValuesGoBack) {
  const at::Tensor values = at::arange(10, at::kFloat), gradient = at::arange(10, at::kDouble) * 100;
  std::vector<optim::HostChunk> chunks;
  for (const auto& [begin, size] : {std::pair<int64_t, int64_t>{0, 4}, {4, 5}, {9, 1}})
    chunks.push_back({values.narrow(0, begin, size), gradient.narrow(0, begin, size), begin != 4});
  optim::HostChunks host(chunks);
  EXPECT_EQ(host.bytes(), 2 * 5 * (4 + 8));
  for (int step = 0; step < 2; ++step) {
    const at::Tensor before = values.clone();
    std::vector<size_t> order;
    host.run([&](size_t i, const at::Tensor& v, const at::Tensor& g) {
      order.push_back(i);
      EXPECT_NE(v.const_data_ptr(), chunks[i].values.const_data_ptr()) << "a copy, not the parameter";
      EXPECT_TRUE(at::equal(g, chunks[i].gradient));
      if (chunks[i].reads_values) { EXPECT_TRUE(at::equal(v, chunks[i].values)); }
      v.copy_(chunks[i].values + g);
    });
    EXPECT_EQ(order, (std::vector<size_t>{0, 1, 2}));
    EXPECT_TRUE(at::equal(values, before + gradient.to(at::kFloat)));
  }
  EXPECT_EQ(optim::HostChunks({}).bytes(), 0);
}

struct Form {
  const char* optimizer;
  at::ScalarType dtype;
  const char* moments = "fp32";
  bool remainders = false;
  bool bf16_main = false;
};

std::vector<at::Tensor> stepped(const Form& form, bool offload, int64_t size,
                                optim::Optimizer::Bytes* held = nullptr) {
  std::vector<nn::Param> params{make_param("large", values({size}, 1, form.dtype)),
                                make_param("small", values({7}, 2, form.dtype))};
  for (nn::Param& param : params)
    param.main_grad = at::zeros(param.data.sizes(), form.dtype == at::kDouble ? at::kDouble : at::kFloat);
  config::Optim config;
  config.optimizer = form.optimizer;
  config.exp_avg_dtype = config.exp_avg_sq_dtype = form.moments;
  config.store_param_remainders = form.remainders;
  config.main_params_dtype = form.bf16_main ? "bf16" : "fp32";
  config.optimizer_cpu_offload = offload;
  const optim::ParamGroups groups(config, pointers(params));
  optim::OptimizerContext context;
  context.groups = &groups;
  const auto optimizer = optim::make_optimizer(config, whole_shards(pointers(params)), context);
  const std::vector<optim::GroupRates> rates(groups.factors().size(), {1e-2, 0.1});
  for (int step = 0; step < 3; ++step) {
    for (nn::Param& param : params)
      param.main_grad.copy_(values(param.data.sizes().vec(), 10 + step, param.main_grad.scalar_type()));
    optimizer->step(make_step_state(config, rates, 1.0, step + 1));
  }
  std::vector<at::Tensor> all;
  for (const nn::Param& param : params) all.push_back(param.data.clone());
  for (const optim::State& state : optimizer->state()) all.push_back(state.values().clone());
  const optim::Optimizer::Bytes bytes = optimizer->bytes();
  EXPECT_EQ(bytes.host > 0, offload);
  EXPECT_EQ(bytes.main_params + bytes.moments > 0, !offload);
  if (held != nullptr) *held = bytes;
  return all;
}

void expect_the_same_bits(const Form& form, int64_t size) {
  SCOPED_TRACE(std::string(form.optimizer) + " " + c10::toString(form.dtype) + " moments " + form.moments +
               (form.remainders ? " remainders" : "") + (form.bf16_main ? " bf16 main" : ""));
  const auto here = stepped(form, false, size), away = stepped(form, true, size);
  ASSERT_EQ(here.size(), away.size());
  for (size_t i = 0; i < here.size(); ++i) EXPECT_TRUE(at::equal(here[i], away[i])) << "tensor " << i;
}

TEST(OptimizerOffload, TheStepOnTheHostHasTheBitsOfTheStepInPlace) {
  const Form forms[] = {{"adam", at::kFloat},
                        {"adam", at::kDouble},
                        {"adam", at::kBFloat16},
                        {"adam", at::kHalf},
                        {"adam", at::kBFloat16, "8bit", true},
                        {"adam", at::kBFloat16, "bf16", false, true},
                        {"adam", at::kFloat, "8bit"},
                        {"sgd", at::kFloat},
                        {"sgd", at::kHalf},
                        {"lion", at::kBFloat16},
                        {"lion", at::kDouble}};
  for (const Form& form : forms) expect_the_same_bits(form, 1000);
}

// 300 and 7 elements in blocks of 256: 8-bit moments have 2 + 1 scales of 4 bytes each. The host also holds two slots
// of the larger parameter, with values in bf16 and gradients in fp32.
TEST(OptimizerOffload, CountsScalesAndSlots) {
  const Form form{"adam", at::kBFloat16, "8bit"};
  optim::Optimizer::Bytes in_place, offloaded;
  stepped(form, false, 300, &in_place);
  stepped(form, true, 300, &offloaded);
  EXPECT_EQ(in_place.main_params, 4 * 307);
  EXPECT_EQ(in_place.moments, 2 * (307 + 4 * 3));
  EXPECT_EQ(offloaded.host, in_place.main_params + in_place.moments + 2 * 300 * (2 + 4));
}

TEST(OptimizerOffload, ALargeParameterGoesInChunks) {
  expect_the_same_bits({"adam", at::kBFloat16, "8bit", true}, optim::kOffloadChunk + 1000);
}

}  // namespace
}  // namespace metroplex::test::host_chunks_test
