// Samplers, permutations, sample counts, sequence splits, vocabulary padding, bucket sizes.
#include <algorithm>
#include <optional>

#include "base/error.h"
#include "config/config.h"
#include "conformance/report.h"
#include "data/dealt_samples.h"
#include "data/numpy_random.h"
#include "data/sampler.h"
#include "plan/buckets.h"
#include "support/cut.h"

namespace metroplex::conformance {

namespace {

data::SamplerOptions options_of(const Json& c, int64_t rank) {
  data::SamplerOptions options;
  options.total_samples = c.at("total");
  options.consumed_samples = c.value("consumed", 0);
  options.micro_batch_size = c.value("micro_batch", 1);
  options.dp_size = c.at("dp");
  options.dp_index = rank;
  options.type = c.at("type") == "cyclic" ? data::SamplerType::cyclic : data::SamplerType::single;
  options.data_sharding = c.value("data_sharding", true);
  return options;
}

Json batches_of(const Json& c, int64_t rank) {
  const auto options = options_of(c, rank);
  Json out = Json::array();
  if (c.at("type") == "full_validation") {
    for (const int64_t i : test::full_validation_indices(options.total_samples, rank, options.dp_size))
      out.push_back({i});
  } else if (c.at("type") == "hybrid_cp") {
    const int64_t global = c.at("global_batch");
    for (int64_t first = options.consumed_samples; first + global <= options.total_samples; first += global)
      out.push_back(test::global_batch_indices(first, global, options));
  } else {
    data::Sampler sampler(options);
    std::vector<int64_t> batch;
    const bool cyclic = options.type == data::SamplerType::cyclic;
    for (int64_t left = cyclic ? test::batches_left(options) : options.total_samples; left > 0 && sampler.next(batch);
         --left)
      out.push_back(batch);
    const int64_t step = options.micro_batch_size * options.dp_size;
    const bool partial = (options.total_samples - options.consumed_samples) % step != 0;
    if (!c.value("drop_last", true) && partial) out.push_back(test::partial_batch(options));
  }
  return out;
}

std::string sampler(const Json& c) {
  Json got = Json::array(), lengths = Json::array();
  try {
    for (int64_t rank = 0; rank < c.at("dp").get<int64_t>(); ++rank) {
      got.push_back(batches_of(c, rank));
      lengths.push_back(got.back().size());
    }
  } catch (const base::Error& error) { return c.contains("error") ? "" : std::string("refused: ") + error.what(); }
  if (c.contains("error")) return "accepted, should be refused with " + c.at("error").dump();
  Json expected = c.at("batches_per_rank");
  if (c.at("type") == "cyclic") {
    // If the epoch does not divide evenly, Megatron gives the first ranks one batch more than the last one, which
    // would leave them waiting. Here every rank has as many as the last.
    const size_t fewest = expected.empty() ? 0 : expected.back().size();
    for (Json& rank : expected)
      rank.erase(rank.begin() + static_cast<int64_t>(std::min(fewest, rank.size())), rank.end());
  }
  if (auto problem = compare(got, expected); !problem.empty()) return problem;
  return c.contains("len_per_rank") ? compare_list(lengths, c, "len_per_rank") : "";
}

std::string sample_counts(const Json& defaults, const Json& c) {
  Json args = defaults;
  args.update(c.at("args"));
  const auto number = [&](const char* key) {
    return args.contains(key) && !args[key].is_null() ? args[key].get<int64_t>() : int64_t{0};
  };
  test::MegatronSampleCounts options;
  options.train_iters = number("train_iters");
  options.train_samples = number("train_samples");
  options.global_batch_size = number("global_batch_size");
  options.eval_global_batch_size = number("eval_global_batch_size");
  options.eval_interval = number("eval_interval");
  options.eval_iters = number("eval_iters");
  options.start_eval_at_iter = number("start_eval_at_iter");
  options.skip_train = args.value("skip_train", false);
  options.full_validation = args.value("full_validation", false);
  if (args.contains("phase_transition_iterations") && !args.at("phase_transition_iterations").is_null())
    options.phase_transition_iterations = args.at("phase_transition_iterations").get<std::vector<int64_t>>();
  options.iteration = number("iteration");
  const auto counts = options.counts(), here = data::sample_counts(options);
  if (options.plain() && (here.train != counts.train || here.valid != counts.valid || here.test != counts.test))
    return "sample_counts() has another result";
  return compare_list({counts.train, counts.valid < 0 ? Json() : Json(counts.valid), counts.test}, c, "result");
}

}  // namespace

void run_data_parallel_misc(const Json& file, Report& report) {
  for (const Json& c : cases(file, "cp_zigzag")) {
    report.check(base::concat("zigzag ", c.at("seq"), " over ", c.at("cp")), c, [&] {
      Json got = Json::array();
      for (int64_t rank = 0; rank < c.at("cp").get<int64_t>(); ++rank)
        got.push_back(data::zigzag_positions(c.at("seq"), c.at("cp"), rank));
      return compare_list(got, c, "positions_per_rank");
    });
  }
  for (const Json& c : cases(file, "merge_cu_seqlens")) {
    report.check("merged borders " + c.at("cu_seqlens").dump(), c, [&] {
      return compare(
          data::merge_borders(c.at("cu_seqlens").get<std::vector<std::vector<int32_t>>>(), c.at("seq_length")),
          c.at("merged"));
    });
  }
  for (const Json& c : cases(file, "samplers")) {
    report.check(
        base::concat("sampler ", c.at("type"), " total ", c.at("total"), " consumed ", c.value("consumed", 0)),
        [&] { return sampler(c); });
  }
  for (const Json& c : cases(file, "torch_randperm")) {
    report.check(base::concat("randperm ", c.at("n"), " seed ", c.at("seed")), c,
                 [&] { return compare_list(data::torch_randperm(c.at("n"), c.at("seed")), c, "randperm"); });
  }
  for (const Json& c : cases(file, "padded_vocab")) {
    report.check(base::concat("padded vocabulary ", c.at("vocab")), c, [&] {
      return compare_list(config::padded_vocab_size(c.at("vocab"), c.at("divisible_by"), c.at("tp")), c, "padded");
    });
  }
  const Json counts = file.contains("num_samples") ? file.at("num_samples") : Json::object();
  for (const Json& c : cases(counts, "cases"))
    report.check("samples " + c.at("args").dump(), c, [&] { return sample_counts(counts.at("defaults"), c); });
  for (const Json& c : cases(file, "ddp_bucket_size")) {
    report.check(
        base::concat("bucket size for dp ", c.at("dp"), ", ", c.at("num_parameters"), " parameters"), c, [&] {
          config::Parallel parallel;
          parallel.overlap_grad_reduce = c.at("overlap_grad_reduce");
          // Megatron's num_buckets, which has no key here, is another way to specify the size.
          if (!c["num_buckets"].is_null())
            parallel.ddp_bucket_size = c.at("num_parameters").get<int64_t>() / c["num_buckets"].get<int64_t>();
          else if (!c["bucket_size"].is_null()) parallel.ddp_bucket_size = c["bucket_size"];
          const int64_t size = plan::gradient_bucket_size(parallel, config::Sharding{}, c.at("dp"));
          return compare_list(size > 0 ? Json(size) : Json(), c, "result");
        });
  }
}

}  // namespace metroplex::conformance
