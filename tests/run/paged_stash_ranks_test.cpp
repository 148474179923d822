// Training with paged expert activations: same bits as whole buffers, also if pages run out and a step runs again;
// memory as predicted.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <vector>

#include "kernels/pages.h"
#include "moe/paged_stash.h"
#include "support/error_of.h"
#include "support/notes.h"
#include "support/poisoned.h"
#include "support/without_onednn.h"
#include "run/expert_runs.h"
#include "run/memory_watch.h"

namespace metroplex::test::paged_stash_ranks_test {
namespace {

const ExpertGrid kPlain1F1B{{.pp = 2, .dp = 2}, 1, 2, "optim"};
const ExpertGrid kGrids[] = {{{.dp = 4}, 1, 4, "optim"},
                             {{.pp = 2, .vpp = 2, .dp = 2}, 1, 2, "no_shard"},
                             {{.tp = 2, .pp = 2, .dp = 2, .sp = true}, 2, 2, "optim_grads_params"}};

struct Pages {
  double cuda = 1.1, cpu = 0;
  int64_t rows = 4;
};

config::Config in_pages(config::Config config, const ExpertGrid& grid, const Pages* pages) {
  if (pages != nullptr) {
    config.model.moe_paged_stash = true;
    config.model.moe_paged_stash_page_size = pages->rows;
    config.model.moe_paged_stash_buffer_size_factor_cuda = pages->cuda;
    config.model.moe_paged_stash_buffer_size_factor_cpu = pages->cpu;
  }
  return cut(config, grid.layout);
}

// Buffers that fit all rows, with or without pages.
config::Config on(const ExpertGrid& grid, const std::string& yaml, const Pages* pages, const char* policy = "redo") {
  config::Config config = skewed_experts(grid, static_cast<double>(grid.ep), yaml);
  config.model.moe_overflow_policy = policy;
  return in_pages(config, grid, pages);
}

// One replica slot per rank, buffers with twice the capacity of the even load.
config::Config make_config(const ExpertGrid& grid, const std::string& yaml, const Pages* pages) {
  config::Config config = skewed_experts(grid, 2, yaml);
  config.model.moe_enable_echo = true;
  config.model.moe_num_echo_experts = grid.ep;
  config.model.moe_echo_planner = config::EchoPlanner::capfill;
  return in_pages(config, grid, pages);
}

const char* const kBlock =
    "memory: {recompute_granularity: full, recompute_method: block, recompute_num_layers: 1}\n";
const char* const kForms[] = {"", "precision: {params_dtype: bf16}\n", kBlock,
                              "memory: {recompute_granularity: selective, recompute_modules: [moe_act]}\n"};

// Enough pages for all, some of them in host memory, or far too few.
TEST(PagedStash, TrainsWithTheBitsOfWholeBuffersWhetherOrNotPagesSuffice) {
  const NanFillGuard poisoned;
  for (const ExpertGrid& grid : kGrids) {
    for (const char* form : kForms) {
      if (form == kBlock && grid.layout.vpp > 1)
        continue;  // chunks of one layer hold no rows, so validation rejects the case
      const ExpertRun want = train_steps(on(grid, form, nullptr), grid, 5);
      EXPECT_EQ(want.times_repeated(), 0);
      for (const Pages& pages : {Pages{static_cast<double>(grid.ep)}, Pages{0.5, static_cast<double>(grid.ep)},
                                 Pages{static_cast<double>(grid.ep), 0, 7}, Pages{0.3}}) {
        SCOPED_TRACE(words(grid) + " " + form + base::concat(" factors ", pages.cuda, " ", pages.cpu));
        const ExpertRun got = train_steps(on(grid, form, &pages), grid, 5);
        expect_same_bits(got, want);
        EXPECT_EQ(got.times_repeated(), pages.cuda + pages.cpu < 1 ? 5 : 0);
      }
    }
  }
}

// With `kBlock` no expert layer of the first stage holds rows: its pool has no pages.
TEST(PagedStash, TrainsWithTheBitsOfWholeBuffersInAPlain1F1BPipeline) {
  const NanFillGuard poisoned;
  const ExpertGrid& grid = kPlain1F1B;
  for (const char* form : {"", kBlock}) {
    const ExpertRun want = train_steps(on(grid, form, nullptr), grid, 3);
    for (const Pages& pages : {Pages{2}, Pages{0.5, 2}, Pages{0.3}}) {
      SCOPED_TRACE(form + base::concat(" factors ", pages.cuda, " ", pages.cpu));
      const ExpertRun got = train_steps(on(grid, form, &pages), grid, 3);
      expect_same_bits(got, want);
      EXPECT_EQ(got.times_repeated(), pages.cuda + pages.cpu < 1 ? 3 : 0);
    }
  }
}

TEST(PagedStash, TrainsWithTheBitsOfWholeBuffersWithClones) {
  const NanFillGuard poisoned;
  std::vector<ExpertGrid> grids(std::begin(kGrids), std::end(kGrids));
  grids.push_back(kPlain1F1B);
  for (const ExpertGrid& grid : grids) {
    const ExpertRun want = train_steps(make_config(grid, "", nullptr), grid, 3);
    EXPECT_GT(want.replicas, 0) << words(grid);
    for (const Pages& pages : {Pages{2}, Pages{0.5, 2}, Pages{0.3}}) {
      SCOPED_TRACE(words(grid) + base::concat(" factors ", pages.cuda, " ", pages.cpu));
      const ExpertRun got = train_steps(make_config(grid, "", &pages), grid, 3);
      expect_same_bits(got, want);
      EXPECT_EQ(got.replicas, want.replicas);
      EXPECT_EQ(got.times_repeated(), pages.cuda + pages.cpu < 1 ? 3 : 0);
    }
  }
}

TEST(PagedStash, IsCapturedWithTheStep) {
  for (const ExpertGrid& grid : kGrids) {
    const ExpertRun want = train_steps(on(grid, "", nullptr), grid, 7);
    for (const Pages& pages : {Pages{static_cast<double>(grid.ep)}, Pages{0.3}}) {
      SCOPED_TRACE(words(grid) + base::concat(" factor ", pages.cuda));
      config::Config config = on(grid, "", &pages);
      config.train.cuda_graph_impl = config::CudaGraphImpl::full_iteration;
      config.train.cuda_graph_warmup_steps = 1;
      expect_same_bits(train_steps(config, grid, 7), want);
    }
  }
}

int64_t num_pages(const moe::PagedStash& stash) { return stash.state().numel() - kernels::kPageWords; }
// Page numbers in the free stacks: all of them if no page is lost or duplicated.
std::set<int64_t> free_pages(const at::Tensor& state) {
  std::set<int64_t> numbers;
  for (int64_t i = 0; i < state.numel() - kernels::kPageWords; ++i)
    numbers.insert(state.const_data_ptr<int32_t>()[kernels::kPageWords + i] + i);
  return numbers;
}

void expect_free_pages(const std::vector<std::string>& frozen) {
  for (const ExpertGrid& grid : kGrids) {
    SCOPED_TRACE(words(grid) + base::concat(" ", frozen.size(), " frozen"));
    const Pages pages{static_cast<double>(grid.ep)};
    config::Config config = on(grid, "", &pages), plain = on(grid, "", nullptr);
    config.train.freeze = plain.train.freeze = frozen;
    const ExpertRun want = train_steps(plain, grid, 3);
    run_sharded(config, grid.layout, [&](const comm::World& world) {
      const auto assembly = step::assemble(config, world, kVocab);
      const moe::PagedStash& stash = *assembly->model.experts->stash;
      for (int64_t step = 0; step < 3; ++step) {
        stash.pool().fill_(0xFF);  // NaN in every format
        EXPECT_EQ(step_at(*assembly, step).loss, want.losses[static_cast<size_t>(step)]);
        const auto* const state = stash.state().const_data_ptr<int32_t>();
        EXPECT_EQ(state[kernels::kTakenPages], 0);
        EXPECT_EQ(state[kernels::kWantedPages], 0);
        EXPECT_GT(state[kernels::kMostWanted], 0);
        EXPECT_EQ(free_pages(stash.state()).size(), static_cast<size_t>(num_pages(stash)));
      }
    });
  }
}

// After a step every page is free, and the contents of free pages do not affect a step.
TEST(PagedStash, HasEveryPageFreeBehindAStepAndReadsNoneThatIsFree) {
  expect_free_pages({});
  expect_free_pages({"*.experts.linear_fc2.weight"});
  expect_free_pages({"*.experts.*"});
}

// A forward without its backward frees no pages; the next step starts with every page free.
TEST(PagedStash, MissesNoPageBehindAStepThatWasGivenUp) {
  const ExpertGrid& grid = kGrids[0];
  const Pages pages{static_cast<double>(grid.ep)};
  const config::Config config = on(grid, "", &pages);
  const ExpertRun want = train_steps(on(grid, "", nullptr), grid, 1);
  run_sharded(config, grid.layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    const at::Tensor& state = assembly->model.experts->stash->state();
    {
      pipeline::StageRun run;
      assembly->model.stages[0]->forward({}, make_batches(*assembly, 1)[0], &run);
    }
    EXPECT_GT(state.const_data_ptr<int32_t>()[kernels::kTakenPages], 0);
    const step::StepOutcome outcome = step_at(*assembly, 0);
    EXPECT_EQ(outcome.loss, want.losses[0]);
    EXPECT_EQ(outcome.repeated, "");
    const auto* const now = state.const_data_ptr<int32_t>();
    EXPECT_EQ(now[kernels::kTakenPages], 0);
    EXPECT_EQ(now[kernels::kWantedPages], 0);
    EXPECT_EQ(free_pages(state).size(), static_cast<size_t>(num_pages(*assembly->model.experts->stash)));
  });
}

// On all ranks, even if only one rank ran out of pages.
TEST(PagedStash, StopNamesTheStashLayerPagesAndFactor) {
  const ExpertGrid& grid = kGrids[0];
  const Pages pages{0.3};
  const config::Config config = on(grid, "", &pages, "stop");
  run_sharded(config, grid.layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    const std::string said = catch_error([&] { step_at(*assembly, 0); });
    for (const char* part :
         {"decoder.layers.", ": backward stores rows on ", " pages at one time, the stash has ",
          "model.moe_paged_stash_buffer_size_factor_cuda = 0.3", "raise it to ", "moe_overflow_policy"})
      expect_contains(said, part);
  });
}

