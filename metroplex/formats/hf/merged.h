// Weights with their adapters (config/peft.h) merged into them: W + scale B A, with DoRA scaled to the magnitude of
// each row. The sum is computed in double from the adapters' main parameters, if there are any, and rounded once.
// Weights with adapters are also available as "main" in float32.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/tensor_source.h"
#include "config/config.h"

namespace metroplex::hf {

class MergedWeights final : public checkpoint::TensorSource {
 public:
  // `run`: a checkpoint or AdaptedWeights (adapters.h); it must outlive the object. `config` is its configuration.
  // Throws base::Error("checkpoint") for an adapter that is not part of config's model.
  MergedWeights(checkpoint::TensorSource& run, const config::Config& config);

 private:
  struct Adapter {
    std::string module;
    config::AdapterBox box;
    double scale = 1;
    bool dora = false;
  };
  void add_adapter(const config::Config& config, const std::string& module);
  void read(size_t tensor, const checkpoint::Piece& region, void* data) override;
  // `values`: the rows of a weight, over all columns.
  void merge(const Adapter& adapter, const checkpoint::Piece& rows, std::vector<double>& values);

  checkpoint::TensorSource& run_;
  std::map<std::string, std::vector<Adapter>> adapters_;  // by the weight that they modify
};

// Weights for a new run with DoRA. A magnitude that `source` lacks is the length of its row of the merged weights.
class DoraWeights final : public checkpoint::TensorSource {
 public:
  // `source` must outlive the object; `config` is that of the run.
  DoraWeights(TensorSource& source, const config::Config& config);

 private:
  void read(size_t tensor, const checkpoint::Piece& region, void* data) override;

  TensorSource& source_;
  MergedWeights merged_;                                 // without DoRA
  std::map<std::string, config::AdapterPlace> lengths_;  // by the name of the magnitude
};

// Returns a whole tensor as double, from `kind` "main" if it exists.
std::vector<double> read_full_values(checkpoint::TensorSource& run, const std::string& name);

}  // namespace metroplex::hf
