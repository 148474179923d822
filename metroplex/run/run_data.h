// The data of a run: its three datasets, and microbatch streams that can start at any sample. Only reading ranks hold
// datasets. Every rank stores the dataset sizes.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/world.h"
#include "data/build.h"
#include "data/sample.h"
#include "files/file_system.h"
#include "nn/microbatch.h"
#include "step/assemble.h"
#include "step/batch.h"
#include "step/run_length.h"
#include "run/trainer.h"

namespace metroplex::run {

enum Split { kTrain, kValid, kTest };
inline constexpr const char* kSplitNames[] = {"training", "validation", "test"};

data::BuildOptions build_options(const config::Config& config, const step::RunLength& length,
                                 const TokenizerFacts& tokenizer, bool evaluate_only);

class RunData {
 public:
  // Builds the datasets for a run of the given length. `process` must outlive this object. Collective.
  RunData(const step::ProcessContext& process, const step::RunLength& length, const TokenizerFacts& tokenizer,
          bool forward_only, std::shared_ptr<files::FileSystem> disk);

  bool has(Split split) const { return !sizes_[split].empty(); }
  // A split has one dataset; with data.multiple_validation_sets the validation split has several.
  size_t num_sets(Split split) const { return sizes_[split].size(); }
  int64_t num_samples(Split split, size_t set) const { return sizes_[split].at(set); }
  std::string name(Split split, size_t set) const;                      // "validation"; "validation-1" if several
  const data::TrainOrder& train_order() const { return train_order_; }  // set on reading ranks
  // Throws base::Error("data") if the split has no samples.
  step::BatchStream stream(Split split, int64_t consumed_samples, size_t set = 0) const;

  struct BatchRequest {
    int64_t count;         // microbatches
    int64_t first_sample;  // index in the split, over all data-parallel ranks
    int64_t iteration;     // BatchCounters::step
    Split split;           // for the error message at the end of the data
    bool operator==(const BatchRequest&) const = default;
  };
  std::vector<nn::Microbatch> next(step::BatchStream& stream, const BatchRequest& request) const;

 private:
  bool is_reader() const { return process_.groups().batch.first(); }
  // True if this rank reads the samples of all data-parallel ranks.
  bool reads_all() const { return process_.config.parallel.hybrid_context_parallel; }
  std::vector<nn::Microbatch> next_hybrid(step::BatchStream& stream, const BatchRequest& request) const;
  void build(const step::RunLength& length, const TokenizerFacts& tokenizer, bool forward_only,
             std::shared_ptr<files::FileSystem> disk);
  void broadcast_sizes();
  data::SamplerOptions sampler_options(int64_t consumed) const;

  const step::ProcessContext& process_;
  std::array<std::vector<std::shared_ptr<const data::Dataset>>, 3> datasets_;  // on reading ranks
  std::array<std::vector<int64_t>, 3> sizes_;                                  // in samples, on every rank
  data::TrainOrder train_order_;
};

}  // namespace metroplex::run
