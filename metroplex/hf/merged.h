// A checkpoint whose adapters (config/peft.h) are part of the weights: W + scale B A, in double precision from the
// main parameters of the adapters where the checkpoint has them, and rounded once. What has adapters is also there as
// "main" in float32.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/load.h"
#include "checkpoint/tensor_source.h"
#include "config/config.h"

namespace metroplex::hf {

class Merged final : public checkpoint::TensorSource {
 public:
  // `run` outlives it; `config` is the one it was saved with. Throws base::Error("checkpoint") for an adapter that is
  // not one of config's model.
  Merged(checkpoint::Reader& run, const config::Config& config);

 private:
  struct Adapter {
    std::string module;
    config::AdapterBox box;
  };
  void read(size_t tensor, const checkpoint::Piece& region, void* data) override;

  checkpoint::Reader& run_;
  double scale_;
  std::map<std::string, std::vector<Adapter>> adapters_;  // by the weight that they change
};

// A tensor of a checkpoint, whole, as double. Of `kind` "main" where there is one.
std::vector<double> whole_values(checkpoint::Reader& run, const std::string& name);

}  // namespace metroplex::hf
