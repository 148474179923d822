// How long a run is, in iterations and in samples, whatever the schedule of batch sizes: by walking the schedule.
#pragma once

#include <cstdint>

#include "config/config.h"
#include "plan/microbatches.h"

namespace metroplex::train {

// The batch sizes of a run on `dp` data-parallel ranks: constant, by steps, or ramped up.
plan::MicrobatchSchedule microbatch_schedule(const config::Config& config, int64_t dp);

struct RunLength {
  int64_t iterations = 0;
  int64_t samples = 0;          // consumed when the last iteration has ended
  int64_t full_batch_size = 1;  // the last batch size of the schedule; evaluation uses it throughout
};

// From train.train_iters or train.train_samples, whichever is set.
RunLength run_length(const config::Config& config, const plan::MicrobatchSchedule& schedule);

// How many samples the first `iterations` consume.
int64_t samples_of(const plan::MicrobatchSchedule& schedule, int64_t iterations);

// The configuration that schedules of rates are made of (optim::schedule_args): they count samples. With one batch
// size, or a ramp-up, an iteration is the full batch size, as Megatron-LM has it. Under a step schedule, whose batch
// size is reached late or never, iterations become the samples that they consume, so that a decay over N iterations
// ends with iteration N.
config::Config in_samples(const config::Config& config, const plan::MicrobatchSchedule& schedule);

}  // namespace metroplex::train
