#include "config/derived.h"

#include <algorithm>
#include <charconv>

#include "base/digit_groups.h"
#include "base/error.h"
#include "config/experts.h"
#include "config/parallel.h"

namespace metroplex::config {

int64_t ffn_width(const Model& model) {
  if (model.ffn_hidden_size > 0) return model.ffn_hidden_size;
  // 2/3 of 4h, so that three matrices have about as many parameters as two of width 4h. The result is a multiple of
  // 64.
  return model.gated_linear_unit ? 8 * model.hidden_size / 3 / 64 * 64 : 4 * model.hidden_size;
}

int64_t virtual_stages(const Parallel& parallel) {
  std::string problem;
  if (parallel.pipeline_model_parallel_layout.empty() || parallel.pp() < 1) return parallel.vpp();
  const auto stages = unrolled_layout(parallel.pipeline_model_parallel_layout, problem);
  const int64_t count = stages ? static_cast<int64_t>(stages->size()) : 0;
  return count >= parallel.pp() && count % parallel.pp() == 0 ? count / parallel.pp() : parallel.vpp();
}

Schedule schedule(const Parallel& parallel) {
  if (parallel.pipeline_schedule != Schedule::automatic) return parallel.pipeline_schedule;
  if (parallel.pp() == 1) return Schedule::none;
  return virtual_stages(parallel) > 1 ? Schedule::interleaved : Schedule::one_f_one_b;
}

bool splits_backward(const Parallel& parallel) {
  return splits_backward(schedule(parallel)) || parallel.delay_wgrad_compute;
}

std::optional<PipelineTimes> read_pipeline_times(const Parallel& parallel) {
  std::vector<double> numbers;
  for (const std::string& written : comma_list(parallel.pipeline_times)) {
    const std::string word = base::without_digit_groups(written);
    double number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc() || end != word.data() + word.size() || !(number >= 0) || !(number <= 1e12))
      return std::nullopt;
    numbers.push_back(number);
  }
  const size_t with_factors = 4 + static_cast<size_t>(parallel.pp());
  if ((numbers.size() != 4 && numbers.size() != with_factors) || numbers[0] + numbers[1] + numbers[2] <= 0)
    return std::nullopt;
  const auto factors = numbers.begin() + 4;
  if (factors != numbers.end() && *std::max_element(factors, numbers.end()) == 0) return std::nullopt;
  return PipelineTimes{numbers[0], numbers[1], numbers[2], numbers[3], {factors, numbers.end()}};
}

PipelineTimes pipeline_times(const Parallel& parallel) {
  const auto times = read_pipeline_times(parallel);
  MPX_CHECK(
      times, "config", "parallel.pipeline_times = ", parallel.pipeline_times,
      ": must be 4 numbers from 0 to 1e12, and a factor for each pipeline rank if there are more; write 1,1,1,0");
  return *times;
}

std::vector<CpCommType> cp_comm_types(const Parallel& parallel) {
  std::vector<CpCommType> types;
  for (const std::string& word : comma_list(parallel.cp_comm_type)) types.push_back(Choice<CpCommType>(word));
  return types;
}

std::optional<std::vector<int64_t>> read_context_levels(const Parallel& parallel) {
  std::vector<int64_t> sizes;
  if (parallel.hierarchical_context_parallel_sizes.empty()) return sizes;
  for (const std::string& written : comma_list(parallel.hierarchical_context_parallel_sizes)) {
    const std::string word = base::without_digit_groups(written);
    int64_t size = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), size);
    if (error != std::errc() || end != word.data() + word.size() || size < 1 || size > 65536) return std::nullopt;
    sizes.push_back(size);
  }
  return sizes;
}

std::vector<int64_t> context_levels(const Parallel& parallel) {
  const auto sizes = read_context_levels(parallel);
  MPX_CHECK(sizes, "config",
            "parallel.hierarchical_context_parallel_sizes = ", parallel.hierarchical_context_parallel_sizes,
            ": must be numbers of at least 1 separated by commas; write 4,2");
  return *sizes;
}

int64_t context_multiple(const Parallel& parallel) { return parallel.sequence_parallel ? parallel.tp() : 1; }

int64_t most_context_tokens(const Config& config) {
  const Parallel& parallel = config.parallel;
  const int64_t multiple = context_multiple(parallel);
  const auto mean = static_cast<double>(config.train.seq_length) / static_cast<double>(parallel.cp());
  const double most = mean * (1 + parallel.context_parallel_token_slack);
  return static_cast<int64_t>(most + 1e-6) / multiple * multiple;
}

std::vector<int> hybrid_context_sizes(int64_t ranks) {
  std::vector<int> sizes{1};
  while (ranks % (2 * static_cast<int64_t>(sizes.back())) == 0) sizes.push_back(2 * sizes.back());
  return sizes;
}

int64_t most_hybrid_tokens(const Config& config) {
  const Parallel& parallel = config.parallel;
  const int64_t multiple = context_multiple(parallel), seq = config.train.seq_length;
  const int64_t most = parallel.max_seqlen_per_dp_cp_rank > 0 ? parallel.max_seqlen_per_dp_cp_rank
                                                              : (seq + parallel.cp() - 1) / parallel.cp();
  return parallel.max_seqlen_per_dp_cp_rank > 0 ? most / multiple * multiple
                                                : (most + multiple - 1) / multiple * multiple;
}

int64_t default_bucket_size(int64_t dp) { return std::max<int64_t>(40'000'000, 1'000'000 * dp); }

}  // namespace metroplex::config
