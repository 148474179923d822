#include "draw/hybrid.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "draw/text.h"

namespace metroplex::draw {
namespace {

char letter(int ranks) { return ranks < 10 ? static_cast<char>('0' + ranks) : ranks == 16 ? 'G' : '+'; }

std::vector<std::string> draw_rows(const plan::HybridPlan& plan, int columns) {
  std::vector<std::string> rows(plan.load.size(), std::string(static_cast<size_t>(columns), '.'));
  std::vector<double> free(plan.load.size(), 0);
  const auto column = [&](double time) { return static_cast<int>(std::lround(time / plan.span * columns)); };
  for (const plan::HybridMicrobatch& m : plan.microbatches) {
    const double start = *std::max_element(free.begin() + m.first_rank, free.begin() + m.first_rank + m.ranks);
    const int begin = column(start), end = column(start + m.cost);
    for (int rank = m.first_rank; rank < m.first_rank + m.ranks; ++rank) {
      const auto r = static_cast<size_t>(rank);
      free[r] = start + m.cost;
      for (int c = begin; c < end; ++c) rows[r][static_cast<size_t>(c)] = c == begin ? '|' : letter(m.ranks);
    }
  }
  return rows;
}

struct RankShare {
  int64_t tokens = 0, most = 0, microbatches = 0;  // tokens: of documents; most: maximum per microbatch, with fillers
};
RankShare rank_share(const plan::HybridPlan& plan, int rank) {
  RankShare share;
  for (const size_t i : plan.of_rank(rank)) {
    const plan::HybridMicrobatch& m = plan.microbatches[i];
    int64_t documents = 0, fillers = 0;
    for (const plan::PositionRun& run : m.documents) documents += run.count;
    for (const plan::PositionRun& run : m.fillers) fillers += run.count;
    share.tokens += documents / m.ranks;
    share.most = std::max(share.most, (documents + fillers + m.ranks - 1) / m.ranks);
    ++share.microbatches;
  }
  return share;
}

}  // namespace

std::string draw_text(const plan::HybridPlan& plan, int columns) {
  MPX_CHECK(columns >= 1, "plan", "a picture of ", columns, " columns; choose 1 or more");
  std::string text;
  const std::vector<std::string> rows = draw_rows(plan, columns);
  const std::string last = std::to_string(rows.size() - 1);
  int64_t documents = 0, shared = 0;
  for (const plan::HybridMicrobatch& m : plan.microbatches) {
    const auto count = static_cast<int64_t>(m.documents.size());
    documents += count;
    shared += m.ranks > 1 ? count : 0;
  }
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    const RankShare share = rank_share(plan, static_cast<int>(rank));
    const std::string name = std::to_string(rank);
    text += base::concat("rank ", std::string(last.size() - name.size(), ' '), name, " ", rows[rank], " ",
                         share.microbatches, " microbatches, ", share.tokens, " tokens, ", share.most, " at a time, ",
                         format("%.1f", 100 * plan.load[rank] / plan.mean()), " % of the mean cost\n");
  }
  return text + base::concat("until the last is done: ", format("%.3f", plan.span / plan.mean()), " of the mean; ",
                             documents, " documents, ", shared, " of them on more than one rank\n");
}

}  // namespace metroplex::draw
