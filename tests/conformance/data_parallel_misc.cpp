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

data::SamplerOptions read_options(const Json& test_case, int64_t rank) {
  data::SamplerOptions options;
  options.total_samples = test_case.at("total");
  options.consumed_samples = test_case.value("consumed", 0);
  options.micro_batch_size = test_case.value("micro_batch", 1);
  options.dp_size = test_case.at("dp");
  options.dp_index = rank;
  options.type = test_case.at("type") == "cyclic" ? data::SamplerType::cyclic : data::SamplerType::single;
  options.data_sharding = test_case.value("data_sharding", true);
  return options;
}

Json list_batches(const Json& test_case, int64_t rank) {
  const auto options = read_options(test_case, rank);
  Json out = Json::array();
  if (test_case.at("type") == "full_validation") {
    for (const int64_t i : test::full_validation_indices(options.total_samples, rank, options.dp_size))
      out.push_back({i});
  } else if (test_case.at("type") == "hybrid_cp") {
    const int64_t global = test_case.at("global_batch");
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
    if (!test_case.value("drop_last", true) && partial) out.push_back(test::partial_batch(options));
  }
  return out;
}

std::string sampler(const Json& test_case) {
  Json got = Json::array(), lengths = Json::array();
  try {
    for (int64_t rank = 0; rank < test_case.at("dp").get<int64_t>(); ++rank) {
      got.push_back(list_batches(test_case, rank));
      lengths.push_back(got.back().size());
    }
  } catch (const base::Error& error) {
    return test_case.contains("error") ? "" : std::string("refused: ") + error.what();
  }
  if (test_case.contains("error")) return "accepted, should be refused with " + test_case.at("error").dump();
  Json expected = test_case.at("batches_per_rank");
  if (test_case.at("type") == "cyclic") {
    // If the epoch does not divide evenly, Megatron gives the first ranks one batch more than the last one, which
    // would leave them waiting. Here every rank has as many as the last.
    const size_t fewest = expected.empty() ? 0 : expected.back().size();
    for (Json& rank : expected)
      rank.erase(rank.begin() + static_cast<int64_t>(std::min(fewest, rank.size())), rank.end());
  }
  if (auto problem = compare(got, expected); !problem.empty()) return problem;
  return test_case.contains("len_per_rank") ? compare_list(lengths, test_case, "len_per_rank") : "";
}

std::string sample_counts(const Json& defaults, const Json& test_case) {
  Json args = defaults;
  args.update(test_case.at("args"));
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
  return compare_list({counts.train, counts.valid < 0 ? Json() : Json(counts.valid), counts.test}, test_case,
                      "result");
}

}  // namespace

void run_data_parallel_misc(const Json& file, Report& report) {
  for (const Json& test_case : cases(file, "cp_zigzag")) {
    report.check(base::concat("zigzag ", test_case.at("seq"), " over ", test_case.at("cp")), test_case, [&] {
      Json got = Json::array();
      for (int64_t rank = 0; rank < test_case.at("cp").get<int64_t>(); ++rank)
        got.push_back(data::zigzag_positions(test_case.at("seq"), test_case.at("cp"), rank));
      return compare_list(got, test_case, "positions_per_rank");
    });
  }
  for (const Json& test_case : cases(file, "merge_cu_seqlens")) {
    report.check("merged borders " + test_case.at("cu_seqlens").dump(), test_case, [&] {
      return compare(data::merge_borders(test_case.at("cu_seqlens").get<std::vector<std::vector<int32_t>>>(),
                                         test_case.at("seq_length")),
                     test_case.at("merged"));
    });
  }
  for (const Json& test_case : cases(file, "samplers")) {
    report.check(base::concat("sampler ", test_case.at("type"), " total ", test_case.at("total"), " consumed ",
                              test_case.value("consumed", 0)),
                 [&] { return sampler(test_case); });
  }
  for (const Json& test_case : cases(file, "torch_randperm")) {
    report.check(base::concat("randperm ", test_case.at("n"), " seed ", test_case.at("seed")), test_case, [&] {
      return compare_list(data::torch_randperm(test_case.at("n"), test_case.at("seed")), test_case, "randperm");
    });
  }
  for (const Json& test_case : cases(file, "padded_vocab")) {
    report.check(base::concat("padded vocabulary ", test_case.at("vocab")), test_case, [&] {
      return compare_list(
          config::padded_vocab_size(test_case.at("vocab"), test_case.at("divisible_by"), test_case.at("tp")),
          test_case, "padded");
    });
  }
  const Json counts = file.contains("num_samples") ? file.at("num_samples") : Json::object();
  for (const Json& test_case : cases(counts, "cases"))
    report.check("samples " + test_case.at("args").dump(), test_case,
                 [&] { return sample_counts(counts.at("defaults"), test_case); });
  for (const Json& json : cases(file, "ddp_bucket_size")) {
    report.check(base::concat("bucket size for dp ", json.at("dp"), ", ", json.at("num_parameters"), " parameters"),
                 json, [&] {
                   config::Parallel parallel;
                   parallel.overlap_grad_reduce = json.at("overlap_grad_reduce");
                   // Megatron's num_buckets, which has no key here, is another way to specify the size.
                   if (!json["num_buckets"].is_null())
                     parallel.ddp_bucket_size =
                         json.at("num_parameters").get<int64_t>() / json["num_buckets"].get<int64_t>();
                   else if (!json["bucket_size"].is_null()) parallel.ddp_bucket_size = json["bucket_size"];
                   const int64_t size = plan::gradient_bucket_size(parallel, config::Sharding{}, json.at("dp"));
                   return compare_list(size > 0 ? Json(size) : Json(), json, "result");
                 });
  }
}

}  // namespace metroplex::conformance
