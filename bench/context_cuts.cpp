// context_cuts [PREFIX...]: the balance of sequence sharding for cp 2 to 64. Prints the largest attention area of a
// rank over the mean, and the sent keys as a share of an all-gather. Uses synthetic lengths with fixed seeds, and
// documents of data sets (PREFIX.idx, .bin), shuffled and packed. Then prints the planner's time. Then prints hybrid
// context parallelism: time of a global batch by cost, and sent keys, with groups of one size and of any size.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "files/file_system.h"
#include "files/indexed_dataset.h"
#include "plan/hybrid_context.h"
#include "draw/sequence.h"
#include "timing.h"

namespace {

using namespace metroplex;
using plan::SequenceCutKind;

struct Lengths {
  std::string name;
  std::vector<int64_t> documents;
};

template <class Draw>
std::vector<int64_t> fill_samples(int64_t length, const Draw& draw) {
  std::vector<int64_t> lengths;
  for (int64_t left = length; left > 0; left -= lengths.back())
    lengths.push_back(std::clamp<int64_t>(static_cast<int64_t>(draw()), 1, left));
  return lengths;
}

Lengths dataset_samples(const std::string& prefix, int64_t length) {
  files::PosixFileSystem disk;
  const files::IndexedDataset data(disk, prefix);
  std::vector<int64_t> all;
  for (int64_t d = 0; d < data.num_documents(); ++d) {
    int64_t tokens = 0;
    for (int64_t s = data.document_begin(d); s < data.document_begin(d + 1); ++s) tokens += data.length(s);
    if (tokens > 0) all.push_back(tokens);
  }
  std::mt19937 random(11);
  std::shuffle(all.begin(), all.end(), random);
  size_t next = 0;
  return {prefix.substr(prefix.find_last_of('/') + 1),
          fill_samples(length, [&] { return all[next++ % all.size()]; })};
}

std::vector<Lengths> distributions(int64_t length) {
  std::mt19937 random(7);
  std::lognormal_distribution<double> narrow(std::log(400.0), 1), wide(std::log(400.0), 2);
  std::uniform_int_distribution<int64_t> crumb(1, 200);
  std::vector<int64_t> giant = fill_samples(length - length / 2, [&] { return crumb(random); });
  giant.insert(giant.begin() + static_cast<std::ptrdiff_t>(giant.size() / 3), length / 2);
  std::vector<Lengths> all{{"one", {length}},
                           {"log-normal, sigma 1", fill_samples(length, [&] { return narrow(random); })},
                           {"log-normal, sigma 2", fill_samples(length, [&] { return wide(random); })}};
  all.push_back({"a giant of half the tokens among crumbs of up to 200", giant});
  return all;
}

void print(const Lengths& lengths, int cp) {
  const plan::DocumentLengths documents{lengths.documents};
  std::printf("| %zu: %s | %d |", lengths.documents.size(), lengths.name.c_str(), cp);
  for (const auto& [kind, slack] : {std::pair{SequenceCutKind::zigzag, 0.0},
                                    {SequenceCutKind::contiguous, 0.0},
                                    {SequenceCutKind::balanced, 0.0},
                                    {SequenceCutKind::balanced, 0.1}}) {
    const plan::SequenceCut cut = plan::cut_sequence(documents, {kind, cp, slack});
    const draw::KeyTraffic keys = draw::key_traffic(cut, plan::seen_keys(documents, cut));
    std::printf(" %.3f, %.1f %% |", plan::cut_load(documents, cut).area_ratio,
                100 * static_cast<double>(keys.seen) / static_cast<double>(std::max<int64_t>(1, keys.all)));
  }
  std::printf("\n");
}

void print_times() {
  std::mt19937 random(3);
  std::lognormal_distribution<double> lengths(std::log(60.0), 1);
  const plan::DocumentLengths documents{fill_samples(1 << 20, [&] { return lengths(random); })};
  std::printf("\n| tokens | documents | cp | cut, ms | lists of keys, ms |\n|---|---|---|---|---|\n");
  for (const int cp : {8, 64}) {
    std::vector<double> cuts, keys;
    for (int i = 0; i < 15; ++i) {
      const auto start = bench::Clock::now();
      const plan::SequenceCut cut = plan::cut_sequence(documents, {SequenceCutKind::balanced, cp, 0.05});
      cuts.push_back(bench::seconds_since(start) * 1e3);
      const auto then = bench::Clock::now();
      const auto seen = plan::seen_keys(documents, cut);
      keys.push_back(seen.empty() ? 0 : bench::seconds_since(then) * 1e3);
    }
    std::printf("| %d | %zu | %d | %.1f | %.1f |\n", 1 << 20, documents[0].size(), cp, bench::median(cuts),
                bench::median(keys));
  }
}

// The cost of a query-key pair relative to a token's other work. For layers with 12 h^2 parameters it is 4 h / (2 *
// 12 h^2).
constexpr double kPairCost = 1.0 / (6 * 4096);

double attention_cost(const std::vector<int64_t>& lengths) {
  double sum = 0;
  for (const int64_t length : lengths) {
    const auto n = static_cast<double>(length);
    sum += n + kPairCost * n * (n + 1) / 2;
  }
  return sum;
}

int64_t keys_sent(const std::vector<int64_t>& lengths, int cp) {
  if (cp == 1) return 0;
  const plan::DocumentLengths documents{lengths};
  const plan::SequenceCut cut = plan::cut_sequence(documents, {SequenceCutKind::balanced, cp});
  return draw::key_traffic(cut, plan::seen_keys(documents, cut)).seen;
}

// Compares packed samples distributed to data-parallel ranks with a hybrid plan for the same samples.
void print_hybrid(const std::string& name, const plan::DocumentLengths& samples, int dp, int cp) {
  std::vector<double> fixed(static_cast<size_t>(dp), 0);
  int64_t tokens = 0, fixed_keys = 0, hybrid_keys = 0, documents = 0, shared = 0, length = 0;
  for (size_t s = 0; s < samples.size(); ++s) {
    fixed[s % fixed.size()] += attention_cost(samples[s]) / cp;
    fixed_keys += keys_sent(samples[s], cp);
    length = 0;
    for (const int64_t of : samples[s]) length += of;
    tokens += length;
  }
  const int64_t most = length / cp;
  const plan::HybridRequest request{dp * cp, most, 1, kPairCost, static_cast<double>(most) / 16};
  std::vector<double> times;
  plan::HybridPlan plan;
  for (int i = 0; i < 5; ++i) {
    const auto start = bench::Clock::now();
    plan = plan::plan_hybrid_context(samples, request);
    times.push_back(bench::seconds_since(start) * 1e3);
  }
  size_t microbatches = 0;
  for (int rank = 0; rank < dp * cp; ++rank) microbatches = std::max(microbatches, plan.of_rank(rank).size());
  double mean = 0;  // of the documents' costs
  for (const double of_rank : fixed) mean += of_rank / dp;
  const double fixed_span = *std::max_element(fixed.begin(), fixed.end()) +
                            request.microbatch_cost * static_cast<double>(samples.size() / fixed.size());
  for (const plan::HybridMicrobatch& m : plan.microbatches) {
    std::vector<int64_t> lengths;
    for (const plan::PositionRun& piece : m.pieces()) lengths.push_back(piece.count);
    hybrid_keys += keys_sent(lengths, m.ranks);
    documents += static_cast<int64_t>(m.documents.size());
    shared += m.ranks > 1 ? static_cast<int64_t>(m.documents.size()) : 0;
  }
  std::printf("| %lld in %zu samples: %s | %d x %d | %.3f | %.3f | %.2f | %.2f | %.1f %% | %zu, %zu | %.1f |\n",
              static_cast<long long>(documents), samples.size(), name.c_str(), dp, cp, fixed_span / mean,
              plan.span / mean, static_cast<double>(fixed_keys) / static_cast<double>(tokens),
              static_cast<double>(hybrid_keys) / static_cast<double>(tokens),
              100 * static_cast<double>(shared) / static_cast<double>(documents), samples.size() / fixed.size(),
              microbatches, bench::median(times));
}

void print_hybrids(int64_t length) {
  std::printf(
      "\n| documents of samples of %lld tokens | dp x cp | one size | hybrid | keys a token, one size | hybrid | "
      "documents "
      "that are shared | microbatches of a rank, one size, hybrid | plan, ms "
      "|\n|---|---|---|---|---|---|---|---|---|\n",
      static_cast<long long>(length));
  std::mt19937 random(5);
  for (const double sigma : {1.0, 2.0}) {
    std::lognormal_distribution<double> lengths(std::log(2000.0), sigma);
    for (const auto& [dp, cp] : {std::pair{2, 2}, {4, 4}, {8, 8}}) {
      plan::DocumentLengths samples(static_cast<size_t>(4 * dp));
      for (auto& of_sample : samples) of_sample = fill_samples(length, [&] { return lengths(random); });
      print_hybrid("log-normal, sigma " + std::to_string(static_cast<int>(sigma)), samples, dp, cp);
    }
  }
  // Long samples among short ones, as if texts of one kind were consecutive.
  for (const auto& [dp, cp] : {std::pair{2, 2}, {4, 4}, {8, 8}}) {
    std::uniform_int_distribution<int64_t> crumb(1, 4000);
    plan::DocumentLengths samples(static_cast<size_t>(4 * dp));
    for (size_t s = 0; s < samples.size(); ++s)
      samples[s] = s % 5 == 0 ? std::vector<int64_t>{length} : fill_samples(length, [&] { return crumb(random); });
    print_hybrid("one of all tokens in each fifth sample, else up to 4000", samples, dp, cp);
  }
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int64_t kTokens = 131072;
  std::vector<Lengths> all = distributions(kTokens);
  for (int i = 1; i < argc; ++i) all.push_back(dataset_samples(argv[i], kTokens));
  std::printf(
      "| documents in %lld tokens | cp | zigzag | contiguous | balanced | balanced, 10 %% slack of tokens |\n",
      static_cast<long long>(kTokens));
  std::printf("|---|---|---|---|---|---|\n");
  for (const Lengths& lengths : all) {
    for (int cp = 2; cp <= 64; cp *= 2) print(lengths, cp);
  }
  print_times();
  print_hybrids(kTokens);
  return 0;
}
