#include "config/optimizers.h"

namespace metroplex::config {

const std::vector<OptimizerTraits>& optimizers() {
  static const std::vector<OptimizerTraits> kOptimizers = {
      {"adam",
       "AdamW (decoupled weight decay)",
       {{"exp_avg", &Optim::exp_avg_dtype}, {"exp_avg_sq", &Optim::exp_avg_sq_dtype, true}},
       true},
      {"sgd",
       "gradient descent with sgd_momentum",
       {{"momentum_buffer", &Optim::exp_avg_dtype, false, &Optim::sgd_momentum}}},
      {"lion", "updates by the sign of the momentum", {{"exp_avg", &Optim::exp_avg_dtype}}, false, true},
      {"muon",
       "orthogonalizes the momentum of matrices and uses AdamW for embeddings, output layer, norms and biases",
       {{"momentum_buffer", &Optim::exp_avg_dtype}},
       false,
       false,
       "adam",
       5},  // Newton-Schulz: the matrix, two products and the result
  };
  return kOptimizers;
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const OptimizerTraits& optimizer : optimizers()) names.emplace_back(optimizer.name);
  return names;
}

const char* optimizer_help() {
  static const std::string kHelp = [] {
    std::string all;
    for (const OptimizerTraits& optimizer : optimizers())
      all += (all.empty() ? "" : " ") + std::string(optimizer.name) + ": " + optimizer.help + ".";
    return all;
  }();
  return kHelp.c_str();
}

const OptimizerTraits* find_optimizer(const std::string& name) {
  for (const OptimizerTraits& optimizer : optimizers()) {
    if (name == optimizer.name) return &optimizer;
  }
  return nullptr;
}

std::vector<OptimizerMoment> OptimizerTraits::kept(const Optim& config) const {
  std::vector<OptimizerMoment> kept;
  for (const OptimizerMoment& moment : moments) {
    if (moment.unless_zero == nullptr || config.*moment.unless_zero != 0) kept.push_back(moment);
  }
  return kept;
}

}  // namespace metroplex::config
