#include "pipeline/stage.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace metroplex::pipeline {
namespace {

// How a segment is executed. A recomputed segment is never captured.
struct SegmentMode {
  bool recomputed, captured;
  bool operator==(const SegmentMode&) const = default;
};

// Returns the end of the region that begins with segment `begin` of a block. With `everywhere` it contains one
// segment. Otherwise it ends at the end of the block or before the first segment with another Treatment.
size_t find_region_end(size_t begin, bool everywhere, const std::vector<SegmentMode>& segments) {
  size_t end = begin + 1;
  while (!everywhere && end < segments.size() && segments[end] == segments[begin]) ++end;
  return end;
}

nn::RegionEvent make_event(const StageRegions::Entry& place, nn::Pass pass, int next) {
  const bool forward = pass == nn::Pass::forward;
  return {pass,
          place.block,
          next,
          place.segment,
          static_cast<int>(place.region.segments.size()),
          forward ? place.first : place.last,
          forward ? place.last : place.first};
}

// Returns the next block after that of `region`, in forward order and before region `end`. Without one, returns the
// same block.
int next_forward_block(const StageRegions& regions, size_t region, size_t end) {
  const int own = regions.entries[region].block;
  for (size_t i = region + 1; i < end; ++i) {
    if (regions.entries[i].block != own) return regions.entries[i].block;
  }
  return own;
}

// Returns the block that runs in backward after that of `region` in `range`; -1: none. A recomputed chunk starts
// with its first block, because its forwards run first.
int next_backward_block(const StageRegions& regions, size_t range, size_t region) {
  const int own = regions.entries[region].block;
  for (size_t i = region; i > regions.ranges[range].begin; --i) {
    if (regions.entries[i - 1].block != own) return regions.entries[i - 1].block;
  }
  for (size_t p = range; p-- > 0;) {
    const int first = regions.entries[regions.ranges[p].begin].block;
    if (first != own) return first;
  }
  return -1;
}

// Builds the regions: one per block, split by Treatment, or one per segment.
StageRegions build_regions(const nn::Blocks& blocks, const std::vector<nn::RecomputedChunk>& recomputed,
                           bool everywhere, const GraphScope& scope) {
  StageRegions regions;
  auto chunk = recomputed.begin();
  int graphs = 0;
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (chunk != recomputed.end() && chunk->end == b) ++chunk;
    const size_t count = blocks[b].segments.size();
    std::vector<SegmentMode> modes;
    for (size_t s = 0; s < count; ++s) {
      const bool is_recomputed =
          chunk != recomputed.end() && std::pair(chunk->begin, chunk->segment) <= std::pair(b, s);
      modes.push_back(
          {is_recomputed, !everywhere && !is_recomputed && scope.holds(blocks[b], *blocks[b].segments[s])});
    }
    for (size_t s = 0, end = 0; s < count; s = end) {
      end = find_region_end(s, everywhere, modes);
      std::vector<nn::Segment*> segments;
      for (size_t i = s; i < end; ++i) segments.push_back(blocks[b].segments[i].get());
      const size_t place = regions.entries.size();
      regions.entries.push_back({nn::make_region(std::move(segments)), static_cast<int>(b), static_cast<int>(s),
                                 s == 0, end == count, modes[s].captured ? graphs++ : -1});
      const bool is_recomputed = modes[s].recomputed,
                 joins = is_recomputed && !(b == chunk->begin && s == chunk->segment);
      if (joins) {
        regions.ranges.back().end = place + 1;
      } else {
        regions.ranges.push_back({place, place + 1, is_recomputed});
      }
    }
  }
  return regions;
}

}  // namespace

StageSaving stage_saving(const config::Memory& memory, const nn::Blocks& blocks, const comm::Group& tp,
                         std::shared_ptr<nn::ActivationStore> store) {
  StageSaving how;
  how.recomputed = nn::recomputed_chunks(memory, blocks);
  if (memory.distribute_saved_activations) how.split_over = tp;
  how.store = std::move(store);
  return how;
}

Stage::Stage(nn::Blocks blocks, StageSaving saving)
    : blocks_(std::move(blocks)), saving_(std::move(saving)), params_(nn::list_params(blocks_)) {
  size_t done = 0;
  for (const nn::RecomputedChunk& chunk : saving_.recomputed) {
    MPX_ASSERT(done <= chunk.begin && chunk.begin < chunk.end && chunk.end <= blocks_.size() &&
                   chunk.segment < blocks_[chunk.begin].segments.size(),
               "blocks ", chunk.begin, " to ", chunk.end, " from segment ", chunk.segment,
               " cannot be run again as one");
    done = chunk.end;
  }
  for (const nn::Block& block : blocks_)
    MPX_ASSERT(!block.segments.empty(), "block ", block.name, " has no segments");
  per_block_ = build_regions(blocks_, saving_.recomputed, false, {});
  per_segment_ = build_regions(blocks_, saving_.recomputed, true, {});
}

void Stage::add_observer(std::string name, nn::StageObserver& observer, bool cuts) {
  listeners_.add(std::move(name), {&observer, cuts});
}

void Stage::remove_observer(const std::string& name) { listeners_.remove(name); }

const StageRegions& Stage::regions() const {
  const bool everywhere =
      std::any_of(listeners_.begin(), listeners_.end(), [](const auto& entry) { return entry.listener.cuts; });
  return everywhere ? per_segment_ : per_block_;
}

