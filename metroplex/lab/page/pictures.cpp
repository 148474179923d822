#include "page/pictures.h"

#include <algorithm>

#include "base/error.h"
#include "config/derived.h"
#include "config/validate.h"
#include "draw/ranks.h"
#include "draw/schedule.h"
#include "page/config_rows.h"
#include "plan/layout.h"
#include "plan/schedules/registry.h"
#include "replay/timeline.h"

namespace metroplex::page {
namespace {

constexpr int64_t kMostRanks = 1 << 20;
constexpr int64_t kMostStages = 32, kMostBoxes = 4096;  // of the schedule; a box is a pass of a microbatch

Figure draw_ranks(const config::Config& config, int64_t ranks) {
  draw::RankMapOptions options;
  options.max_rows = 12;
  const topology::RankGrid grid(static_cast<int>(ranks), config.parallel);
  return {"Rank map", "", draw::draw_svg(grid, options)};
}

Figure draw_schedule(const config::Config& config, int64_t ranks) {
  const config::Parallel& parallel = config.parallel;
  const int64_t samples = config.train.micro_batch_size * config::data_parallel_size(parallel, ranks),
                chunks = plan::num_model_chunks(parallel);
  MPX_CHECK(parallel.pp() > 1 && parallel.pp() <= kMostStages && samples > 0 && chunks > 0, "plan",
            "no pipeline to draw");
  const int64_t microbatches = std::max<int64_t>(1, config.train.global_batch_size / samples),
                most = std::max(2 * parallel.pp(), kMostBoxes / (2 * parallel.pp() * chunks));
  const auto shown = static_cast<int>(std::min(microbatches, std::min<int64_t>(most, 64)));
  const plan::PipelineTable table = plan::build_schedule(
      config::schedule(parallel), plan::schedule_request(parallel, static_cast<int>(chunks), shown));
  std::string caption = "The picture assumes that a backward pass takes twice the time of a forward pass.";
  if (shown < microbatches)
    caption += base::concat(" It shows ", shown, " of ", microbatches, " microbatches per step.");
  return {"Pipeline schedule", caption, draw::draw_svg(table, replay::replay(table, {}))};
}

}  // namespace

std::vector<Figure> draw_layout(const RunData& run) {
  std::vector<Figure> figures;
  if (!run.start.is_object()) return figures;
  const auto world = run.start.find("world_size");
  const int64_t ranks = world != run.start.end() && world->is_number_integer() ? world->get<int64_t>() : 0;
  if (ranks < 1 || ranks > kMostRanks) return figures;
  const config::Config config = read_config(run.start);
  for (const auto draw : {draw_ranks, draw_schedule}) {
    try {
      figures.push_back(draw(config, ranks));
    } catch (const base::Error&) {  // a configuration of another version, or without a pipeline
    }
  }
  return figures;
}

}  // namespace metroplex::page
