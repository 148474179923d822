#include "plan/schedules/registry.h"

#include "base/error.h"
#include "config/derived.h"
#include "plan/schedules/gpipe.h"
#include "plan/schedules/interleaved.h"
#include "plan/schedules/none.h"
#include "plan/schedules/one_f_one_b.h"

namespace metroplex::plan {
namespace {

struct Entry {
  const char* name;
  PipelineTable (*build)(const ScheduleRequest& request);
};

constexpr Entry kSchedules[] = {
    {"none", build_none},
    {"gpipe", build_gpipe},
    {"1f1b", build_one_f_one_b},
    {"interleaved", build_interleaved},
};

// Far above any real step, low enough that counts of actions stay int.
constexpr int kMostActionsPerRank = 1 << 24;

}  // namespace

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kSchedules) names.emplace_back(entry.name);
  return names;
}

ScheduleRequest schedule_request(const config::Parallel& p, int num_chunks, int num_microbatches) {
  ScheduleRequest request;
  request.num_stages = static_cast<int>(p.pp());
  request.num_chunks = num_chunks;
  request.num_microbatches = num_microbatches;
  request.microbatch_group_size = static_cast<int>(p.microbatch_group_size_per_vp_stage);
  request.overlap_p2p = p.overlap_p2p_comm;
  return request;
}

PipelineTable build_schedule(const std::string& name, const ScheduleRequest& request) {
  MPX_CHECK(request.num_stages >= 1, "plan", "pipeline_model_parallel_size ", request.num_stages,
            " must be at least 1");
  MPX_CHECK(request.num_chunks >= 1, "plan", "virtual_pipeline_model_parallel_size ", request.num_chunks,
            " must be at least 1");
  MPX_CHECK(request.num_microbatches >= 1, "plan", "the number of microbatches, ", request.num_microbatches,
            ", must be at least 1; raise train.global_batch_size");
  MPX_CHECK(request.num_microbatches <= kMostActionsPerRank / request.num_chunks, "plan", request.num_microbatches,
            " microbatches x ", request.num_chunks, " chunks are more than a table holds (", kMostActionsPerRank,
            ")");
  MPX_CHECK(request.microbatch_group_size >= 0, "plan", "microbatch_group_size_per_vp_stage ",
            request.microbatch_group_size, " must not be negative; 0 means pipeline_model_parallel_size");
  config::Parallel parallel;
  parallel.pipeline_model_parallel_size = request.num_stages;
  parallel.virtual_pipeline_model_parallel_size = request.num_chunks;
  parallel.pipeline_schedule = name;
  const std::string resolved = config::schedule_name(parallel);
  for (const Entry& entry : kSchedules) {
    if (resolved == entry.name) return entry.build(request);
  }
  const std::string near = base::nearest_name(name, schedule_names());
  base::throw_error("plan", base::concat("pipeline_schedule '", name, "' is not known; ",
                                         near.empty() ? "choose auto, none, gpipe, 1f1b or interleaved"
                                                      : "did you mean '" + near + "'?"));
}

}  // namespace metroplex::plan
