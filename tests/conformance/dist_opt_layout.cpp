// dist_opt_layout.json: the position of every parameter in the buffer, with and without a distributed optimizer, the
// shard of every data-parallel rank, the padding rules and the default bucket size; integers, all equal.
#include <algorithm>
#include <numeric>
#include <utility>

#include "config/derived.h"
#include "conformance/report.h"
#include "plan/buckets.h"

namespace metroplex::conformance {

namespace {

using plan::Bucket;
using plan::BucketPlan;

std::vector<plan::BucketParam> read_params(const Json& test) {
  std::vector<plan::BucketParam> params;
  for (const Json& size : test.at("param_numels")) params.push_back({size.get<int64_t>(), false});
  for (const Json& index : test.at("shared_embedding")) params.at(index.get<size_t>()).shared_embedding = true;
  return params;
}

int64_t read_bucket_size(const Json& test) {
  return test.at("bucket_size").is_null() ? 0 : test.at("bucket_size").get<int64_t>();
}

std::string compare_plan(const BucketPlan& plan, const Json& expected) {
  Json got = {{"param_index_map", Json::array()},
              {"bucket_indices", Json::array()},
              {"per_bucket_numel_unpadded", Json::array()}};
  for (const auto& slot : plan.slots) got.at("param_index_map").push_back({slot.begin, slot.end, slot.bucket});
  for (const Bucket& bucket : plan.buckets) {
    got.at("bucket_indices").push_back({bucket.begin, bucket.end});
    got.at("per_bucket_numel_unpadded").push_back(bucket.num_unpadded);
  }
  return compare(got, expected);
}

// Parameters of a bucket in one rank's shard: their position in the whole buffer, in the bucket and in the shard, and
// their element ranges.
Json shard_params(const BucketPlan& plan, const Bucket& bucket, std::pair<int64_t, int64_t> shard) {
  std::vector<int> indices = bucket.params;
  std::sort(indices.begin(), indices.end());
  Json list = Json::array();
  for (const int index : indices) {
    const auto& slot = plan.slots[static_cast<size_t>(index)];
    const int64_t begin = std::max(slot.begin, shard.first), end = std::min(slot.end, shard.second);
    if (begin >= end) continue;
    list.push_back({{"param_idx", index},
                    {"gbuf_world", {begin, end}},
                    {"gbuf_world_in_bucket", {begin - bucket.begin, end - bucket.begin}},
                    {"gbuf_local", {begin - shard.first, end - shard.first}},
                    {"param", {begin - slot.begin, end - slot.begin}}});
  }
  return list;
}

// With Megatron's pad_buckets_for_high_nccl_busbw, which has no key here.
plan::BucketOptions buckets(int64_t bucket_size, int64_t dp, bool high_bandwidth) {
  plan::BucketOptions options = plan::distributed_optimizer_buckets(bucket_size, dp);
  if (high_bandwidth) options.bucket_end_multiple = std::lcm(options.bucket_end_multiple, int64_t{1} << 16);
  return options;
}

Json shards(const BucketPlan& plan, int64_t dp) {
  Json ranks = Json::array();
  for (int64_t rank = 0; rank < dp; ++rank) {
    Json buckets = Json::array();
    for (size_t i = 0; i < plan.buckets.size(); ++i) {
      const int64_t begin = plan.buckets[i].begin, share = (plan.buckets[i].end - begin) / dp;
      const std::pair<int64_t, int64_t> shard{begin + rank * share, begin + (rank + 1) * share};
      buckets.push_back({{"bucket", i},
                         {"shard_world", {shard.first, shard.second}},
                         {"params", shard_params(plan, plan.buckets[i], shard)}});
    }
    ranks.push_back({{"dp_rank", rank}, {"buckets", buckets}});
  }
  return ranks;
}

// The recorded order of a shard's parameters is that of the buffer; here it is that of the model.
Json sorted_by_parameter(Json ranks) {
  for (Json& rank : ranks) {
    for (Json& bucket : rank.at("buckets")) {
      auto& params = bucket.at("params").get_ref<Json::array_t&>();
      std::sort(params.begin(), params.end(),
                [](const Json& a, const Json& b) { return a.at("param_idx") < b.at("param_idx"); });
    }
  }
  return ranks;
}

void check_case(const Json& test, Report& report) {
  const std::string name = test.at("name");
  const int64_t dp = test.at("dp");
  const auto params = read_params(test);
  const auto options = buckets(read_bucket_size(test), dp, test.at("pad_for_high_nccl_busbw"));
  const BucketPlan sharded = plan::plan_buckets(params, options);
  report.check(name + ": bucket ends",
               [&] { return compare_list(options.bucket_end_multiple, test, "bucket_end_divisor"); });
  report.check(name + ": distributed optimizer", [&] { return compare_plan(sharded, test.at("dist_opt")); });
  report.check(name + ": default", [&] {
    plan::BucketOptions plain;
    plain.bucket_size = read_bucket_size(test);
    return compare_plan(plan::plan_buckets(params, plain), test.at("default"));
  });
  report.check(name + ": shards",
               [&] { return compare(shards(sharded, dp), sorted_by_parameter(test.at("shards"))); });
}

// Start of a parameter that follows one of `size`: the first one's end after padding.
int64_t padded_start(int64_t size) {
  const auto plan = plan::plan_buckets({{1, false}, {size, false}}, plan::distributed_optimizer_buckets(0, 1));
  return plan.slots[0].begin;
}

int64_t padded_end(int64_t size, int64_t multiple) {
  plan::BucketOptions options;
  options.bucket_end_multiple = multiple;
  return plan::plan_buckets({{size, false}}, options).num_elements;
}

}  // namespace

void run_dist_opt_layout(const Json& file, Report& report) {
  for (const Json& test : cases(file, "cases")) check_case(test, report);
  const Json padding = file.value("padding", Json::object());
  for (const Json& row : cases(padding, "pad_to_divisor"))
    report.check("pad " + row.dump(), [&] { return compare(padded_end(row[0], row[1]), row[2]); });
  for (const Json& row : cases(padding, "pad_param_start"))
    report.check("start " + row.dump(), [&] { return compare(padded_start(row[0]), row[1]); });
  for (const Json& row : cases(padding, "pad_bucket_end")) {
    report.check("end " + row.dump(), [&] {
      const auto options = buckets(0, row[1], row[2]);
      return compare(padded_end(row[0], options.bucket_end_multiple), row[3]);
    });
  }
  for (const Json& row : cases(file, "default_bucket_size_when_overlap"))
    report.check("default " + row.dump(),
                 [&] { return compare_list(config::default_bucket_size(row.at("dp")), row, "default"); });
}

}  // namespace metroplex::conformance