std::vector<const nn::Region*> Stage::captured_regions() const {
  std::vector<const nn::Region*> list;
  for (const StageRegions::Entry& place : per_block_.entries) {
    if (place.graph >= 0) list.push_back(&place.region);
  }
  return list;
}

void Stage::enable_capture(std::shared_ptr<GraphInstances> instances, GraphScope scope) {
  per_block_ = build_regions(blocks_, saving_.recomputed, false, scope);
  graphs_ = std::make_unique<StageGraphs>(captured_regions(), std::move(instances));
}

GraphInstance* Stage::begin_graphs(const StageRegions& regions, int instance, const nn::Microbatch& batch,
                                   bool evaluates) {
  if (instance < 0 || &regions != &per_block_ || !graphs_ || graphs_->regions().empty()) return nullptr;
  GraphInstance& graphs = graphs_->instances().at(instance, evaluates);
  graphs.begin(batch);
  return &graphs;
}

void Stage::notify_before(const nn::RegionEvent& event) const {
  for (const auto& [name, listener] : listeners_) listener.observer->before(event);
}

void Stage::notify_after(const nn::RegionEvent& event) const {
  for (auto entry = listeners_.rbegin(); entry != listeners_.rend(); ++entry) entry->listener.observer->after(event);
}

nn::Values Stage::forward(nn::Values x, const nn::Microbatch& batch, StageRun* run, nn::LossTerms* terms,
                          int instance) {
  const StageRegions& all = regions();
  GraphInstance* const graphs = begin_graphs(all, instance, batch, run == nullptr);
  if (run != nullptr) *run = {&all, graphs, std::vector<StageRun::RegionRange>(all.ranges.size()), batch};
  for (size_t s = 0; s < all.ranges.size(); ++s) {
    const StageRegions::RegionRange& range = all.ranges[s];
    StageRun::RegionRange* const kept = run != nullptr ? &run->ranges[s] : nullptr;
    const bool recomputes = kept != nullptr && range.recomputed;
    if (recomputes) kept->input = nn::SavedInput(x, saving_.split_over, saving_.store.get());
    for (size_t i = range.begin; i < range.end; ++i) {
      const StageRegions::Entry& place = all.entries[i];
      const int next = next_forward_block(all, i, all.entries.size());
      const nn::RegionEvent event = make_event(place, nn::Pass::forward, next == place.block ? -1 : next);
      notify_before(event);
      if (graphs != nullptr && place.graph >= 0) {
        x = graphs->forward(*graphs_, static_cast<size_t>(place.graph), x, terms);
      } else {
        const nn::RegionForward how{batch, saving_.store.get(), terms, false, recomputes ? &kept->memo : nullptr};
        x = nn::run_forward(place.region, x, how, recomputes || kept == nullptr ? nullptr : &kept->run);
      }
      notify_after(event);
    }
  }
  return x;
}

std::vector<nn::RegionRun> Stage::recompute_forward(const StageRun& run, const StageRegions::RegionRange& range,
                                                    StageRun::RegionRange kept) const {
  std::vector<nn::RegionRun> runs(range.end - range.begin);
  nn::Values x = kept.input.take();
  for (size_t i = range.begin; i < range.end; ++i) {
    const StageRegions::Entry& place = run.regions->entries[i];
    // In a recomputed chunk, the backward of the same block follows the last forward.
    nn::RegionEvent event = make_event(place, nn::Pass::forward, next_forward_block(*run.regions, i, range.end));
    event.enters_block = event.enters_block || i == range.begin;  // a chunk may begin inside its first block
    notify_before(event);
    x = nn::run_forward(place.region, x, {run.batch, nullptr, nullptr, true, &kept.memo}, &runs[i - range.begin]);
    notify_after(event);
  }
  return runs;
}

nn::Gradients Stage::backward(StageRun run, nn::Gradients dy, const at::Tensor& loss_factor,
                              std::vector<nn::DeferredGradients>* deferred) {
  MPX_ASSERT(deferred == nullptr || run.graphs == nullptr,
             "a captured backward adds its weight gradients itself: they cannot be deferred");
  MPX_ASSERT(run.regions != nullptr && run.ranges.size() == run.regions->ranges.size(),
             "backward of a stage without a forward of the same autograd regions");
  while (!run.ranges.empty()) {
    StageRun::RegionRange kept = std::move(run.ranges.back());
    run.ranges.pop_back();
    const size_t s = run.ranges.size();
    const StageRegions::RegionRange& range = run.regions->ranges[s];
    if (s > 0) {
      run.ranges.back().run.saved.prefetch();
      run.ranges.back().input.prefetch();
    }
    std::vector<nn::RegionRun> runs;
    if (range.recomputed) {
      runs = recompute_forward(run, range, std::move(kept));
    } else {
      runs.push_back(std::move(kept.run));
    }
    for (size_t i = range.end; i-- > range.begin; runs.pop_back()) {
      const StageRegions::Entry& place = run.regions->entries[i];
      const nn::RegionEvent event = make_event(place, nn::Pass::backward, next_backward_block(*run.regions, s, i));
      notify_before(event);
      const bool captured = run.graphs != nullptr && place.graph >= 0;
      const bool defers = deferred != nullptr && place.region.defers_weights;
      dy = captured ? run.graphs->backward(*graphs_, static_cast<size_t>(place.graph), dy, loss_factor)
                    : nn::run_backward(std::move(runs.back()), dy, loss_factor, true,
                                       defers ? &deferred->emplace_back() : nullptr);
      notify_after(event);
    }
  }
  return dy;
}

}  // namespace metroplex::pipeline
