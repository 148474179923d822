#include "pipeline/stage_cursor.h"

#include "base/error.h"

namespace metroplex::pipeline {
namespace {

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

// The next block in forward order behind that of `island`, before `end`; its own where there is none.
int block_after(const StageIslands& islands, size_t island, size_t end) {
  const int own = islands.places[island].block;
  for (size_t i = island + 1; i < end; ++i) {
    if (islands.places[i].block != own) return islands.places[i].block;
  }
  return own;
}

}  // namespace

ForwardCursor::ForwardCursor(Stage& stage, nn::Values x, const Call& call)
    : stage_(stage),
      islands_(stage.islands()),
      call_(call),
      graphs_(stage.begin_graphs(islands_, call.live_set, call.batch, call.run == nullptr)),
      x_(std::move(x)) {
  if (call_.run != nullptr)
    *call_.run = {&islands_, graphs_, std::vector<StageRun::Span>(islands_.spans.size()), call_.batch};
}

void ForwardCursor::advance() {
  const StageIslands::Place& place = islands_.places.at(island_);
  const StageIslands::Span& span = islands_.spans[span_];
  nn::IslandRun* island_run = nullptr;
  if (call_.run != nullptr && span.recomputed && island_ == span.begin) {
    call_.run->spans[span_].input = nn::SavedInput(x_, stage_.saving().split_over, stage_.saving().store.get());
  } else if (call_.run != nullptr && !span.recomputed) {
    island_run = &call_.run->spans[span_].run;
  }
  const int next = block_after(islands_, island_, islands_.places.size());
  const nn::IslandEvent event = event_of(place, nn::Pass::forward, next == place.block ? -1 : next);
  stage_.tell_before(event);
  if (graphs_ != nullptr && place.graph >= 0) {
    x_ = graphs_->forward(static_cast<size_t>(place.graph), x_, call_.terms);
  } else {
    const nn::IslandForward how{call_.batch, stage_.saving().store.get(), call_.terms};
    x_ = nn::run_forward(place.island, x_, how, island_run);
  }
  stage_.tell_after(event);
  if (++island_ == span.end) ++span_;
}

nn::Values ForwardCursor::take() {
  MPX_ASSERT(done(), "the outputs of a stage are taken before it is through");
  return std::move(x_);
}

BackwardCursor::BackwardCursor(Stage& stage, StageRun run, nn::Gradients dy, at::Tensor loss_factor)
    : stage_(stage), run_(std::move(run)), dy_(std::move(dy)), loss_factor_(std::move(loss_factor)) {
  MPX_ASSERT(run_.islands != nullptr && run_.spans.size() == run_.islands->spans.size(),
             "backward without its forward");
}

void BackwardCursor::advance() {
  if (!repeating_ && repeated_.empty()) {
    begin_span();
  } else if (repeating_) {
    forward_again();
  } else {
    nn::IslandRun last = std::move(repeated_.back());
    repeated_.pop_back();
    backward(&last, span_.begin + repeated_.size());
  }
}

void BackwardCursor::begin_span() {
  StageRun::Span last = std::move(run_.spans.back());
  run_.spans.pop_back();
  span_index_ = run_.spans.size();
  span_ = run_.islands->spans[span_index_];
  if (span_index_ > 0) {
    run_.spans.back().run.saved.prefetch();
    run_.spans.back().input.prefetch();
  }
  if (!span_.recomputed) {
    backward(&last.run, span_.begin);
    return;
  }
  x_ = last.input.take();
  repeating_ = true;
  forward_again();
}

void BackwardCursor::forward_again() {
  const size_t island = span_.begin + repeated_.size();
  const StageIslands::Place& place = run_.islands->places[island];
  // The last one's backward follows its forward.
  nn::IslandEvent event = event_of(place, nn::Pass::forward, block_after(*run_.islands, island, span_.end));
  event.enters_block = event.enters_block || island == span_.begin;  // a chunk may begin inside its first block
  repeated_.emplace_back();
  stage_.tell_before(event);
  x_ = nn::run_forward(place.island, x_, {run_.batch, nullptr, nullptr, true}, &repeated_.back());
  stage_.tell_after(event);
  if (island + 1 < span_.end) return;
  x_ = nn::Values();
  repeating_ = false;
}

void BackwardCursor::backward(nn::IslandRun* run, size_t island) {
  const StageIslands::Place& place = run_.islands->places[island];
  int next = place.block;
  for (size_t i = island; i > span_.begin && next == place.block; --i) next = run_.islands->places[i - 1].block;
  if (next == place.block) next = block_before(span_index_, place.block);
  const nn::IslandEvent event = event_of(place, nn::Pass::backward, next);
  stage_.tell_before(event);
  const bool captured = run_.graphs != nullptr && place.graph >= 0;
  dy_ = captured ? run_.graphs->backward(static_cast<size_t>(place.graph), dy_, loss_factor_)
                 : nn::run_backward(std::move(*run), dy_, loss_factor_);
  stage_.tell_after(event);
}

// The block whose turn comes when `block`, which `span` begins with, is done; a chunk begins with its first block.
int BackwardCursor::block_before(size_t span, int block) const {
  for (size_t p = span; p-- > 0;) {
    const int first = run_.islands->places[run_.islands->spans[p].begin].block;
    if (first != block) return first;
  }
  return -1;
}

nn::Gradients BackwardCursor::take() {
  MPX_ASSERT(done(), "the gradients of a stage are taken before it is through");
  return std::move(dy_);
}

}  // namespace metroplex::pipeline
