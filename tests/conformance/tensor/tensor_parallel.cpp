// tensor_parallel.json: vocabulary-parallel cross entropy with gradients (on one rank, and over two if the vocabulary
// can be halved), the clip coefficient, the seeds of a rank, the vocabulary ranges.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <mutex>

#include "comm/launch.h"
#include "config/parallel.h"
#include "conformance/report.h"
#include "conformance/tensor/json_tensor.h"
#include "kernels/step_state_math.h"
#include "nn/loss.h"
#include "nn/param_init.h"
#include "optim/clip.h"

namespace metroplex::conformance {
namespace {

// fp32 sums of `vocab` exponentials, loss and gradient of size about 5.
double tolerance(const Json& test) { return 1e-6 * std::sqrt(test.at("vocab").get<double>()); }

std::string cross_entropy(const Json& test, const comm::Group& tp) {
  const int64_t vocab = test.at("vocab");
  const at::Tensor logits = to_tensor(test.at("logits"), at::kFloat),
                   targets = to_tensor(test.at("target"), at::kLong);
  const nn::VocabularyShard part = nn::make_vocabulary_shard(vocab, vocab, tp.size(), tp.index());
  const at::Tensor mine = logits.narrow(2, part.begin, part.local_rows).clone().requires_grad_(true);
  const at::Tensor loss = nn::vocab_parallel_cross_entropy(
      mine, targets, {tp, part, vocab, test.at("label_smoothing").get<double>(), {}});
  std::string problem = compare_tensors("loss", loss, to_tensor(test.at("loss"), at::kFloat), tolerance(test));
  if (!problem.empty()) return problem;
  const at::Tensor gradient =
      torch::autograd::grad({loss}, {mine}, {to_tensor(test.at("grad_output"), at::kFloat)})[0];
  return compare_tensors("gradient", gradient,
                         to_tensor(test.at("grad_logits"), at::kFloat).narrow(2, part.begin, part.local_rows),
                         tolerance(test));
}

std::string cross_entropy_over_two(const Json& test) {
  config::Parallel parallel;
  parallel.tensor_model_parallel_size = 2;
  std::mutex lock;
  std::string problem;
  comm::run_threads(2, topology::RankGrid(2, parallel), {}, [&](const comm::World& world) {
    const std::string mine = cross_entropy(test, world.groups().tp);
    const std::lock_guard hold(lock);
    if (problem.empty()) problem = mine;
  });
  return problem;
}

std::string clip(const Json& test) {
  const double norm = test.at("total_norm"), limit = test.at("max_norm"), recorded = test.at("coeff");
  // The recorded coefficient is max / (norm + 1e-6); it is applied only below 1.
  return compare_near(kernels::clip_factor(norm, limit), test.at("applied").get<bool>() ? recorded : 1.0, 0, 1e-15);
}

std::string seeds(const Json& test) {
  const nn::RngRanks place{test.at("tp_rank"), test.at("pp_rank"), test.at("ep_rank"), test.at("etp_rank")};
  const nn::RngSeeds got = nn::rng_seeds(test.at("arg_seed").get<uint64_t>(), place);
  return compare({got.data_parallel, got.data_parallel, got.model_parallel, got.expert_parallel},
                 {test.at("base_seed_after_pp"), test.at("default_data_parallel_seed"),
                  test.at("model_parallel_seed"), test.at("expert_parallel_seed")});
}

std::string vocab_ranges(const Json& test) {
  const int64_t vocab = test.at("global_vocab");
  const int tp = test.at("tp");
  Json got = Json::array();
  for (int index = 0; index < tp; ++index) {
    const nn::VocabularyShard part = nn::make_vocabulary_shard(vocab, vocab, tp, index);
    got.push_back({part.begin, part.begin + part.local_rows});
  }
  return compare_list(got, test, "ranges");
}

}  // namespace

void run_tensor_parallel(const Json& file, Report& report) {
  const auto each = [&](const char* key, const std::string& suffix,
                        const std::function<std::string(const Json&)>& body) {
    int number = 0;
    for (const Json& test : cases(file, key))
      report.check(std::string(key) + " " + std::to_string(number++) + suffix, test, [&] { return body(test); });
  };
  each("cross_entropy", "", [](const Json& test) { return cross_entropy(test, {}); });
  each("cross_entropy", " over two ranks", [](const Json& test) {
    return test.at("vocab").get<int64_t>() % 2 == 0 ? cross_entropy_over_two(test) : cross_entropy(test, {});
  });
  each("clip_coeff", "", clip);
  each("rng_seeds", "", seeds);
  each("vocab_ranges", "", vocab_ranges);
}

}  // namespace metroplex::conformance
