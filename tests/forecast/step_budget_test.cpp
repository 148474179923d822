#include "forecast/step_budget.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "base/error.h"
#include "forecast/trace_step.h"
#include "step_cases.h"

namespace metroplex::test::step_budget_test {
namespace {

using forecast::BlockLaunches;
using forecast::Work;
using replay::TraceOperation;

// With small sizes, cuDNN does not compute the attention: it requires 128 queries.
replay::StepTrace trace(const std::string& model, bool small = false) {
  return forecast::trace_step(bench::gpu_request({model, "cuda", "none", small}));
}

TraceOperation make_operation(const std::string& name, double flops = 0, int64_t bytes = 0) {
  return {name, "", flops, bytes, "bf16"};
}

replay::StepTrace make_trace(std::vector<TraceOperation> operations) {
  replay::StepTrace made;
  made.after.push_back({.operations = std::move(operations)});
  return made;
}

std::string error(const std::function<void()>& run) {
  try {
    run();
  } catch (const base::Error& caught) { return caught.what(); }
  return "";
}

TEST(StepBudget, ClassesSumToTheTrace) {
  for (const bench::GpuModel& model : bench::kGpuModels) {
    const replay::StepTrace of = trace(model.name);
    double bytes = 0, flops = 0;  // integers below 2^53: sums in any order are exact
    int64_t operators = 0;
    const auto add = [&](const replay::IslandTrace& region) {
      for (const TraceOperation& one : region.operations) {
        bytes += static_cast<double>(one.bytes);
        flops += one.flops;
        ++operators;
      }
    };
    for (const replay::TracedAction& action : of.actions)
      for (const replay::IslandTrace& region : action.regions) add(region);
    for (const replay::IslandTrace& region : of.after) add(region);
    Work all;
    for (const auto& [name, work] : forecast::sum_classes(of)) {
      all.bytes += work.bytes;
      all.flops += work.flops;
      all.launches += work.launches;
    }
    EXPECT_EQ(all.bytes, bytes) << model.name;
    EXPECT_EQ(all.flops, flops) << model.name;
    EXPECT_GT(all.launches, operators) << model.name;  // some operators launch two kernels or more
  }
}

// The bound is reached when all work runs at the two rates, so no class is below bytes / copy or FLOPs / matmul.
TEST(StepBudget, BoundIsTheLongerTime) {
  const replay::StepTrace of =
      make_trace({make_operation("mm", 8e9, 10'000'000), make_operation("mm", 2e9, 10'000'000),
                  make_operation("aten::add_.Tensor", 0, 5'000'000)});
  const auto classes = forecast::sum_classes(of, {1e9, 4e11});
  EXPECT_DOUBLE_EQ(classes.at("matrix products").bound_s, 20e-3 + 10e-3);
  EXPECT_DOUBLE_EQ(classes.at("elementwise").bound_s, 5e-3);
  EXPECT_EQ(classes.at("matrix products").launches, 2);
}

// Bytes of all operators with this name.
std::set<int64_t> moved_bytes(const std::string& name, const std::string& model,
                              const std::vector<std::string>& settings = {}) {
  std::set<int64_t> found;
  const replay::StepTrace of = forecast::trace_step(bench::gpu_request({model, "cuda", "none", false, settings}));
  for (const replay::TracedAction& action : of.actions) {
    for (const replay::IslandTrace& region : action.regions) {
      for (const TraceOperation& one : region.operations)
        if (one.name == name) found.insert(one.bytes);
    }
  }
  return found;
}

// Not the whole table or pool: rows are read and written once; the fp32 rows of a gradient are read and written.
TEST(StepBudget, KernelsWithIndicesMoveTheirRows) {
  const int64_t row = 4096 * 2048;  // tokens and width
  EXPECT_EQ(moved_bytes("gather_rows", "llama"), std::set{row * (2 + 2)});
  EXPECT_EQ(moved_bytes("scatter_add_rows", "llama"), std::set{row * (2 + 2 * 4)});
  // A table of fewer rows than tokens: all of it, indices in 64 bits, and the rows.
  EXPECT_EQ(moved_bytes("gather_rows", "llama", {"model.vocab_size=128"}),
            std::set{128 * 2048 * 2 + 4096 * 8 + row * int64_t{2}});
  const std::vector<std::string> stash{"model.moe_token_dispatcher_type=static_buffer",
                                       "model.moe_expert_rank_capacity_factor=1.5", "model.moe_paged_stash=true"};
  const int64_t rows = 4096 * 2;  // two experts for each token
  const std::set<int64_t> moved{rows * 2048 * 4, rows * 7168 * 4, rows * 2 * 7168 * 4};
  EXPECT_EQ(moved_bytes("rows_to_pages", "mixtral", stash), moved);
  EXPECT_EQ(moved_bytes("rows_from_pages", "mixtral", stash), moved);
}

TEST(StepBudget, NamesAnUnknownOperator) {
  EXPECT_NE(error([] { forecast::sum_classes(make_trace({make_operation("new_kernel")})); }).find("new_kernel"),
            std::string::npos);
}

// Products of a step: forward, input gradient and weight gradient.
TEST(StepBudget, ProductsHaveRoles) {
  for (const bench::GpuModel& model : bench::kGpuModels) {
    const bench::GpuSizes& sizes = model.sizes;
    const int64_t tokens = sizes.batch * sizes.seq,
                  head_dim = sizes.head_dim > 0 ? sizes.head_dim : sizes.hidden / sizes.heads;
    const bool gated = std::string(model.name) != "gpt2", experts = sizes.experts > 0;
    const auto flops = [](double rows, int64_t in, int64_t out) {
      return 3 * 2 * rows * static_cast<double>(in) * static_cast<double>(out);
    };
    const auto rows = static_cast<double>(tokens);
    const auto layers = static_cast<double>(sizes.layers);
    // The output layer pads the vocabulary to a multiple of 128.
    const int64_t vocab = (sizes.vocab + 127) / 128 * 128;
    std::map<std::string, double> expected{
        {"QKV", layers * flops(rows, sizes.hidden, head_dim * (sizes.heads + 2 * sizes.groups))},
        {"attention projection", layers * flops(rows, sizes.hidden, head_dim * sizes.heads)},
        {"output layer", flops(rows, sizes.hidden, vocab)}};
    const double ffn = layers * flops(rows * (experts ? static_cast<double>(sizes.topk) : 1), sizes.hidden,
                                      (gated ? 3 : 2) * sizes.ffn);
    expected[experts ? "experts" : "MLP"] = ffn;
    if (experts) expected["router"] = layers * flops(rows, sizes.hidden, sizes.experts);
    std::map<std::string, double> sums;
    for (const auto& [role, work] : forecast::sum_products(trace(model.name))) sums[role.name] += work.flops;
    EXPECT_EQ(sums, expected) << model.name;
  }
}

std::string to_string(const BlockLaunches& block) {
  std::string text = base::concat(block.forward, " forward, ", block.backward, " backward");
  for (const auto& [name, launches] : block.operators) text += base::concat("\n  ", launches, " ", name);
  return text;
}

// The bf16 layers of every model on sm_90. The counts may only fall (bench/2026-11-30-step-budget.md).
TEST(StepBudget, LayersHaveFewLaunches) {
  const std::map<std::string, int64_t> limits{
      {"gpt2", 32}, {"llama", 29}, {"mixtral", 57}, {"llama_8b", 29}, {"qwen3_30b", 58}};
  for (const bench::GpuModel& model : bench::kGpuModels) {
    const int64_t limit = limits.at(model.name);
    const std::map<int, BlockLaunches> blocks = forecast::count_launches(trace(model.name));
    ASSERT_EQ(static_cast<int64_t>(blocks.size()), model.sizes.layers + 2) << model.name;  // embedding, output layer
    for (int layer = 1; layer <= model.sizes.layers; ++layer) {
      const BlockLaunches& block = blocks.at(layer);
      EXPECT_LE(block.forward + block.backward, limit)
          << model.name << " layer " << layer << ": " << to_string(block);
      int64_t sum = 0;
      for (const auto& [name, launches] : block.operators) sum += launches;
      EXPECT_EQ(sum, block.forward + block.backward) << model.name;
    }
  }
}

TEST(StepBudget, CountsLaunchesOfOperators) {
  replay::StepTrace made;
  made.actions.push_back({plan::ActionKind::backward, 0, replay::Position::first, {}});
  std::vector<replay::IslandTrace>& regions = made.actions[0].regions;
  regions.push_back({.block = 3, .backward = true, .operations = {make_operation("norm_backward")}});
  regions[0].operations.push_back(make_operation("column_sums"));
  regions[0].operations.push_back(make_operation("mm"));
  regions.push_back({.block = 3, .operations = {make_operation("grouped_mm")}});
  const BlockLaunches block = forecast::count_launches(made).at(3);
  EXPECT_EQ(block.backward, 1 + 2 + 1);
  EXPECT_EQ(block.forward, 2);
  const auto classes = forecast::sum_classes(made);
  EXPECT_EQ(classes.at("norms").launches, 1);
  EXPECT_EQ(classes.at("bias and norm weight sums").launches, 2);
}

// Traces depend on the capability: sm_80 has flash attention and our grouped products.
TEST(StepBudget, TracesTheRequestedGpu) {
  forecast::RankRequest request = bench::gpu_request({"mixtral"});
  const auto operators = [](const replay::StepTrace& of) { return forecast::count_launches(of).at(1).operators; };
  const auto on_90 = operators(forecast::trace_step(request));
  EXPECT_TRUE(on_90.contains("attention_cudnn"));
  EXPECT_FALSE(on_90.contains("attention_flash"));
  EXPECT_EQ(on_90.at("grouped_mm"), 2 * 4);   // forward and input gradients of two products, two launches each
  EXPECT_EQ(on_90.at("grouped_product"), 2);  // their weight gradients, in fp32
  request.capability = 80;
  const auto on_80 = operators(forecast::trace_step(request));
  EXPECT_TRUE(on_80.contains("attention_flash") && on_80.contains("grouped_product"));
  EXPECT_FALSE(on_80.contains("attention_cudnn") || on_80.contains("grouped_mm"));
}

TEST(KernelTimes, MapNamesToClasses) {
  const std::string own = "void metroplex::kernels::<unnamed>::";
  const std::vector<std::pair<std::string, std::string>> cases{
      {own + "forward_kernel<(long)8, (int)1, Bf16, Bf16>(metroplex::kernels::NormForward<Bf16, Bf16>, "
             "metroplex::kernels::NormShape)",
       "norms"},
      {own + "forward_kernel<(long)8>(metroplex::kernels::DropoutOperands<Bf16, Bf16>, "
             "metroplex::kernels::NormForward<Bf16, Bf16>, metroplex::kernels::DropoutNormShape)",
       "norms"},
      {own + "forward_kernel<(Activation)1>(Operands<Bf16>, long, long, metroplex::kernels::UnitLimits)",
       "activations"},
      {own + "backward_kernel<(long)8>(Bf16*, const long*, CrossEntropyGradient<float>, LogitsShape)",
       "cross entropy"},
      {own + "bias_dropout_add_kernel<Bf16, Bf16>(DropoutOperands<Bf16, Bf16>, DropoutShape)", "residual adds"},
      {own + "sum_lines_kernel<float>(LineSumsTable<float>)", "bias and norm weight sums"},
      {own + "normed_heads_kernel<(bool)1, (long)8, Bf16>(Bf16*, HeadRegions<Bf16>, HeadsShape, long)", "RoPE"},
      {own + "join_sums_kernel<(long)8, Bf16>(Bf16*, HeadRegions<Bf16>, HeadsShape, ColumnSumsShape)", "RoPE"},
      {own + "rows_kernel<Activate<Bf16>>(const long*, metroplex::kernels::ExpertShape, Activate<Bf16>)",
       "activations"},
      {own + "fill_kernel(long*, long, long)", "permutation"},
      {own + "step_kernel<Adam>(RangeTable, AdamHyper, const StepValues*)", "optimizer"},
      {own + "add_kernel<(long)8, Bf16>(float*, const Bf16*, long, bool)", "expert weight gradients"},
      {own + "scatter_kernel<(long)8, float, Bf16>(Scatter<float, Bf16>)", "embedding"},
      {own + "product_kernel<Bf16>(const long*, metroplex::kernels::GroupedShape)", "expert products"},
      {"nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT", "matrix products"},
      {"void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<...>>>",
       "expert products"},
      {"cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x4x1", "attention"},
      {"void cudnn::fusion::convert_dq_to_16bits<true>(...)", "attention"},
      {"void pytorch_flash::flash_fwd_kernel<...>(pytorch_flash::Flash_fwd_params)", "attention"},
      {"void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(...)>", "copies and casts"},
      {"void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>", "fills"},
      {"void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>",
       "elementwise"},
      {"[CUDA memcpy Device-to-Device]", "copies and casts"},
      {"void cub::DeviceScanKernel<...>", "other libtorch"}};
  for (const auto& [kernel, expected] : cases) EXPECT_EQ(forecast::kernel_class(kernel), expected) << kernel;
  EXPECT_EQ(forecast::kernel_class("void new_kernel<float>(float*)"), "");
}

TEST(KernelTimes, ReadsNsysAndNcu) {
  const auto nsys = forecast::read_kernel_times(
      "Processing [gpt2.sqlite]\n\nTime (%),Total Time (ns),Instances,Name\n"
      "60.0,1500,3,\"void f<int, \"\"x\"\">(int, float)\"\r\n40.0,1000,1,nvjet_a\n",
      "a.csv");
  ASSERT_EQ(nsys.size(), 2U);
  EXPECT_EQ(nsys[0].name, "void f<int, \"x\">(int, float)");
  EXPECT_DOUBLE_EQ(nsys[0].seconds, 1.5e-6);
  EXPECT_DOUBLE_EQ(nsys[1].seconds, 1e-6);
  const auto ncu = forecast::read_kernel_times(
      "\"ID\",\"Kernel Name\",\"gpu__time_duration.sum\"\n\"\",\"\",\"us\"\n\"0\",\"f(int, int)\",\"1,234.5\"\n",
      "b.csv");
  ASSERT_EQ(ncu.size(), 1U);
  EXPECT_EQ(ncu[0].name, "f(int, int)");
  EXPECT_DOUBLE_EQ(ncu[0].seconds, 1234.5e-6);
}

TEST(KernelTimes, RejectsOtherFiles) {
  const auto message = [](const char* csv) { return error([&] { forecast::read_kernel_times(csv, "c.csv"); }); };
  EXPECT_NE(message("a,b\n1,2\n").find("c.csv: must have a header"), std::string::npos);
  EXPECT_NE(message("Total Time (ns),Name\nfast,f\n").find("time = fast"), std::string::npos);
  EXPECT_NE(message("Total Time (ns),Name\n-5,f\n").find("time = -5"), std::string::npos);
  EXPECT_NE(message("Kernel Name,gpu__time_duration.sum\n,hours\nf,1\n").find("unit = hours"), std::string::npos);
}

}  // namespace
}  // namespace metroplex::test::step_budget_test
