// A checkpoint with its adapters (config/peft.h) merged into the weights: W + scale B A. The sum is computed in
// double precision from the adapters' main parameters, if the checkpoint has them, and rounded once. Weights with
// adapters are also available as "main" in float32.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/load.h"
#include "checkpoint/tensor_source.h"
#include "config/config.h"

namespace metroplex::hf {

class MergedWeights final : public checkpoint::TensorSource {
 public:
  // `run` must outlive the object; `config` is the configuration of the checkpoint. Throws base::Error("checkpoint")
  // for an adapter that is not part of config's model.
  MergedWeights(checkpoint::Reader& run, const config::Config& config);

 private:
  struct Adapter {
    std::string module;
    config::AdapterBox box;
  };
  void read(size_t tensor, const checkpoint::Piece& region, void* data) override;

  checkpoint::Reader& run_;
  double scale_;
  std::map<std::string, std::vector<Adapter>> adapters_;  // by the weight that they modify
};

// Returns a whole tensor of a checkpoint as double, from `kind` "main" if it exists.
std::vector<double> read_full_values(checkpoint::Reader& run, const std::string& name);

}  // namespace metroplex::hf
