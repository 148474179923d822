#include "pipeline/stage.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace metroplex::pipeline {
namespace {

// How a segment is executed. A recomputed segment is never captured.
struct Treatment {
  bool recomputed, captured;
  bool operator==(const Treatment&) const = default;
};

// Returns the end of the region that begins with segment `begin` of a block. With `everywhere` it contains one
// segment. Otherwise it ends at the end of the block or before the first segment with another Treatment.
size_t end_of_island(size_t begin, bool everywhere, const std::vector<Treatment>& segments) {
  size_t end = begin + 1;
  while (!everywhere && end < segments.size() && segments[end] == segments[begin]) ++end;
  return end;
}

nn::IslandEvent event_of(const StageIslands::Place& place, nn::Pass pass, int next) {
  const bool forward = pass == nn::Pass::forward;
  return {pass,
          place.block,
          next,
          place.segment,
          static_cast<int>(place.island.segments.size()),
          forward ? place.first : place.last,
          forward ? place.last : place.first};
}

// Returns the next block after that of `island`, in forward order and before region `end`. Without one, returns the
// same block.
int block_after(const StageIslands& islands, size_t island, size_t end) {
  const int own = islands.places[island].block;
  for (size_t i = island + 1; i < end; ++i) {
    if (islands.places[i].block != own) return islands.places[i].block;
  }
  return own;
}

// Returns the block that runs in backward after that of `island` in span `span`; -1: none. A recomputed chunk starts
// with its first block, because its forwards run first.
int block_before(const StageIslands& islands, size_t span, size_t island) {
  const int own = islands.places[island].block;
  for (size_t i = island; i > islands.spans[span].begin; --i) {
    if (islands.places[i - 1].block != own) return islands.places[i - 1].block;
  }
  for (size_t p = span; p-- > 0;) {
    const int first = islands.places[islands.spans[p].begin].block;
    if (first != own) return first;
  }
  return -1;
}

// Builds the regions: one per block, split by Treatment, or one per segment.
StageIslands islands_of(const nn::Blocks& blocks, const std::vector<nn::RecomputedChunk>& recomputed, bool everywhere,
                        const GraphScope& scope) {
  StageIslands islands;
  auto chunk = recomputed.begin();
  int graphs = 0;
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (chunk != recomputed.end() && chunk->end == b) ++chunk;
    const size_t count = blocks[b].segments.size();
    std::vector<Treatment> treated;
    for (size_t s = 0; s < count; ++s) {
      const bool is_recomputed =
          chunk != recomputed.end() && std::pair(chunk->begin, chunk->segment) <= std::pair(b, s);
      treated.push_back(
          {is_recomputed, !everywhere && !is_recomputed && scope.holds(blocks[b], *blocks[b].segments[s])});
    }
    for (size_t s = 0, end = 0; s < count; s = end) {
      end = end_of_island(s, everywhere, treated);
      std::vector<nn::Segment*> segments;
      for (size_t i = s; i < end; ++i) segments.push_back(blocks[b].segments[i].get());
      const size_t place = islands.places.size();
      islands.places.push_back({nn::make_island(std::move(segments)), static_cast<int>(b), static_cast<int>(s),
                                s == 0, end == count, treated[s].captured ? graphs++ : -1});
      const bool is_recomputed = treated[s].recomputed,
                 joins = is_recomputed && !(b == chunk->begin && s == chunk->segment);
      if (joins) {
        islands.spans.back().end = place + 1;
      } else {
        islands.spans.push_back({place, place + 1, is_recomputed});
      }
    }
  }
  return islands;
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
    : blocks_(std::move(blocks)), saving_(std::move(saving)), params_(nn::params_of(blocks_)) {
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
  whole_ = islands_of(blocks_, saving_.recomputed, false, {});
  everywhere_ = islands_of(blocks_, saving_.recomputed, true, {});
}

void Stage::listen(std::string name, nn::StageObserver& observer, bool cuts) {
  listeners_.add(std::move(name), {&observer, cuts});
}

void Stage::unlisten(const std::string& name) { listeners_.remove(name); }

const StageIslands& Stage::islands() const {
  const bool everywhere =
      std::any_of(listeners_.begin(), listeners_.end(), [](const auto& entry) { return entry.listener.cuts; });
  return everywhere ? everywhere_ : whole_;
}

std::vector<const nn::Island*> Stage::captured_islands() const {
  std::vector<const nn::Island*> list;
  for (const StageIslands::Place& place : whole_.places) {
    if (place.graph >= 0) list.push_back(&place.island);
  }
  return list;
}

void Stage::capture_in(std::shared_ptr<GraphInstances> instances, GraphScope scope) {
  whole_ = islands_of(blocks_, saving_.recomputed, false, scope);
  graphs_ = std::make_unique<StageGraphs>(captured_islands(), std::move(instances));
}

GraphInstance* Stage::begin_graphs(const StageIslands& islands, int instance, const nn::Microbatch& batch,
                                   bool evaluates) {
  if (instance < 0 || &islands != &whole_ || !graphs_ || graphs_->islands().empty()) return nullptr;
  GraphInstance& graphs = graphs_->instances().at(instance, evaluates);
  graphs.begin(batch);
  return &graphs;
}

void Stage::tell_before(const nn::IslandEvent& event) const {
  for (const auto& [name, listener] : listeners_) listener.observer->before(event);
}

void Stage::tell_after(const nn::IslandEvent& event) const {
  for (auto entry = listeners_.rbegin(); entry != listeners_.rend(); ++entry) entry->listener.observer->after(event);
}

nn::Values Stage::forward(nn::Values x, const nn::Microbatch& batch, StageRun* run, nn::LossTerms* terms,
                          int instance) {
  const StageIslands& all = islands();
  GraphInstance* const graphs = begin_graphs(all, instance, batch, run == nullptr);
  if (run != nullptr) *run = {&all, graphs, std::vector<StageRun::Span>(all.spans.size()), batch};
  for (size_t s = 0; s < all.spans.size(); ++s) {
    const StageIslands::Span& span = all.spans[s];
    StageRun::Span* const kept = run != nullptr ? &run->spans[s] : nullptr;
    const bool recomputes = kept != nullptr && span.recomputed;
    if (recomputes) kept->input = nn::SavedInput(x, saving_.split_over, saving_.store.get());
    for (size_t i = span.begin; i < span.end; ++i) {
      const StageIslands::Place& place = all.places[i];
      const int next = block_after(all, i, all.places.size());
      const nn::IslandEvent event = event_of(place, nn::Pass::forward, next == place.block ? -1 : next);
      tell_before(event);
      if (graphs != nullptr && place.graph >= 0) {
        x = graphs->forward(*graphs_, static_cast<size_t>(place.graph), x, terms);
      } else {
        const nn::IslandForward how{batch, saving_.store.get(), terms, false, recomputes ? &kept->memo : nullptr};
        x = nn::run_forward(place.island, x, how, recomputes || kept == nullptr ? nullptr : &kept->run);
      }
      tell_after(event);
    }
  }
  return x;
}

std::vector<nn::IslandRun> Stage::forward_again(const StageRun& run, const StageIslands::Span& span,
                                                StageRun::Span kept) const {
  std::vector<nn::IslandRun> runs(span.end - span.begin);
  nn::Values x = kept.input.take();
  for (size_t i = span.begin; i < span.end; ++i) {
    const StageIslands::Place& place = run.islands->places[i];
    // In a recomputed chunk, the backward of the same block follows the last forward.
    nn::IslandEvent event = event_of(place, nn::Pass::forward, block_after(*run.islands, i, span.end));
    event.enters_block = event.enters_block || i == span.begin;  // a chunk may begin inside its first block
    tell_before(event);
    x = nn::run_forward(place.island, x, {run.batch, nullptr, nullptr, true, &kept.memo}, &runs[i - span.begin]);
    tell_after(event);
  }
  return runs;
}

nn::Gradients Stage::backward(StageRun run, nn::Gradients dy, const at::Tensor& loss_factor,
                              std::vector<nn::DeferredGradients>* deferred) {
  MPX_ASSERT(deferred == nullptr || run.graphs == nullptr,
             "a captured backward adds its weight gradients itself: they cannot be deferred");
  MPX_ASSERT(run.islands != nullptr && run.spans.size() == run.islands->spans.size(),
             "backward of a stage without a forward of the same autograd regions");
  while (!run.spans.empty()) {
    StageRun::Span kept = std::move(run.spans.back());
    run.spans.pop_back();
    const size_t s = run.spans.size();
    const StageIslands::Span& span = run.islands->spans[s];
    if (s > 0) {
      run.spans.back().run.saved.prefetch();
      run.spans.back().input.prefetch();
    }
    std::vector<nn::IslandRun> runs;
    if (span.recomputed) {
      runs = forward_again(run, span, std::move(kept));
    } else {
      runs.push_back(std::move(kept.run));
    }
    for (size_t i = span.end; i-- > span.begin; runs.pop_back()) {
      const StageIslands::Place& place = run.islands->places[i];
      const nn::IslandEvent event = event_of(place, nn::Pass::backward, block_before(*run.islands, s, i));
      tell_before(event);
      const bool captured = run.graphs != nullptr && place.graph >= 0;
      dy = captured ? run.graphs->backward(*graphs_, static_cast<size_t>(place.graph), dy, loss_factor)
                    : nn::run_backward(std::move(runs.back()), dy, loss_factor, true,
                                       deferred == nullptr ? nullptr : &deferred->emplace_back());
      tell_after(event);
    }
  }
  return dy;
}

}  // namespace metroplex::pipeline
