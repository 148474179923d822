// Dispatchers alone, with experts that multiply: results, gradients, and traffic.
#include "moe/dispatcher.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <atomic>
#include <random>
#include <string>
#include <vector>

#include "comm/backends/counting.h"
#include "comm/collectives.h"
#include "config/experts.h"
#include "kernels/step_state.h"
#include "support/poisoned.h"
#include "support/run_ranks.h"

namespace metroplex::moe::dispatcher_ranks_test {
namespace {

using config::TokenDispatcher;

constexpr int64_t kTokens = 6, kWidth = 5, kTopk = 2;

struct Case {
  int ranks, etp, ep;
  int64_t num_experts;
  int ranks_per_node;
  double capacity_factor = 0;
  bool pads = false;
  double room = 0, pair = 0;  // of static buffers; 0: fits all rows
  std::string text() const {
    return base::concat(ranks, " ranks, etp ", etp, " ep ", ep, " experts ", num_experts, " node ", ranks_per_node,
                        " capacity ", capacity_factor, pads ? " padded" : "", " room ", room, " pair ", pair);
  }
};
const Case kCases[] = {{1, 1, 1, 4, 0},
                       {2, 1, 2, 4, 1},
                       {4, 1, 4, 4, 2},
                       {4, 2, 2, 6, 2},
                       {8, 2, 4, 8, 4},
                       {8, 1, 8, 16, 2},
                       {6, 3, 2, 4, 3},
                       {4, 1, 2, 4, 0},
                       {4, 1, 4, 4, 2, 1.0},
                       {4, 2, 2, 8, 2, 0.75},
                       {8, 2, 4, 8, 2, 1.25},
                       {4, 1, 4, 4, 2, 1.0, true},
                       {4, 2, 2, 8, 2, 1.5, true},
                       {1, 1, 1, 4, 0, 1.0, true},
                       {8, 2, 4, 8, 4, 1.0, true}};

config::Parallel make_parallel(const Case& test_case) {
  config::Parallel parallel;
  parallel.expert_tensor_parallel_size = test_case.etp;
  parallel.expert_model_parallel_size = test_case.ep;
  parallel.expert_ranks_per_node = test_case.ranks_per_node;
  return parallel;
}

config::Config make_config(const Case& test_case) {
  config::Config config;
  config.parallel = make_parallel(test_case);
  config.model.num_moe_experts = test_case.num_experts;
  config.model.moe_router_topk = kTopk;
  config.model.moe_expert_capacity_factor = test_case.capacity_factor;
  config.model.moe_pad_expert_input_to_capacity = test_case.pads;
  config.model.moe_expert_rank_capacity_factor = test_case.room > 0 ? test_case.room : test_case.ep;
  config.model.moe_rank_pair_capacity_factor = test_case.pair;
  return config;
}

// The tokens of one rank and their experts; tokens beyond an expert's capacity are dropped.
struct Tokens {
  at::Tensor x, experts, probs;
};
Tokens make_tokens(const Case& test_case, int rank) {
  std::mt19937 random(static_cast<unsigned>(17 + rank));
  Tokens out{at::empty({kTokens, kWidth}, at::kDouble), at::empty({kTokens, kTopk}, at::kLong),
             at::empty({kTokens, kTopk}, at::kDouble)};
  const auto uniform = [&] { return static_cast<double>(random()) / 4294967296.0 + 0.1; };
  for (int64_t i = 0; i < out.x.numel(); ++i) out.x.view(-1)[i] = uniform();
  const config::Config config = make_config(test_case);
  const int64_t limit = test_case.capacity_factor > 0 ? config::expert_capacity(config.model, kTokens) : kTokens;
  std::vector<int64_t> taken(static_cast<size_t>(test_case.num_experts), 0);
  for (int64_t t = 0; t < kTokens; ++t) {
    // The choice is skewed: half of the tokens choose the first expert.
    int64_t first = random() % 2 == 0 ? 0 : static_cast<int64_t>(random()) % test_case.num_experts;
    const int64_t experts[] = {
        first, (first + 1 + static_cast<int64_t>(random()) % (test_case.num_experts - 1)) % test_case.num_experts};
    for (int64_t j = 0; j < kTopk; ++j) {
      const bool keeps = taken[static_cast<size_t>(experts[j])]++ < limit;
      out.experts[t][j] = keeps ? experts[j] : -1;
      out.probs[t][j] = keeps ? uniform() : 0.0;
    }
  }
  return out;
}

// The result of expert e for a row: (e + 1) p x^2, split evenly over the ranks of etp.
at::Tensor run_experts(const ExpertRows& rows, const ExpertContext& context, int64_t local) {
  at::Tensor factors = at::full({rows.x.size(0), 1}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  int64_t row = 0;
  for (int64_t e = 0; e < local; ++e) {
    const auto count = rows.counts[e].item<int64_t>();
    factors.narrow(0, row, count).fill_(static_cast<double>(context.ep_rank() * local + e + 1) / context.etp);
    row += count;
  }
  return rows.x.square() * rows.probs.unsqueeze(1) * factors;
}

std::vector<TokenDispatcher> list_dispatchers(const Case& test_case) {
  if (test_case.etp * test_case.ep == 1)
    return {TokenDispatcher::local, TokenDispatcher::alltoall, TokenDispatcher::allgather};
  std::vector<TokenDispatcher> all{TokenDispatcher::allgather, TokenDispatcher::alltoall,
                                   TokenDispatcher::hierarchical};
  if (!test_case.pads) all.push_back(TokenDispatcher::static_buffer);
  return all;
}

// Forward and backward of `tokens`: the result, whose gradient is dy(), and the gradients of x and probs.
struct Result {
  at::Tensor out, dx, dprobs;
};
at::Tensor dy() { return at::arange(kTokens * kWidth, at::kDouble).view({kTokens, kWidth}); }

Result run(const Case& test_case, const Dispatcher& dispatcher, const ExpertContext& context, const Tokens& tokens) {
  const at::Tensor x = tokens.x.clone().requires_grad_(), probs = tokens.probs.clone().requires_grad_();
  const Dispatched sent =
      dispatcher.finish_dispatch(dispatcher.start_dispatch(x, probs, dispatcher.plan(tokens.experts)));
  const at::Tensor y = run_experts(sent.rows, context, test_case.num_experts / test_case.ep);
  const at::Tensor out = dispatcher.combine(y, sent.back);
  out.backward(dy());
  return {out.detach(), x.grad(), probs.grad()};
}

void expect_sums(const Result& got, const Tokens& tokens) {
  const at::Tensor kept = tokens.experts.ge(0).to(at::kDouble);
  const at::Tensor weights = ((tokens.experts + 1).to(at::kDouble) * tokens.probs * kept).sum(1, true);
  const at::Tensor want = tokens.x.square() * weights;
  // Two terms, in etp summands each: some 10 roundings.
  EXPECT_LE((got.out - want).abs().max().item<double>(), 10 * 0x1p-53 * want.max().item<double>());
  const at::Tensor dx = 2 * tokens.x * weights * dy();
  const at::Tensor dprobs = (tokens.experts + 1).to(at::kDouble) * kept * (tokens.x.square() * dy()).sum(1, true);
  EXPECT_LE((got.dx - dx).abs().max().item<double>(), 20 * 0x1p-53 * dx.max().item<double>());
  EXPECT_LE((got.dprobs - dprobs).abs().max().item<double>(), 20 * 0x1p-53 * dprobs.max().item<double>());
}

void run_case(const Case& test_case, TokenDispatcher type, const comm::World& world) {
  const config::Config config = make_config(test_case);
  const ExpertContext context = expert_context(world, config);
  const auto dispatcher = make_dispatcher(type, {context, world.target(), config.model});
  const Tokens tokens = make_tokens(test_case, world.rank());
  expect_sums(run(test_case, *dispatcher, context, tokens), tokens);
}
TEST(Dispatchers, BringBackTheSumOfWhatExpertsMade) {
  const test::NanFillGuard poisoned;
  for (const Case& test_case : kCases) {
    for (const TokenDispatcher type : list_dispatchers(test_case)) {
      SCOPED_TRACE(test_case.text() + " " + config::text_of(type));
      comm::run_threads(test_case.ranks, topology::RankGrid(test_case.ranks, make_parallel(test_case)), {},
                        [&](const comm::World& world) { run_case(test_case, type, world); });
    }
  }
}

// A buffer that fits all rows stores them in the order of an all-to-all.
TEST(StaticBuffers, GiveTheBitsOfAnAllToAll) {
  const test::NanFillGuard poisoned;
  for (const Case& test_case : kCases) {
    if (test_case.pads) continue;
    SCOPED_TRACE(test_case.text());
    comm::run_threads(
        test_case.ranks, topology::RankGrid(test_case.ranks, make_parallel(test_case)), {},
        [&](const comm::World& world) {
          const config::Config config = make_config(test_case);
          const ExpertContext context = expert_context(world, config);
          const Tokens tokens = make_tokens(test_case, world.rank());
          const DispatcherSpec spec{context, world.target(), config.model};
          const Result want = run(test_case, *make_dispatcher(TokenDispatcher::alltoall, spec), context, tokens),
                       got = run(test_case, *make_dispatcher(TokenDispatcher::static_buffer, spec), context, tokens);
          EXPECT_TRUE(got.out.equal(want.out) && got.dx.equal(want.dx) && got.dprobs.equal(want.dprobs));
        });
  }
}

// `tokens` of rank `me` without the rows that overflow. Each pair of ranks keeps the first assignments, by expert and
// token, up to its capacity; a destination rank keeps those of the first source ranks. An independent implementation
// with plain loops.
struct Fit {
  Tokens tokens;
  bool overflows = false;       // on any rank
  std::vector<int64_t> wanted;  // [ep] rows destined for a rank of it
};
Fit fitting(const Case& test_case, const std::vector<Tokens>& of_group, int me) {
  const config::Config config = make_config(test_case);
  const int64_t local = test_case.num_experts / test_case.ep,
                room = config::rank_capacity(config.model, kTokens, test_case.etp, test_case.ep),
                pair = config::rank_pair_capacity(config.model, kTokens, test_case.ep);
  Fit fit{{of_group[static_cast<size_t>(me)].x, of_group[static_cast<size_t>(me)].experts.clone(),
           of_group[static_cast<size_t>(me)].probs.clone()},
          false,
          std::vector<int64_t>(static_cast<size_t>(test_case.ep), 0)};
  for (int64_t part = 0; part < test_case.ep; ++part) {
    int64_t filled = 0;
    for (size_t r = 0; r < of_group.size(); ++r) {
      int64_t sent = 0;
      for (int64_t e = part * local; e < (part + 1) * local; ++e) {
        for (int64_t a = 0; a < kTokens * kTopk; ++a) {
          if (of_group[r].experts.view(-1)[a].item<int64_t>() != e) continue;
          ++fit.wanted[static_cast<size_t>(part)];
          if (sent < pair && filled < room) {
            ++sent, ++filled;
            continue;
          }
          fit.overflows = true;
          if (static_cast<int>(r) == me) fit.tokens.experts.view(-1)[a] = -1, fit.tokens.probs.view(-1)[a] = 0;
        }
      }
    }
  }
  return fit;
}

const Case kTight[] = {{4, 1, 4, 4, 0, 0, false, 1.0},       {4, 1, 4, 8, 0, 0, false, 1.0},
                       {4, 2, 2, 6, 0, 0, false, 1.0},       {8, 2, 4, 8, 0, 0, false, 1.25, 2.0},
                       {8, 1, 8, 16, 0, 0, false, 8.0, 1.0}, {6, 3, 2, 4, 0, 0, false, 1.0, 1.0},
                       {4, 1, 4, 4, 0, 1.25, false, 1.0},    {8, 1, 2, 4, 0, 0, false, 1.0}};

// All ranks and policies agree on the overflowing rows; the other rows give the same results as without them.
TEST(StaticBuffers, LeaveOutTheLastRowsOfTheLastRanksAndRaiseTheFlag) {
  const test::NanFillGuard poisoned;
  for (const Case& test_case : kTight) {
    for (const char* policy : {"redo", "drop"}) {
      SCOPED_TRACE(test_case.text() + " " + policy);
      std::atomic<bool> any{false};
      comm::run_threads(
          test_case.ranks, topology::RankGrid(test_case.ranks, make_parallel(test_case)), {},
          [&](const comm::World& world) {
            config::Config config = make_config(test_case);
            config.model.moe_overflow_policy = policy;
            ExpertContext context = expert_context(world, config);
            context.step_flags = at::zeros({kernels::kStepFlags}, at::kInt);
            context.buffers = std::make_shared<StaticBuffers>();
            std::vector<Tokens> of_group;
            for (const int rank : context.experts.ranks()) of_group.push_back(make_tokens(test_case, rank));
            const Fit fit = fitting(test_case, of_group, context.experts.index());
            const auto dispatcher =
                make_dispatcher(TokenDispatcher::static_buffer, {context, world.target(), config.model, nullptr, 7});
            const Tokens& mine = of_group[static_cast<size_t>(context.experts.index())];
            Result got = run(test_case, *dispatcher, context, mine);
            // A dropped row contributes no gradient to its probability.
            EXPECT_TRUE(got.dprobs.masked_select(fit.tokens.experts.lt(0)).eq(0).all().item<bool>());
            expect_sums(got, fit.tokens);
            EXPECT_EQ(context.step_flags[kernels::kOverflow].item<int32_t>() != 0,
                      fit.overflows && std::string(policy) == "redo");
            ASSERT_EQ(context.buffers->layers.size(), 1);
            const auto& layer = context.buffers->layers[0];
            EXPECT_EQ(layer.number, 7);
            EXPECT_EQ(layer.room, config::rank_capacity(config.model, kTokens, test_case.etp, test_case.ep));
            for (int64_t part = 0; part < test_case.ep; ++part)
              EXPECT_EQ(layer.wanted[part].item<int64_t>(), fit.wanted[static_cast<size_t>(part)]);
            if (fit.overflows) any = true;
            // In a repeated step all rows fit.
            context.buffers->repeats = true;
            expect_sums(run(test_case, *dispatcher, context, mine), mine);
          });
      EXPECT_TRUE(any) << "a case that does not overflow shows nothing";
    }
  }
}

TEST(Dispatchers, NeedTheHostOnlyForLengthsOfMessages) {
  const auto needs = [](const Case& test_case, TokenDispatcher type) {
    bool answer = false;
    comm::run_threads(
        test_case.ranks, topology::RankGrid(test_case.ranks, make_parallel(test_case)), {},
        [&](const comm::World& world) {
          const config::Config config = make_config(test_case);
          const bool mine =
              make_dispatcher(type, {expert_context(world, config), world.target(), config.model})->needs_host();
          if (world.rank() == 0) answer = mine;
        });
    return answer;
  };
  const Case dropless{4, 1, 4, 4, 2}, padded{4, 1, 4, 4, 2, 1.0, true}, one{1, 1, 1, 4, 0};
  EXPECT_TRUE(needs(dropless, TokenDispatcher::alltoall));
  EXPECT_TRUE(needs(dropless, TokenDispatcher::hierarchical));
  EXPECT_FALSE(needs(dropless, TokenDispatcher::allgather));
  EXPECT_FALSE(needs(dropless, TokenDispatcher::static_buffer));
  EXPECT_FALSE(needs(padded, TokenDispatcher::alltoall));
  EXPECT_FALSE(needs(one, TokenDispatcher::local));
}

// Bytes of rows and probabilities sent in both directions, over all ranks; excludes the counts.
int64_t travelled(const Case& test_case, TokenDispatcher type) {
  const auto traffic = std::make_shared<comm::Traffic>();
  comm::ThreadsOptions options;
  options.traffic = traffic;
  int64_t count_bytes = 0;
  comm::run_threads(test_case.ranks, topology::RankGrid(test_case.ranks, make_parallel(test_case)), options,
                    [&](const comm::World& world) {
                      const at::NoGradGuard no_grad;
                      const config::Config config = make_config(test_case);
                      const ExpertContext context = expert_context(world, config);
                      const auto dispatcher = make_dispatcher(type, {context, world.target(), config.model});
                      const Tokens tokens = make_tokens(test_case, world.rank());
                      comm::barrier(world.groups().world);
                      if (world.rank() == 0) traffic->clear();
                      comm::barrier(world.groups().world);
                      const Dispatched sent = dispatcher->finish_dispatch(
                          dispatcher->start_dispatch(tokens.x, tokens.probs, dispatcher->plan(tokens.experts)));
                      dispatcher->combine(run_experts(sent.rows, context, test_case.num_experts / test_case.ep),
                                          sent.back);
                      comm::barrier(world.groups().world);
                      if (world.rank() == 0)
                        count_bytes = int64_t{8} * test_case.num_experts * context.experts.size() * test_case.ranks;
                    });
  int64_t bytes = -(type == TokenDispatcher::allgather ? 0 : count_bytes);
  for (const auto& [key, count] : traffic->counts()) bytes += count.bytes;
  return bytes;
}

// An assignment costs a row in both directions for every shard of its expert, and a probability one way. An
// all-to-all moves exactly that (including rows that stay on their rank). A hierarchical all-to-all moves each row
// twice. An all-gather sends everything to all ranks.
TEST(Dispatchers, MoveAsMuchAsTheyMust) {
  const Case test_case{4, 2, 2, 6, 2};
  const int64_t assignments = test_case.ranks * kTokens * kTopk;
  const int64_t least = 8 * assignments * test_case.etp * (2 * kWidth + 1);
  EXPECT_EQ(travelled(test_case, TokenDispatcher::alltoall), least);
  EXPECT_EQ(travelled(test_case, TokenDispatcher::hierarchical), 2 * least);
  const int64_t everything =
      8 * test_case.ranks * test_case.ranks * kTokens * (kWidth + kTopk + kTopk /* experts */ + kWidth);
  EXPECT_EQ(travelled(test_case, TokenDispatcher::allgather), everything);
}

}  // namespace
}  // namespace metroplex::moe::dispatcher_ranks_test
