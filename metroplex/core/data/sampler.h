// Megatron's samplers as pure functions of the number of consumed samples, so a run can stop and resume at any
// point. Single reads the dataset in order, once. Cyclic repeats it without end, in a new order every epoch
// (torch.randperm seeded by the epoch).
#pragma once

#include <cstdint>
#include <vector>

namespace metroplex::data {

enum class SamplerType { single, cyclic };

struct SamplerOptions {
  int64_t total_samples = 0;     // Loader sets it to the dataset's size
  int64_t consumed_samples = 0;  // by all data-parallel ranks; cyclic: full batches of all of them
  int64_t micro_batch_size = 1;
  int64_t dp_index = 0;
  int64_t dp_size = 1;
  SamplerType type = SamplerType::single;
  // Cyclic only. True: each rank permutes its own range of the dataset, so a run can resume only with the same
  // dp_size. False: one permutation is distributed round-robin, and dp_size may change.
  bool data_sharding = true;
};

class Sampler {
 public:
  // Throws base::Error if the options are invalid or if single has no samples left.
  explicit Sampler(const SamplerOptions& options);

  // Returns the next microbatch of this rank. Returns false if single has no batch left for all ranks; cyclic
  // continues with the next epoch.
  bool next(std::vector<int64_t>& indices);

 private:
  void start_epoch();

  SamplerOptions options_;
  int64_t position_ = 0;              // single: samples consumed; cyclic: own samples consumed in this epoch
  int64_t epoch_ = 0;                 // cyclic only
  std::vector<int64_t> epoch_order_;  // cyclic: this rank's samples of this epoch, full batches only
};

// Samples to build for {train, valid, test}: Megatron's get_train_valid_test_num_samples. A nonzero train_samples
// takes precedence over train_iters.
struct SampleCountOptions {
  int64_t train_iters = 0, train_samples = 0;
  int64_t global_batch_size = 1;
  int64_t eval_global_batch_size = 0;  // 0: global_batch_size
  int64_t eval_interval = 0, eval_iters = 0;
  bool skip_train = false, full_validation = false;
};
struct SampleCounts {
  int64_t train = 0, valid = 0, test = 0;  // valid is -1 for one full epoch
};
SampleCounts sample_counts(const SampleCountOptions& options);

}  // namespace metroplex::data
