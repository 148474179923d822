#include "plan/hybrid_context.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "config/derived.h"

namespace metroplex::plan {
namespace {

struct Document {
  int64_t sample = 0;
  PositionRun run;
  double cost = 0;  // on one rank
};

// Maximum cost per rank. shared: of a shared document, if enough ranks can share it. together: of documents that
// are packed together.
struct Limits {
  double shared = 0, together = 0;
};

struct Bin {
  int64_t sample = 0, tokens = 0;
  int ranks = 1;
  double cost = 0;  // sum over ranks
  std::vector<PositionRun> documents;
  double each() const { return cost / ranks; }
};

int64_t whole_units(int64_t tokens, int64_t multiple) { return (tokens + multiple - 1) / multiple; }

double document_cost(int64_t length, double pair_cost) {
  const auto n = static_cast<double>(length);
  return n + pair_cost * n * (n + 1) / 2;
}

std::vector<std::vector<Document>> all_documents(const DocumentLengths& lengths, const HybridRequest& request) {
  std::vector<std::vector<Document>> samples;
  for (size_t s = 0; s < lengths.size(); ++s) {
    std::vector<Document>& documents = samples.emplace_back();
    int64_t at = 0;
    for (const int64_t length : lengths[s]) {
      MPX_CHECK(length > 0, "plan", "sample ", s, " has a document of ", length, " tokens; leave it out");
      documents.push_back({static_cast<int64_t>(s), {at, length}, document_cost(length, request.pair_cost)});
      at += length;
    }
    MPX_CHECK(at > 0 && at % request.multiple == 0, "plan", "sample ", s, " has ", at, " tokens, not a multiple of ",
              request.multiple, "; choose a multiple");
  }
  return samples;
}

class Planner {
 public:
  Planner(const DocumentLengths& lengths, const HybridRequest& request)
      : request_(request), sizes_(config::hybrid_context_sizes(request.ranks)) {
    MPX_CHECK(request.ranks >= 1 && request.multiple >= 1 && request.pair_cost >= 0 && request.microbatch_cost >= 0,
              "plan", "a plan for ", request.ranks, " ranks with multiples of ", request.multiple,
              " and a pair that costs ", request.pair_cost,
              "; the numbers must be at least 1 and the costs at least 0");
    most_units_ = request.max_tokens / request.multiple;
    MPX_CHECK(most_units_ >= 1, "plan", "ranks take at most ", request.max_tokens, " tokens, and multiples of ",
              request.multiple, "; raise the limit to it");
    MPX_CHECK(!lengths.empty(), "plan", "a plan needs at least one sample");
    samples_ = all_documents(lengths, request);
  }

  HybridPlan best() const {
    double total = 0;
    for (const auto& documents : samples_) {
      for (const Document& document : documents) total += document.cost;
    }
    const double mean = total / request_.ranks;
    const auto share_of_mean = [&](double share) {
      return share == 0 ? std::numeric_limits<double>::infinity() : share * mean;
    };
    std::vector<HybridPlan> plans;  // from few shared documents and few microbatches to many
    for (const double shared : {0.0, 1.0, 0.5, 0.25, 0.125, 0.0625}) {
      for (const double together : {0.0, 1.0, 0.5, 0.25, 0.125, 0.0625})
        plans.push_back(make_plan({share_of_mean(shared), share_of_mean(together)}));
    }
    double shortest = plans.front().span;
    for (const HybridPlan& plan : plans) shortest = std::min(shortest, plan.span);
    return *std::find_if(plans.begin(), plans.end(),
                         [&](const HybridPlan& plan) { return plan.span <= 1.02 * shortest; });
  }

 private:
  bool fits(int64_t tokens, int ranks) const {
    return whole_units(whole_units(tokens, request_.multiple), ranks) <= most_units_;
  }

  int64_t units_of_sample(int64_t sample) const {
    return samples_[static_cast<size_t>(sample)].back().run.end() / request_.multiple;
  }

  // Returns the fewest ranks on which a document fits and costs at most `limit`; at most one rank per unit.
  int count_ranks(const Document& document, double limit) const {
    const int64_t units = whole_units(document.run.count, request_.multiple);
    int fewest = 0;
    for (const int ranks : sizes_) {
      if (ranks > (fewest > 0 ? units : units_of_sample(document.sample))) break;
      const bool fit = fits(document.run.count, ranks);
      if (fit) fewest = ranks;
      if (fit && document.cost / ranks <= limit) break;
    }
    MPX_CHECK(fewest > 0, "plan", "a document of ", document.run.count, " tokens does not fit on ", sizes_.back(),
              " ranks with at most ", most_units_ * request_.multiple, " tokens each; raise the limit");
    return fewest;
  }