// The message of a step that `policy: stop` ends; empty: it had enough pages. The hot experts change in every step.
std::string overflow_message(int64_t step, const ExpertGrid& grid, const Pages& pages) {
  std::string said;
  config::Config config = on(grid, "", &pages, "stop");
  config.model.moe_router_force_skew_period = 1;
  run_sharded(config, grid.layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    const std::string mine = catch_error([&] { step_at(*assembly, step); });
    if (world.rank() == 0) said = mine;
  });
  return said;
}

// "raise it to X or more": X suffices on all ranks for any number of pages in host memory, and a slightly smaller
// factor does not. For the even load a pool has at least 9 pages here, so a page is at most 0.12 of it. X is rounded
// up to 0.01.
TEST(PagedStash, TheFactorThatIsAskedForIsTheLeast) {
  for (const ExpertGrid& grid : {kGrids[0], kPlain1F1B}) {
    for (Pages pages : {Pages{0.3}, Pages{0.013, 0, 3}, Pages{0.3, 0.4}}) {
      for (const int64_t step : {0, 2}) {
        SCOPED_TRACE(words(grid) + base::concat(" factors ", pages.cuda, " ", pages.cpu, " step ", step));
        const std::string said = overflow_message(step, grid, pages), before = "raise it to ";
        const size_t at = said.find(before);
        ASSERT_NE(at, std::string::npos) << said;
        const double least = std::stod(said.substr(at + before.size()));
        EXPECT_EQ(overflow_message(step, grid, {least, pages.cpu, pages.rows}), "");
        EXPECT_NE(overflow_message(step, grid, {least - 0.13, pages.cpu, pages.rows}), "") << least;
      }
    }
  }
}

