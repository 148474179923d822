#include "step/hybrid_batch.h"

#include "base/error.h"
#include "config/derived.h"
#include "config/validate.h"
#include "plan/model_flops.h"

namespace metroplex::step {

// The fixed cost of a microbatch, estimated as 1 / kMicrobatchShare of the cost of max_tokens tokens.
static constexpr double kMicrobatchShare = 16;

double pair_cost(const config::Config& config, int64_t vocab_size) {
  const int64_t padded =
      config::padded_vocab_size(vocab_size, config.model.make_vocab_size_divisible_by, config.parallel.tp());
  const plan::ModelShape shape = plan::model_shape(config, padded);
  const double token = plan::step_flops(shape, {1, 1.0, 0.0}), square = plan::step_flops(shape, {1, 0.0, 1.0});
  return 2 * square / token;
}

HybridSharding hybrid_sharding(const config::Config& config, int64_t vocab_size, const comm::Group& dp_cp) {
  HybridSharding parts;
  parts.request.ranks = dp_cp.size();
  parts.request.max_tokens = config::most_hybrid_tokens(config);
  parts.request.multiple = config::context_multiple(config.parallel);
  parts.request.pair_cost = pair_cost(config, vocab_size);
  parts.request.microbatch_cost = static_cast<double>(parts.request.max_tokens) / kMicrobatchShare;
  parts.rank = dp_cp.index();
  parts.sharding = sequence_sharding(config.parallel, comm::Group());
  return parts;
}

std::vector<comm::Group> hybrid_groups(const comm::World& world) {
  const comm::Group& all = world.groups().dp_cp;
  std::vector<comm::Group> groups;
  for (const int size : config::hybrid_context_sizes(all.size())) {
    const int first = all.index() / size * size;
    const auto begin = all.ranks().begin() + first;
    groups.push_back(world.make_group(
        {base::concat("hybrid-cp-", size), comm::Purpose::layers, std::vector<int>(begin, begin + size)}));
  }
  return groups;
}

static nn::Microbatch build_microbatch(const nn::Microbatch& sample, const plan::HybridMicrobatch& planned,
                                       const HybridSharding& parts) {
  nn::Microbatch whole = sample;
  if (!planned.fillers.empty()) whole.loss_mask = whole.loss_mask.clone();
  for (const plan::PositionRun& run : planned.fillers) whole.loss_mask.narrow(1, run.first, run.count).zero_();
  SequenceSharding sharding = parts.sharding;
  sharding.ranks = planned.ranks;
  sharding.rank = parts.rank - planned.first_rank;
  nn::Microbatch batch = shard_documents(whole, planned.pieces(), sharding);
  batch.sequence.context_ranks = planned.ranks;
  batch.sequence.counts_tokens = planned.counts && sharding.rank == 0;
  return batch;
}

std::vector<nn::Microbatch> hybrid_batches(const std::vector<nn::Microbatch>& samples, const HybridSharding& parts) {
  plan::DocumentLengths lengths;
  for (const nn::Microbatch& sample : samples) lengths.push_back(document_lengths(sample).at(0));
  const plan::HybridPlan plan = plan::plan_hybrid_context(lengths, parts.request);
  std::vector<nn::Microbatch> batches;
  for (const size_t m : plan.of_rank(parts.rank)) {
    const plan::HybridMicrobatch& planned = plan.microbatches[m];
    batches.push_back(build_microbatch(samples[static_cast<size_t>(planned.sample)], planned, parts));
    batches.back().sequence.step_samples = static_cast<int64_t>(samples.size());
  }
  return batches;
}

}  // namespace metroplex::step
