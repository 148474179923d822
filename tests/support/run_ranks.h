// Runs a test body on N ranks as threads. Failed expectations and exceptions are reported with the rank's name.
//   run_ranks(4, {.tp = 2, .dp = 2}, [](const comm::World& world) { EXPECT_EQ(...); });
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "comm/failure.h"
#include "comm/launch.h"
#include "config/parallel.h"
#include "topology/rank_grid.h"

namespace metroplex::test {

struct Layout {
  int tp = 1;
  int pp = 1;
  int dp = 1;
  int cp = 1;
  int vpp = 1;
  std::string context_levels = {};  // parallel.hierarchical_context_parallel_sizes
};

inline topology::RankGrid make_grid(int num_ranks, const Layout& layout) {
  config::Parallel parallel;
  parallel.tensor_model_parallel_size = layout.tp;
  parallel.pipeline_model_parallel_size = layout.pp;
  parallel.context_parallel_size = layout.cp;
  parallel.virtual_pipeline_model_parallel_size = layout.vpp;
  parallel.hierarchical_context_parallel_sizes = layout.context_levels;
  return topology::RankGrid(num_ranks, parallel);
}

struct RunOptions {
  bool rendezvous = false;
  std::chrono::milliseconds timeout{std::chrono::seconds(60)};
  std::shared_ptr<comm::Traffic> traffic = nullptr;
  std::shared_ptr<comm::RankObserver> observer = nullptr;
};

// num_ranks must be tp*pp*dp*cp. An exception in any rank fails the test.
inline void run_ranks(int num_ranks, const Layout& layout, const comm::RankBody& body,
                      const RunOptions& options = {}) {
  ASSERT_EQ(num_ranks, layout.tp * layout.pp * layout.dp * layout.cp) << "the layout needs another number of ranks";
  const topology::RankGrid grid = make_grid(num_ranks, layout);
  const comm::RankFormatter rank_name = comm::rank_formatter(grid);
  try {
    comm::run_threads(num_ranks, grid,
                      {options.timeout, options.rendezvous, 1, options.traffic, -1, options.observer},
                      [&](const comm::World& world) {
                        const testing::ScopedTrace trace(__FILE__, __LINE__, rank_name(world.rank()));
                        body(world);
                      });
  } catch (...) { ADD_FAILURE() << comm::failure_cause(std::current_exception()); }
}

// A single group: every rank is in tp.
inline void run_ranks(int num_ranks, const comm::RankBody& body, const RunOptions& options = {}) {
  run_ranks(num_ranks, {.tp = num_ranks}, body, options);
}

}  // namespace metroplex::test
