// The data of a run: its three datasets, and streams of microbatches from any sample on. Only the ranks that read
// hold datasets; which splits have samples every rank knows.
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
#include "train/assemble.h"
#include "train/batch.h"
#include "train/run_length.h"
#include "train/trainer.h"

namespace metroplex::train {

enum Split { kTrain, kValid, kTest };
inline constexpr const char* kSplitNames[] = {"training", "validation", "test"};

// The options with which the datasets of a run of that length are built.
data::BuildOptions build_options(const config::Config& config, const RunLength& length,
                                 const TokenizerFacts& tokenizer, bool evaluate_only);

class RunData {
 public:
  // Builds the datasets of a run of that length. `a` must outlive it. Collective.
  RunData(const Assembly& a, const RunLength& length, const TokenizerFacts& tokenizer, bool forward_only,
          std::shared_ptr<files::FileSystem> disk);

  bool has(Split split) const { return !sizes_[split].empty(); }
  // A split has one dataset, except that data.multiple_validation_sets gives the validation split several.
  size_t num_sets(Split split) const { return sizes_[split].size(); }
  int64_t num_samples(Split split, size_t set) const { return sizes_[split].at(set); }
  std::string name(Split split, size_t set) const;                      // "validation", or "validation-1" of several
  const data::TrainOrder& train_order() const { return train_order_; }  // known on reading ranks
  // Throws base::Error("data") if the split has no samples.
  BatchStream stream(Split split, int64_t consumed_samples, size_t set = 0) const;

  struct Wanted {
    int64_t count;         // microbatches
    int64_t first_sample;  // of the split, over all data-parallel ranks
    int64_t iteration;     // Microbatch::step
    Split split;           // for the message when the data ends
    bool operator==(const Wanted&) const = default;
  };
  std::vector<nn::Microbatch> next(BatchStream& stream, const Wanted& wanted) const;

 private:
  bool reads() const { return a_.groups().batch.first(); }
  // Not only the samples of its data-parallel rank.
  bool reads_all() const { return a_.config.parallel.hybrid_context_parallel; }
  std::vector<nn::Microbatch> next_of_all(BatchStream& stream, const Wanted& wanted) const;
  void build(const RunLength& length, const TokenizerFacts& tokenizer, bool forward_only,
             std::shared_ptr<files::FileSystem> disk);
  void share_sizes();
  data::SamplerOptions sampler_options(int64_t consumed) const;

  const Assembly& a_;
  std::array<std::vector<std::shared_ptr<const data::Dataset>>, 3> datasets_;  // on reading ranks
  std::array<std::vector<int64_t>, 3> sizes_;                                  // in samples, on every rank
  data::TrainOrder train_order_;
};

// Work of unknown length on some ranks (building a dataset index may take hours) while the others wait. Waiting
// inside one collective would time out, so the ranks run short ones in a loop, which also notices at once when a rank
// dies.

// Collective over the world; returns when the work of every rank is done, and throws what this rank's threw. Where a
// peer fails the work is left to itself: it must own all it uses.
void do_with_peers(const std::function<void()>& work, const comm::World& world);

// Collective over the world.
bool true_on_all_ranks(bool mine, const comm::World& world);

}  // namespace metroplex::train
