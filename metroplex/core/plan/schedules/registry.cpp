#include "plan/schedules/registry.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <mutex>

#include "base/error.h"
#include "config/derived.h"

namespace metroplex::plan {
namespace {

struct Entry {
  config::Schedule schedule;
  PipelineTable (*build)(const ScheduleRequest& request);
};

constexpr Entry kSchedules[] = {
    {config::Schedule::none, build_none},
    {config::Schedule::gpipe, build_gpipe},
    {config::Schedule::one_f_one_b, build_one_f_one_b},
    {config::Schedule::interleaved, build_interleaved},
    {config::Schedule::zb_h1, build_zb_h1},
    {config::Schedule::zb_h2, build_zb_h2},
    {config::Schedule::zb_v, build_zb_v},
    {config::Schedule::dualpipe_v, build_dualpipe_v},
    {config::Schedule::searched, build_searched},
};

// Far above any real step, but low enough that counts of actions fit in an int.
constexpr int kMostActionsPerRank = 1 << 24;

// The last tables that build_schedule returned. zb_v and searched take seconds for many ranks and microbatches.
class RecentTables {
 public:
  template <class Build>
  PipelineTable find(config::Schedule schedule, const ScheduleRequest& request, const Build& build) {
    const std::lock_guard lock(mutex_);  // threads that need the same table wait for the first one
    for (const Recent& recent : tables_) {
      if (recent.schedule == schedule && recent.request == request) return recent.table;
    }
    PipelineTable table = build();
    const int64_t size = int64_t{request.num_stages} * request.num_chunks * request.num_microbatches;
    if (size > kMostKept) return table;
    if (tables_.size() == kMostTables) tables_.pop_front();
    tables_.push_back({schedule, request, table});
    return table;
  }

 private:
  static constexpr size_t kMostTables = 8;       // the fixed ones of a search, its own, and an evaluation
  static constexpr int64_t kMostKept = 1 << 15;  // forwards of all ranks; about 8 actions of 24 bytes for each: 6 MB
  struct Recent {
    config::Schedule schedule;
    ScheduleRequest request;
    PipelineTable table;
  };
  std::recursive_mutex mutex_;  // a search builds the fixed schedules
  std::deque<Recent> tables_;
};

}  // namespace

ScheduleRequest schedule_request(const config::Parallel& parallel, int num_chunks, int num_microbatches) {
  ScheduleRequest request;
  request.num_stages = static_cast<int>(parallel.pp());
  request.num_chunks = num_chunks;
  request.num_microbatches = num_microbatches;
  request.microbatch_group_size = static_cast<int>(parallel.microbatch_group_size_per_vp_stage);
  request.overlap_p2p = parallel.overlap_p2p_comm;
  request.overlaps_experts = parallel.overlap_moe_expert_parallel_comm;
  request.delays_weights = parallel.delay_wgrad_compute;
  if (config::schedule(parallel) == config::Schedule::searched) {
    const config::PipelineTimes times = config::pipeline_times(parallel);
    request.times = {times.forward, times.backward, times.weight, times.p2p, times.rank_factors};
    request.live_microbatches = static_cast<int>(parallel.pipeline_live_microbatches);
  }
  return request;
}

PipelineTable build_schedule(config::Choice<config::Schedule> schedule, const ScheduleRequest& request) {
  MPX_CHECK(request.num_stages >= 1, "plan", "parallel.pipeline_model_parallel_size = ", request.num_stages,
            ": must be at least 1");
  MPX_CHECK(request.num_chunks >= 1, "plan", "parallel.virtual_pipeline_model_parallel_size = ", request.num_chunks,
            ": must be at least 1");
  MPX_CHECK(request.num_microbatches >= 1, "plan", "the number of microbatches, ", request.num_microbatches,
            ", must be at least 1; raise train.global_batch_size");
  MPX_CHECK(request.num_microbatches <= kMostActionsPerRank / request.num_chunks, "plan", request.num_microbatches,
            " microbatches x ", request.num_chunks, " chunks are more than a table holds (", kMostActionsPerRank,
            "); lower train.global_batch_size, or raise train.micro_batch_size");
  MPX_CHECK(request.microbatch_group_size >= 0, "plan",
            "parallel.microbatch_group_size_per_vp_stage = ", request.microbatch_group_size,
            ": must not be negative; 0 means pipeline_model_parallel_size");
  config::Parallel parallel;
  parallel.pipeline_model_parallel_size = request.num_stages;
  parallel.virtual_pipeline_model_parallel_size = request.num_chunks;
  parallel.pipeline_schedule = schedule;
  const config::Schedule resolved = config::schedule(parallel);
  const auto* const entry = std::find_if(std::begin(kSchedules), std::end(kSchedules),
                                         [&](const Entry& entry) { return entry.schedule == resolved; });
  MPX_ASSERT(entry != std::end(kSchedules), "no builder for schedule ", schedule);
  static RecentTables recent;
  return recent.find(resolved, request, [&] { return entry->build(request); });
}

}  // namespace metroplex::plan
