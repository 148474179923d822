// How long a run is, in iterations and in samples, whatever the schedule of batch sizes: by walking the schedule.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "files/file_system.h"
#include "plan/microbatches.h"
#include "train/assemble.h"

namespace metroplex::train {

// The batch sizes of a run on `dp` data-parallel ranks: constant, by steps, or ramped up.
plan::MicrobatchSchedule microbatch_schedule(const config::Config& config, int64_t dp);

struct RunLength {
  int64_t iterations = 0;
  int64_t samples = 0;          // consumed when the last iteration has ended
  int64_t full_batch_size = 1;  // the last batch size of the schedule
  int64_t eval_batch_size = 1;  // train.eval_global_batch_size, or full_batch_size
};

// Derives the length from train.train_iters or train.train_samples, whichever is set. Throws base::Error("config") if
// train_samples is below one batch.
RunLength run_length(const config::Config& config, const plan::MicrobatchSchedule& schedule);

// Whether another step follows. A run over train.train_samples drops the last batch if it is not full, as Megatron's
// update_train_iters does; only a step schedule ends with a batch that exceeds train_samples, as Megatron's does.
bool more_steps(const config::Train& train, const plan::MicrobatchSchedule& schedule, int64_t iteration,
                int64_t consumed_samples);

// How many samples the first `iterations` consume.
int64_t samples_of(const plan::MicrobatchSchedule& schedule, int64_t iterations);

// The configuration that schedules of rates are made of (optim::schedule_args): they count samples. With one batch
// size, or a ramp-up, an iteration is the full batch size, as Megatron-LM has it. Under a step schedule, whose batch
// size is reached late or never, iterations become the samples that they consume, so that a decay over N iterations
// ends with iteration N.
config::Config in_samples(const config::Config& config, const plan::MicrobatchSchedule& schedule);

// What the log says of a run before its first step, beside what preflight/dry_run.h predicts, and the file in which
// its whole configuration lies.

// Ranks and layout, batches, data with epochs, device and threads, a line each. Looks at the data through `disk`.
std::vector<std::string> run_lines(const Assembly& a, const RunLength& length, files::FileSystem& disk);

// What a run should be warned of that has experts and nothing that keeps their load even; empty for others.
std::string unbalanced_experts(const config::Model& model);

// checkpoint.save/run.yaml: the configuration with everything that was derived, as `config::dump` writes it. Written
// beside and renamed; returns the path, or nothing where the run saves nothing.
std::string write_run_config(const config::Config& config, files::FileSystem& disk);

}  // namespace metroplex::train
