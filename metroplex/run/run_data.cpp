#include "run/run_data.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "base/error.h"
#include "comm/collectives.h"
#include "data/build.h"
#include "data/sampler.h"
#include "run/long_work.h"

namespace metroplex::run {

static data::SampleCounts required_samples(const config::Config& config, const step::RunLength& length,
                                           bool evaluate_only) {
  data::SampleCountOptions options;
  options.train_iters = length.iterations;
  // As in Megatron, the index covers train_samples, although the run drops an incomplete last batch.
  options.train_samples = std::max(length.samples, config.train.train_samples);
  options.global_batch_size = length.full_batch_size;
  options.eval_global_batch_size = length.eval_batch_size;
  options.eval_interval = config.train.eval_interval;
  options.skip_train = evaluate_only;
  // Without evaluations during training there is none at the end, so no samples are needed.
  const bool evaluates = evaluate_only || config.train.eval_interval > 0;
  options.eval_iters = evaluates ? config.train.eval_iters : 0;
  options.full_validation = evaluates && config.train.full_validation;
  return data::sample_counts(options);
}

RunData::RunData(const step::ProcessContext& process, const step::RunLength& length, const TokenizerFacts& tokenizer,
                 bool forward_only, std::shared_ptr<files::FileSystem> disk)
    : process_(process) {
  build(length, tokenizer, forward_only, std::move(disk));
  broadcast_sizes();
}

data::BuildOptions build_options(const config::Config& config, const step::RunLength& length,
                                 const TokenizerFacts& tokenizer, bool evaluate_only) {
  const data::SampleCounts counts = required_samples(config, length, evaluate_only);
  data::BuildOptions options;
  options.sequence_length = config.train.seq_length;
  options.seed = static_cast<uint64_t>(config.run.seed);
  options.sizes = {counts.train, counts.valid, counts.test};
  options.eod = tokenizer.eod;
  options.vocab_size = tokenizer.vocab_size;
  options.tokenizer = tokenizer.words;
  return options;
}

void RunData::build(const step::RunLength& length, const TokenizerFacts& tokenizer, bool forward_only,
                    std::shared_ptr<files::FileSystem> disk) {
  const config::Config& config = process_.config;
  const data::BuildOptions options = build_options(config, length, tokenizer, forward_only);
  const auto splits = std::make_shared<data::Splits>();
  run_with_peers(
      [splits, options, data = config.data, is_reader = is_reader(), disk = std::move(disk)] {
        if (is_reader) *splits = data::build_datasets(data, options, *disk);
      },
      *process_.world);
  if (splits->train) datasets_[kTrain] = {splits->train};
  datasets_[kValid] = splits->valid;
  if (splits->test) datasets_[kTest] = {splits->test};
  train_order_ = splits->train_order;
}

void RunData::broadcast_sizes() {
  at::Tensor counts = at::zeros({3}, at::kLong);
  for (int split = 0; split < 3; ++split) counts[split] = static_cast<int64_t>(datasets_[split].size());
  comm::broadcast(counts, 0, process_.groups().batch);
  for (int split = 0; split < 3; ++split) {
    at::Tensor sizes = at::zeros({counts[split].item<int64_t>()}, at::kLong);
    for (size_t set = 0; set < datasets_[split].size(); ++set)
      sizes[static_cast<int64_t>(set)] = datasets_[split][set]->size();
    if (sizes.numel() > 0) comm::broadcast(sizes, 0, process_.groups().batch);
    for (int64_t set = 0; set < sizes.numel(); ++set) sizes_[split].push_back(sizes[set].item<int64_t>());
  }
}

std::string RunData::name(Split split, size_t set) const {
  return kSplitNames[split] + (sizes_[split].size() > 1 ? base::concat("-", set) : std::string());
}

data::SamplerOptions RunData::sampler_options(int64_t consumed) const {
  data::SamplerOptions options;
  options.consumed_samples = consumed;
  options.micro_batch_size = process_.config.train.micro_batch_size;
  if (!reads_all()) {
    options.dp_index = process_.groups().dp.index();
    options.dp_size = process_.groups().dp.size();
  }
  options.type = process_.config.data.dataloader_type == config::Dataloader::cyclic ? data::SamplerType::cyclic
                                                                                    : data::SamplerType::single;
  options.data_sharding = process_.config.data.data_sharding;
  return options;
}

step::BatchStream RunData::stream(Split split, int64_t consumed_samples, size_t set) const {
  MPX_CHECK(has(split), "data", "the ", kSplitNames[split], " split has no samples; set its share in data.split");
  std::unique_ptr<data::Loader> loader;
  if (is_reader()) {
    const int workers = static_cast<int>(process_.config.data.num_workers),
              ahead = workers > 0 ? std::max(4, 2 * workers) : 0;
    loader = std::make_unique<data::Loader>(datasets_[split].at(set), sampler_options(consumed_samples), ahead,
                                            std::max(1, workers));
  }
  step::BatchForm form;
  form.vocab_size = process_.vocab_size;
  form.float_type = process_.dtype == at::kDouble ? at::kDouble : at::kFloat;
  form.device = process_.world->device();
  form.parts = step::sequence_sharding(process_.config.parallel, process_.groups().cp);
  form.documents = step::document_bound_on(process_.config, process_.world->device());
  if (reads_all()) form.hybrid = step::hybrid_sharding(process_.config, process_.vocab_size, process_.groups().dp_cp);
  return {std::move(loader), process_.groups().batch, std::move(form)};
}

std::vector<nn::Microbatch> RunData::next_hybrid(step::BatchStream& stream, const BatchRequest& request) const {
  std::vector<step::SampleNumbers> numbers;
  for (int64_t s = 0; s < request.count * process_.groups().dp.size(); ++s)
    numbers.push_back({request.first_sample + s, 1, request.iteration});
  std::vector<nn::Microbatch> batches = stream.next(numbers);
  MPX_CHECK(!batches.empty(), "data", "the ", kSplitNames[request.split], " data ended in the batch at sample ",
            request.first_sample, "; give more data, or fewer iterations");
  return batches;
}

std::vector<nn::Microbatch> RunData::next(step::BatchStream& stream, const BatchRequest& request) const {
  if (reads_all()) return next_hybrid(stream, request);
  const int64_t mbs = process_.config.train.micro_batch_size, dp = process_.groups().dp.size(),
                dp_index = process_.groups().dp.index();
  // The single sampler distributes whole microbatches to the data-parallel ranks; the cyclic sampler distributes
  // single samples.
  const bool by_sample = process_.config.data.dataloader_type == config::Dataloader::cyclic;
  std::vector<step::SampleNumbers> numbers;
  for (int64_t m = 0; m < request.count; ++m) {
    const int64_t before = request.first_sample + m * dp * mbs;
    numbers.push_back(by_sample ? step::SampleNumbers{before + dp_index, dp, request.iteration}
                                : step::SampleNumbers{before + dp_index * mbs, 1, request.iteration});
  }
  std::vector<nn::Microbatch> batches = stream.next(numbers);
  const auto read = static_cast<int64_t>(batches.size());
  MPX_CHECK(read == request.count, "data", "the ", kSplitNames[request.split], " data ended at sample ",
            request.first_sample + read * dp * mbs, "; give more data, or fewer iterations");
  return batches;
}

}  // namespace metroplex::run
