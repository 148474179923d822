#include "run/step_trace.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"

namespace metroplex::run {
namespace {

std::string milliseconds(TraceSpan::Time start, TraceSpan::Time end) {
  return base::concat(std::chrono::duration<double, std::milli>(end - start).count());
}

std::string action_text(const plan::Action& action) {
  return base::concat(plan::action_name(action.kind), " ", action.microbatch, ",", action.chunk);
}

}  // namespace

// The spans of one stage's regions.
class StepTrace::RegionSpans final : public nn::StageObserver {
 public:
  RegionSpans(pipeline::Stage& stage, RankSpans& spans) : stage_(stage), spans_(spans) {
    stage_.add_observer("trace", *this);
  }
  ~RegionSpans() { stage_.remove_observer("trace"); }
  RegionSpans(const RegionSpans&) = delete;
  RegionSpans& operator=(const RegionSpans&) = delete;

  void before(const nn::RegionEvent& event) override { started_[key(event)] = RankRecorder::Clock::now(); }
  void after(const nn::RegionEvent& event) override {
    const nn::Block& block = stage_.blocks()[static_cast<size_t>(event.block)];
    std::string name = event.pass == nn::Pass::forward ? "forward " : "backward ";
    name += block.name;
    for (int i = event.segment; i < event.segment + event.segments; ++i)
      name += (i == event.segment ? ": " : ", ") + block.segments[static_cast<size_t>(i)]->name();
    spans_.add(TraceRow::segments, {name, started_[key(event)], RankRecorder::Clock::now()});
  }

 private:
  // Two regions in progress differ in one of these (device/turns.h).
  using Key = std::tuple<nn::Pass, int, int>;
  static Key key(const nn::RegionEvent& event) { return {event.pass, event.block, event.segment}; }

  pipeline::Stage& stage_;
  RankSpans& spans_;
  std::map<Key, TraceSpan::Time> started_;
};

StepTrace::StepTrace(RunContext& run, RankRecorder& recorder) : run_(run), recorder_(recorder) {}

StepTrace::~StepTrace() {
  if (active_) end();
}

void StepTrace::begin_step(int64_t iteration) {
  const config::Train& train = run_.config().train;
  iteration_ = iteration;
  step_start_ = RankRecorder::Clock::now();
  in_step_ = true;
  if (!active_ && !written_ && iteration >= train.trace_step_start && iteration < train.trace_step_end) begin();
}

void StepTrace::end_step() {
  if (!active_) return;
  close_step();
  if (iteration_ + 1 >= run_.config().train.trace_step_end) finish();
}

void StepTrace::close_step() {
  if (!in_step_) return;
  in_step_ = false;
  TraceSpan span{base::concat("iteration ", iteration_), step_start_, RankRecorder::Clock::now()};
  if (run_.config().train.cuda_graph_impl != config::CudaGraphImpl::none)
    span.arguments.emplace_back("graphs", "the operators and regions that a graph replays have no spans");
  if (run_.world().target().gpu()) span.arguments.emplace_back("times", "of the host, which issues work to the GPU");
  spans_.add(TraceRow::step, std::move(span));
}

void StepTrace::finish() {
  if (active_) {
    close_step();
    end();
    write();
    written_ = true;
  } else if (!written_) {
    run_.warn(base::concat("train.trace_step_start = ", run_.config().train.trace_step_start,
                           ": the run has no such iteration, so train.trace_file is not written; lower it"));
  }
}

void StepTrace::begin() {
  active_ = true;
  origin_ = step_start_;
  run_.timers.observe([this](const std::string& name, TraceSpan::Time start, TraceSpan::Time end) {
    spans_.add(TraceRow::step, {name, start, end});
  });
  pipeline::Executor& executor = *run_.assembly->model.executor;
  executor.observers().add("trace", [this](const plan::Action& action, double seconds) {
    actions_.push_back({action, seconds, RankRecorder::Clock::now()});
  });
  for (const auto& stage : run_.assembly->model.stages)
    regions_.push_back(std::make_unique<RegionSpans>(*stage, spans_));
  recorder_.observe([this](const device::Operation& operation, TraceSpan::Time start, TraceSpan::Time end) {
    add_operation(operation, start, end);
  });
  library_ = std::make_unique<LibrarySpans>([this](const char* name, TraceSpan::Time start, TraceSpan::Time end) {
    constexpr std::chrono::microseconds kShortest{1};  // views and other calls without work are shorter
    if (end - start >= kShortest) spans_.add(TraceRow::operators, {name, start, end});
  });
}

void StepTrace::end() {
  active_ = false;
  run_.timers.observe({});
  run_.assembly->model.executor->observers().remove("trace");
  regions_.clear();
  recorder_.observe({});
  library_.reset();
  place_actions();
}

// A group call is one span from its start to the end of its wait.
void StepTrace::add_operation(const device::Operation& operation, TraceSpan::Time start, TraceSpan::Time end) {
  TraceSpan span{operation.name, start, end};
  if (operation.group.empty()) {
    span.arguments.emplace_back("bytes", std::to_string(device::bytes_of(operation)));
    if (operation.flops > 0) span.arguments.emplace_back("flops", base::concat(operation.flops));
    spans_.add(TraceRow::operators, std::move(span));
    return;
  }
  if (operation.name != "wait") {
    span.name += " " + operation.group;
    span.arguments = {{"group", operation.group},
                      {"bytes", std::to_string(group_bytes(operation))},
                      {"start ms", milliseconds(start, end)}};
    in_flight_[operation.work] = spans_.add(TraceRow::collectives, std::move(span));
  } else if (const auto call = in_flight_.find(operation.work); call != in_flight_.end()) {
    TraceSpan& started = spans_.at(TraceRow::collectives, call->second);
    started.end = end;
    started.arguments.emplace_back("wait ms", milliseconds(start, end));
    in_flight_.erase(call);
  }
}

// Actions of one p2p call, and two actions in turns, were reported together with equal shares of their time. In the
// trace they follow each other.
void StepTrace::place_actions() {
  const auto together = [](const plan::Action& earlier, const plan::Action& later) {
    return earlier.in_turns || (earlier.batch >= 0 && earlier.batch == later.batch);
  };
  TraceSpan::Time previous{};
  for (size_t i = 0; i < actions_.size();) {
    size_t next = i + 1;
    while (next < actions_.size() && together(actions_[next - 1].action, actions_[next].action)) ++next;
    const auto share =
        std::chrono::duration_cast<TraceSpan::Time::duration>(std::chrono::duration<double>(actions_[i].seconds));
    for (; i < next; ++i) {
      // The maximum is needed because the executor reads the clock before the observer does.
      const TraceSpan::Time end =
          std::max(previous, actions_[next - 1].reported - share * static_cast<int64_t>(next - 1 - i));
      const TraceSpan::Time start = std::max(previous, end - share);
      if (actions_[i].action.kind != plan::ActionKind::free)
        spans_.add(TraceRow::step, {action_text(actions_[i].action), start, end});
      previous = end;
    }
  }
  actions_.clear();
}

}  // namespace metroplex::run