// Buffers that fit all rows.
config::Config measured(const TestLayout& layout, const char* type, const char* more) {
  return cut(config::parse(base::concat(
                 "model: {family: gpt, num_layers: 4, hidden_size: 32, num_attention_heads: 4, ffn_hidden_size: 48,"
                 " vocab_size: 50, make_vocab_size_divisible_by: 8, add_bias_linear: false, num_moe_experts: 4,"
                 " moe_router_topk: 1, moe_router_pre_softmax: true, moe_token_dispatcher_type: static_buffer,"
                 " moe_expert_rank_capacity_factor: 2, moe_router_force_skew: 1.5",
                 more, "}\n", "parallel: {expert_model_parallel_size: 2}\n",
                 "train: {seq_length: 16, micro_batch_size: 2, global_batch_size: 16, train_iters: 10}\n",
                 "precision: {params_dtype: ", type, "}\n", "data: {mock_data: true}\n")),
             layout);
}

TEST(PagedStash, WholeStepsHoldWhatTheirTraceSays) {
  const WithoutOneDnn without;
  for (const TestLayout& layout : {TestLayout{.dp = 2}, TestLayout{.pp = 2, .dp = 2}}) {
    for (const char* type : {"fp32", "bf16", "fp64"}) {
      for (const char* more :
           {", moe_paged_stash: true, moe_paged_stash_page_size: 4, moe_paged_stash_buffer_size_factor_cuda: 2",
            ", moe_paged_stash: true, moe_paged_stash_page_size: 4, moe_paged_stash_buffer_size_factor_cpu: 1"}) {
        const config::Config config = measured(layout, type, more);
        run_sharded(config, layout, [&](const comm::World& world) {
          SCOPED_TRACE(base::concat("pp ", layout.pp, " ", type, more, " rank ", world.rank()));
          expect_predicted_memory(config, kVocab, world);
        });
      }
    }
  }
}

// Two layers per stage; the first stage has two microbatches in flight and the last one. The even load gives a rank
// 32 rows, 8 pages of 4. The first stage gets 5/4 of 32 pages, the last 5/4 of 16.
TEST(PagedStash, HasPagesForTheMicrobatchesInFlight) {
  const TestLayout layout{.pp = 2, .dp = 2};
  const config::Config config = measured(
      layout, "fp32",
      ", moe_paged_stash: true, moe_paged_stash_page_size: 4, moe_paged_stash_buffer_size_factor_cuda: 1.25");
  run_sharded(config, layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    const int64_t pages = assembly->model.experts->stash->state().numel() - kernels::kPageWords;
    EXPECT_EQ(pages, assembly->process.last_stage() ? 20 : 40);
    EXPECT_EQ(assembly->model.experts->stash->pool().numel(), pages * 4 * (32 + 48 + 48) * 4);
  });
}

}  // namespace
}  // namespace metroplex::test::paged_stash_ranks_test
