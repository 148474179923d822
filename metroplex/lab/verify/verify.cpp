#include "verify/verify.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "base/error.h"
#include "base/philox.h"
#include "config/batch_schedule.h"
#include "config/experts.h"
#include "config/family.h"
#include "config/fields.h"
#include "config/load.h"
#include "config/optimizers.h"
#include "config/validate.h"
#include "data/gpt_dataset.h"
#include "plan/microbatches.h"
#include "step/batch.h"
#include "verify/gather.h"
#include "step/step.h"

namespace metroplex::verify {
namespace {

constexpr uint64_t kTokenKey = 0x70726f6f66ull;

int64_t synthetic_token(int64_t sample, int64_t position, int64_t vocab_size) {
  return static_cast<int64_t>(base::philox4x32(kTokenKey, sample, position)[0]) % vocab_size;
}

// Masks some positions, different ones in every sample, so that masked means are compared too.
float synthetic_mask(int64_t sample, int64_t position) {
  return base::philox4x32(kTokenKey + 1, sample, position)[0] % 8 == 0 ? 0.0f : 1.0f;
}

// Documents of about six tokens, if the config separates documents.
bool ends_document(int64_t sample, int64_t position) {
  return base::philox4x32(kTokenKey + 2, sample, position)[0] % 6 == 0;
}

step::HostBatch synthetic_batch(const config::Config& config, int64_t first_sample, int64_t step,
                                int64_t vocab_size) {
  const config::Train& train = config.train;
  data::GptOptions masks;
  masks.eod = vocab_size - 1;
  masks.reset_position_ids = config.data.reset_position_ids;
  masks.reset_attention_mask = config.data.reset_attention_mask;
  masks.eod_mask_loss = config.data.eod_mask_loss;
  const bool documents = masks.reset_position_ids || masks.reset_attention_mask || masks.eod_mask_loss;
  const auto token = [&](int64_t sample, int64_t position) {
    const bool end = documents && ends_document(sample, position);
    return end ? masks.eod : synthetic_token(sample, position, vocab_size);
  };
  step::HostBatch host;
  host.numbers = {first_sample, 1, step};
  host.vocab_size = vocab_size;
  for (int64_t s = first_sample; s < first_sample + train.micro_batch_size; ++s) {
    data::Sample sample;
    for (int64_t t = 0; t < train.seq_length; ++t) {
      sample.tokens.push_back(token(s, t));
      sample.labels.push_back(token(s, t + 1));
    }
    data::fill_masks(masks, sample);
    for (int64_t t = 0; t < train.seq_length; ++t) sample.loss_mask[static_cast<size_t>(t)] *= synthetic_mask(s, t);
    host.samples.push_back(std::move(sample));
  }
  return host;
}

// Returns the larger value. NaN counts as the largest and is sticky.
double larger_error(double so_far, double seen) { return std::isnan(so_far) || seen <= so_far ? so_far : seen; }

double relative(double a, double b) { return std::abs(a - b) / std::max(std::abs(b), 1e-300); }

// Ranks of dp and cp have gradients of other sizes, whose mean is the gradient. Rounding by powers of two is the same
// if the sizes differ by one.
bool scales_gradients(const config::Config& config, int64_t world_size, bool by_powers_of_two) {
  const int64_t parts = config::data_parallel_size(config.parallel, world_size) * config.parallel.cp();
  return !config.train.calculate_per_token_loss && parts > 1 && (!by_powers_of_two || (parts & (parts - 1)) != 0);
}

void find_expert_settings(const config::Config& config, int64_t world_size, std::vector<std::string>& found) {
  const config::Model& m = config.model;
  if (m.has_experts() && m.moe_combine_bwd_dtype == config::RowDtype::mxfp8 &&
      scales_gradients(config, world_size, /*by_powers_of_two=*/true)) {
    found.push_back(
        "model.moe_combine_bwd_dtype = mxfp8: the size of a rank's gradients depends on its numbers of data-parallel "
        "and context-parallel ranks; set train.calculate_per_token_loss");
  }
  const std::vector<config::AuxLoss> losses = config::aux_losses(m);
  const bool global = std::any_of(losses.begin(), losses.end(), [](const config::AuxLoss& loss) {
    return loss.type == config::AuxLossType::global_aux_loss;
  });
  if (global && config::data_parallel_size(config.parallel, world_size) > 1) {
    found.push_back("model.moe_router_load_balancing_type = " + m.moe_router_load_balancing_type +
                    ": counts the tokens of all data-parallel ranks; leave global_aux_loss out, or set "
                    "model.moe_aux_loss_coeff to 0");
  }
  const int64_t tp = config.parallel.tp(), cp = config.parallel.cp();
  const bool splits = tp * cp > 1 || config.parallel.hybrid_context_parallel;
  const std::string part =
      base::concat("which has a part of a microbatch with parallel.tensor_model_parallel_size = ", tp,
                   ", parallel.context_parallel_size = ", cp);
  if (m.has_capacity() && splits) {
    found.push_back(base::concat("model.moe_expert_capacity_factor = ", m.moe_expert_capacity_factor,
                                 ": limits the tokens of one rank, ", part, "; set it to 0"));
  }
  if (m.moe_router_force_even && splits) {
    found.push_back("model.moe_router_force_even = true: distributes the tokens of one rank, " + part +
                    "; set it to false");
  }
  if (!m.moe_router_force_trace.empty() && (splits || config::data_parallel_size(config.parallel, world_size) > 1)) {
    found.push_back("model.moe_router_force_trace = " + m.moe_router_force_trace +
                    ": gives each rank the loads of a recorded rank; leave it out");
  }
  if (m.moe_token_dispatcher_type == config::TokenDispatcher::static_buffer &&
      m.moe_overflow_policy == config::OverflowPolicy::drop) {
    found.push_back(
        "model.moe_overflow_policy = drop: a rank drops the rows beyond its buffer, which depends on the experts "
        "that "
        "it holds; set it to redo");
  }
}

// Products in low precision: blocks of values, and gradients before they are summed over the ranks, that depend on
// the layout.
void find_rounding_settings(const config::Config& config, int64_t world_size, config::Recipe recipe,
                            std::vector<std::string>& found) {
  const int64_t dp = config::data_parallel_size(config.parallel, world_size), cp = config.parallel.cp(),
                block = config::operand_block(recipe), etp = config.parallel.etp();
  const auto add = [&](const std::string& text) { found.push_back(config::to_setting(recipe) + ": " + text); };
  const bool delayed = recipe == config::Recipe::delayed;
  if ((delayed || !config::has_tensor_factor(recipe)) && scales_gradients(config, world_size, !delayed)) {
    add(base::concat("the size of a rank's gradients depends on dp = ", dp, " and cp = ", cp,
                     "; set train.calculate_per_token_loss"));
  }
  const int64_t rows = config.train.seq_length * config.train.micro_batch_size / (2 * cp);
  if (block > 0 && (config.parallel.hybrid_context_parallel || (cp > 1 && rows % block != 0))) {
    add(base::concat("blocks of ", block, " tokens end at other tokens with parallel.context_parallel_size = ", cp,
                     "; choose lengths whose parts are multiples of ", block));
  }
  const bool shares_rows = config.parallel.ep() > 1 || cp > 1 || config.parallel.tp() != etp;
  if (config.model.has_experts() && !delayed && shares_rows)
    add("the rows of an expert on a rank depend on the layout; use delayed");
}

// Returns the parameter whose gradient is zero in exact arithmetic, with the keys that cause it; empty if there is
// none. A softmax over one key is always 1. A term added to every key leaves the softmax unchanged, unless rotary
// positions or a norm follow.
std::string parameter_without_gradient(const config::Model& m) {
  if (const config::Family* family = config::find_family(m.family); family != nullptr && family->top_query)
    return "the first row of top_query_embeddings, which sees one key (model.family = " + m.family + ")";
  const bool plain_softmax = m.softmax_type == config::SoftmaxType::vanilla;
  if ((m.window_size == 0 || m.attention_chunk_size == 1) && plain_softmax)
    return "all that makes queries and keys where the window is one key (model.window_size = 0, "
           "model.attention_chunk_size = 1)";
  if (!plain_softmax || m.attn_logit_softcapping > 0) return "";
  const bool is_rotary = m.position_embedding_type == config::PositionEmbedding::rope && m.rotary_percent == 1;
  if (is_rotary) return "";
  if (m.qk_layernorm) {
    const bool bias = m.normalization == config::Normalization::LayerNorm;
    return bias ? "k_layernorm.bias (model.qk_layernorm = true, model.normalization = LayerNorm)" : "";
  }
  if (m.add_bias_linear) return "the keys' bias (model.add_bias_linear = true)";
  return m.add_qkv_bias ? "the keys' bias (model.add_qkv_bias = true)" : "";
}

}  // namespace

config::Config verification_config(config::Config config, int64_t steps) {
  config = config::in_double_precision(config);
  config::Data data;
  data.mock_data = true;
  data.reset_position_ids = config.data.reset_position_ids;
  data.reset_attention_mask = config.data.reset_attention_mask;
  data.eod_mask_loss = config.data.eod_mask_loss;
  config.data = std::move(data);
  config.checkpoint = {};
  if (std::string problem; config.train.global_batch_size == 0 && !config.train.step_batch_size_schedule.empty()) {
    const auto steps_of = config::read_batch_steps(config.train.step_batch_size_schedule, 0, problem);
    if (steps_of && !steps_of->empty()) config.train.global_batch_size = steps_of->back().global_batch_size;
  }
  config.train.train_iters = steps;
  config.train.train_samples = 0;
  config.train.train_epochs = 0;
  config.train.step_batch_size_schedule.clear();
  config.train.rampup_batch_size.clear();
  config.train.eval_interval = 0;
  config.train.check_for_nan_in_loss = true;
  config.model.sharded_initialization = false;  // sharded initialization depends on the layout by design
  config.train.tensorboard_dir.clear();
  config.train.metrics_file.clear();
  config.train.expert_trace_file.clear();
  config.train.log_experts_interval = 0;
  config.optim.lr_warmup_iters = config.optim.lr_warmup_samples = 0;
  config.optim.lr_warmup_fraction = 0;
  config.optim.lr_decay_iters = config.optim.lr_decay_samples = 0;
  config.optim.lr_wsd_decay_iters = config.optim.lr_wsd_decay_samples = 0;
  config.optim.lr_decay_style = config::LrDecay::constant;
  // Adam's first updates have the size of lr, regardless of the size of the gradient. If a gradient is zero in
  // exact arithmetic (the key bias), its sign is rounding noise. An epsilon well above that noise removes it from
  // the comparison.
  config.optim.adam_eps = std::max(config.optim.adam_eps, 1e-6);
  return config;
}

config::Config with_running_batch(config::Config config, int64_t world_size) {
  config::Train& train = config.train;
  if (!train.decrease_batch_size_if_needed || train.global_batch_size == 0)
    return config;  // size 0: one microbatch per rank
  const int64_t dp = config::data_parallel_size(config.parallel, world_size);
  const auto schedule =
      plan::MicrobatchSchedule::constant(train.global_batch_size, {train.micro_batch_size, dp, true});
  train.global_batch_size = schedule.at(0).running_global_batch_size;
  return config;
}

std::vector<std::string> dropped_settings(const config::Config& original, const config::Config& compared) {
  static constexpr const char* kIgnoredKeys[] = {
      "run.",
      "checkpoint.",
      "data.",
      "model.vocab_size",
      "train.train_iters",
      "train.train_samples",
      "train.train_epochs",
      "train.eval_interval",
      "train.tensorboard_dir",
      "train.metrics_file",
      "train.log_experts_interval",
      "train.expert_trace_file",
      "optim.lr_decay_iters",
      "optim.lr_decay_samples",
      "optim.lr_wsd_decay_iters",
      "optim.lr_wsd_decay_samples",
  };
  config::Config here = original, there = compared;
  const std::vector<config::Field> asked_fields = config::fields(here), compared_fields = config::fields(there);
  std::vector<std::string> lines;
  for (size_t i = 0; i < asked_fields.size(); ++i) {
    const std::string key = asked_fields[i].key(), value = config::to_text(asked_fields[i]),
                      other = config::to_text(compared_fields[i]);
    const bool is_listed = std::none_of(std::begin(kIgnoredKeys), std::end(kIgnoredKeys), [&](const char* start) {
      return key.compare(0, std::strlen(start), start) == 0;
    });
    if (is_listed && value != other)
      lines.push_back(key + ": " + value + " (" + (other.empty() ? "none" : other) + " in the comparison)");
  }
  return lines;
}

std::vector<std::string> layout_dependent(const config::Config& config, int64_t world_size) {
  std::vector<std::string> found;
  if (config.model.has_experts()) find_expert_settings(config, world_size, found);
  for (const config::Recipe recipe : config.precision.recipes())
    find_rounding_settings(config, world_size, recipe, found);
  const std::string noise = parameter_without_gradient(config.model);
  const config::OptimizerTraits* optimizer = config::find_optimizer(config.optim.optimizer);
  // Splitting by pp alone is bitwise identical.
  if (optimizer != nullptr && optimizer->takes_sign && !noise.empty() && world_size > config.parallel.pp()) {
    found.push_back(base::concat("optim.optimizer = ", config.optim.optimizer,
                                 ": steps by the sign of gradients, and that of ", noise,
                                 " is zero but for rounding, which depends on the order of additions; set "
                                 "optim.optimizer to adam"));
  }
  return found;
}

config::Config single_rank_config(config::Config config) {
  const int64_t global_batch_size = config.train.global_batch_size;
  config.parallel = {};
  config.memory = {};
  config.precision.fp8_param_gather = false;
  config.train.global_batch_size = global_batch_size;
  // The hierarchical dispatcher needs several nodes; alltoall sends the same rows.
  if (config.model.moe_token_dispatcher_type == config::TokenDispatcher::hierarchical)
    config.model.moe_token_dispatcher_type = config::TokenDispatcher::alltoall;
  config::turn_echo_and_stash_off(config.model);
  config.run.nproc = 1;
  return config;
}

std::vector<nn::Microbatch> synthetic_batches(const config::Config& config, const comm::World& world,
                                              int64_t vocab_size, int64_t step, at::ScalarType float_type) {
  const config::Train& train = config.train;
  const comm::Group& dp = world.groups().dp;
  const int64_t count = train.global_batch_size / (train.micro_batch_size * dp.size());
  const step::SequenceSharding parts = step::sequence_sharding(config.parallel, world.groups().cp);
  std::vector<nn::Microbatch> batches;
  if (config.parallel.hybrid_context_parallel) {
    for (int64_t s = 0; s < train.global_batch_size; ++s) {
      const step::HostBatch sample = synthetic_batch(config, step * train.global_batch_size + s, step, vocab_size);
      batches.push_back(stack_samples(sample, float_type));
    }
    batches = step::hybrid_batches(batches, step::hybrid_sharding(config, vocab_size, world.groups().dp_cp));
    for (nn::Microbatch& batch : batches) batch = step::on_device(batch, world.device());
    return batches;
  }
  for (int64_t m = 0; m < count; ++m) {
    const int64_t first = step * train.global_batch_size + (m * dp.size() + dp.index()) * train.micro_batch_size;
    const nn::Microbatch whole = stack_samples(synthetic_batch(config, first, step, vocab_size), float_type);
    batches.push_back(step::on_device(shard_sequence(whole, parts), world.device()));
  }
  return batches;
}

LayoutRun run_layout(const config::Config& config, const comm::World& world, int64_t vocab_size, int64_t steps) {
  auto assembly = step::assemble(config, world, vocab_size);
  LayoutRun run;
  for (int64_t step = 0; step < steps; ++step) {
    const step::StepOutcome outcome =
        step::train_step(*assembly, {synthetic_batches(config, world, vocab_size, step, at::kDouble),
                                     step + 1,
                                     step * config.train.global_batch_size,
                                     false,
                                     {}});
    run.losses.push_back(outcome.loss);
    run.grad_norms.push_back(outcome.grad_norm);
  }
  run.params = gather_whole(assembly->process, assembly->model, assembly->optimization, GatherKind::data);
  return run;
}

LayoutDifference compare_runs(const LayoutRun& run, const LayoutRun& reference) {
  MPX_ASSERT(run.losses.size() == reference.losses.size(), "runs of different length");
  LayoutDifference worst;
  for (size_t i = 0; i < run.losses.size(); ++i) {
    worst.loss = larger_error(worst.loss, relative(run.losses[i], reference.losses[i]));
    worst.grad_norm = larger_error(worst.grad_norm, relative(run.grad_norms[i], reference.grad_norms[i]));
  }
  MPX_ASSERT(run.params.size() == reference.params.size(), "runs with different parameters");
  for (const auto& [name, tensor] : reference.params) {
    const double difference = (run.params.at(name) - tensor).abs().max().item<double>();
    if (!std::isnan(worst.parameter) && !(difference <= worst.parameter)) {
      worst.parameter = difference;
      worst.parameter_name = name;
    }
  }
  return worst;
}

}  // namespace metroplex::verify
