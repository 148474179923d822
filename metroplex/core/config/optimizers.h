// Optimizers by name: their state per parameter and the storage formats that their updates support. The choices of
// optim.optimizer, the rules between keys, the memory formula and the optimizers read this table. The updates are in
// optim/optimizer_registry.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/optim.h"

namespace metroplex::config {

// One state value per parameter element.
struct OptimizerMoment {
  const char* kind;                   // its name in a checkpoint
  Choice<MomentDtype> Optim::*dtype;  // key of its storage format
  bool non_negative = false;
  double Optim::*unless_zero = nullptr;  // set: exists only if this key is not 0
};

struct OptimizerTraits {
  const char* name;
  const char* help;
  std::vector<OptimizerMoment> moments;
  bool low_precision_state = false;  // supports moments and main parameters below 32 bits
  bool takes_sign = false;           // uses the sign of gradients, so rounding noise can move a parameter
  // If set, the optimizer updates only matrices (except embeddings and output layer), each as a unit. The named
  // optimizer updates the other parameters. The state is fp32 or fp64.
  const char* others = nullptr;
  int64_t whole_matrices = 0;  // temporary matrices of one update, in fp32 or fp64

  std::vector<OptimizerMoment> kept(const Optim& config) const;
};

const std::vector<OptimizerTraits>& optimizers();
std::vector<std::string> optimizer_names();
const char* optimizer_help();
const OptimizerTraits* find_optimizer(const std::string& name);  // null: unknown

}  // namespace metroplex::config
