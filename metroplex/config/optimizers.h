// The optimizers by name: what each keeps of a parameter, and which ways of storing it its update can read. The
// choices of optim.optimizer, the rules between keys, the memory formula and the optimizers themselves read this
// table; optim/registry.cpp has their updates.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/optim.h"

namespace metroplex::config {

// A number for every element beside the parameter.
struct OptimizerMoment {
  const char* kind;                   // its name in a checkpoint
  Choice<MomentDtype> Optim::*dtype;  // the key that says in which format it is stored
  bool non_negative = false;
  double Optim::*unless_zero = nullptr;  // set: kept only where this is not 0
};

struct OptimizerTraits {
  const char* name;
  const char* help;
  std::vector<OptimizerMoment> moments;
  bool low_precision_state = false;  // takes moments and main parameters in fewer than 32 bits
  bool takes_sign = false;           // of gradients: one that is zero but for rounding moves a parameter by chance
  // Set: updates only matrices (embeddings and output layer excepted), each as a whole, and leaves everything else to
  // the optimizer of this name. Its state is fp32 or fp64.
  const char* others = nullptr;
  int64_t whole_matrices = 0;  // that the update of one makes, in fp32 or fp64

  std::vector<OptimizerMoment> kept(const Optim& config) const;
};

const std::vector<OptimizerTraits>& optimizers();
std::vector<std::string> optimizer_names();
const char* optimizer_help();                                    // of optim.optimizer
const OptimizerTraits* find_optimizer(const std::string& name);  // null: unknown

}  // namespace metroplex::config
