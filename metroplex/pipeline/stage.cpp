#include "pipeline/stage.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "pipeline/stage_cursor.h"

namespace metroplex::pipeline {
namespace {

// What happens to a segment; of recomputed ones none is captured.
struct Treatment {
  bool again, captured;
  bool operator==(const Treatment&) const = default;
};

// Where the island that begins with segment `begin` of a block ends: with the block, with that segment, or where
// segments meet that are not treated alike.
size_t end_of_island(size_t begin, bool everywhere, const std::vector<Treatment>& segments) {
  size_t end = begin + 1;
  while (!everywhere && end < segments.size() && segments[end] == segments[begin]) ++end;
  return end;
}

// Islands of blocks, or of single segments.
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
      const bool again = chunk != recomputed.end() && std::pair(chunk->begin, chunk->segment) <= std::pair(b, s);
      treated.push_back({again, !everywhere && !again && scope.holds(blocks[b], *blocks[b].segments[s])});
    }
    for (size_t s = 0, end = 0; s < count; s = end) {
      end = end_of_island(s, everywhere, treated);
      std::vector<nn::Segment*> segments;
      for (size_t i = s; i < end; ++i) segments.push_back(blocks[b].segments[i].get());
      const size_t place = islands.places.size();
      islands.places.push_back({nn::make_island(std::move(segments)), static_cast<int>(b), static_cast<int>(s),
                                s == 0, end == count, treated[s].captured ? graphs++ : -1});
      const bool again = treated[s].again, joins = again && !(b == chunk->begin && s == chunk->segment);
      if (joins) {
        islands.spans.back().end = place + 1;
      } else {
        islands.spans.push_back({place, place + 1, again});
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

void Stage::capture_on(cuda::GraphDevice& device, GraphScope scope, at::Device batches_on,
                       std::shared_ptr<GradientPlaces> gradients) {
  whole_ = islands_of(blocks_, saving_.recomputed, false, scope);
  graphs_ = std::make_unique<StageGraphs>(captured_islands(), device, batches_on, std::move(gradients));
}

LiveSet* Stage::begin_graphs(const StageIslands& islands, int live_set, const nn::Microbatch& batch, bool evaluates) {
  if (live_set < 0 || &islands != &whole_ || !graphs_ || graphs_->islands() == 0) return nullptr;
  LiveSet& set = graphs_->set(live_set, evaluates);
  set.begin(batch);
  return &set;
}

void Stage::tell_before(const nn::IslandEvent& event) const {
  for (const auto& [name, listener] : listeners_) listener.observer->before(event);
}

void Stage::tell_after(const nn::IslandEvent& event) const {
  for (auto entry = listeners_.rbegin(); entry != listeners_.rend(); ++entry) entry->listener.observer->after(event);
}

nn::Values Stage::forward(nn::Values x, const nn::Microbatch& batch, StageRun* run, nn::LossTerms* terms,
                          int live_set) {
  ForwardCursor cursor(*this, std::move(x), {batch, run, terms, live_set});
  while (!cursor.done()) cursor.advance();
  return cursor.take();
}

nn::Gradients Stage::backward(StageRun run, nn::Gradients dy, const at::Tensor& loss_factor) {
  BackwardCursor cursor(*this, std::move(run), std::move(dy), loss_factor);
  while (!cursor.done()) cursor.advance();
  return cursor.take();
}

}  // namespace metroplex::pipeline
