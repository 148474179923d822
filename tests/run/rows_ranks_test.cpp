// Training on microbatches of selected rows (nn::SequenceShard::rows) against whole sequences, in float64. Covers
// rows in another order, and ranks that hold two ranges of every sequence.
#include "run/support.h"

namespace metroplex::test::rows_ranks_test {
namespace {

struct Trained {
  std::vector<double> losses, norms, tokens;
  std::map<std::string, at::Tensor> state;
};

at::Tensor to_rows(const std::vector<nn::IndexRange>& runs) {
  std::vector<at::Tensor> rows;
  for (const nn::IndexRange& run : runs) rows.push_back(at::arange(run.first, run.first + run.count, at::kLong));
  return at::cat(rows);
}

nn::Microbatch select_part(const nn::Microbatch& whole, const std::vector<std::vector<nn::IndexRange>>& all,
                           size_t rank) {
  std::vector<at::Tensor> rows;
  for (const auto& runs : all) rows.push_back(to_rows(runs));
  nn::Microbatch part = whole;
  part.sequence.all_rows = at::stack(rows);
  part.sequence.rows = part.sequence.all_rows[static_cast<int64_t>(rank)];
  part.sequence.row_ranges = all[rank];
  part.sequence.length = whole.tokens.size(1);
  for (at::Tensor* x : {&part.tokens, &part.labels, &part.loss_mask})
    *x = x->index_select(1, part.sequence.rows).contiguous();
  part.position_ids = at::Tensor();  // the rows are the positions
  return part;
}

// runs[i]: the rows of context-parallel rank i; none: whole sequences.
using Runs = std::vector<std::vector<nn::IndexRange>>;

Trained train_on(config::Config config, const TestLayout& layout, const Runs& runs, bool documents) {
  config = cut(config, layout);
  const int cp = std::max<int>(1, static_cast<int>(runs.size()));
  config.parallel.context_parallel_size = cp;
  const int ranks = static_cast<int>(layout.ranks()) * cp;
  Trained result;
  comm::run_threads(
      ranks, topology::RankGrid(ranks, config.parallel), {std::chrono::seconds(60)}, [&](const comm::World& world) {
        const auto assembly = step::assemble(config, world, kVocab);
        Trained mine;
        for (int64_t step = 0; step < 3; ++step) {
          std::vector<nn::Microbatch> batches = make_batches(*assembly, step);
          for (nn::Microbatch& batch : batches) {
            if (documents)
              batch.documents.ids =
                  at::arange(kSequence, at::kLong).div(2, "floor").expand(batch.tokens.sizes()).contiguous();
            if (!runs.empty()) batch = select_part(batch, runs, static_cast<size_t>(world.groups().cp.index()));
          }
          const int64_t samples = step * config.train.global_batch_size;
          const auto outcome = step::train_step(*assembly, {batches, step + 1, samples, false, {}});
          mine.losses.push_back(outcome.loss);
          mine.norms.push_back(outcome.grad_norm);
          mine.tokens.push_back(outcome.tokens);
        }
        mine.state = whole_state(*assembly);
        if (world.rank() == 0) result = std::move(mine);
      });
  return result;
}

void expect_same(const Trained& got, const Trained& want) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  EXPECT_EQ(got.tokens, want.tokens);
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], 1e-12 * want.losses[i]);  // the tolerances of verify/verify.h
    EXPECT_NEAR(got.norms[i], want.norms[i], 1e-11 * want.norms[i]);
  }
  ASSERT_EQ(got.state.size(), want.state.size());
  for (const auto& [name, tensor] : want.state)
    EXPECT_LE((got.state.at(name) - tensor).abs().max().item<double>(), 1e-10) << name;
}

std::vector<config::Config> configs() {
  config::Config plain = small_gpt(), per_token = small_llama();
  plain.model.attention_dropout = 0;
  per_token.train.calculate_per_token_loss = true;
  per_token.model.hidden_dropout = per_token.model.attention_dropout = 0.1;
  return {small_gpt(), plain, per_token};
}

TEST(RowsRanks, ASequenceInAnotherOrderOfItsRowsIsTheSameSequence) {
  const Runs order{{{5, 3}, {0, 1}, {2, 3}, {1, 1}}};
  for (const config::Config& config : configs()) {
    for (const bool documents : {false, true}) {
      const Trained whole = train_on(config, {}, {}, documents);
      for (const TestLayout& layout : {TestLayout{}, TestLayout{.tp = 2, .sp = true}, TestLayout{.tp = 2, .pp = 2}}) {
        SCOPED_TRACE(testing::Message() << config.model.family << " dropout " << config.model.attention_dropout
                                        << " documents " << documents << " tp " << layout.tp << " pp " << layout.pp);
        expect_same(train_on(config, layout, order, documents), whole);
      }
    }
  }
}

TEST(RowsRanks, RanksWithTwoRunsOfEverySequenceTrainAsOneRank) {
  const Runs runs{{{0, 2}, {6, 2}}, {{2, 2}, {4, 2}}};
  for (const config::Config& config : configs()) {
    for (const bool documents : {false, true}) {
      const Trained whole = train_on(config, {}, {}, documents);
      for (const TestLayout& layout : {TestLayout{}, TestLayout{.tp = 2, .sp = true}, TestLayout{.pp = 2, .dp = 2}}) {
        SCOPED_TRACE(testing::Message() << config.model.family << " dropout " << config.model.attention_dropout
                                        << " documents " << documents << " tp " << layout.tp << " pp " << layout.pp
                                        << " dp " << layout.dp);
        expect_same(train_on(config, layout, runs, documents), whole);
      }
    }
  }
}

}  // namespace
}  // namespace metroplex::test::rows_ranks_test
