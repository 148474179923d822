// Buffers shared by graphs: checks if replays in another order still read the values of the capture.
#include "tape_check/tape_findings.h"

#include "support/logged_graphs.h"
#include "support/record_tape.h"

namespace metroplex::tape_check::tape_buffers_test {
namespace {

using test::expect_finding;
using test::record_tape;
using test::RecordedTape;
using Kind = FindingKind;

// A forward and a backward of one graph instance (`LiveSet`): saved tensors stay in the pool until the backward has
// read them.
struct LiveSet {
  at::Tensor input, saved, gradient;
  RecordedTape forward, backward;

  LiveSet(graph::TapeRecorder& recorder, const std::string& name, const std::shared_ptr<graph::TapePool>& pool,
          const at::Tensor& static_input)
      : input(static_input), gradient(at::zeros_like(input)) {
    recorder.set_place("forward of " + name);
    forward = record_tape(
        recorder, [&] { saved = at::exp(input); }, pool);
  }
  void record_backward(graph::TapeRecorder& recorder, const std::string& name) {
    recorder.set_place("backward of " + name);
    backward = record_tape(
        recorder,
        [&] {
          gradient.add_(at::mul(saved, 2.0) + input);
          saved.reset();
        },
        forward.pool);
  }
};

struct TwoSets {
  graph::TapeRecorder recorder;
  std::shared_ptr<graph::TapePool> pool = std::make_shared<graph::TapePool>();
  at::Tensor x = at::ones({8}, at::kDouble), y = at::ones({8}, at::kDouble);
  LiveSet a;
  std::unique_ptr<LiveSet> b;

