// The length of a run in iterations and samples, for any schedule of batch sizes.
#pragma once

#include <cstdint>

#include "config/config.h"
#include "plan/microbatches.h"

namespace metroplex::step {

// Batch sizes of a run on `dp` data-parallel ranks: constant, by steps, or ramped up.
plan::MicrobatchSchedule microbatch_schedule(const config::Config& config, int64_t dp);

struct RunLength {
  int64_t iterations = 0;
  int64_t samples = 0;          // consumed by the end of the last iteration
  int64_t full_batch_size = 1;  // last batch size of the schedule
  int64_t eval_batch_size = 1;  // train.eval_global_batch_size, or full_batch_size
};

// Derives the length from train.train_iters or train.train_samples. Throws base::Error("config") if train_samples is
// less than one batch.
RunLength run_length(const config::Config& config, const plan::MicrobatchSchedule& schedule);

// True if another step follows. With train.train_samples, an incomplete last batch is dropped, as in Megatron's
// update_train_iters. A step schedule instead ends with a batch that exceeds train_samples, as in Megatron.
bool has_more_steps(const config::Train& train, const plan::MicrobatchSchedule& schedule, int64_t iteration,
                    int64_t consumed_samples);

// Returns the number of samples that the first `iterations` iterations consume.
int64_t count_samples(const plan::MicrobatchSchedule& schedule, int64_t iterations);

// Returns the configuration for LR and weight-decay schedules (optim::schedule_args), which count samples. With a
// constant or ramped-up batch size, an iteration counts as the full batch size, as in Megatron-LM. With a step
// schedule, iterations are converted to the samples they consume, so a decay over N iterations ends at iteration N.
config::Config convert_to_samples(const config::Config& config, const plan::MicrobatchSchedule& schedule);

}  // namespace metroplex::step
