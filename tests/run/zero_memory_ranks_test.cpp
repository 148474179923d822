// ZeRO-3 over eight ranks: a rank never holds more than its eighth of the parameters and the two largest units. The
// activations (two tokens) are small compared with the model, and their shapes bound them.
#include "kernels/blocked_attention.h"
#include "models/registry.h"
#include "forecast/memory_report.h"
#include "forecast/predict.h"
#include "run/support.h"
#include "support/without_onednn.h"

namespace metroplex::test::zero_memory_ranks_test {
namespace {

constexpr TestLayout kCut{1, 1, 1, 8, false};

config::Config make_config(const std::string& dtype, bool llama, const std::string& more) {
  config::Config config =
      config::parse(std::string("model: {num_layers: 6, hidden_size: 128, num_attention_heads: 4, vocab_size: 50,"
                                " make_vocab_size_divisible_by: 8, ") +
                    (llama ? "family: llama, ffn_hidden_size: 384}\n" : "family: gpt}\n") +
                    "train: {seq_length: 2, micro_batch_size: 1, global_batch_size: 16, train_iters: 10}\n"
                    "parallel: {data_parallel_sharding_strategy: optim_grads_params}\n"
                    "data: {mock_data: true}\nprecision: {params_dtype: " +
                    dtype + "}\n" + more);
  return cut(config, kCut);
}

// Scratch memory of attention: two tokens are the work of one thread.
template <class T>
int64_t room_of_attention(const config::Config& config) {
  kernels::AttentionShape shape;
  shape.samples = config.train.micro_batch_size;
  shape.heads = shape.groups = config.model.num_attention_heads;
  shape.queries = shape.keys = config.train.seq_length;
  shape.head_dim = shape.v_head_dim = config.model.hidden_size / shape.heads;
  const auto forward = kernels::attention_forward_scratch<T>(shape, 1),
             backward = kernels::attention_backward_scratch<T>(shape, 1);
  return std::max(forward.bytes, backward.bytes);
}
int64_t room_of_attention(const config::Config& config) {
  const std::string type = config.precision.params_dtype.text();
  return type == "fp64"   ? room_of_attention<double>(config)
         : type == "fp32" ? room_of_attention<float>(config)
                          : room_of_attention<kernels::Bf16>(config);
}

// Bound on the tensors of one segment for two tokens, less than a tenth of a unit. 40 values per feature (the widest
// layers have 4 and 6) and four times the logits of the whole vocabulary; then 4 KB of scalars.
int64_t max_tensor_bytes(const config::Config& config) {
  const int64_t tokens = config.train.seq_length * config.train.micro_batch_size;
  return tokens * 8 * (40 * config.model.hidden_size + 4 * 56) + 4096 + room_of_attention(config);
}

struct HeldMemory {
  int64_t own, units, largest;  // bytes of parameters: this rank's shard, the two largest units, the whole model
};
// A unit is the bucket of one block, with its own padding.
int64_t two_largest_units(const step::Assembly& assembly) {
  const distributed::FlatLayout& layout = assembly.model.families.all().front().values->layout();
  std::vector<int64_t> units;
  for (const distributed::FlatBucket& bucket : layout.buckets()) units.push_back(bucket.end - bucket.begin);
  std::sort(units.rbegin(), units.rend());
  return (units.at(0) + units.at(1)) * static_cast<int64_t>(c10::elementSize(assembly.process.dtype));
}
HeldMemory predict_held(const step::Assembly& assembly) {
  const replay::MemoryPrediction predicted = forecast::predicted_memory(assembly.process, 2);
  int64_t all = 0;
  for (const nn::Param* param : assembly.model.params) all += param->numel();
  return {predicted.use.parameters, two_largest_units(assembly),
          all * static_cast<int64_t>(c10::elementSize(assembly.process.dtype))};
}

template <class Body>
void for_each_config(const Body& body) {
  const WithoutOneDnn without;
  const std::string recompute =
      "memory: {recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 2}\n";
  for (const config::Config& config : {make_config("fp64", false, ""), make_config("fp32", true, ""),
                                       make_config("fp64", true, recompute), make_config("bf16", false, "")}) {
    SCOPED_TRACE(config.precision.params_dtype.text() + (" " + config.model.family));
    run_sharded(config, kCut, [&](const comm::World& world) {
      SCOPED_TRACE("rank " + std::to_string(world.rank()));
      body(config, world);
    });
  }
}

TEST(ZeroMemoryRanks, AnEighthAndTheTwoLargestUnitsAreHeldWhileEvaluating) {
  for_each_config([](const config::Config& config, const comm::World& world) {
    device::MemoryMeter meter;
    const auto assembly = step::assemble(config, world, kVocab);
    const HeldMemory held = predict_held(*assembly);
    EXPECT_LT(8 * held.own, held.largest + held.largest / 50);   // an eighth, and little padding
    step::evaluate_step(*assembly, make_batches(*assembly, 0));  // grows the table of rotary positions
    const auto batches = make_batches(*assembly, 0);
    const int64_t before = meter.bytes();
    meter.reset_peak();
    step::evaluate_step(*assembly, batches);
    EXPECT_EQ(meter.bytes(), before);
    EXPECT_GE(meter.peak_bytes() - before, held.units);
    EXPECT_LE(meter.peak_bytes() - before, held.units + max_tensor_bytes(config));
  });
}

TEST(ZeroMemoryRanks, AnEighthAndTheTwoLargestUnitsAreHeldWhileTraining) {
  for_each_config([](const config::Config& config, const comm::World& world) {
    device::MemoryMeter meter;
    const auto assembly = step::assemble(config, world, kVocab);
    const HeldMemory held = predict_held(*assembly);
    const replay::MemoryPrediction predicted = forecast::predicted_memory(assembly->process, 2);
    step_at(*assembly, 0);
    const auto batches = make_batches(*assembly, 1);
    forecast::MemoryReport report(*assembly, meter);
    report.begin_step();
    const int64_t before = meter.bytes();
    step::train_step(*assembly, {batches, 2, config.train.global_batch_size, false, {}});
    const forecast::MeasuredMemory measured = report.end_step();
    EXPECT_EQ(measured.gathered, held.units);  // at every moment of a segment and at every gradient
    EXPECT_EQ(measured.use.parameters, held.own);
    EXPECT_EQ(meter.bytes(), before);
    // Bound of the whole step. It includes the units, the gradients of the current unit and of the one in reduction,
    // and the tensors that two blocks hold during recompute. Activations and the tensors of a segment are added.
    const int64_t most = held.units + predicted.gradient_buckets + predicted.use.activations +
                         predicted.use.workspace + max_tensor_bytes(config);
    EXPECT_LE(measured.peak - before, most);
    EXPECT_GE(measured.peak - before, held.units);
  });
}

// Parameters are initialized one at a time: their values, first in double, and the rank's shard of all parameters.
TEST(ZeroMemoryRanks, AnEighthAndTheTwoLargestUnitsAreHeldWhileInitialising) {
  for_each_config([](const config::Config& config, const comm::World& world) {
    device::MemoryMeter meter;
    models::ModelContext context(config.model);
    context.vocab_size = kVocab;
    context.dtype = step::scalar_type(config.precision.params_dtype);
    context.deferred = true;
    const auto blocks = models::build_stage(context, {0, config.model.num_layers, true, true});
    const int64_t tables = meter.bytes();  // of rotary positions: two numbers for each pair of a head's
    if (config.model.family == "gpt") { EXPECT_EQ(tables, 0); }
    std::vector<nn::Param*> params;
    distributed::FlatLayoutOptions options;
    options.sharded = true;
    options.num_shards = 8;
    options.index = world.groups().dp.index();
    for (const nn::Block& block : blocks) {
      const size_t known = params.size();
      for (nn::Param* param : nn::list_params(block)) {
        if (std::find(params.begin(), params.end(), param) == params.end()) params.push_back(param);
      }
      options.units.push_back(params.size() - known);
    }
    const auto layout = std::make_shared<const distributed::FlatLayout>(params, options);
    const distributed::ParamBuffer buffer(layout, world.groups().dp,
                                          {{true, true, true}, true, false, false, at::TensorOptions(context.dtype)});
    const int64_t own = forecast::predict_memory({config, world.size(), world.rank(), kVocab, 2}).use.parameters;
    EXPECT_EQ(meter.bytes() - tables, own);
    EXPECT_GT(meter.peak_bytes() - tables, own);
    int64_t largest = 0;
    for (const nn::Param* param : params) largest = std::max(largest, param->numel());
    const int64_t element = static_cast<int64_t>(c10::elementSize(context.dtype));
    EXPECT_LE(meter.peak_bytes() - tables, own + largest * (element + 8));
  });
}

}  // namespace
}  // namespace metroplex::test::zero_memory_ranks_test