  // Captures set b after a was freed, or while it is live.
  explicit TwoSets(bool overlap, bool share_input = false) : a(recorder, "a", pool, x) {
    if (!overlap) a.record_backward(recorder, "a");
    b = std::make_unique<LiveSet>(recorder, "b", pool, share_input ? x : y);
    b->record_backward(recorder, "b");
    if (overlap) a.record_backward(recorder, "a");
  }
  std::vector<Replayed> captured(bool overlap) const {
    const Replayed forward_a{"fa", &a.forward.tape, {a.input}}, backward_a{"ba", &a.backward.tape, {}},
        forward_b{"fb", &b->forward.tape, {b->input}}, backward_b{"bb", &b->backward.tape, {}};
    if (overlap) return {forward_a, forward_b, backward_b, backward_a};
    return {forward_a, backward_a, forward_b, backward_b};
  }
};

TEST(TapeBuffers, AReplayInTheOrderOfTheCaptureSeesTheSame) {
  const TwoSets sets(false);
  EXPECT_EQ(report(check_replays(sets.captured(false), {0, 1, 2, 3, 0, 1, 2, 3}, {sets.pool.get()})), "");
  EXPECT_EQ(report(check_replays(sets.captured(false), {0, 1, 0, 1, 2, 3}, {sets.pool.get()})), "");
}

TEST(TapeBuffers, ABufferOverwrittenBeforeItsLastReaderIsNamedWithWriterAndReader) {
  // b reuses the memory freed by a: the capture does not allow both at the same time.
  const TwoSets sets(false);
  const auto found = check_replays(sets.captured(false), {0, 2, 3, 1}, {sets.pool.get()});
  expect_finding(found, Kind::overwritten, "aten::mul.Scalar", "backward of a",
                 "that operation 0, aten::exp, of forward of a in graph fa wrote in the capture; in the replay "
                 "operation 0, aten::exp, of forward of b in graph fb has written there since");
  EXPECT_NE(found.at(0).text.find("64 bytes at 0x"), std::string::npos) << found.at(0).text;
}

TEST(TapeBuffers, SetsThatWereLiveTogetherMayBeReplayedSo) {
  const TwoSets sets(true);
  EXPECT_EQ(report(check_replays(sets.captured(true), {0, 1, 2, 3, 0, 1, 2, 3}, {sets.pool.get()})), "");
  EXPECT_EQ(report(check_replays(sets.captured(true), {1, 0, 2, 3}, {sets.pool.get()})), "");
  // a's backward was captured after b had freed its memory.
  expect_finding(check_replays(sets.captured(true), {0, 1, 3, 2}, {sets.pool.get()}), Kind::overwritten,
                 "aten::mul.Scalar", "backward of b", "of backward of a in graph ba has written there since");
}

TEST(TapeBuffers, AnInputCopiedInTooEarlyIsNamed) {
  const TwoSets sets(false, /*share_input=*/true);
  EXPECT_EQ(report(check_replays(sets.captured(false), {0, 1, 2, 3}, {})), "");
  const auto found = check_replays(sets.captured(false), {0, 2, 3, 1}, {});  // static inputs belong to no pool
  expect_finding(found, Kind::overwritten, "aten::add.Tensor", "backward of a",
                 "that the copy of the inputs in graph fa wrote in the capture; in the replay the copy of the inputs "
                 "in graph fb has written there since");
}

TEST(TapeBuffers, WhatTheHostReadsAfterwardsIsAReaderToo) {
  TwoSets sets(false);
  RecordedTape train = record_tape(sets.recorder, [&] { sets.a.saved = at::exp(sets.x); });
  RecordedTape told;
  told.pool = std::make_shared<graph::TapePool>();
  sets.recorder.set_place("the log");
  told = record_tape(sets.recorder, [&] { at::clone(sets.a.saved); });
  sets.a.saved.reset();
  sets.recorder.set_place("evaluation");
  RecordedTape evaluation = record_tape(
      sets.recorder, [&] { at::sin(sets.x); }, train.pool);
  const std::vector<Replayed> captured{
      {"train", &train.tape, {}}, {"log", &told.tape, {}}, {"evaluation", &evaluation.tape, {}}};
  EXPECT_EQ(report(check_replays(captured, {0, 1, 2, 0, 1}, {train.pool.get()})), "");
  expect_finding(check_replays(captured, {0, 2, 1}, {train.pool.get()}), Kind::overwritten, "aten::clone", "the log",
                 "aten::sin, of evaluation in graph evaluation has written there since");
}

TEST(TapeBuffers, ReplaysAreRememberedInTheirOrder) {
  graph::TapeRecorder recorder;
  graph::LoggedGraphs device(recorder);
  const auto pool = device.make_pool();
  const auto forward = device.make_graph(pool), backward = device.make_graph(pool), other = device.make_graph(pool);
  const at::Tensor x = at::ones({8}, at::kDouble), gradient = at::zeros({8}, at::kDouble);
  at::Tensor saved;
  const c10::NoGradGuard no_grad;
  recorder.set_place("layer 1");
  graph::capture(*forward, [&] { saved = at::exp(x); });
  graph::capture(*backward, [&] {
    gradient.add_(saved);
    saved.reset();
    gradient.add_(at::cos(x));  // overwrites `saved`: this tape cannot be replayed alone
  });
  recorder.set_place("layer 2");
  graph::capture(*other, [&] { gradient.add_(at::sin(x)); });
  for (graph::Graph* graph : {forward.get(), backward.get(), other.get()}) graph->replay();
  EXPECT_EQ(report(device.findings()), "");
  for (graph::Graph* graph : {forward.get(), other.get(), backward.get()}) graph->replay();
  EXPECT_EQ(device.replays(), 6u);
  expect_finding(device.findings(), Kind::overwritten, "aten::add_.Tensor", "layer 1",
                 "aten::sin, of layer 2 in graph 2 has written there since");
}

TEST(TapeBuffers, ANumberThatTheNextReplayDoesNotFindIsNamed) {
  graph::TapeRecorder recorder;
  const at::Tensor x = at::ones({8}, at::kDouble), y = at::zeros({8}, at::kDouble);
  const RecordedTape tape = record_tape(recorder, [&] {
    recorder.set_place("layer 1");
    at::Tensor written_by_the_host = at::empty({8}, at::kDouble);
    for (int i = 0; i < 8; ++i) written_by_the_host.mutable_data_ptr<double>()[i] = i;
    y.add_(written_by_the_host);
    written_by_the_host.reset();
    y.add_(at::exp(x));  // reuses its memory
  });
  expect_finding(check_tape(tape.recording()), Kind::overwritten, "aten::add_.Tensor", "layer 1",
                 "that no operation wrote in the capture; in the replay operation 1, aten::exp, of layer 1");
}

TEST(TapeBuffers, StateOutsideThePoolMayChangeBetweenReplays) {
  graph::TapeRecorder recorder;
  const at::Tensor weight = at::ones({8}, at::kDouble), loss = at::zeros({8}, at::kDouble);
  const RecordedTape evaluation = record_tape(recorder, [&] { loss.copy_(at::exp(weight)); });
  const RecordedTape train = record_tape(
      recorder, [&] { weight.sub_(at::exp(weight), 0.125); }, evaluation.pool);
  const std::vector<Replayed> captured{{"evaluation", &evaluation.tape, {}}, {"train", &train.tape, {}}};
  EXPECT_EQ(report(check_replays(captured, {1, 1, 0, 0, 1}, {evaluation.pool.get()})), "");
}

TEST(TapeBuffers, ColumnsOfOneMatrixAreApart) {
  graph::TapeRecorder recorder;
  const at::Tensor x = at::ones({4, 3}, at::kDouble), y = at::ones({4, 3}, at::kDouble);
  RecordedTape left, right, sum;
  at::Tensor both;
  const auto pool = std::make_shared<graph::TapePool>();
  left = record_tape(
      recorder,
      [&] {
        both = at::empty({4, 6}, at::kDouble);
        both.narrow(1, 0, 3).copy_(x);
      },
      pool);
  right = record_tape(
      recorder, [&] { both.narrow(1, 3, 3).copy_(y); }, pool);
  sum = record_tape(
      recorder, [&] { at::sin(both.narrow(1, 0, 3)); }, pool);
  const std::vector<Replayed> captured{{"left", &left.tape, {}}, {"right", &right.tape, {}}, {"sum", &sum.tape, {}}};
  EXPECT_EQ(report(check_replays(captured, {1, 0, 2}, {pool.get()})), "");
  EXPECT_EQ(pieces_of(both.narrow(1, 0, 3)).size(), 4u);
  EXPECT_EQ(pieces_of(both).size(), 1u);
  EXPECT_EQ(pieces_of(both.t()).size(), 1u);
  EXPECT_EQ(pieces_of(both.select(1, 2)).size(), 4u);
  EXPECT_EQ(pieces_of(both.narrow(1, 2, 1).expand({4, 5})).size(), 4u);
  EXPECT_TRUE(pieces_of(both.narrow(0, 0, 0)).empty());
}

}  // namespace
}  // namespace metroplex::tape_check::tape_buffers_test
