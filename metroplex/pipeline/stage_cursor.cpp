#include "pipeline/stage_cursor.h"

#include "base/error.h"

namespace metroplex::pipeline {
namespace {

nn::Turn turn_of(const Cut::Place& place, nn::Pass pass, int next) {
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
int block_after(const Cut& cut, size_t island, size_t end) {
  const int own = cut.places[island].block;
  for (size_t i = island + 1; i < end; ++i) {
    if (cut.places[i].block != own) return cut.places[i].block;
  }
  return own;
}

}  // namespace

ForwardCursor::ForwardCursor(Stage& stage, nn::Values x, const Call& call)
    : stage_(stage), cut_(stage.cut(call.every_segment)), call_(call), x_(std::move(x)) {
  if (call_.run != nullptr) *call_.run = {&cut_, std::vector<StageRun::Part>(cut_.parts.size()), call_.batch};
}

void ForwardCursor::advance() {
  const Cut::Place& place = cut_.places.at(island_);
  const Cut::Part& part = cut_.parts[part_];
  nn::IslandRun* island_run = nullptr;
  if (call_.run != nullptr && part.recomputed && island_ == part.begin) {
    call_.run->parts[part_].input = nn::KeptInput(x_, stage_.memory().split_over, stage_.memory().store.get());
  } else if (call_.run != nullptr && !part.recomputed) {
    island_run = &call_.run->parts[part_].run;
  }
  const int next = block_after(cut_, island_, cut_.places.size());
  const nn::Turn turn = turn_of(place, nn::Pass::forward, next == place.block ? -1 : next);
  stage_.tell_before(turn);
  x_ = nn::run_forward(place.island, x_, {call_.batch, stage_.memory().store.get(), nullptr, call_.terms}, island_run);
  stage_.tell_after(turn);
  if (++island_ == part.end) ++part_;
}

nn::Values ForwardCursor::take() {
  MPX_ASSERT(done(), "the outputs of a stage are taken before it is through");
  return std::move(x_);
}

BackwardCursor::BackwardCursor(Stage& stage, StageRun run, nn::Gradients dy, double loss_factor)
    : stage_(stage), run_(std::move(run)), dy_(std::move(dy)), loss_factor_(loss_factor) {
  MPX_ASSERT(run_.cut != nullptr && run_.parts.size() == run_.cut->parts.size(), "backward without its forward");
}

void BackwardCursor::advance() {
  if (!repeating_ && repeated_.empty()) {
    begin_part();
  } else if (repeating_) {
    forward_again();
  } else {
    nn::IslandRun last = std::move(repeated_.back());
    repeated_.pop_back();
    backward(std::move(last), part_.begin + repeated_.size());
  }
}

void BackwardCursor::begin_part() {
  StageRun::Part last = std::move(run_.parts.back());
  run_.parts.pop_back();
  part_index_ = run_.parts.size();
  part_ = run_.cut->parts[part_index_];
  if (part_index_ > 0) {
    run_.parts.back().run.saved.prefetch();
    run_.parts.back().input.prefetch();
  }
  if (!part_.recomputed) {
    backward(std::move(last.run), part_.begin);
    return;
  }
  x_ = last.input.take();
  repeating_ = true;
  forward_again();
}

void BackwardCursor::forward_again() {
  const size_t island = part_.begin + repeated_.size();
  const Cut::Place& place = run_.cut->places[island];
  // The last one's backward follows its forward.
  const nn::Turn turn = turn_of(place, nn::Pass::forward, block_after(*run_.cut, island, part_.end));
  repeated_.emplace_back();
  stage_.tell_before(turn);
  x_ = nn::run_forward(place.island, x_, {run_.batch, nullptr, nullptr, nullptr, true}, &repeated_.back());
  stage_.tell_after(turn);
  if (island + 1 < part_.end) return;
  x_ = nn::Values();
  repeating_ = false;
}

void BackwardCursor::backward(nn::IslandRun run, size_t island) {
  const Cut::Place& place = run_.cut->places[island];
  int next = place.block;
  for (size_t i = island; i > part_.begin && next == place.block; --i) next = run_.cut->places[i - 1].block;
  if (next == place.block) next = block_before(part_index_, place.block);
  const nn::Turn turn = turn_of(place, nn::Pass::backward, next);
  stage_.tell_before(turn);
  dy_ = nn::run_backward(std::move(run), dy_, loss_factor_);
  stage_.tell_after(turn);
}

// The block whose turn comes when `block`, which `part` begins with, is done; a chunk begins with its first block.
int BackwardCursor::block_before(size_t part, int block) const {
  for (size_t p = part; p-- > 0;) {
    const int first = run_.cut->places[run_.cut->parts[p].begin].block;
    if (first != block) return first;
  }
  return -1;
}

nn::Gradients BackwardCursor::take() {
  MPX_ASSERT(done(), "the gradients of a stage are taken before it is through");
  return std::move(dy_);
}

}  // namespace metroplex::pipeline
