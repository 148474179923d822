#include "plan/layout.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace metroplex::plan {
namespace {

using config::Parallel;

bool is_uneven(const Parallel& parallel) {
  return parallel.decoder_first_pipeline_num_layers != 0 || parallel.decoder_last_pipeline_num_layers != 0;
}

bool counts_ends(const Parallel& parallel) {
  return parallel.account_for_embedding_in_pipeline_split || parallel.account_for_loss_in_pipeline_split;
}

int64_t per_chunk(int64_t layers, const Parallel& parallel, const char* where) {
  MPX_CHECK(layers % parallel.vpp() == 0, "plan", layers, " layers on ", where,
            " are not a multiple of parallel.virtual_pipeline_model_parallel_size ", parallel.vpp(),
            "; change one of them or give parallel.pipeline_model_parallel_layout");
  return layers / parallel.vpp();
}

std::vector<int64_t> even_split(const Parallel& parallel, int64_t num_layers) {
  MPX_CHECK(num_layers % parallel.pp() == 0, "plan", "model.num_layers = ", num_layers,
            ": must be a multiple of parallel.pipeline_model_parallel_size = ", parallel.pp(),
            "; set parallel.decoder_first_pipeline_num_layers, decoder_last_pipeline_num_layers or a layout");
  const int64_t layers = per_chunk(num_layers / parallel.pp(), parallel, "a pipeline rank");
  return std::vector<int64_t>(static_cast<size_t>(parallel.pp()), layers);
}

std::vector<int64_t> uneven_split(const Parallel& parallel, int64_t num_layers) {
  const int64_t first = parallel.decoder_first_pipeline_num_layers, last = parallel.decoder_last_pipeline_num_layers;
  MPX_CHECK(!counts_ends(parallel), "plan",
            "parallel.decoder_first/last_pipeline_num_layers exclude "
            "parallel.account_for_embedding/loss_in_pipeline_split; drop one of the two");
  MPX_CHECK(first >= 0 && last >= 0, "plan", "parallel.decoder_first_pipeline_num_layers ", first,
            " and decoder_last_pipeline_num_layers ", last, " must not be negative; 0 means even");
  const int64_t middle_ranks = parallel.pp() - (first > 0) - (last > 0);
  const int64_t middle = num_layers - first - last;
  MPX_CHECK(middle_ranks >= 0, "plan", "one pipeline rank cannot be both an uneven first and an uneven last one");
  MPX_CHECK(middle >= 0 && (middle_ranks > 0 ? middle % middle_ranks == 0 : middle == 0), "plan", "model.num_layers ",
            num_layers, " minus ", first, " on the first and ", last, " on the last pipeline rank leave ", middle,
            " layers for ", middle_ranks, " ranks between, which does not divide");
  const int64_t middle_layers =
      middle_ranks > 0 ? per_chunk(middle / middle_ranks, parallel, "a middle pipeline rank") : 0;
  std::vector<int64_t> split(static_cast<size_t>(parallel.pp()), middle_layers);
  if (first > 0) split.front() = per_chunk(first, parallel, "the first pipeline rank");
  if (last > 0) split.back() = per_chunk(last, parallel, "the last pipeline rank");
  return split;
}

std::vector<StageLayers> from_layout(const Parallel& parallel, int64_t num_layers, int64_t num_mtp_layers) {
  MPX_CHECK(!is_uneven(parallel) && !counts_ends(parallel), "plan",
            "parallel.pipeline_model_parallel_layout excludes decoder_first/last_pipeline_num_layers and "
            "account_for_embedding/loss_in_pipeline_split; remove them, the layout defines all stages");
  const PipelineLayout layout = parse_layout(parallel.pipeline_model_parallel_layout, parallel.pp());
  check_layout(layout, num_layers, num_mtp_layers);
  std::vector<StageLayers> stages;
  for (const auto& kinds : layout.stages) {
    StageLayers stage;
    for (const LayerKind kind : kinds) {
      stage.num_layers += kind == LayerKind::decoder;
      stage.num_mtp_layers += kind == LayerKind::mtp;
      stage.has_embedding = stage.has_embedding || kind == LayerKind::embedding;
      stage.has_loss = stage.has_loss || kind == LayerKind::loss;
    }
    stages.push_back(stage);
  }
  return stages;
}

std::vector<StageLayers> from_counts(const Parallel& parallel, int64_t num_layers, int64_t num_mtp_layers) {
  const int64_t extra =
      parallel.account_for_embedding_in_pipeline_split + parallel.account_for_loss_in_pipeline_split;
  const std::vector<int64_t> split =
      is_uneven(parallel) ? uneven_split(parallel, num_layers) : even_split(parallel, num_layers + extra);
  std::vector<StageLayers> stages;
  for (int64_t chunk = 0; chunk < parallel.vpp(); ++chunk) {
    for (const int64_t layers : split) stages.push_back({.num_layers = layers});
  }
  stages.front().has_embedding = true;
  stages.back().has_loss = true;
  stages.back().num_mtp_layers = num_mtp_layers;
  stages.front().num_layers -= parallel.account_for_embedding_in_pipeline_split;
  stages.back().num_layers -= parallel.account_for_loss_in_pipeline_split;
  return stages;
}

}  // namespace

int64_t num_model_chunks(const Parallel& parallel) {
  if (parallel.pipeline_model_parallel_layout.empty()) return parallel.vpp();
  const int64_t chunks = parse_layout(parallel.pipeline_model_parallel_layout, parallel.pp()).num_chunks();
  MPX_CHECK(parallel.vpp() == 1 || parallel.vpp() == chunks, "plan",
            "parallel.virtual_pipeline_model_parallel_size = ", parallel.vpp(),
            ": contradicts parallel.pipeline_model_parallel_layout, which has ", chunks,
            " chunks a rank; leave the size out");
  return chunks;
}

StagePlacement stage_placement(const Parallel& parallel) {
  return {static_cast<int>(parallel.pp()), static_cast<int>(num_model_chunks(parallel)),
          config::is_v_shaped(parallel.pipeline_schedule, num_model_chunks(parallel))};
}

std::vector<StageLayers> split_stages(const Parallel& parallel, int64_t num_layers, int64_t num_mtp_layers) {
  MPX_CHECK(num_layers > 0, "plan", "model.num_layers = ", num_layers, ": must be positive");
  MPX_CHECK(parallel.pp() > 0 && parallel.vpp() > 0, "plan", "parallel.pipeline_model_parallel_size ", parallel.pp(),
            " and virtual_pipeline_model_parallel_size ", parallel.vpp(), " must be positive");
  std::vector<StageLayers> stages = parallel.pipeline_model_parallel_layout.empty()
                                        ? from_counts(parallel, num_layers, num_mtp_layers)
                                        : from_layout(parallel, num_layers, num_mtp_layers);
  const StagePlacement placement = stage_placement(parallel);
  int64_t next = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    const StagePlace place = placement.place_of(static_cast<int>(s));
    stages[s].pp_rank = place.rank;
    stages[s].chunk = place.chunk;
    stages[s].first_layer = next;
    next += stages[s].num_layers;
  }
  MPX_ASSERT(next == num_layers, next, " layers placed of ", num_layers);
  return stages;
}

}  // namespace metroplex::plan
