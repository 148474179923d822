// Records work into a private pool in non-strict mode, and checks the tape's diagnostics.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tape_check/tape_findings.h"
#include "graph/tape_recorder.h"

namespace metroplex::test {

struct RecordedTape {
  std::shared_ptr<graph::TapePool> pool = std::make_shared<graph::TapePool>();
  graph::Tape tape;
  tape_check::Recording recording() const { return {tape, *pool}; }
};

inline RecordedTape record_tape(graph::TapeRecorder& recorder, const std::function<void()>& work,
                                std::shared_ptr<graph::TapePool> pool = nullptr) {
  RecordedTape recorded;
  if (pool) recorded.pool = std::move(pool);
  const c10::NoGradGuard no_grad;
  recorder.begin(recorded.pool, /*strict=*/false);
  work();
  recorded.tape = recorder.end();
  return recorded;
}

// Expects one diagnostic of this kind at this operation and location whose text contains `part`, and no other
// diagnostics.
inline void expect_finding(const std::vector<tape_check::Finding>& found, tape_check::FindingKind kind,
                           const std::string& operation, const std::string& place, const std::string& part = "") {
  const auto fits = [&](const tape_check::Finding& finding) {
    return finding.kind == kind && finding.operation == operation && finding.place == place;
  };
  EXPECT_TRUE(std::all_of(found.begin(), found.end(), fits)) << tape_check::report(found);
  EXPECT_TRUE(std::any_of(found.begin(), found.end(),
                          [&](const auto& f) { return fits(f) && f.text.find(part) != std::string::npos; }))
      << "no \"" << tape_check::kind_name(kind) << "\" at " << operation << " of " << place << " with " << part
      << ":\n"
      << tape_check::report(found);
}

}  // namespace metroplex::test