  // Adds the documents of a sample: shared documents alone, the others packed as far as they fit and stay within the
  // limit.
  void add_bins(const std::vector<Document>& documents, const Limits& limits, std::vector<Bin>& bins) const {
    std::vector<const Document*> whole;
    for (const Document& document : documents) {
      const int ranks = count_ranks(document, limits.shared);
      if (ranks == 1) whole.push_back(&document);
      else bins.push_back({document.sample, document.run.count, ranks, document.cost, {document.run}});
    }
    std::stable_sort(whole.begin(), whole.end(),
                     [](const Document* a, const Document* b) { return a->run.count > b->run.count; });
    const size_t first = bins.size();
    size_t open = first;  // earlier bins are full
    for (const Document* document : whole) {
      const auto takes = [&](const Bin& bin) {
        return fits(bin.tokens + document->run.count, 1) && bin.cost + document->cost <= limits.together;
      };
      auto bin = std::find_if(bins.begin() + static_cast<std::ptrdiff_t>(open), bins.end(), takes);
      if (bin == bins.end()) bin = bins.insert(bin, Bin{document->sample, 0, 1, 0, {}});
      bin->tokens += document->run.count;
      bin->cost += document->cost;
      bin->documents.push_back(document->run);
      while (open < bins.size() && bins[open].tokens >= most_units_ * request_.multiple) ++open;
    }
  }

  std::vector<PositionRun> fillers(int64_t sample, const std::vector<PositionRun>& documents, int64_t count) const {
    std::vector<PositionRun> runs;
    for (const Document& other : samples_[static_cast<size_t>(sample)]) {
      if (count == 0) break;
      if (std::find(documents.begin(), documents.end(), other.run) != documents.end()) continue;
      runs.push_back({other.run.first, std::min(count, other.run.count)});
      count -= runs.back().count;
    }
    MPX_ASSERT(count == 0, "a sample has no ", count, " positions more");
    return runs;
  }

  HybridPlan make_plan(const Limits& limits) const {
    std::vector<Bin> bins;
    for (const auto& documents : samples_) add_bins(documents, limits, bins);
    // Largest groups first. The first microbatch of a rank is then also the first on all ranks that share it.
    // Waiting for parameters in it therefore cannot cause a chain of waits.
    std::stable_sort(bins.begin(), bins.end(), [](const Bin& a, const Bin& b) {
      return a.ranks != b.ranks ? a.ranks > b.ranks : a.each() > b.each();
    });
    HybridPlan plan;
    plan.load.assign(static_cast<size_t>(request_.ranks), 0);
    std::vector<double> free(plan.load.size(), 0);  // time at which each rank is free
    std::vector<bool> counted(samples_.size(), false);
    for (const Bin& bin : bins) place(plan, free, bin);
    for (int rank = 0; rank < request_.ranks; ++rank) {
      if (!plan.of_rank(rank).empty()) continue;
      plan.microbatches.push_back(
          {0, {}, fillers(0, {}, request_.multiple), rank, 1, false, request_.microbatch_cost});
      free[static_cast<size_t>(rank)] = plan.load[static_cast<size_t>(rank)] = request_.microbatch_cost;
    }
    for (HybridMicrobatch& microbatch : plan.microbatches) {
      const auto sample = static_cast<size_t>(microbatch.sample);
      microbatch.counts = !counted[sample] && !microbatch.documents.empty();
      counted[sample] = counted[sample] || microbatch.counts;
    }
    plan.span = *std::max_element(free.begin(), free.end());
    return plan;
  }

  void place(HybridPlan& plan, std::vector<double>& free, const Bin& bin) const {
    int best = 0;
    double start = std::numeric_limits<double>::infinity();
    for (int first = 0; first < request_.ranks; first += bin.ranks) {
      const double when = *std::max_element(free.begin() + first, free.begin() + first + bin.ranks);
      if (when < start) start = when, best = first;
    }
    HybridMicrobatch microbatch{
        bin.sample, bin.documents, {}, best, bin.ranks, false, bin.each() + request_.microbatch_cost};
    std::sort(microbatch.documents.begin(), microbatch.documents.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    const int64_t units = whole_units(bin.tokens, request_.multiple),
                  padded = std::max<int64_t>(units, bin.ranks) * request_.multiple;
    microbatch.fillers = fillers(bin.sample, microbatch.documents, padded - bin.tokens);
    for (int rank = best; rank < best + bin.ranks; ++rank) {
      free[static_cast<size_t>(rank)] = start + microbatch.cost;
      plan.load[static_cast<size_t>(rank)] += microbatch.cost;
    }
    plan.microbatches.push_back(std::move(microbatch));
  }

  HybridRequest request_;
  std::vector<int> sizes_;
  int64_t most_units_ = 0;
  std::vector<std::vector<Document>> samples_;
};

}  // namespace

std::vector<PositionRun> HybridMicrobatch::pieces() const {
  std::vector<PositionRun> all = documents;
  all.insert(all.end(), fillers.begin(), fillers.end());
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return all;
}

double HybridPlan::mean() const {
  return std::accumulate(load.begin(), load.end(), 0.0) / static_cast<double>(load.size());
}

std::vector<size_t> HybridPlan::of_rank(int rank) const {
  std::vector<size_t> numbers;
  for (size_t m = 0; m < microbatches.size(); ++m) {
    if (microbatches[m].runs_on(rank)) numbers.push_back(m);
  }
  return numbers;
}

HybridPlan plan_hybrid_context(const DocumentLengths& documents, const HybridRequest& request) {
  return Planner(documents, request).best();
}

}  // namespace metroplex::plan
