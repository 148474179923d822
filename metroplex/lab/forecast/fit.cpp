#include "forecast/fit.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "config/load.h"
#include "config/validate.h"
#include "topology/rank_grid.h"
#include "step/run_length.h"

namespace metroplex::forecast {
namespace {

using topology::Axis;
using topology::AxisSet;

int64_t shard_size(const config::Parallel& parallel, const topology::RankGrid& grid) {
  if (!parallel.sharding().any()) return 1;
  return grid.size(AxisSet{Axis::dp, Axis::cp}) / parallel.num_distributed_optimizer_instances;
}

// Peak bytes of the ranks of each pipeline rank, by index in the group of ranks that shard the state.
using Peaks = std::map<int, std::vector<int64_t>>;  // by pp

class DomainSum {
 public:
  DomainSum(const FitRequest& request, const topology::RankGrid& grid, const Peaks& peaks)
      : request_(request), grid_(grid), size_(shard_size(request.config.parallel, grid)), peaks_(peaks) {}

  int64_t domain(int64_t number) const {
    int64_t sum = 0;
    const int64_t begin = number * request_.domains.ranks_each;
    for (int64_t rank = begin; rank < begin + num_ranks(number); ++rank) sum += peak(static_cast<int>(rank));
    return sum;
  }
  int64_t num_ranks(int64_t number) const {
    const int64_t begin = number * request_.domains.ranks_each;
    return std::min(request_.domains.ranks_each, request_.world_size - begin);
  }

 private:
  int64_t peak(int rank) const {
    const int64_t index = size_ == 1 ? 0 : grid_.index_in_group(rank, {Axis::dp, Axis::cp}) % size_;
    return peaks_.at(grid_.coordinates(rank).pp).at(static_cast<size_t>(index));
  }

  const FitRequest& request_;
  const topology::RankGrid& grid_;
  int64_t size_;
  const Peaks& peaks_;
};

// Indices of the domains to check: [begin, end).
struct Range {
  int64_t begin = 0, end = 0;
};
Range domains_to_check(const FitRequest& request) {
  const int64_t each = request.domains.ranks_each;
  if (!request.domains.only) return {0, (request.world_size + each - 1) / each};
  const int64_t number = *request.domains.only / each;
  return {number, number + 1};
}

std::set<int> pipeline_ranks(const FitRequest& request, const topology::RankGrid& grid, const Range& domains) {
  std::set<int> found;
  const int64_t end = std::min<int64_t>(domains.end * request.domains.ranks_each, request.world_size);
  for (int64_t rank = domains.begin * request.domains.ranks_each; rank < end; ++rank)
    found.insert(grid.coordinates(static_cast<int>(rank)).pp);
  return found;
}

void find_fullest(const FitRequest& request, const topology::RankGrid& grid, const Range& domains, const Peaks& peaks,
                  Fit& out) {
  const DomainSum sum(request, grid, peaks);
  for (int64_t number = domains.begin; number < domains.end; ++number) {
    const int64_t need = sum.domain(number);
    if (need <= out.need && number > domains.begin) continue;
    out.need = need;
    out.domain = number;
    out.domain_ranks = sum.num_ranks(number);
  }
}

}  // namespace

int64_t max_microbatches(const config::Config& config, int world_size) {
  const plan::MicrobatchSchedule schedule =
      step::microbatch_schedule(config, config::data_parallel_size(config.parallel, world_size));
  int64_t most = 0;
  for (const auto& [sample, size] : schedule.thresholds())
    most = std::max(most, schedule.at(sample, false).num_microbatches);
  MPX_CHECK(most > 0, "plan", "train.global_batch_size = ", config.train.global_batch_size,
            ": gives no microbatch for every data-parallel rank; raise it");
  return most;
}

RankRequest FitRequest::of_rank(int rank, int64_t num_microbatches) const {
  RankRequest request{config,     world_size,       rank,
                      vocab_size, num_microbatches, domains.gpu ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU)};
  request.capability = capability;
  return request;
}

RankFigures predict_figures(const FitRequest& request, int rank, const Predictor& predict) {
  const topology::RankGrid grid(request.world_size, request.config.parallel);
  const int64_t size = shard_size(request.config.parallel, grid);
  RankFigures out;
  out.rank = rank;
  out.pp = grid.coordinates(rank).pp;
  const int64_t index = size > 1 ? grid.index_in_group(rank, {Axis::dp, Axis::cp}) % size : 0;
  out.last = size > 1 && index == size - 1;
  out.between = index > 0 && !out.last;
  out.prediction = predict(request.of_rank(rank, max_microbatches(request.config, request.world_size)));
  out.peak = out.prediction.memory.peak - (request.domains.gpu ? out.prediction.memory.use.host : 0);
  return out;
}

Fit fit(const FitRequest& request, const Predictor& predict) {
  const topology::RankGrid grid(request.world_size, request.config.parallel);
  const int64_t size = shard_size(request.config.parallel, grid);
  Fit out;
  out.have = request.domains.bytes;
  const Range domains = domains_to_check(request);
  Peaks peaks;
  for (const int pp : pipeline_ranks(request, grid, domains)) {
    const topology::Ranks group = grid.group_ranks(grid.rank({.pp = pp}), {Axis::dp, Axis::cp});
    const auto predict_index = [&](int64_t index) {
      return predict_figures(request, group[static_cast<size_t>(index)], predict);
    };
    const RankFigures first = predict_index(0);
    out.ranks.push_back(first);
    std::vector<int64_t>& of_pp = peaks[pp];
    of_pp.assign(static_cast<size_t>(size), first.peak);
    if (size == 1) continue;
    const RankFigures last = predict_index(size - 1);
    const int64_t smaller = std::min(first.peak, last.peak);
    std::optional<RankFigures> most;
    for (int64_t index = 1; index + 1 < size; ++index) {
      int64_t& peak = of_pp[static_cast<size_t>(index)] = smaller;
      if (size > kMaxPredicted) continue;
      const RankFigures between = predict_index(index);
      peak = between.peak;
      if (peak > std::max(first.peak, last.peak) && (!most || peak > most->peak)) most = between;
    }
    of_pp.back() = last.peak;
    if (most) out.ranks.push_back(*most);
    out.ranks.push_back(last);
  }
  const auto less = [](const RankFigures& a, const RankFigures& b) { return a.peak < b.peak; };
  out.worst = static_cast<size_t>(std::max_element(out.ranks.begin(), out.ranks.end(), less) - out.ranks.begin());
  find_fullest(request, grid, domains, peaks, out);
  return out;
}

std::optional<FitRequest> with_settings(const FitRequest& request, const std::vector<std::string>& settings) {
  FitRequest with = request;
  with.config = config::parse(config::dump(request.config), settings);
  if (!config::violations(with.config, request.world_size).empty()) return std::nullopt;
  with.config = config::resolved(with.config, request.world_size);
  return with;
}

}  // namespace metroplex::forecast
